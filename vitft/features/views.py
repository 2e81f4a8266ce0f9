"""Views of an image whose features are cached: the evaluation view, or a reproducible crop."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from vitft.data.transforms import CropTransform, EvalTransform


@dataclass(frozen=True, slots=True)
class View:
    """The evaluation view of an image, or a random crop determined by the image's digest."""

    name: str
    transform: EvalTransform
    crop: CropTransform | None = None

    def pixels(self, image: Image.Image, sha256: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the model's input before normalisation: uint8 (S, S, 3)."""
        if self.crop is None:
            return self.transform.pixels(image)
        return self.crop.pixels(image, key=f"{self.name}/{sha256}")

    @property
    def settings(self) -> str:
        """Everything that determines the pixels, as text."""
        crop = None if self.crop is None else str(self.crop)
        return json.dumps([self.transform.to_json(), crop])


def eval_view(transform: EvalTransform) -> View:
    """Return the view that validation and predict use."""
    return View("plain", transform)


def crop_views(transform: EvalTransform, crop: CropTransform, count: int, seed: int) -> list[View]:
    """Return `count` augmented views: random resized crop and flip by seed, view and image."""
    return [View(f"crop {seed} {k}", transform, crop) for k in range(count)]
