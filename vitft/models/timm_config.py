"""Configuration of a timm model, and the names of timm's architectures. Does not import torch."""

import functools
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

from vitft.config.sections import MAX_IMAGE_SIDE
from vitft.system.errors import UsageError
from vitft.system.structure import Range, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class TimmConfig:
    """Architecture of a `timm_model.TimmModel`."""

    timm: str
    """Name of the architecture, without a tag, e.g. `resnet18`."""
    image_size: Annotated[tuple[int, int], Range(ge=1, le=MAX_IMAGE_SIDE)]
    """Height and width in pixels."""
    sized: bool = False
    """Whether `image_size` is passed to timm when the network is built."""
    num_classes: Annotated[int, Range(ge=0)] = 0
    """Number of classes; 0 for a model without a head, which returns features."""
    in_channels: Annotated[int, Range(ge=1, le=1024)] = 3
    pre_logits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_ranges(self)
        if not re.fullmatch(r"[a-z0-9_]{1,100}", self.timm):
            raise UsageError(
                f"invalid timm model name: {self.timm!r}",
                fix="choose a name from timm.list_models()",
            )

    def without_head(self) -> Self:
        """Return the configuration without a head."""
        return replace(self, num_classes=0)


TIMM_VITS = ("vision_transformer", "deit", "eva")
"""timm modules that define Vision Transformers, of which vitft's own model supports some."""


@functools.cache
def timm_modules() -> Mapping[str, str]:
    """Return a mapping from each architecture in the installed timm to the module that defines it.

    The mapping is read from timm's source, because importing timm takes seconds.
    """
    spec = importlib.util.find_spec("timm")
    folders = spec.submodule_search_locations if spec else None
    files = Path(folders[0], "models").glob("*.py") if folders else ()
    pattern = re.compile(r"^@register_model\s+def (\w+)\(", re.MULTILINE)
    return {
        name: file.stem
        for file in sorted(files)
        for name in pattern.findall(file.read_text(encoding="utf-8"))
    }
