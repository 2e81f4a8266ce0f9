"""Configuration of a timm model, validated on creation. Does not import torch."""

import re
from dataclasses import dataclass, replace
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
    depth: ClassVar[int] = 0
    """Number of blocks that can be frozen separately (always 0)."""
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
