"""Datasets stored as arrays instead of image files: .npz, IDX, CIFAR and torchvision datasets.

Such a dataset is treated as a folder: each image has a path, e.g. `ROOT/train/cat/00042.bmp`, and
`array_member` returns the bytes of that BMP file. ROOT is the .npz file, the folder with the IDX or
CIFAR files, or a path such as `data/torchvision:CIFAR10`.
"""

import contextlib
import functools
import gzip
import io
import logging
import math
import os
import re
import socket
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from vitft.data.label_sets import JOINER, join_labels, label_names
from vitft.data.remote.places import INDEX, place_of
from vitft.system.errors import DataError, VitftError
from vitft.system.npz import check_expansion, check_unpacked_size
from vitft.system.text import count, shell_quote

log = logging.getLogger(__name__)


# readers for datasets stored as arrays: .npz, IDX (MNIST), CIFAR and torchvision datasets ---------

TORCHVISION = "torchvision:"


class _PublishedSize(NamedTuple):
    """Numbers of training and test images and of classes, and the shape of an image (H, W, C)."""

    train: int
    test: int
    shape: tuple[int, int, int]
    classes: int = 10
    argument: str = "train"  # argument of torchvision's class that selects the subset


PUBLISHED_SIZES: Mapping[str, _PublishedSize] = {
    "CIFAR10": _PublishedSize(50_000, 10_000, (32, 32, 3)),
    "CIFAR100": _PublishedSize(50_000, 10_000, (32, 32, 3), 100),
    "MNIST": _PublishedSize(60_000, 10_000, (28, 28, 1)),
    "FashionMNIST": _PublishedSize(60_000, 10_000, (28, 28, 1)),
    "KMNIST": _PublishedSize(60_000, 10_000, (28, 28, 1)),
    "USPS": _PublishedSize(7_291, 2_007, (16, 16, 1)),
    "SVHN": _PublishedSize(73_257, 26_032, (32, 32, 3), argument="split"),
    "STL10": _PublishedSize(5_000, 8_000, (96, 96, 3), argument="split"),
}
_ASSUMED: ContextVar[set[str] | None] = ContextVar("_ASSUMED", default=None)
"""Names of the torchvision datasets that could not be fetched and were replaced by others of their
published size; None if this is an error."""
_NPZ_NAMES: Mapping[tuple[str, str], str] = {
    ("x_train", "y_train"): "train", ("train_images", "train_labels"): "train",
    ("x_val", "y_val"): "val", ("val_images", "val_labels"): "val",
    ("x_test", "y_test"): "test", ("test_images", "test_labels"): "test",
    ("x", "y"): "all", ("images", "labels"): "all",
}  # fmt: skip
"""Usual names of image and label arrays in .npz files (Keras, MedMNIST etc.), with their subset."""
_NPZ_CLASSES = ("classes", "class_names", "label_names")
"""Names of the array of class names in .npz files."""
_WEIGHT_NAMES = frozenset({"kernel", "bias", "scale", "weight"})
"""Last parts of the names of arrays in .npz files of weights."""
_IDX = re.compile(r"(train|t10k|test)-(images|labels)[-.]idx[13]-ubyte(\.gz)?")
_RECORDS: Mapping[str, tuple[int, str]] = {
    "data_batch_1.bin": (1, "batches.meta.txt"), "train.bin": (2, "fine_label_names.txt"),
}  # fmt: skip
"""First file of each binary CIFAR dataset, with its label bytes per record and list of classes."""
_PICKLED = {"cifar-10-batches-py": "CIFAR10", "cifar-100-python": "CIFAR100"}

_Array = np.ndarray[Any, np.dtype[Any]]


class ArrayPart(NamedTuple):
    """One subset of a dataset: images (N, H, W, C) with integer labels (N,)."""

    name: str  # train, val or test; all if the files have no split
    images: _Array
    labels: _Array


@dataclass(frozen=True, slots=True)
class _LoadedArrays:
    parts: tuple[ArrayPart, ...]
    classes: tuple[str, ...] = ()
    """Class names in the order of the labels; empty if the files contain no names."""
    notes: tuple[str, ...] = ()
    several: bool = False
    """Whether an image may have any number of labels; the classes are then label sets."""


def holds_arrays(folder: Path) -> bool:
    """Return whether a folder or one of torchvision's subfolders contains IDX or CIFAR files."""
    return bool(_idx_files(folder) or _records_in(folder) or _pickles_in(folder))


def _read_arrays(source: Path) -> _LoadedArrays:
    """Read the arrays that `arrays.find_arrays` recognised; a DataError if they are damaged."""
    try:
        if source.name.startswith(TORCHVISION):
            return _read_torchvision(source.name.removeprefix(TORCHVISION), source.parent)
        if source.suffix.lower() == ".npz":
            return _read_npz_arrays(source)
        if files := _idx_files(source):
            pairs = {part: (f"{part}-images", f"{part}-labels") for part in ("train", "test")}
            arrays = {name: _idx_array(path) for name, path in files.items()}
            return _LoadedArrays(
                tuple(
                    ArrayPart(part, _channels_last(arrays[images]), arrays[labels])
                    for part, (images, labels) in pairs.items()
                    if images in arrays and labels in arrays
                )
            )
        if records := _records_in(source):
            return _read_records(*records)
        found = _pickles_in(source)
        assert found is not None, "call holds_arrays first"
        return _read_torchvision(_PICKLED[found.name], found.parent)
    except VitftError:
        raise
    except Exception as error:  # numpy, zipfile, zlib and tokenize have no common base
        raise DataError(
            f"cannot read {source}: {' '.join(str(error).split())[:200]}",
            fix="download or copy the file again, or save the arrays without compression",
        ) from error


def _read_npz_arrays(path: Path) -> _LoadedArrays:
    """Read the labelled images of an .npz file; labels are numbers, class names or one-hot."""
    with path.open("rb") as stream:
        file = np.load(stream, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it contains a single array instead of named arrays")
        with zipfile.ZipFile(path) as archive:
            check_unpacked_size(archive, path.stat().st_size)
        by_case = {name.lower(): name for name in file.files}
        parts = []
        for (x, y), name in npz_subsets(file.files).items():
            images, labels = (_npz_member(file, by_case[one], path) for one in (x, y))
            labels = labels.squeeze(tuple(i for i, n in enumerate(labels.shape) if i and n == 1))
            parts.append(ArrayPart(name, _channels_last(images), labels))
        if not parts:
            found = f"arrays found: {', '.join(file.files[:8]) or 'none'}"
            if any(name.rpartition("/")[2] in _WEIGHT_NAMES for name in file.files):
                raise DataError(
                    f"{path} contains weights instead of labelled images. {found}",
                    fix=f"pass it with --weights {shell_quote(str(path))}, and the images with "
                    "--data",
                )
            raise DataError(
                f"{path} contains no labelled images. {found}",
                fix="name the arrays of images and labels x and y, or x_train, y_train, x_test and "
                "y_test",
            )
        notes = tuple(
            f"the array {by_case[one]} is not used: there is no {other}"
            for pair in _NPZ_NAMES
            for one, other in (pair, pair[::-1])
            if one in by_case and other not in by_case
        )
        names = [_npz_member(file, by_case[n], path) for n in _NPZ_CLASSES if n in by_case]
        classes = tuple(str(name) for array in names[:1] for name in array.ravel())
    several = False
    if all(p.labels.ndim == 2 and np.isin(p.labels, (0, 1)).all() for p in parts):
        widths = {part.labels.shape[1] for part in parts} | {len({*classes})} - {0}
        if len(widths) > 1:
            raise DataError(
                f"{path}: the numbers of label columns and of class names differ: "
                f"{' and '.join(map(str, sorted(widths)))}",
                fix="provide a column of 0 and 1, and a name, for each label",
            )
        several = any((part.labels.sum(axis=1) != 1).any() for part in parts)
        if several:
            classes = tuple(name.replace(JOINER, "_") for name in classes)
            columns = parts[0].labels.shape[1]
            texts = classes or [f"{i:0{len(str(columns - 1))}}" for i in range(columns)]
            sets = [[join_labels(compress(texts, row)) for row in part.labels] for part in parts]
            parts = [p._replace(labels=np.array(own)) for p, own in zip(parts, sets, strict=True)]
        else:
            parts = [part._replace(labels=part.labels.argmax(axis=1)) for part in parts]
            notes += ("the labels are one-hot: the class is the column of the 1",)
    if all(part.labels.dtype.kind == "U" for part in parts):  # labels that are class names
        classes = tuple(sorted({name for part in parts for name in part.labels.ravel().tolist()}))
        parts = [p._replace(labels=np.searchsorted(classes, p.labels)) for p in parts]
    return _LoadedArrays(tuple(parts), classes, notes, several)


def npz_subsets(names: Iterable[str]) -> dict[tuple[str, str], str]:
    """Return the pairs of image and label arrays among `names` (lower case), with their subset."""
    present = {name.lower() for name in names}
    return {pair: name for pair, name in _NPZ_NAMES.items() if present.issuperset(pair)}


def _npz_member(file: np.lib.npyio.NpzFile, name: str, path: Path) -> _Array:
    """Read an array of an .npz file, which must not contain Python objects."""
    try:
        array: _Array = file[name]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        raise DataError(
            f"{path}: the array {name} contains Python objects, which are not opened because they "
            "can run code",
            fix=f"save it as numbers or text, e.g. numpy.array({name}.tolist())",
        ) from error
    return array


def _channels_last(images: _Array) -> _Array:
    """Return the images as (N, H, W, C), adding or moving the channel axis if needed."""
    if images.ndim == 3:
        return images[..., None]
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        return np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    return images


def _idx_files(folder: Path) -> dict[str, Path]:
    """Return a mapping from names such as `train-images` to the IDX files in a folder."""
    for place in (folder, folder / "raw", folder / "MNIST" / "raw"):
        if place.is_dir():
            matches = {path: _IDX.fullmatch(path.name) for path in sorted(place.iterdir())}
            found = {f"{m[1].replace('t10k', 'test')}-{m[2]}": p for p, m in matches.items() if m}
            if found:
                return found
    return {}


def _idx_array(path: Path) -> _Array:
    """Read an IDX file of bytes as an array with the shape given in its header.

    Source: the format description on Yann LeCun's MNIST page: two zero bytes, an 8 (for bytes), the
    number of axes, the length of each axis (32 bits, big-endian) and the values.
    """
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        start = file.read(4)
        axes = start[3] if start[:3] == b"\0\0\x08" else 0
        shape = tuple(np.frombuffer(file.read(4 * axes), ">u4").tolist())
        check_expansion(math.prod(shape), path.stat().st_size)
        return np.frombuffer(file.read(math.prod(shape) + 1), np.uint8).reshape(shape)


def _records_in(folder: Path) -> tuple[Path, int, str] | None:
    """Return the folder of CIFAR's binary files, if any, and their entry in `_RECORDS`."""
    for place in (folder, folder / "cifar-10-batches-bin", folder / "cifar-100-binary"):
        for first, (labels, names) in _RECORDS.items():
            if (place / first).is_file() and (place / names).is_file():
                return place, labels, names
    return None


def _read_records(folder: Path, labels: int, names: str) -> _LoadedArrays:
    """Read CIFAR's binary records: label bytes, the last being the class, and 3072 colours."""
    kinds = {"train": ("data_batch_*.bin", "train.bin"), "test": ("test_batch.bin", "test.bin")}
    parts = []
    for part, patterns in kinds.items():
        files = sorted(path for pattern in patterns for path in folder.glob(pattern))
        if files:
            content = b"".join(file.read_bytes() for file in files)
            table = np.frombuffer(content, np.uint8).reshape(-1, labels + 3072)
            planes = table[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            classes = table[:, labels - 1].astype(int)
            parts.append(ArrayPart(part, np.ascontiguousarray(planes), classes))
    lines = (folder / names).read_text(encoding="utf-8").split("\n")
    return _LoadedArrays(tuple(parts), tuple(line.strip() for line in lines if line.strip()))


def _pickles_in(folder: Path) -> Path | None:
    """Return the folder that contains CIFAR's pickle files, or None if there are no such files."""
    for name in _PICKLED:
        place = folder if folder.name == name else folder / name
        if (place / "data_batch_1").is_file() or (place / "train").is_file():
            return place
    return None


def _read_torchvision(name: str, root: Path) -> _LoadedArrays:
    """Read the train and test subsets of a torchvision dataset, downloading missing files."""
    if name not in PUBLISHED_SIZES:
        raise DataError(
            f"torchvision:{name} is not supported",
            fix=f"use one of {', '.join(PUBLISHED_SIZES)}, or save the images in one folder per "
            "class",
        )
    assumed = _ASSUMED.get()
    if assumed is not None and name in assumed:
        return _assumed_arrays(name)
    try:
        from torchvision import datasets

        kind = getattr(datasets, name)
        parts: list[ArrayPart] = []
        names: tuple[str, ...] = ()
        for part in ("train", "test"):
            argument = PUBLISHED_SIZES[name].argument
            which = {argument: part == "train" if argument == "train" else part}
            found = _open_torchvision(kind, root, which)
            labels = np.asarray(getattr(found, "targets", getattr(found, "labels", None)), int)
            parts.append(ArrayPart(part, _channels_last(np.asarray(found.data)), labels))
            names = tuple(getattr(found, "classes", ()))
        if all(re.match(r"\d+ - ", text) for text in names):  # MNIST: "7 - seven"
            names = tuple(text.partition(" ")[0] for text in names)
        return _LoadedArrays(tuple(parts), names)
    except DataError:
        if assumed is None:
            raise
    size = PUBLISHED_SIZES[name]
    log.warning(
        f"{name} could not be fetched: assuming its published size, {size.train:,} + {size.test:,} "
        f"images of {size.shape[0]}x{size.shape[1]} pixels in {size.classes} classes"
    )
    assumed.add(name)
    return _assumed_arrays(name)


def _assumed_arrays(name: str) -> _LoadedArrays:
    """Return images of one colour, in the numbers and the size of a torchvision dataset."""
    size = PUBLISHED_SIZES[name]
    pixel = np.arange(size.shape[2], dtype=np.uint8)  # three channels that differ are a colour
    parts = tuple(
        ArrayPart(part, np.broadcast_to(pixel, (n, *size.shape)), np.arange(n) % size.classes)
        for part, n in (("train", size.train), ("test", size.test))
    )
    return _LoadedArrays(parts)


def _open_torchvision(kind: Any, root: Path, which: Mapping[str, Any]) -> Any:  # noqa: ANN401 - torchvision
    """Open a torchvision dataset, downloading it if its files are not in the folder."""
    existed = root.exists()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(RuntimeError):
        return kind(str(root), **which, download=False)
    log.info(f"fetching {kind.__name__} to {root}")
    folder = root / kind.__name__ / "raw" if hasattr(kind, "resources") else root
    waits = socket.getdefaulttimeout()
    try:
        socket.setdefaulttimeout(20.0)  # seconds; torchvision sets no timeout
        with contextlib.redirect_stdout(io.StringIO()):
            return kind(str(root), **which, download=True)
    except (OSError, RuntimeError) as error:  # no network, or the source has disappeared
        stated = re.search(r"<urlopen error ([^>]+)>", str(error))
        reason = stated[1] if stated else " ".join(str(error).split())[:120]
        wanted = str(getattr(kind, "filename", "its files"))
        if hasattr(kind, "resources"):
            wanted = " and ".join(name for name, _ in kind.resources)
        size = PUBLISHED_SIZES.get(kind.__name__)
        other = f"--data demo --image-size {size.shape[0]}" if size else "--data demo"
        raise DataError(
            f"{kind.__name__} is missing or incomplete in {root} and could not be fetched "
            f"({reason})",
            fix=f"put {wanted} into {folder}, or set data.root to the folder that has them. "
            f"Without them, try {other}",
        ) from error
    finally:
        socket.setdefaulttimeout(waits)
        for place in [] if existed else [folder, *folder.parents]:
            if place.is_relative_to(root):
                with contextlib.suppress(OSError):
                    place.rmdir()  # only succeeds on an empty folder


# datasets stored as arrays instead of image files: .npz, IDX, CIFAR and torchvision datasets ------

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

    For tar shards and Hugging Face datasets, it is the index of the local copy, whether or not that
    exists.
    """
    if place := place_of(path):
        return place.folder / INDEX
    if path.startswith(TORCHVISION):
        return (Path(root).expanduser() if root else _DEFAULT_ROOT) / path
    return Path(path).expanduser()


def find_arrays(root: Path) -> ArraySet | None:
    """Return the array dataset at a path, or None; raise DataError if it is damaged or invalid."""
    if root.name.startswith(TORCHVISION):
        folder = _DEFAULT_ROOT if root.parent == Path() else root.parent
        return _load_array_set(os.fspath(folder / root.name), 0)
    try:
        is_file = root.suffix.lower() == ".npz" and root.is_file()
        if is_file or (root.is_dir() and holds_arrays(root)):
            return _load_array_set(os.fspath(root), root.stat().st_mtime_ns)
    except OSError:
        return None  # the reason is reported when the folder is listed
    return None


def _readable_arrays(path: str) -> ArraySet | None:
    """Return the array dataset at a path, or None if there is none or it is damaged."""
    with contextlib.suppress(DataError):
        return find_arrays(Path(path))
    return None


def no_image_reason(path: str) -> str:
    """Return why the path of an array dataset is not that of an image; empty for any other path."""
    is_archive = path.lower().endswith(".npz") and os.path.isfile(path)  # noqa: PTH113 - odd names
    way = f"evaluate all with vitft evaluate --data {shell_quote(path)} --run RUN"
    if path.startswith(TORCHVISION) and "/" not in path:
        return f"a dataset, not an image: {way}"
    if not is_archive and not os.path.isdir(path):  # noqa: PTH112 - odd names
        return ""
    arrays = _readable_arrays(path)
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
    if match is None or (arrays := _readable_arrays(match["root"])) is None:
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
    if match is None or (arrays := _readable_arrays(match["root"])) is None:
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
    """In the block, replace torchvision datasets that cannot be fetched with plain colours."""
    token = _ASSUMED.set(set())
    try:
        yield
    finally:
        _ASSUMED.reset(token)
        _load_array_set.cache_clear()


@functools.lru_cache(maxsize=4)
def _load_array_set(source: str, _changed_ns: int) -> ArraySet:
    """Read and validate a dataset; cached, because every lookup of an image by path needs it."""
    read = _read_arrays(Path(source))
    by_name = {part.name: part for part in read.parts}
    order = ("all",) if "all" in by_name else ("train", "val", "test")
    if order[0] not in by_name:
        raise DataError(
            f"{source} has no training images. Subsets found: {', '.join(by_name) or 'none'}",
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
                convert = ". For values from 0 to 1: (255 * images).round().astype('uint8')"
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
