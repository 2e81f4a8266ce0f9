"""Settings of the pretrained weights: section `[weights]`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from vitft.config.schema import Range, check_values, require


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSpec:
    """Pretrained weights, and how they are adapted."""

    name: str = ""
    """Catalogue name (`vitft weights list`), path of a weight file, or `none` for a new model as
    described by `[model]`."""
    image_size: Annotated[tuple[int, int] | None, Range(ge=1, le=4096)] = None
    """Height and width in pixels; default: the pretraining size."""
    pre_logits: Literal["keep", "drop"] = "drop"
    """Whether to keep a Linear + Tanh in front of the pretrained head."""
    pos_embed: Literal["bicubic", "jax"] = "bicubic"
    """Resampling of the position embedding: as timm does it, or as Google's code does."""
    mean: tuple[float, ...] | None = None
    """Channel means for normalisation, in 0..1; default: those of the weights."""
    std: tuple[float, ...] | None = None
    """Channel standard deviations for normalisation; default: those of the weights."""
    allow_pickle: bool = False
    """Read .pth files (with weights_only=True)."""

    def __post_init__(self) -> None:
        check_values(self, "weights")
        require(
            (self.mean is None) == (self.std is None),
            "weights.mean and weights.std must be set together",
            fix="give both --mean and --std, or neither",
        )
