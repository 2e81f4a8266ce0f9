"""Image folders that the benchmarks build from others, by links."""

import os
from pathlib import Path


def merge_splits(data: Path, into: Path) -> Path:
    """Return a folder with one subfolder per class.

    A folder without train/ and validation/ is returned as it is; otherwise `into` receives links to
    the images of both.
    """
    parts = [p for p in data.iterdir() if p.name in ("train", "validation", "val") and p.is_dir()]
    if not parts:
        return data
    root = into / data.name
    for part in parts:
        for label in filter(Path.is_dir, part.iterdir()):
            (root / label.name).mkdir(parents=True, exist_ok=True)
            for image in label.iterdir():
                os.symlink(image.resolve(), root / label.name / f"{part.name}_{image.name}")
    return root


def link_images(data: Path, into: Path, train: int, val: int) -> None:
    """Fill into/train and into/val with links to that many images, the same number per class."""
    labels = sorted(p for p in data.iterdir() if p.is_dir())
    for label in labels:
        images = sorted(p for p in label.iterdir() if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
        first, more = train // len(labels), val // len(labels)
        for part, some in (("train", images[:first]), ("val", images[first : first + more])):
            folder = into / part / label.name
            folder.mkdir(parents=True)
            for image in some:
                os.symlink(image.resolve(), folder / image.name)
