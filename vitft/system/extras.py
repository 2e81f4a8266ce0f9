"""Optional dependencies: which libraries each extra of vitft installs.

The extras themselves are declared in `pyproject.toml`.
"""

import importlib.util

from vitft.system.errors import UsageError

EXTRA_LIBRARIES: dict[str, tuple[str, ...]] = {
    "lora": ("peft",),
    "mlflow": ("mlflow",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "parquet": ("pyarrow",),
    "plots": ("matplotlib",),
    "serve": ("fastapi", "uvicorn", "python_multipart"),
    "tensorboard": ("tensorboard",),
    "transformers": ("transformers",),
    "wandb": ("wandb",),
}
"""Libraries that vitft imports, by the name of the extra that installs them."""


def require_extra(extra: str, *, feature: str) -> None:
    """Check that the libraries of an extra are installed, without importing them.

    Args:
        extra: A key of `EXTRA_LIBRARIES`.
        feature: The option or command that needs the extra, as the user writes it.

    Raises:
        UsageError: A library is missing; the fix is the command that installs it.
    """
    missing = [m for m in EXTRA_LIBRARIES[extra] if importlib.util.find_spec(m) is None]
    if missing:
        raise UsageError(
            f"{feature} needs {missing[0]}, which is not installed",
            fix=f"pip install 'vitft[{extra}]'",
        )
