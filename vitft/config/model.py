"""Settings of a model trained from scratch: section `[model]`.

`models.initial` builds the model. Pretrained weights bring their own architecture.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from vitft.config.schema import Range, check_values, require

Count = Annotated[int, Range(ge=1, le=16384)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A new Vision Transformer, for `--weights none`."""

    patch_size: Count = 4
    """Side of a patch in pixels; the image side must be a multiple of it."""
    width: Count = 96
    """Embedding dimension of the tokens."""
    depth: Count = 6
    """Number of blocks."""
    heads: Annotated[int, Range(ge=1)] = 3
    """Attention heads of each block; they divide the width."""
    mlp_ratio: Annotated[float, Range(gt=0)] = 4.0
    """Width of the MLP's hidden layer as a multiple of the width."""
    norm: Literal["pre", "post"] = "pre"
    """LayerNorm before each branch, or after each addition as in the original Transformer."""
    pool: Literal["cls", "mean"] = "cls"
    """Input of the head: the class token, or the mean of the patch tokens."""
    positions: Literal["noise", "waves"] = "noise"
    """Initial position embedding, trained afterwards: small noise, or sines and cosines of row and
    column at the scale of the patch embedding, which helps with few blocks or epochs."""
    convs: Annotated[tuple[int, ...], Range(ge=2, le=16384)] = ()
    """Channels of 3x3 convolutions in front of the patches, e.g. [32, 48, 64]; the last ones have
    stride 2, as often as the patch side can be halved."""
    registers: Annotated[int, Range(ge=0, le=64)] = 0
    """Number of register tokens."""
    layer_scale: Annotated[float, Range(ge=0, le=1)] = 0.0
    """Initial LayerScale factor of every branch; 0 for none."""
    channels: Literal[0, 1, 3] = 0
    """3 for RGB, 1 for greyscale, 0 to follow the images."""

    def __post_init__(self) -> None:
        check_values(self, "model")
        require(
            self.width % self.heads == 0,
            f"model.width={self.width} is not a multiple of model.heads={self.heads}",
            fix="choose a width that is a multiple of the number of heads",
        )
        require(
            1 <= self.width * self.mlp_ratio <= 2**20,
            f"invalid model.mlp_ratio={self.mlp_ratio}: a hidden layer of width "
            f"{self.width * self.mlp_ratio:.3g}",
            fix="use a ratio from 2 to 4",
        )
        require(
            self.positions == "noise" or self.width % 4 == 0,
            f"model.positions=waves needs a model.width that is a multiple of 4, not {self.width}",
            fix="change the width, or use model.positions=noise",
        )
        require(
            len(self.convs) <= 16,
            f"model.convs lists {len(self.convs)} convolutions, more than 16",
            fix="use at most 16",
        )
