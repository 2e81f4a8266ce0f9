"""Drawn scenes that are unlike each other, and what the web does to copies of them."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def scene(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """Soft shapes with some sharp ones: no two seeds are alike."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    fine = Image.fromarray(random.integers(0, 256, (30, 40, 3), dtype=np.uint8))
    large = (size[0], size[1])
    soft = coarse.resize(large, Image.Resampling.BICUBIC)
    return Image.blend(soft, fine.resize(large, Image.Resampling.NEAREST), 0.12)


def encoded(image: Image.Image, quality: int = 75) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def read(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data), formats=["JPEG"]).convert("RGB")


def scenes_folder(root: Path, classes: tuple[str, ...] = ("cat", "dog"), each: int = 5) -> Path:
    """A folder of scenes, `<class>/<number>.jpg`, all different."""
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(each):
            (root / name / f"{i}.jpg").write_bytes(encoded(scene(100 * label + i), 90))
    return root
