"""`vitft export`: the trained model as files for other tools, verified before they are kept.

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
