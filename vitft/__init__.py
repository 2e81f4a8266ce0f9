"""Fine-tune a Vision Transformer on a folder of images.

The package logs to the logger `vitft` and prints nothing unless a program asks it to
(`logging.basicConfig(level=logging.INFO)`).

The names below are loaded when first used, so that `import vitft` and `vitft --help` do not wait
for torch.
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitft.api import finetune as finetune
    from vitft.api import load as load
    from vitft.models.pretrained import load_pretrained as load_pretrained
    from vitft.models.registry import create_model as create_model
    from vitft.models.vit import VisionTransformer as VisionTransformer
    from vitft.system.errors import VitftError as VitftError

logging.getLogger(__name__).addHandler(logging.NullHandler())

HOMES = {
    "VisionTransformer": "vitft.models.vit",
    "VitftError": "vitft.system.errors",
    "create_model": "vitft.models.registry",
    "finetune": "vitft.api",
    "load": "vitft.api",
    "load_pretrained": "vitft.models.pretrained",
}

__all__ = [
    "VisionTransformer",
    "VitftError",
    "create_model",
    "finetune",
    "load",
    "load_pretrained",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in HOMES:
        raise AttributeError(f"module 'vitft' has no attribute {name!r}")
    return getattr(importlib.import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *HOMES])
