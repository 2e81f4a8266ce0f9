"""Copies of images in other places, and their mirror images."""

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from tests.contract.rows import PIXELS, draw
from tests.support.pictures import scenes_folder


def test_part(folder: Path) -> None:
    """Draw a train folder, and copy all of it as the test folder."""
    for name in ("cat", "dog"):
        for number in range(8):
            draw(folder / "train" / name / f"{number}.jpg")
    shutil.copytree(folder / "train", folder / "test")


def in_groups(folder: Path) -> None:
    """Draw four folders of two images each for two classes, and copy an image to another folder."""
    for name in ("cat", "dog"):
        for number in range(8):
            draw(folder / "p" / name / f"{number // 2}" / f"{number}.jpg")
    shutil.copy(folder / "p/cat/0/0.jpg", folder / "p/cat/1/8.jpg")


def turned(folder: Path) -> None:
    """Draw 20 scenes of two classes, and save each again mirrored, rotated or as it is.

    In `swapped`, the mirrored scenes have the other class.
    """
    scenes_folder(folder / "photos", each=10)
    turns = {"mirrored": Image.Transpose.FLIP_LEFT_RIGHT, "rotated": Image.Transpose.ROTATE_90}
    for path in (folder / "photos").glob("*/*.jpg"):
        image = Image.open(path)
        other = "dog" if path.parent.name == "cat" else "cat"
        changed = {name: image.transpose(turn) for name, turn in turns.items()}
        for place, saved in (
            (f"mirrored/{path.parent.name}", changed["mirrored"]),
            (f"swapped/{other}", changed["mirrored"]),
            (f"rotated/{path.parent.name}", changed["rotated"]),
        ):
            (folder / place).mkdir(parents=True, exist_ok=True)
            saved.save(folder / place / path.name, quality=80)


def below_each_class(folder: Path) -> None:
    """Draw images, and copy all of them below two more classes."""
    for number in range(90):
        draw(folder / "color" / f"{'ab'[number % 2]}{number}.jpg")
    for name in ("grayscale", "segmented"):
        shutil.copytree(folder / "color", folder / name)


def fixed(folder: Path) -> None:
    """Draw p with a wrong label, its copy q, tables t and u of p, and f.csv, which fixes p.

    In m, 13 of 33 images are those of p.
    """
    for name in ("cat", "dog"):
        for number in range(6):
            draw(folder / "p" / name / f"{name[0]}{number}.jpg")
    draw(folder / "p" / "cat" / "dog.jpg")
    for copy in "qm":
        shutil.copytree(folder / "p", folder / copy)
    for number in range(20):
        draw(folder / "m" / "dog" / f"new{number}.jpg")
    rows = [f"{path.parent.name}/{path.name}" for path in sorted((folder / "p").glob("*/*"))]
    table = ["path,label", *(f"p/{row},{row[:3]}" for row in rows)]
    for name in ("t.csv", "u.csv"):
        (folder / name).write_text("\n".join(table))
    for place, prefix in (("f.csv", ""), ("g.csv", "p/")):
        lines = (f"{prefix}cat/dog.jpg,move,dog", f"{prefix}cat/c0.jpg,drop,")
        (folder / place).write_text("\n".join(["path,action,new_label", *lines]))


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


def saved_again(folder: Path, each: int = 10) -> None:
    """Save 20 scenes again in `mixed`, and in `data` as test images, with four others."""
    scenes_folder(folder / "data/test", each=each + 2)
    for path in sorted((folder / "data/test").glob("*/*.jpg")):
        if int(path.stem) >= each:
            continue
        for place in (
            folder / "mixed" / path.parent.name,
            folder / "data/train" / path.parent.name,
        ):
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
        Image.open(path).resize((120, 90)).save(path, quality=80)
        shutil.copy(path, folder / "mixed" / path.parent.name / f"{path.stem}_again.jpg")


def many_saved_again(folder: Path) -> None:
    """Save 120 scenes again, as `saved_again` does."""
    saved_again(folder, each=60)


def one_scene_each(folder: Path) -> None:
    """Save one scene of each of two classes in 21 different sizes."""
    scenes_folder(folder / "p", each=1)
    for path in sorted((folder / "p").glob("*/0.jpg")):
        for number in range(1, 21):
            size = (100 + number, 75 + number)
            Image.open(path).resize(size).save(path.with_name(f"{number}.jpg"), quality=80)


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
