"""Checks for optional libraries, and a faster import of torch."""

import contextlib
import gc
import importlib.util
import sys
from collections.abc import Iterator

from vitft.system.errors import UsageError
from vitft.system.signals import EXIT_SIGNALS, exit_at_once, signal_handlers

EXTRA_LIBRARIES: dict[str, tuple[str, ...]] = {
    "heic": ("pillow_heif",),
    "lora": ("peft",),
    "mlflow": ("mlflow",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "parquet": ("pyarrow",),
    "plots": ("matplotlib",),
    "s3": ("fsspec", "s3fs"),
    "sources": ("datasets", "fsspec"),
    "serve": ("fastapi", "uvicorn", "python_multipart"),
    "tensorboard": ("tensorboard",),
    "transformers": ("transformers",),
    "wandb": ("wandb",),
}
"""Mapping from each extra of vitft to the optional libraries that it installs."""


def require_extra(extra: str, *, feature: str, libraries: tuple[str, ...] = ()) -> None:
    """Check that the libraries required by a feature are installed, without importing them.

    By default, the feature requires all libraries of the extra.

    Raises:
        UsageError: A library is missing; the fix is the command that installs it.
    """
    needed = libraries or EXTRA_LIBRARIES[extra]
    missing = [m for m in needed if importlib.util.find_spec(m) is None]
    if missing:
        raise UsageError(
            f"{feature} needs {missing[0]}, which is not installed",
            fix=f"run pip install 'vitft[{extra}]'",
        )


@contextlib.contextmanager
def heavy_imports() -> Iterator[None]:
    """Disable garbage collection while the block imports torch, and exit at once on a signal.

    The import creates half a million objects, which are never collected but which the garbage
    collector would scan repeatedly. With the collector disabled, the import takes a third less
    time.
    An exception raised by a signal handler during the import would abort the process.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        with signal_handlers(exit_at_once, EXIT_SIGNALS):
            yield
    finally:
        gc.freeze()
        gc.enable()
