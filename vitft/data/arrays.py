"""Datasets stored as arrays instead of image files: .npz, IDX, CIFAR and torchvision datasets.

Such a dataset is treated as a folder: each image has a path, e.g. `ROOT/train/cat/00042.bmp`, and
`array_member` returns the bytes of that BMP file. ROOT is the .npz file, the folder with the IDX or
CIFAR files, or a path such as `data/torchvision:CIFAR10`. `data.array_files` reads the arrays.
"""

import contextlib
import functools
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitft.data import array_files
from vitft.data.array_files import TORCHVISION, ArrayPart
from vitft.data.label_sets import label_names
from vitft.data.remote.places import INDEX, place_of
from vitft.system.errors import DataError
from vitft.system.text import count, shell_quote

PixelArray = np.ndarray[Any, np.dtype[np.uint8]]
_Split = Literal["train", "val", "test", ""]

_MEMBER = re.compile(
    r"(?P<root>.+)/(?P<part>train|val|test|all)/[^/]+/(?P<number>\d{5,})\.bmp", re.S
)
_BELOW_NPZ = re.compile(r"(?P<root>[^\0]+?\.npz)/.*", re.S | re.I)
_DEFAULT_ROOT = Path("data")  # folder for torchvision's datasets if `data.root` is empty


@dataclass(frozen=True, slots=True, eq=False)
class ArraySet:
    """Labelled images of equal size, in one or more subsets."""

    classes: tuple[str, ...]  # sorted as strings
    parts: tuple[ArrayPart, ...]  # with labels that are indices into `classes`
    notes: tuple[str, ...]  # notes on images that were left out or converted
    labels: tuple[str, ...] = ()
    """Sorted labels if an image may have several; the classes are then label sets as text."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and number of channels (1 or 3) of every image."""
        _, height, width, channels = self.parts[0].images.shape
        return height, width, channels

    @property
    def splits(self) -> bool:
        return len(self.parts) > 1

    def listing(self) -> list[tuple[str, int, _Split]]:
        """Return each image's path, label and subset, sorted by class, then by path as a string."""
        kinds: dict[str, _Split] = {"train": "train", "val": "val", "test": "test", "all": ""}
        if not self.splits:
            kinds["train"] = ""
        rows = [
            (self.path(part, i), int(label), kinds[part.name])
            for part in self.parts
            for i, label in enumerate(part.labels.tolist())
        ]
        return sorted(rows, key=lambda row: (row[1], row[0]))

    def path(self, part: ArrayPart, number: int) -> str:
        """Return the path of image `number` of a subset, which contains its class."""
        return f"{part.name}/{self.classes[part.labels[number]] or 'no label'}/{number:05}.bmp"


def data_path(path: str, root: str = "") -> Path:
    """Convert a value of `--data` to a path; `root` is the folder of torchvision's datasets.

    For tar shards and Hugging Face datasets, it is the index of the local copy, if that exists or
    not.
    """
    if place := place_of(path):
        return place.folder / INDEX
    if path.startswith(TORCHVISION):
        return (Path(root).expanduser() if root else _DEFAULT_ROOT) / path
    return Path(path).expanduser()


def find_arrays(root: Path) -> ArraySet | None:
    """Return the array dataset at a path, or None; a DataError if it is damaged or invalid."""
    if root.name.startswith(TORCHVISION):
        folder = _DEFAULT_ROOT if root.parent == Path() else root.parent
        return _load_array_set(os.fspath(folder / root.name), 0)
    try:
        is_file = root.suffix.lower() == ".npz" and root.is_file()
        if is_file or (root.is_dir() and array_files.holds_arrays(root)):
            return _load_array_set(os.fspath(root), root.stat().st_mtime_ns)
    except OSError:
        return None  # the reason is reported when the folder is listed
    return None


def no_image_reason(path: str) -> str:
    """Return why the path of an array dataset is not that of an image; empty for any other path."""
    is_archive = path.lower().endswith(".npz") and os.path.isfile(path)  # noqa: PTH113 - odd names
    way = f"evaluate all with vitft evaluate --data {shell_quote(path)} --run RUN"
    if path.startswith(TORCHVISION) and "/" not in path:
        return f"a dataset, not an image: {way}"
    if not is_archive and not os.path.isdir(path):  # noqa: PTH112 - odd names
        return ""
    try:
        arrays = find_arrays(Path(path))
    except DataError:
        arrays = None
    if arrays is None:
        return "a NumPy archive without labelled images, not an image" if is_archive else ""
    number = sum(len(part.images) for part in arrays.parts)
    example = shell_quote(f"{path.rstrip('/')}/{arrays.listing()[0][0]}")
    return (
        f"a dataset of {count(number, 'image')}, not an image: name one, e.g. {example}, or {way}"
    )


def array_member(path: str) -> bytes | None:
    """Return the BMP bytes of the image with exactly this path, or None if there is none."""
    found = _find_member(path)
    if found is None or found[0] != path:
        return None
    _, part, number = found
    return encode_bmp(part.images[number])


def wrong_member_reason(path: str) -> str:
    """Return what is wrong with a path below an array dataset; empty for any other path."""
    if found := _find_member(path):
        right = shell_quote(found[0])
        return f"not found: the path of image {found[2]}, with its class, is {right}"
    match = _MEMBER.fullmatch(path) or _BELOW_NPZ.fullmatch(path)
    try:
        arrays = None if match is None else find_arrays(Path(match["root"]))
    except DataError:
        return ""
    if match is None or arrays is None:
        return ""
    forms = [
        f"{match['root']}/{part.name}/CLASS/INDEX.bmp (INDEX from 00000 to "
        f"{len(part.images) - 1:05})"
        for part in arrays.parts
    ]
    return f"not found: name an image {' or '.join(forms)}"


def _find_member(path: str) -> tuple[str, ArrayPart, int] | None:
    """Find the image of an array dataset that a path names by subset and index."""
    match = _MEMBER.fullmatch(path)
    try:
        arrays = None if match is None else find_arrays(Path(match["root"]))
    except DataError:
        return None
    if match is None or arrays is None:
        return None
    number = int(match["number"])
    for part in arrays.parts:
        if part.name == match["part"] and number < len(part.images):
            return f"{match['root']}/{arrays.path(part, number)}", part, number
    return None


def encode_bmp(image: PixelArray) -> bytes:
    """Encode an image (H, W, 1 or 3) as a 24-bit BMP file, with its rows stored bottom-up."""
    height, width = image.shape[:2]
    rows = np.zeros((height, -(-3 * width // 4) * 4), np.uint8)  # rows padded to 4n bytes
    colours = np.broadcast_to(image[::-1, :, ::-1], (height, width, 3))
    rows[:, : 3 * width] = colours.reshape(height, -1)
    size = 54 + rows.size
    head = struct.pack("<2sI4xIIiiHH24x", b"BM", size, 54, 40, width, height, 1, 24)
    return head + rows.tobytes()


@contextlib.contextmanager
def sizes_assumed() -> Iterator[None]:
    """Replace torchvision datasets that cannot be fetched by areas of one colour in the block."""
    token = array_files.ASSUMED.set(set())
    try:
        yield
    finally:
        array_files.ASSUMED.reset(token)
        _load_array_set.cache_clear()


@functools.lru_cache(maxsize=4)
def _load_array_set(source: str, _changed_ns: int) -> ArraySet:
    """Read and validate a dataset; cached, because every lookup of an image by path needs it."""
    read = array_files.read_arrays(Path(source))
    by_name = {part.name: part for part in read.parts}
    order = ("all",) if "all" in by_name else ("train", "val", "test")
    if order[0] not in by_name:
        raise DataError(
            f"{source} has no training images; subsets found: {', '.join(by_name) or 'none'}",
            fix="add training images",
        )
    parts = tuple(by_name[name] for name in order if name in by_name)
    # Images and labels must suit each other
    for part in parts:
        images = part.images
        if images.ndim != 4 or images.shape[3] not in (1, 3):
            raise DataError(
                f"{source}, subset {part.name}: the images have an unsupported shape "
                f"{images.shape}",
                fix="save them with the shape (images, height, width) or (images, height, width, "
                "channels), with 1 or 3 channels",
            )
        if images.dtype != np.uint8:
            convert = ""
            if np.issubdtype(images.dtype, np.floating):
                convert = "; values from 0 to 1: (255 * images).round().astype('uint8')"
            raise DataError(
                f"{source}, subset {part.name}: the images have an unsupported dtype "
                f"({images.dtype})",
                fix=f"save them as uint8, with values from 0 to 255{convert}",
            )
        _check_labels_of(part, source)
    shapes = {part.images.shape[1:] for part in parts}
    if len(shapes) > 1 or 0 in next(iter(shapes)):
        raise DataError(
            f"{source} contains empty images or images of different shapes: "
            f"{' and '.join(map(str, shapes))}",
            fix="resize all images to the same size",
        )
    present = sorted({int(label) for part in parts for label in np.unique(part.labels)})
    given = read.classes or tuple(str(i) for i in range(max(present) + 1))
    if max(present) >= len(given) or min(present) < 0:
        named = f", but there are {count(len(read.classes), 'class name')}" if read.classes else ""
        raise DataError(
            f"{source}: the labels range from {min(present)} to {max(present)}{named}",
            fix="number the classes from 0"
            + ", and provide a name for each" * bool(read.classes)
            + ", e.g. labels - labels.min()" * (min(present) < 0),
        )
    width = max(len(name) for name in given) if all(n.isdecimal() for n in given) else 0
    names = [
        re.sub(r"[/\x00]", "_", given[i].rjust(width, "0")).strip()
        or ("" if read.several else f"class {i}")
        for i in present
    ]
    classes = tuple(sorted(names))
    if len({*names}) < len(names) or len(names) < 2:
        raise DataError(
            f"{source}: found {count(len({*names}), 'distinct class name')} for "
            f"{count(len(names), 'class', 'classes')}",
            fix="use at least two classes, each with its own name",
        )
    table = np.full(max(present) + 1, -1)
    table[present] = [classes.index(name) for name in names]
    parts = tuple(ArrayPart(part.name, part.images, table[part.labels]) for part in parts)
    return ArraySet(classes, parts, read.notes, label_names(classes) if read.several else ())


def _check_labels_of(part: ArrayPart, source: str) -> None:
    labels, images = part.labels, len(part.images)
    where = f"{source}, subset {part.name}"
    if labels.shape != (images,) or not images:
        fix = "provide a class index, a class name or a row of zeros and ones for each image"
        if labels.ndim == 2 and labels.dtype.kind in "fiu" and np.allclose(labels.sum(axis=1), 1):
            fix = "use the most probable class of each image: labels.argmax(axis=1)"
        raise DataError(
            f"{where}: the labels of the {images} images have an unsupported shape {labels.shape}",
            fix=fix,
        )
    if np.issubdtype(labels.dtype, np.floating) and (labels % 1).any():
        raise DataError(
            f"{where}: the labels are numbers such as {labels[labels % 1 != 0][0]:g}, but "
            "regression is not supported",
            fix="replace them with class indices, e.g. numpy.digitize(labels, limits)",
        )
    if not np.issubdtype(labels.dtype, np.integer):
        kind = "str" if labels.dtype.kind == "S" else "int"
        raise DataError(
            f"{where}: the labels have an unsupported dtype ({labels.dtype})",
            fix="provide one class index or class name per image, as integers or text, e.g. "
            f"labels.astype({kind})",
        )
