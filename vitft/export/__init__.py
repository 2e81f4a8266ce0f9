"""Export of trained models to files for other tools; each export is verified before it is kept.

Each export is reopened with its target tool, including that tool's own preprocessing, and its
predictions on the run's validation images are compared with the original predictions. An export
that differs by more than the tolerance of its format is removed.
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
