"""Folders with more than files: links, pipes and names that only some file systems allow."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.contract.rows import draw, expand


def photos(folder: Path) -> Path:
    """Draw p with four images each of cat and dog, and return it."""
    for path in (*expand("p/cat/{0-3}.jpg"), *expand("p/dog/{0-3}.jpg")):
        draw(folder / path)
    return folder / "p"


def links(folder: Path) -> None:
    """Write a link to each image of dog, and one to no file."""
    root = photos(folder)
    shutil.move(root / "dog", folder / "elsewhere")
    (root / "dog").mkdir()
    for number in range(4):
        (root / "dog" / f"{number}.jpg").symlink_to(f"../../elsewhere/{number}.jpg")
    (root / "cat" / "broken.jpg").symlink_to("nowhere.jpg")


def linked_table(folder: Path) -> None:
    """Write a link to a table of images that are beside the link."""
    rows = [f"{name}/{i}.jpg,{name}" for name in ("cat", "dog") for i in range(4)]
    (photos(folder) / "t.csv").symlink_to("../elsewhere.csv")
    (folder / "elsewhere.csv").write_text("\n".join(["path,label", *rows, ""]))


def loop(folder: Path) -> None:
    """Write a link from a class to the whole folder."""
    (photos(folder) / "cat" / "again").symlink_to("..")


def pipe(folder: Path) -> None:
    """Write a named pipe called pipe.jpg."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("no pipes on this system")
    os.mkfifo(photos(folder) / "cat" / "pipe.jpg")


def control_characters(folder: Path) -> None:
    """Write an unreadable image whose name would colour the terminal."""
    (photos(folder) / "cat" / "\x1b[31mred.jpg").write_bytes(b"x")


def fixes_in_latin_1(folder: Path) -> None:
    """Write f.csv with a name in Latin-1."""
    photos(folder)
    (folder / "f.csv").write_bytes("path,action\ncat/hêtre.jpg,drop\n".encode("latin-1"))


def two_labels(folder: Path) -> None:
    """Copy an image of cat to dog."""
    root = photos(folder)
    shutil.copyfile(root / "cat" / "0.jpg", root / "dog" / "copy.jpg")


def two_sizes(folder: Path) -> None:
    """Draw images of 16 and of 24 pixels."""
    for name in ("cat", "dog"):
        for number in range(8):
            side = 16 + 8 * (number % 2)
            draw(folder / "p" / name / f"{number}.jpg", side, side)


def one_test_image(folder: Path) -> None:
    """Copy a training image to both classes of the test part."""
    for name in ("cat", "dog"):
        (folder / "p" / "test" / name).mkdir(parents=True)
        shutil.copy(folder / "p" / "train" / "cat" / "0.jpg", folder / "p" / "test" / name)


def near_duplicates(folder: Path) -> None:
    """Draw 16 images of 96 pixels, and save the first of each class again in lower quality."""
    for name in ("cat", "dog"):
        for number in range(8):
            smooth(folder / "p" / name / f"{number}.jpg", seed=number + 10 * (name == "dog"))
        with Image.open(folder / "p" / name / "0.jpg") as image:
            image.save(folder / "p" / name / "again.jpg", quality=60)


def smooth(path: Path, seed: int) -> None:
    """Write an image of 96 pixels with large shapes, as photos have them."""
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).resize((96, 96), Image.Resampling.BICUBIC).save(path, quality=95)


def wrong_label(folder: Path) -> None:
    """Draw 15 images of each class, and one of cat that is called dog."""
    for path in (*expand("p/cat/{0-14}.jpg"), *expand("p/dog/{0-14}.jpg"), "p/cat/15.jpg"):
        draw(folder / path)
    shutil.move(folder / "p" / "cat" / "15.jpg", folder / "p" / "dog" / "wrong.jpg")


def odd_images(folder: Path) -> None:
    """Write an image of one colour."""
    Image.new("RGB", (64, 64), (200, 30, 30)).save(photos(folder) / "cat" / "plain.png")


def other_suffix(folder: Path) -> None:
    """Write a PNG file called a.jpg."""
    Image.new("RGB", (16, 16), (200, 30, 30)).save(photos(folder) / "cat" / "a.jpg", "PNG")


def animation(folder: Path) -> None:
    """Write an animation of three frames."""
    frames = [Image.new("RGB", (16, 16), (60 * i, 0, 0)) for i in range(3)]
    path = photos(folder) / "cat" / "a.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])


def pages(folder: Path) -> None:
    """Write an image of three pages."""
    path = photos(folder) / "dog" / "scan.tif"
    first, *others = [Image.linear_gradient("L").resize((16, 16)).rotate(90 * i) for i in range(3)]
    first.save(path, save_all=True, append_images=others)


def wide(folder: Path) -> None:
    """Draw images that are four times as wide as high."""
    for path in (*expand("p/cat/{0-3}.jpg"), *expand("p/dog/{0-3}.jpg")):
        draw(folder / path, 160, 40)


def mixed_values(folder: Path) -> None:
    """Write images of 16 bits beside images of floating-point numbers."""
    root = photos(folder)
    random = np.random.default_rng(0)
    Image.fromarray(random.integers(0, 4000, (16, 16)).astype(np.uint16)).save(root / "cat/16.png")
    Image.fromarray((random.random((16, 16)) * 900).astype(np.float32)).save(root / "dog/f.tif")


def identical(folder: Path) -> None:
    """Copy an image within its class."""
    root = photos(folder)
    shutil.copyfile(root / "cat" / "0.jpg", root / "cat" / "0 (1).jpg")
