"""The shape of a model that begins at random: the settings `[model]`.

What they become is built in `scratch`; every other model has its shape from its weights.
"""

from dataclasses import dataclass
from typing import Literal

from vitft.config.schema import check


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A Vision Transformer for `--weights none`."""

    patch_size: int = 4
    """Side of a patch in pixels; the image side is a multiple of it."""
    width: int = 96
    """Numbers per token."""
    depth: int = 6
    """Number of blocks."""
    heads: int = 3
    """Of each attention; the width is a multiple of them."""
    mlp_ratio: float = 4.0
    """Width of the hidden layer of the MLP, as a multiple of the width."""
    norm: Literal["pre", "post"] = "pre"
    """LayerNorm before each branch, or after each sum as in the original Transformer."""
    pool: Literal["cls", "mean"] = "cls"
    """What the head reads: the class token, or the mean of the patches."""
    positions: Literal["noise", "waves"] = "noise"
    """How positions begin, before they are trained: small noise, or sines and cosines of row and
    column as large as the patches themselves, which helps where blocks or epochs are few."""
    convs: tuple[int, ...] = ()
    """Channels of 3x3 convolutions before the patches, e.g. [32, 48, 64]; the last ones halve the
    image, as often as a patch can be halved."""
    registers: int = 0
    """Tokens beside the class token that start without meaning."""
    layer_scale: float = 0.0
    """Initial factor on every channel of every branch; 0 for none."""
    channels: int = 0
    """3 for colours, 1 for greys; 0: as the images are."""

    def __post_init__(self) -> None:
        counts = {"patch_size": self.patch_size, "width": self.width, "depth": self.depth}
        for name, value in counts.items():
            check(1 <= value <= 16384, f"model.{name}", value, "a whole number from 1")
        check(
            self.heads >= 1 and self.width % self.heads == 0,
            "model.heads",
            self.heads,
            f"a whole number that model.width ({self.width}) is a multiple of",
        )
        hidden = self.width * self.mlp_ratio
        check(1 <= hidden <= 2**20, "model.mlp_ratio", self.mlp_ratio, "over 0, usually 2 to 4")
        check(self.norm in ("pre", "post"), "model.norm", self.norm, "pre or post")
        check(self.pool in ("cls", "mean"), "model.pool", self.pool, "cls or mean")
        check(
            self.positions in ("noise", "waves"),
            "model.positions",
            self.positions,
            "noise or waves",
        )
        check(
            self.positions == "noise" or self.width % 4 == 0,
            "model.width",
            self.width,
            "a multiple of 4 where model.positions is waves",
        )
        check(
            len(self.convs) <= 16 and all(2 <= channels <= 16384 for channels in self.convs),
            "model.convs",
            self.convs,
            "up to 16 numbers of channels, each from 2",
        )
        check(0 <= self.registers <= 64, "model.registers", self.registers, "from 0 to 64")
        check(0 <= self.layer_scale <= 1, "model.layer_scale", self.layer_scale, "from 0 to 1")
        check(self.channels in (0, 1, 3), "model.channels", self.channels, "0, 1 or 3")
