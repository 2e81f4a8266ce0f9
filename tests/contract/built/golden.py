"""Files of the golden runs that are more than drawn images and short texts."""

import csv
import io
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from tests.contract.rows import draw

CLASSES = ("cat", "dog", "fox")


def pixels(seed: int, colour: Sequence[float], spread: float = 30) -> np.ndarray:
    """Return a noisy image of one colour, (32, 40, 3)."""
    noise = np.random.default_rng(seed).normal(0, spread, (32, 40, 3))
    return np.clip(np.array(colour) + noise, 0, 255)


def write_table(folder: Path, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write t.csv."""
    with (folder / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def table(folder: Path) -> None:
    """Write t.csv of 48 images of 12 patients in three parts."""
    rows = []
    for number in range(48):
        label = CLASSES[number // 4 % 3]
        wrong = number % 11 == 10
        path = f"img/{'dog' if wrong else label}{number:02}.jpg"
        draw(folder / path, 40, 32)
        part = ("train", "train", "val", "test")[number // 12]
        rows.append([path, label, part, f"p{number // 4:02}", number])
    write_table(folder, ["path", "label", "split", "patient", "age"], rows)


def several(folder: Path) -> None:
    """Write t.csv of 60 images with none to three labels, each of which is a colour channel."""
    rows = []
    for number in range(60):
        flags = [number >> bit & 1 for bit in range(3)]
        if number % 13 == 5:
            flags[number % 3] ^= 1
        colour = [70 + 90 * (number >> bit & 1) for bit in range(3)]
        path = folder / "img" / f"{number:02}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels(number, colour, 60).astype(np.uint8)).save(path)
        names = "|".join(name for name, flag in zip(CLASSES, flags, strict=True) if flag)
        part = ("train", "train", "train", "val")[number // 16]
        rows.append([f"img/{number:02}.png", names, part])
    write_table(folder, ["path", "labels", "split"], rows)


def columns(folder: Path) -> None:
    """Write t.csv of the images of `several`, with a column per label and without parts."""
    several(folder)
    with (folder / "t.csv").open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    flags = [[path, *(int(name in labels) for name in CLASSES)] for path, labels, _ in rows]
    write_table(folder, ["path", *CLASSES], flags)


def copies(folder: Path) -> None:
    """Draw three classes with copies: in a class, of another class, and slightly changed ones."""
    for name in CLASSES:
        for number in range(12):
            draw(folder / name / f"{number}.jpg", 160, 120)
    shutil.copyfile(folder / "cat/0.jpg", folder / "cat/again.jpg")
    shutil.copyfile(folder / "cat/1.jpg", folder / "dog/from_cat.jpg")
    with Image.open(folder / "fox/2.jpg") as image:
        image.save(folder / "fox/saved_again.jpg", quality=70)
        image.resize((80, 60)).save(folder / "fox/small.png")
    (folder / "dog/broken.jpg").write_bytes((folder / "dog/0.jpg").read_bytes()[:900])
    (folder / "dog/notes.txt").write_text("not an image")
    Image.new("RGB", (160, 120), "white").save(folder / "cat/white.png")
    Image.new("RGB", (600, 40), (90, 120, 60)).save(folder / "cat/wide.png")


def copied_to_val(folder: Path) -> None:
    """Draw the parts of a split, with copies of training images among those for validation."""
    for part, numbers in {"train": range(10), "val": range(7)}.items():
        for name in ("cat", "dog"):
            for number in numbers:
                draw(folder / part / name / f"{number}.jpg")
    for number in range(3):
        shutil.copyfile(folder / f"train/cat/{number}.jpg", folder / f"val/cat/again{number}.jpg")


def grown(folder: Path) -> None:
    """Draw three classes in new, and copy half of their images to old, those of foxes changed."""
    for name in CLASSES:
        (folder / "old" / name).mkdir(parents=True)
        for number in range(16):
            path = folder / "new" / name / f"{'dog' if number % 7 == 6 else name}{number}.jpg"
            draw(path, 40, 32)
            if number % 2 and name == "fox":
                with Image.open(path) as image:
                    image.save(folder / "old" / name / path.name, quality=80)
            elif number % 2:
                shutil.copyfile(path, folder / "old" / name / path.name)


def shards(folder: Path) -> None:
    """Write two tar shards with 24 images."""
    for shard in range(2):
        with tarfile.open(folder / f"part-{shard:02}.tar", "w") as archive:
            for number in range(12):
                name = CLASSES[number % 3]
                content = io.BytesIO()
                drawn = "dog" if number == 9 else name
                colour = [200 if drawn == other else 80 for other in CLASSES]
                image = pixels(shard * 12 + number, colour).astype(np.uint8)
                Image.fromarray(image).save(content, "PNG")
                members = ((".png", content.getvalue()), (".cls", name.encode()))
                for suffix, data in members:
                    info = tarfile.TarInfo(f"{number:03}{suffix}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))


def arrays(folder: Path) -> None:
    """Write set.npz with 36 images of ten grey levels and their classes as numbers."""
    labels = np.arange(36) % 3
    greys = [60 + 60 * int(label if number % 7 else 1) for number, label in enumerate(labels)]
    images = [pixels(number, [grey] * 3).mean(axis=2) for number, grey in enumerate(greys)]
    np.savez(folder / "set.npz", x=np.stack(images).astype(np.uint8), y=labels)


def grey(folder: Path) -> None:
    """Write grey images of two classes, those of dogs with 16 bits."""
    for number in range(24):
        is_dog = number % 2
        values = pixels(number, [90 + 40 * is_dog] * 3, 50).mean(axis=2)
        path = folder / CLASSES[is_dog] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        sixteen = (values * 257).astype(np.uint16)
        Image.fromarray(sixteen if is_dog else values.astype(np.uint8)).save(path)


def sixteen_bits(folder: Path) -> None:
    """Write grey images of 16 bits, of which 12 are used, of three classes."""
    for number in range(24):
        values = pixels(number, [60 + 60 * (number % 3)] * 3, 30).mean(axis=2)
        path = folder / CLASSES[number % 3] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray((values * 16).astype(np.uint16)).save(path)
