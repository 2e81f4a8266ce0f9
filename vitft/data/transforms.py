"""Image transforms: from a decoded image to the input of the model.

`EvalTransform` is stored in every checkpoint, and everything but training uses it. Images are
resized and cropped as uint8 by Pillow, whose antialiased filters are also used by timm and
torchvision, and are normalised after batching.
"""

import json
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from PIL import Image

from vitft.config.sections import Side
from vitft.metrics.results import ViewFacts
from vitft.system.errors import UsageError
from vitft.system.structure import check_ranges
from vitft.system.text import percent

if TYPE_CHECKING:
    from torch import Tensor


Interpolation = Literal["bilinear", "bicubic", "lanczos", "nearest"]
Fit = Literal["crop", "squash", "pad"]
CROP_MODES: Mapping[str, Fit] = {"center": "crop", "squash": "squash", "border": "pad"}
"""Mapping from timm's names for the resizing methods to vitft's."""

RESAMPLING: Mapping[str, Image.Resampling] = {
    name: Image.Resampling[name.upper()] for name in ("nearest", "bilinear", "bicubic", "lanczos")
}
_DEFAULT_MEAN = (0.5, 0.5, 0.5)
_Pixels = np.ndarray[Any, np.dtype[np.uint8]]
CROP = 0.9  # default fraction of the side kept by the centre crop: timm's value for ViTs
MAX_ASPECT, MAX_RESIZED_PIXELS = 100, 2**26
"""Limits of the resized image. Beyond either, only the part inside the crop is resized."""
_MAX_RESIZED_SIDE = 8192  # of the longer side of `image_size` divided by `crop`, in pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTransform:
    """Deterministic transform: resize, centre crop, scale to 0..1 and normalise.

    With a square `image_size` and the fit `crop`, resizing and cropping are bit-identical to
    torchvision's `Resize` + `CenterCrop`, and therefore to timm's evaluation transform, up to an
    aspect ratio of 100 and 67 million pixels after resizing.
    """

    image_size: tuple[Side, Side] = (224, 224)  # height and width of the result in pixels
    crop: Annotated[float, Meta(gt=0, le=1)] = CROP
    """Fraction of the resized image's side that the centre crop keeps, in (0, 1]."""
    interpolation: Interpolation = "bicubic"
    mean: tuple[Annotated[float, Meta(ge=-1000, le=1000)], ...] = _DEFAULT_MEAN
    """Mean per channel, subtracted from values in 0..1."""
    std: tuple[Annotated[float, Meta(ge=1e-6, le=1e6)], ...] = _DEFAULT_MEAN
    """Divisor per channel, applied after subtracting the mean."""
    fit: Fit = "crop"
    """`crop` covers the view, `squash` changes the aspect ratio, `pad` adds borders of the mean."""
    grey_range: tuple[Annotated[float, Meta(ge=-1e38, le=1e38)], ...] = ()
    """Values shown as black and as white in images with more than 8 bits per channel (see
    `images.grey_levels`). If empty, each file type has its own fixed range."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.grey_range and (
            len(self.grey_range) != 2 or self.grey_range[0] >= self.grey_range[1]
        ):
            fix = "use two numbers, the lower one first"
            raise UsageError(f"invalid grey range: {self.grey_range}", fix=fix)
        if max(self.image_size) / self.crop > _MAX_RESIZED_SIDE:
            problem = f"resizing images to more than {_MAX_RESIZED_SIDE:,} pixels per side"
            fix = "use a larger fraction, e.g. 0.9"
            raise UsageError(f"a crop of {self.crop:.3g} requires {problem}", fix=fix)
        if self.interpolation not in RESAMPLING or self.fit not in CROP_MODES.values():
            fix = f"set interpolation={'|'.join(RESAMPLING)} and fit=crop|squash|pad"
            found = f"interpolation {self.interpolation!r} or fit {self.fit!r}"
            raise UsageError(f"unknown {found}", fix=fix)
        if len(self.mean) != len(self.std):
            fix = "use one mean and one positive standard deviation per channel, e.g. 0.5"
            raise UsageError(f"invalid normalisation: mean {self.mean}, std {self.std}", fix=fix)

    @property
    def channels(self) -> int:
        """Number of input channels of the model: 3 for colour, 1 for greyscale."""
        return len(self.mean)

    def pixels(self, image: Image.Image) -> _Pixels:
        """Return the model's view of an RGB image: uint8 (H, W, 3), even for greyscale models."""
        if self.channels == 1:
            image = image.convert("L").convert("RGB")
        height, width = self.image_size
        resample = RESAMPLING[self.interpolation]
        wide, tall = self.resized(image.width, image.height)
        aspect = max(wide, tall) / min(wide, tall)
        is_large = aspect > MAX_ASPECT or wide * tall > MAX_RESIZED_PIXELS
        if self.fit == "crop" and is_large:  # 65500 x 1 pixels would take 12 GB
            left, top = round((wide - width) / 2), round((tall - height) / 2)
            across, down = image.width / wide, image.height / tall
            right, bottom = (left + width) * across, (top + height) * down
            part = (left * across, top * down, right, bottom)
            return np.array(image.resize((width, height), resample, box=part))
        return self.framed(np.asarray(image.resize((wide, tall), resample)))

    def framed(self, resized: _Pixels) -> _Pixels:
        """Centre-crop or pad a resized image (h, w, 3) to the size of the view (H, W, 3).

        Odd margins are rounded as in torchvision (half to even), and odd borders as in timm.
        """
        sides = list(zip(resized.shape[:2], self.image_size, strict=True))
        left_out = [round(max(0, old - new) / 2) for old, new in sides]
        borders = [max(0, new - old) // 2 for old, new in sides]
        (top, left), (height, width) = left_out, self.image_size
        part = resized[top : top + height, left : left + width]
        if part.shape[:2] == self.image_size:
            return np.array(part)  # a writable copy
        view = np.empty((*self.image_size, 3), np.uint8)
        view[:] = self.border
        (top, left), (height, width) = borders, part.shape[:2]
        view[top : top + height, left : left + width] = part
        return view

    @property
    def border(self) -> tuple[int, int, int]:
        """Colour of the borders that `pad` adds: the mean, which is 0 after normalisation."""
        red, *others = (min(255, max(0, round(255 * value))) for value in self.mean)
        green, blue = others if len(others) == 2 else (red, red)
        return red, green, blue

    def without_border(self, view: _Pixels) -> _Pixels:
        """Return the part of a view (H, W, 3) inside the borders that `pad` added, if any."""
        if self.fit != "pad":
            return view
        differs = (view != np.array(self.border, np.uint8)).any(axis=2)
        rows, columns = differs.any(axis=1).nonzero()[0], differs.any(axis=0).nonzero()[0]
        if not rows.size:
            return view
        return view[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]

    def shown(self, width: int, height: int) -> float:
        """Return the fraction of an image's area that the view shows, given the image's size."""
        wide, tall = self.resized(width, height)
        return min(1.0, self.image_size[1] / wide) * min(1.0, self.image_size[0] / tall)

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height in pixels to which an image is resized before the crop."""
        tall, wide = (math.floor(side / self.crop) for side in self.image_size)
        if self.fit == "squash":
            return wide, tall
        if self.fit == "pad":
            ratio = max(height / tall, width / wide)  # neither side is exceeded
            return max(1, round(width / ratio)), max(1, round(height / ratio))
        if tall == wide:  # the longer side is rounded down, as in torchvision
            short, long = min(width, height), max(width, height)
            scaled = int(tall * long / short)
            return (tall, scaled) if width <= height else (scaled, tall)
        ratio = min(height / tall, width / wide)  # both sides are covered
        return max(wide, round(width / ratio)), max(tall, round(height / ratio))

    def __call__(self, image: Image.Image) -> "Tensor":
        """Return the model's input for a PIL image: float32 (channels, H, W)."""
        from torch import from_numpy

        from vitft.data.images import upright_rgb

        upright = upright_rgb(image, "image", self.grey_range)
        return self.normalise(from_numpy(self.pixels(upright)[None]))[0]

    @property
    def is_fast(self) -> bool:
        """Whether `fast_pixels` can apply the transform."""
        return self.interpolation in ("bilinear", "bicubic") and self.channels == 3

    def fast_pixels(self, image: _Pixels) -> _Pixels:
        """Resize an image (h, w, 3) with torch's kernel, and frame it as a view (H, W, 3)."""
        import torch

        # Channels last is fastest; torch recognises it by the first stride, so the axis comes first
        planes = torch.from_numpy(image)[None].permute(0, 3, 1, 2)
        wide, tall = self.resized(image.shape[1], image.shape[0])
        planes = torch.nn.functional.interpolate(
            planes, (tall, wide), mode=self.interpolation, antialias=True
        )
        return self.framed(planes[0].permute(1, 2, 0).numpy())

    def fast_view(self, data: bytes, *, max_pixels: int) -> tuple[_Pixels, tuple[int, int]] | None:
        """Return the view (H, W, 3) of an ordinary JPEG, and its width and height, or None."""
        from vitft.data.images import decode_upright

        upright = decode_upright(data, max_pixels=max_pixels) if self.is_fast else None
        if upright is None:
            return None
        height, width = upright[0].shape[:2]
        return self.fast_pixels(upright[0]), (width, height)

    def normalise(self, pixels: "Tensor") -> "Tensor":
        """Convert uint8 (B, H, W, 3) to float32 (B, channels, H, W) on the same device."""
        planes = pixels.permute(0, 3, 1, 2)[:, : self.channels]  # channels-last memory format
        if len({*self.mean}) == len({*self.std}) == 1:  # scalars are faster than broadcasting
            return planes.float().div_(255).sub_(self.mean[0]).div_(self.std[0])
        values = planes.contiguous().float().div_(255)
        for i, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            values[:, i].sub_(mean).div_(std)  # no tensor of means is copied to the device
        return values

    def to_json(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if k != "grey_range" or v}


@dataclass(frozen=True, slots=True, kw_only=True)
class CropTransform:
    """Training transform: a random box of the image, resized and randomly flipped.

    RandAugment follows if `rand` is set. Source: Szegedy et al. 2015 (Inception), with the defaults
    of torchvision's `RandomResizedCrop` and `RandomHorizontalFlip`.
    """

    image_size: tuple[int, int] = (224, 224)  # height and width of the result in pixels
    scale: tuple[float, float] = (0.08, 1.0)
    """Lower and upper bounds on the fraction of the area that the box covers."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Lower and upper bounds on the box's ratio of width to height."""
    flip: float = 0.5  # probability of a horizontal flip
    interpolation: Interpolation = "bicubic"
    rand: bool = False  # whether to apply RandAugment afterwards

    def pixels(self, image: Image.Image, *, key: str) -> _Pixels:
        """Return a random view (H, W, 3), uint8, which depends on the image and `key`."""
        # The seed is the SHA-512 of the key, not the salted `hash`; names may contain surrogates.
        rng = random.Random(key.encode("utf-8", "surrogatepass"))
        height, width = self.image_size
        resample, box = RESAMPLING[self.interpolation], self.box(image, rng)
        view = image.resize((width, height), resample, box=box)
        if rng.random() < self.flip:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.rand:
            from vitft.data.augment import rand_augment  # imports torch

            view = rand_augment(view, rng)
        return np.array(view)

    def box(self, image: Image.Image, rng: random.Random) -> tuple[int, int, int, int]:
        """Draw a box (left, top, right, bottom) in pixels; the whole image after ten attempts."""
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


@dataclass(frozen=True, slots=True)
class View:
    """Evaluation view of an image, or a random crop seeded with the view's name and the image."""

    name: str
    transform: EvalTransform
    crop: CropTransform | None = None

    def pixels(self, image: Image.Image, sha256: str) -> _Pixels:
        """Return the model's input before normalisation: uint8 (H, W, 3)."""
        if self.crop is None:
            return self.transform.pixels(image)
        return self.crop.pixels(image, key=f"{self.name}/{sha256}")

    @property
    def settings(self) -> str:
        """Settings, as text, that determine the pixels together with `name` and the image."""
        crop = None if self.crop is None else str(self.crop)
        return json.dumps([self.transform.to_json(), crop])


def eval_view(transform: EvalTransform) -> View:
    """Return the view that validation and predict use."""
    return View("plain", transform)


def crop_views(transform: EvalTransform, crop: CropTransform, count: int, seed: int) -> list[View]:
    """Return `count` random crops with random flips, seeded with `seed` and the image."""
    return [View(f"crop {seed} {k}", transform, crop) for k in range(count)]


# fraction of an image's area that a model's view shows, for `vitft check` and the report ----------

_MOST_SHOWN = 0.75  # mean fraction of the area above which `describe_view` suggests no alternatives


def measure_view(transform: EvalTransform, sizes: Iterable[tuple[int, int]]) -> ViewFacts | None:
    """Return the fraction of images of these sizes that a view shows, or None without sizes."""
    shown = [transform.shown(*size) for size in sizes]
    if not shown:
        return None
    return {
        "image_size": transform.image_size,
        "fit": transform.fit,
        "crop": transform.crop,
        "shown": sum(shown) / len(shown),
        "least_shown": min(shown),
    }


def describe_view(facts: ViewFacts, *, whose: str = "the model's") -> str:
    """Return a sentence on how much of an image the view shows, and on how to show more of it."""
    height, width = facts["image_size"]
    how = f"{height} x {width} pixels, {facts['fit']} {facts['crop']:g}"
    mean, least = percent(facts["shown"], 0), percent(facts["least_shown"], 0)
    least = f" (at least {least})" if least != mean else ""
    text = f"{whose} view ({how}) shows {mean} of an image's area on average{least}"
    if facts["shown"] > _MOST_SHOWN:
        return text
    return f"{text}. To train on all of it, use vitft finetune --fit pad or --fit squash"
