"""Pretrained weights: from a name or a file of any flavour to our model and a report.

    locate   what the user typed -> a catalogue row or a file        (no torch)
    catalog  the rows of weights/catalog.toml                        (no torch)
    fetch    a row, or any hub repository -> a verified file
    read     a file -> tensors, nothing of it executed
    convert  foreign names and layouts -> ours
    beside   what a config.json next to the file says
    source   all of the above: a file understood and checked
    adapt    another class count, image size, patch size, channels, pooling
    load     `load_pretrained`: into our own model
    through_timm   timm:NAME, any model of timm
    backbone `load_backbone`: either of the two
    inspect  what a file is, and what loading it would do
    report   what became of each part, for people and for the run

The model knows none of this. What needs torch is imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from vitft.models.pretrained.locate import check_weights_name

if TYPE_CHECKING:
    from vitft.models.pretrained.load import load_backbone as load_backbone
    from vitft.models.pretrained.load import load_pretrained as load_pretrained
    from vitft.models.pretrained.report import LoadReport as LoadReport

HOMES = {
    "LoadReport": "vitft.models.pretrained.report",
    "load_backbone": "vitft.models.pretrained.load",
    "load_pretrained": "vitft.models.pretrained.load",
}

__all__ = ["LoadReport", "check_weights_name", "load_backbone", "load_pretrained"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in HOMES:
        raise AttributeError(f"module 'vitft.models.pretrained' has no attribute {name!r}")
    return getattr(importlib.import_module(HOMES[name]), name)
