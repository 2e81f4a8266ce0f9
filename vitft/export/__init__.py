"""`vitft export`: the trained model as files for other tools, verified before they are kept.

    plan       what to export: formats, folder, options          (without torch)
    job        `export_run`: write, reopen, compare, keep or remove
    trained    the run's model and card, and images to compare on
    formats/   one file per format: write it, and reopen it with the tool it is for
    compare    an export against the original: logits, classes, size, speed
    card       the README.md of a hub repository
    hub        upload a folder to the hub

Every format is reopened by the tool that it is for, with that tool's own preprocessing, and
predicts the run's validation images alongside the original. An export that differs by more than
its tolerance is removed.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitft.export.job import Exported as Exported
    from vitft.export.job import export_run as export_run
    from vitft.export.job import export_safetensors as export_safetensors

__all__ = ["Exported", "export_run", "export_safetensors"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in __all__:
        raise AttributeError(f"module 'vitft.export' has no attribute {name!r}")
    return getattr(importlib.import_module("vitft.export.job"), name)
