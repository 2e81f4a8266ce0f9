"""`vitft export`: the trained model as files for other tools, compared before it is called done.

    plan     what is asked for: formats, place, missing libraries       (no torch)
    job      the order of things: write, open, compare, only then give it its name
    trained  the model, its card and the images to compare on
    compare  one export against the original: logits, classes, size, speed
    native   our own file, with timm's config.json beside it
    hf       a folder for transformers
    graph    the computation itself: ONNX, torch.export, int8
    card     the model card for the hub
    hub      a folder pushed to the hub

Every format is opened by the tool that it is for, with that tool's own preprocessing, and answers
the run's validation images beside the original. What is above its tolerance is removed.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitft.export.job import Exported as Exported
    from vitft.export.job import export_run as export_run
    from vitft.export.job import export_safetensors as export_safetensors

HOMES = {
    "Exported": "vitft.export.job",
    "export_run": "vitft.export.job",
    "export_safetensors": "vitft.export.job",
}

__all__ = ["Exported", "export_run", "export_safetensors"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in HOMES:
        raise AttributeError(f"module 'vitft.export' has no attribute {name!r}")
    return getattr(importlib.import_module(HOMES[name]), name)
