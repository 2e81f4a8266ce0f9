"""Arrows to the left, and their mirror images."""

from pathlib import Path

import numpy as np
from PIL import Image

from tests.contract.rows import PIXELS


def arrows(folder: Path) -> None:
    """Write 40 arrows to the left and the 40 mirror images, each in a colour of its own."""
    random = np.random.default_rng(0)
    for index in range(40):
        pixels = np.full((PIXELS, PIXELS, 3), random.integers(150, 256, 3), np.uint8)
        across, down = np.meshgrid(np.arange(PIXELS), np.arange(PIXELS))
        pixels[2 * abs(down - PIXELS // 2) <= across] = random.integers(0, 100, 3)
        for name, drawn in (("left", pixels), ("right", pixels[:, ::-1])):
            path = folder / name / f"{index}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(np.ascontiguousarray(drawn)).save(path)
