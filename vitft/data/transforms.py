"""What happens to an image between its file and the model, as data that travels with the weights.

`EvalTransform` is written into every checkpoint; validation, predict, evaluate, explain and every
export read the same object, so they cannot disagree. Decoding is not here (`data.images`).

Pixels are resized and cut as uint8 by Pillow, whose antialiased filters timm and torchvision use
too, and normalised after batching.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from PIL import Image

from vitft.system.errors import UsageError

if TYPE_CHECKING:  # the room itself starts without torch
    from torch import Tensor

Interpolation = Literal["bilinear", "bicubic", "lanczos", "nearest"]
Fit = Literal["crop", "squash"]

RESAMPLING: Mapping[str, Image.Resampling] = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
HALF = (0.5, 0.5, 0.5)
CROP = 0.9
"""What the centre crop keeps unless the weights say otherwise, as timm has it for ViTs."""
THIN = 100
"""Side ratio of an image beyond which only the visible part of it is resized."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTransform:
    """Resize, cut the centre, scale to 0..1, normalise: deterministic, for everything but training.

    The resize and the crop equal torchvision's `Resize` + `CenterCrop` to the last bit, and so
    timm's evaluation transform, for images up to 100 times as long as wide.
    """

    image_size: tuple[int, int] = (224, 224)
    """Height and width of the result in pixels."""
    crop: float = CROP
    """Share of the resized image's side that the centre crop keeps, over 0 up to 1."""
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = HALF
    """Subtracted per channel from values in 0..1."""
    std: tuple[float, ...] = HALF
    """Divided by, after the mean."""
    fit: Fit = "crop"
    """`crop` keeps the aspect ratio and cuts; `squash` keeps everything and distorts."""

    def __post_init__(self) -> None:
        if not 0 < self.crop <= 1:
            raise UsageError(
                f"the crop is {self.crop}, but it is a share of the image's side",
                fix="use a number over 0, up to 1, e.g. 0.9",
            )
        if self.interpolation not in RESAMPLING or self.fit not in ("crop", "squash"):
            raise UsageError(
                f"interpolation {self.interpolation!r} with fit {self.fit!r} is not known",
                fix=f"use one of {', '.join(RESAMPLING)}, and crop or squash",
            )
        if len(self.mean) != len(self.std) or not all(
            math.isfinite(m) and math.isfinite(s) and s > 0
            for m, s in zip(self.mean, self.std, strict=False)
        ):
            raise UsageError(
                f"mean {self.mean} and std {self.std} cannot normalise an image",
                fix="give as many means as standard deviations (over 0), e.g. 0.5 0.5 0.5",
            )

    @property
    def channels(self) -> int:
        """Planes that the model reads: 3 for colours, 1 for greys."""
        return len(self.mean)

    def pixels(self, image: Image.Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The model's view of an RGB image: uint8, (S, S, 3), equal planes where it reads greys."""
        if self.channels == 1:
            image = image.convert("L").convert("RGB")
        height, width = self.image_size
        resample = RESAMPLING[self.interpolation]
        wide, tall = self.resized(image.width, image.height)
        # Rounded as torchvision's CenterCrop does: half to even.
        left, top = round((wide - width) / 2), round((tall - height) / 2)
        box = left, top, left + width, top + height
        if self.fit == "crop" and max(wide, tall) > THIN * min(
            wide, tall
        ):  # whole, a line of 65500 x 1 takes 12 GB
            across, down = image.width / wide, image.height / tall
            part = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
            return np.array(image.resize((width, height), resample, box=part))
        return np.array(image.resize((wide, tall), resample).crop(box))

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Size in pixels (width, height) to which an image is scaled before the centre is cut."""
        tall, wide = (math.floor(side / self.crop) for side in self.image_size)
        if self.fit == "squash":
            return wide, tall
        if tall == wide:  # the shorter side is set, the longer one truncated, as torchvision does
            short, long = min(width, height), max(width, height)
            scaled = int(tall * long / short)
            return (tall, scaled) if width <= height else (scaled, tall)
        ratio = min(height / tall, width / wide)  # both sides cover, as timm's ResizeKeepRatio
        return max(wide, round(width / ratio)), max(tall, round(height / ratio))

    def normalise(self, pixels: "Tensor") -> "Tensor":
        """uint8 (B, S, S, 3) to float32 (B, channels, S, S) on the same device."""
        planes = pixels.permute(0, 3, 1, 2)[:, : self.channels]  # channels last in memory
        if len({*self.mean}) == len({*self.std}) == 1:  # numbers: no broadcasting along channels
            return planes.float().div_(255).sub_(self.mean[0]).div_(self.std[0])
        values = planes.contiguous().float().div_(255)
        mean, std = values.new_tensor(self.mean), values.new_tensor(self.std)
        return values.sub_(mean[:, None, None]).div_(std[:, None, None])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Read back `to_json`; JSON knows lists where we mean tuples."""
        pairs: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()
        }
        return cls(**pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class CropTransform:
    """A random box of the image, resized and perhaps mirrored: the training view.

    Source: Szegedy et al. 2015 (Inception), with the defaults of torchvision's
    `RandomResizedCrop` and `RandomHorizontalFlip`.
    """

    image_size: tuple[int, int] = (224, 224)
    """Height and width of the result in pixels."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Share of the area that the box covers."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Width over height of the box."""
    flip: float = 0.5
    """Probability of mirroring left and right."""
    interpolation: Interpolation = "bicubic"
    rand: bool = False
    """Whether RandAugment follows."""

    def pixels(self, image: Image.Image, *, key: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """One view, uint8 (S, S, 3). The same `key` gives the same view, in any process."""
        # Hashed by SHA-512, not by the salted `hash`. File names may hold lone surrogates.
        rng = random.Random(key.encode("utf-8", "surrogatepass"))
        height, width = self.image_size
        view = image.resize(
            (width, height), RESAMPLING[self.interpolation], box=self.box(image, rng)
        )
        if rng.random() < self.flip:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.rand:
            from vitft.data.augment import (
                rand_augment,  # needs torchvision; the room itself does not
            )

            view = rand_augment(view, rng)
        return np.array(view)

    def box(self, image: Image.Image, rng: random.Random) -> tuple[int, int, int, int]:
        """Left, top, right, bottom in pixels; the whole image if ten draws do not fit."""
        low, high = (math.log(side) for side in self.ratio)
        for _ in range(10):
            area = image.width * image.height * rng.uniform(*self.scale)
            aspect = math.exp(rng.uniform(low, high))
            width, height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < width <= image.width and 0 < height <= image.height:
                left = rng.randint(0, image.width - width)
                top = rng.randint(0, image.height - height)
                return left, top, left + width, top + height
        return 0, 0, image.width, image.height
