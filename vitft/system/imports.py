"""Checks for optional libraries, and a faster import of torch."""

import contextlib
import functools
import gc
import importlib.util
import logging
import os
import sys
from collections.abc import Iterable, Iterator

from vitft.system.errors import UsageError
from vitft.system.signals import EXIT_SIGNALS, exit_at_once, signal_handlers
from vitft.system.text import shell_join

log = logging.getLogger(__name__)

EXTRA_LIBRARIES: dict[str, tuple[str, ...]] = {
    "heic": ("pillow_heif",),
    "lora": ("peft",),
    "mlflow": ("mlflow",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "parquet": ("pyarrow",),
    "plots": ("matplotlib",),
    "s3": ("fsspec", "s3fs"),
    "sources": ("datasets", "fsspec"),
    "serve": ("starlette", "uvicorn", "python_multipart"),
    "spreadsheet": ("openpyxl",),
    "tensorboard": ("tensorboard",),
    "transformers": ("transformers",),
    "wandb": ("wandb",),
}
"""Mapping from each extra of vitft to the optional libraries that it installs."""
_RUN_PIP = "run pip install"  # beginning of a fix that installs packages


@functools.cache
def version(distribution: str) -> str:
    """Return the version of an installed distribution, which is read once."""
    from importlib import metadata  # takes 50 ms

    return metadata.version(distribution)


def require_extra(extra: str, *, feature: str, libraries: tuple[str, ...] = ()) -> None:
    """Check, without importing them, that the libraries of a feature are installed.

    By default, the feature requires all libraries of the extra. If one is missing, the fix of the
    UsageError is the command that installs it.
    """
    needed = libraries or EXTRA_LIBRARIES[extra]
    if missing := [m for m in needed if importlib.util.find_spec(m) is None]:
        packages = (library.replace("_", "-") for library in EXTRA_LIBRARIES[extra])
        raise UsageError(
            f"{feature} needs {missing[0]}, which is not installed", fix=install_command(packages)
        )


def install_command(packages: Iterable[str]) -> str:
    """Return the fix that installs packages; it works however vitft was installed."""
    return f"{_RUN_PIP} {shell_join(packages)}"


def missing_library_command(reason: str) -> str:
    """Return the `pip install ...` command in the reason why a file is unreadable, or ""."""
    return reason.partition(_RUN_PIP)[2] and f"pip install{reason.partition(_RUN_PIP)[2]}"


@contextlib.contextmanager
def heavy_imports(step: str = "loading PyTorch", level: int = logging.INFO) -> Iterator[None]:
    """Disable garbage collection while the block imports torch, and exit at once on a signal.

    The import takes seconds, so one process of a job logs `step`. The import creates half a million
    objects, which are never collected but which the garbage collector would scan repeatedly:
    without it, the import takes a third less time.
    An exception raised by a signal handler during the import would abort the process.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    if os.environ.get("RANK", "0") == "0":
        log.log(level, step)
    gc.disable()
    try:
        with signal_handlers(exit_at_once, EXIT_SIGNALS):
            yield
    finally:
        gc.freeze()
        gc.enable()
