"""Copies of images in other places."""

import shutil
from pathlib import Path

from tests.contract.rows import draw


def test_part(folder: Path) -> None:
    """Draw a train folder, and copy all of it as the test folder."""
    for name in ("cat", "dog"):
        for number in range(8):
            draw(folder / "train" / name / f"{number}.jpg")
    shutil.copytree(folder / "train", folder / "test")
