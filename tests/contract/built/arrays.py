"""Data sets of arrays."""

from pathlib import Path

import numpy as np


def several_labels(folder: Path) -> None:
    """Write chest.npz: 12 images with five 0/1 labels each."""
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (12, 16, 16, 3), dtype=np.uint8)
    np.savez(folder / "chest.npz", x=images, y=random.integers(0, 2, (12, 5)))
