"""Folders with copies."""

import shutil
from pathlib import Path

from tests.contract.rows import draw


def copied_validation(folder: Path) -> None:
    """Draw six validation images in five copies each."""
    for name in ("cat", "dog"):
        for number in range(3):
            path = folder / "val" / name / f"{number}_x.jpg"
            draw(path)
            for copy in range(4):
                shutil.copyfile(path, path.with_name(f"{number}_copy{copy}.jpg"))


def leaked_validation(folder: Path) -> None:
    """Copy a training image of each class to the validation images."""
    for name in ("cat", "dog"):
        shutil.copyfile(folder / "train" / name / "0.jpg", folder / "val" / name / "again.jpg")
