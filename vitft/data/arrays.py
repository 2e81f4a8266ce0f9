"""Datasets stored as arrays instead of image files: .npz, IDX, CIFAR and torchvision datasets.

Such a dataset is treated as a folder: each image has a path, e.g. `ROOT/train/cat/00042.bmp`, and
`array_member` returns the bytes of that BMP file. ROOT is the .npz file, the folder with the IDX or
CIFAR files, or a path such as `data/torchvision:CIFAR10`.
"""

import contextlib
import gzip
import io
import logging
import math
import os
import re
import socket
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain, compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitft.data.image_table import JOINER, Images, Row, join_labels, label_names
from vitft.data.parts import part_named
from vitft.data.places import INDEX, place_of
from vitft.system.errors import DataError, VitftError
from vitft.system.tensors import check_expansion
from vitft.system.text import count, listing, shell_quote

log = logging.getLogger(__name__)


TORCHVISION = "torchvision:"
PUBLISHED_SIZES: Mapping[str, tuple[int, int, tuple[int, int, int], int]] = {
    "CIFAR10": (50_000, 10_000, (32, 32, 3), 10),
    "CIFAR100": (50_000, 10_000, (32, 32, 3), 100),
    "MNIST": (60_000, 10_000, (28, 28, 1), 10),
    "FashionMNIST": (60_000, 10_000, (28, 28, 1), 10),
    "KMNIST": (60_000, 10_000, (28, 28, 1), 10),
    "USPS": (7_291, 2_007, (16, 16, 1), 10),
    "SVHN": (73_257, 26_032, (32, 32, 3), 10),
    "STL10": (5_000, 8_000, (96, 96, 3), 10),
}
"""Numbers of training and test images, shape of an image (H, W, C) and number of classes."""
_SIZES_ASSUMED: ContextVar[bool] = ContextVar("_SIZES_ASSUMED", default=False)
"""Whether torchvision datasets that cannot be fetched are replaced by others of their size."""
_NPZ_IMAGES = re.compile(r"x(?:_([a-z]+))?|(?:([a-z]+)_)?images")
"""Usual names of arrays of images in .npz files (Keras, MedMNIST etc.), with their subset."""
_NPZ_CLASSES = ("classes", "class_names", "label_names")
_IDX = re.compile(r"(train|t10k|test)-(images|labels)[-.]idx[13]-ubyte(\.gz)?")
_RECORDS: Mapping[str, tuple[int, str]] = {
    "data_batch_1.bin": (1, "batches.meta.txt"), "train.bin": (2, "fine_label_names.txt"),
}  # fmt: skip
"""First file of each binary CIFAR dataset, with its label bytes per record and list of classes."""
_PICKLED = {"cifar-10-batches-py": "CIFAR10", "cifar-100-python": "CIFAR100"}

_Array = np.ndarray[Any, np.dtype[Any]]


class _Part(NamedTuple):
    """One subset of a dataset: images (N, H, W, C) with integer labels (N,)."""

    name: str  # train, val or test; all if the files have no split
    images: _Array
    labels: _Array


_Read = tuple[list[_Part], tuple[str, ...], tuple[str, ...], bool]
"""Subsets; class names in the order of the labels, if known; notes; and whether an image may have
any number of labels (the classes are then label sets)."""
_Arrays = tuple[Images, tuple[_Part, ...]]
"""Images of an array dataset, and its subsets with labels that are indices of their classes."""


def holds_arrays(folder: Path) -> bool:
    """Return whether a folder or one of torchvision's subfolders contains IDX or CIFAR files."""
    return folder.is_dir() and _reader_of(folder) is not None


def _reader_of(source: Path) -> Callable[[], _Read] | None:
    """Return a function that reads the arrays at a path, or None if there are none."""
    if source.name.startswith(TORCHVISION):
        name = source.name.removeprefix(TORCHVISION)
        return partial(_read_torchvision, name, source.parent)
    if not source.is_dir():
        is_npz = source.suffix.lower() == ".npz" and source.is_file()
        return partial(_read_npz_arrays, source) if is_npz else None
    if files := _idx_files(source):
        return partial(_read_idx, files)
    for place in (source, source / "cifar-10-batches-bin", source / "cifar-100-binary"):
        for first, (labels, names) in _RECORDS.items():
            if (place / first).is_file() and (place / names).is_file():
                return partial(_read_records, place, labels, names)
    for name, kind in _PICKLED.items():
        place = source if source.name == name else source / name
        if (place / "data_batch_1").is_file() or (place / "train").is_file():
            return partial(_read_torchvision, kind, place.parent)
    return None


def _read_npz_arrays(path: Path) -> _Read:
    """Read the labelled images of an .npz file; labels are numbers, class names or one-hot."""
    with zipfile.ZipFile(path) as archive:
        check_expansion(sum(one.file_size for one in archive.infolist()), path.stat().st_size)
    with np.load(path, allow_pickle=False) as file:
        by_case, pairs = {name.lower(): name for name in file.files}, npz_subsets(file.files)
        parts = []
        for (x, y), name in pairs.items():
            images, labels = file[by_case[x]], _as_text(file[by_case[y]])
            labels = labels.squeeze(tuple(i for i, n in enumerate(labels.shape) if i and n == 1))
            parts.append(_Part(name, _channels_last(images), labels))
        if not parts:
            problem = f"{path} contains no labelled images. "
            problem += f"Arrays found: {', '.join(file.files[:8]) or 'none'}"
            fix = "name the arrays x and y, or x_train, y_train, x_test and y_test"
            raise DataError(problem, fix=f"{fix}, or pass weights with --weights")
        for name in {*pairs.values()}:
            if len(same := [x for (x, _), part in pairs.items() if part == name]) > 1:
                problem = f"{path} has several arrays of {name} images: {listing(same)}"
                raise DataError(problem, fix="keep one of them, with its labels")
        named = [name for name in _NPZ_CLASSES if name in by_case][:1]
        classes = tuple(str(n) for one in named for n in _as_text(file[by_case[one]]).ravel())
        used = {*chain(*pairs), *named}
        rest = listing(name for name in file.files if name.lower() not in used)
        notes = (f"arrays that are not used: {rest}",) * bool(rest)
    several = False
    if all(p.labels.ndim == 2 and np.isin(p.labels, (0, 1)).all() for p in parts):
        widths = {part.labels.shape[1] for part in parts} | {len({*classes})} - {0}
        if len(widths) > 1:
            problem = "the numbers of label columns and of class names differ"
            found = " and ".join(map(str, sorted(widths)))
            fix = "provide a column of 0 and 1, and a name, for each label"
            raise DataError(f"{path}: {problem}: {found}", fix=fix)
        several = any((part.labels.sum(axis=1) != 1).any() for part in parts)
        if several:
            columns = parts[0].labels.shape[1]
            texts = [name.replace(JOINER, "_") for name in classes]
            texts = texts or [f"{i:0{len(str(columns - 1))}}" for i in range(columns)]
            sets = [[join_labels(compress(texts, row)) for row in part.labels] for part in parts]
            parts = [p._replace(labels=np.array(own)) for p, own in zip(parts, sets, strict=True)]
        else:
            parts = [part._replace(labels=part.labels.argmax(axis=1)) for part in parts]
            notes += ("the labels are one-hot: the class is the column of the 1",)
    if all(part.labels.dtype.kind == "U" for part in parts):  # labels that are class names
        classes = tuple(sorted({name for part in parts for name in part.labels.ravel().tolist()}))
        parts = [p._replace(labels=np.searchsorted(classes, p.labels)) for p in parts]
    return parts, classes, notes, several


def npz_subsets(names: Iterable[str]) -> dict[tuple[str, str], str]:
    """Return the pairs of image and label arrays among `names` (lower case), with their subset.

    This is `all` for arrays without a subset in their names, which training images replace.
    """
    present, found = {name.lower() for name in names}, dict[tuple[str, str], str]()
    for x, match in ((name, _NPZ_IMAGES.fullmatch(name)) for name in sorted(present)):
        y = re.sub("^x", "y", x.replace("images", "labels"))
        if match and y in present:
            part = match[1] or match[2]
            found[x, y] = part_named(part) if part else "all"
    alone = "all" in found.values() and "train" not in found.values()
    return {pair: name for pair, name in found.items() if name and (name == "all") == alone}


def _as_text(array: _Array) -> _Array:
    """Return an array of bytes as one of text, and any other as it is."""
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array


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


def _read_idx(files: Mapping[str, Path]) -> _Read:
    """Read IDX files of bytes as arrays with the shapes given in their headers.

    Source: the format description on Yann LeCun's MNIST page: two zero bytes, an 8 (for bytes), the
    number of axes, the length of each axis (32 bits, big-endian) and the values.
    """
    arrays = {}
    for name, path in files.items():
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            start = file.read(4)
            axes = start[3] if start[:3] == b"\0\0\x08" else 0
            shape = tuple(np.frombuffer(file.read(4 * axes), ">u4").tolist())
            check_expansion(math.prod(shape), path.stat().st_size)
            values = np.frombuffer(file.read(math.prod(shape) + 1), np.uint8)
            arrays[name] = values.reshape(shape)
    parts = [
        _Part(part, _channels_last(arrays[f"{part}-images"]), arrays[f"{part}-labels"])
        for part in ("train", "test")
        if f"{part}-images" in arrays and f"{part}-labels" in arrays
    ]
    return parts, (), (), False


def _read_records(folder: Path, labels: int, names: str) -> _Read:
    """Read CIFAR's binary records: label bytes, the last being the class, and 3072 colours."""
    kinds = {"train": ("data_batch_*.bin", "train.bin"), "test": ("test_batch.bin", "test.bin")}
    parts = []
    for part, patterns in kinds.items():
        files = sorted(path for pattern in patterns for path in folder.glob(pattern))
        if files:
            content = b"".join(file.read_bytes() for file in files)
            table = np.frombuffer(content, np.uint8).reshape(-1, labels + 3072)
            planes = table[:, labels:].reshape(-1, 3, 32, 32)
            parts.append(_Part(part, _channels_last(planes), table[:, labels - 1].astype(int)))
    lines = (folder / names).read_text(encoding="utf-8").split("\n")
    return parts, tuple(line.strip() for line in lines if line.strip()), (), False


def _read_torchvision(name: str, root: Path) -> _Read:
    """Read the train and test subsets of a torchvision dataset, downloading missing files."""
    if name not in PUBLISHED_SIZES:
        fix = f"use one of {', '.join(PUBLISHED_SIZES)}, or a folder with one folder per class"
        raise DataError(f"torchvision:{name} is not supported", fix=fix)
    from torchvision import datasets

    parts: list[_Part] = []
    names: tuple[str, ...] = ()
    try:
        for part in ("train", "test"):
            is_named = name in ("SVHN", "STL10")
            which = {"split": part} if is_named else {"train": part == "train"}
            found = _open_torchvision(getattr(datasets, name), root, which)
            labels = np.asarray(getattr(found, "targets", getattr(found, "labels", None)), int)
            parts.append(_Part(part, _channels_last(np.asarray(found.data)), labels))
            names = tuple(getattr(found, "classes", ()))
    except DataError:
        if not _SIZES_ASSUMED.get():
            raise
        train, test, shape, classes = PUBLISHED_SIZES[name]
        log.warning(
            f"{name} could not be fetched: assuming its published size, {train:,} + {test:,} "
            f"images of {shape[0]}x{shape[1]} pixels in {classes} classes"
        )
        pixel = np.arange(shape[2], dtype=np.uint8)  # three channels that differ are a colour
        parts = [
            _Part(part, np.broadcast_to(pixel, (n, *shape)), np.arange(n) % classes)
            for part, n in (("train", train), ("test", test))
        ]
        names = ()
    if all(re.match(r"\d+ - ", text) for text in names):  # MNIST: "7 - seven"
        names = tuple(text.partition(" ")[0] for text in names)
    return parts, names, (), False


def _open_torchvision(kind: Any, root: Path, which: Mapping[str, Any]) -> Any:  # noqa: ANN401 - torchvision
    """Open a torchvision dataset, downloading it if its files are not in the folder."""
    existed = root.exists()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(RuntimeError):
        return kind(str(root), **which, download=False)
    log.info(f"fetching {kind.__name__} to {root}")
    waits = socket.getdefaulttimeout()
    try:
        socket.setdefaulttimeout(20.0)  # seconds; torchvision sets no timeout
        with contextlib.redirect_stdout(io.StringIO()):
            return kind(str(root), **which, download=True)
    except (OSError, RuntimeError) as error:  # no network, or the source has disappeared
        stated = re.search(r"<urlopen error ([^>]+)>", str(error))
        reason = stated[1] if stated else " ".join(str(error).split())[:120]
        folder, wanted = root, str(getattr(kind, "filename", "its files"))
        if hasattr(kind, "resources"):
            folder = root / kind.__name__ / "raw"
            wanted = " and ".join(name for name, _ in kind.resources)
        if not existed:
            for place in (folder, folder.parent, root):
                with contextlib.suppress(OSError):
                    if place.is_relative_to(root):
                        place.rmdir()  # only succeeds on an empty folder
        problem = f"is missing or incomplete in {root} and could not be fetched ({reason})"
        fix = f"put {wanted} into {folder}, or set data.root to the folder that has them. Without "
        fix += f"them, try --data demo --image-size {PUBLISHED_SIZES[kind.__name__][2][0]}"
        raise DataError(f"{kind.__name__} {problem}", fix=fix) from error
    finally:
        socket.setdefaulttimeout(waits)


# datasets stored as arrays instead of image files: .npz, IDX, CIFAR and torchvision datasets ------

PixelArray = np.ndarray[Any, np.dtype[np.uint8]]

_MEMBER = re.compile(
    r"(?P<root>.+)/(?P<part>train|val|test|all)/[^/]+/(?P<number>\d{5,})\.bmp", re.S
)


def data_path(path: str, root: str = "") -> Path:
    """Convert a value of `--data` to a path; `root` (or `data`) is the folder of torchvision's.

    For shards and Hugging Face datasets, it is the index of the local copy, which may not exist.
    """
    if place := place_of(path):
        return place.folder / INDEX
    if path.startswith(TORCHVISION):
        path = f"{root or 'data'}/{path}"
    return Path(os.path.expanduser(path))  # noqa: PTH111 - never raises


def find_arrays(root: Path) -> Images | None:
    """Return the array dataset at a path, or None; raise DataError if it is damaged or invalid."""
    arrays = _find(root)
    return None if arrays is None else replace(arrays[0], root=root)


def _find(root: Path) -> _Arrays | None:
    if root.name.startswith(TORCHVISION):
        return _load_arrays(str(root), 0)
    try:
        changed_ns = root.stat().st_mtime_ns if _reader_of(root) else None
        return None if changed_ns is None else _load_arrays(str(root.resolve()), changed_ns)
    except DataError as error:  # the arrays are cached by an absolute path, and named as given
        error.problem = error.problem.replace(str(root.resolve()), str(root))
        raise
    except OSError:
        return None  # the reason is reported when the folder is listed


def _readable_arrays(path: str) -> _Arrays | None:
    """Return the array dataset at a path, or None if there is none or it is damaged."""
    with contextlib.suppress(DataError):
        return _find(Path(path))
    return None


def no_image_reason(path: str) -> str:
    """Return why the path of an array dataset is not that of an image; empty for any other path."""
    is_archive = path.lower().endswith(".npz") and os.path.isfile(path)  # noqa: PTH113 - odd names
    if not is_archive and not os.path.isdir(path):  # noqa: PTH112 - odd names
        return ""
    arrays = _readable_arrays(path)
    if arrays is None:
        return "a NumPy archive without labelled images, not an image" if is_archive else ""
    rows = arrays[0].rows
    example = shell_quote(f"{path.rstrip('/')}/{rows[0].path}")
    number = count(len(rows), "image")
    way = f"evaluate all with vitft evaluate --data {shell_quote(path)} --run RUN"
    return f"a dataset of {number}, not an image: name one, e.g. {example}, or {way}"


def array_member(path: str) -> bytes | None:
    """Return the BMP bytes of the image with exactly this path, or None if there is none."""
    match = _MEMBER.fullmatch(path)
    if match is None or (arrays := _readable_arrays(match["root"])) is None:
        return None
    number, (images, parts) = int(match["number"]), arrays
    for part in parts:
        is_in = part.name == match["part"] and number < len(part.images)
        if is_in and path == f"{match['root']}/{_path_of(part, images.classes, number)}":
            # A 24-bit BMP file of (H, W, 1 or 3), with its rows stored bottom-up
            image: PixelArray = part.images[number]
            height, width = image.shape[:2]
            rows = np.zeros((height, -(-3 * width // 4) * 4), np.uint8)  # rows padded to 4n bytes
            colours = np.broadcast_to(image[::-1, :, ::-1], (height, width, 3))
            rows[:, : 3 * width] = colours.reshape(height, -1)
            size = 54 + rows.size
            head = struct.pack("<2sI4xIIiiHH24x", b"BM", size, 54, 40, width, height, 1, 24)
            return head + rows.tobytes()
    return None


def _path_of(part: _Part, classes: Sequence[str], number: int) -> str:
    """Return the path of image `number` of a subset, which contains its class."""
    return f"{part.name}/{classes[part.labels[number]] or 'no label'}/{number:05}.bmp"


@contextlib.contextmanager
def sizes_assumed() -> Iterator[None]:
    """In the block, replace torchvision datasets that cannot be fetched with plain colours."""
    token = _SIZES_ASSUMED.set(True)
    try:
        yield
    finally:
        _SIZES_ASSUMED.reset(token)
        _load_arrays.cache_clear()


@lru_cache(maxsize=4)
def _load_arrays(source: str, _changed_ns: int) -> _Arrays:
    """Read and validate a dataset; cached, because every lookup of an image by path needs it."""
    try:
        reader = _reader_of(Path(source))
        assert reader is not None
        read, known, notes, several = reader()
    except VitftError:
        raise
    except Exception as error:  # numpy, zipfile, zlib and tokenize have no common base
        problem = f"cannot read {source}: {' '.join(str(error).split())[:200]}"
        fix = "download or copy the file again, or save the arrays without compression, as numbers "
        raise DataError(problem, fix=f"{fix}or text") from error
    by_name = {part.name: part for part in read}
    order = ("all",) if "all" in by_name else ("train", "val", "test")
    if order[0] not in by_name:
        problem = f"no training images. Subsets found: {', '.join(by_name) or 'none'}"
        raise DataError(f"{source} has {problem}", fix="add training images")
    parts = [by_name[name] for name in order if name in by_name]
    for part in parts:
        _check_part(part, f"{source}, subset {part.name}")
    shapes = {part.images.shape[1:] for part in parts}
    if len(shapes) > 1 or 0 in next(iter(shapes)):
        problem = f"empty images or images of different shapes: {' and '.join(map(str, shapes))}"
        raise DataError(f"{source} contains {problem}", fix="resize all images to the same size")
    present = sorted({int(label) for part in parts for label in np.unique(part.labels)})
    given = known or tuple(str(i) for i in range(max(present) + 1))
    if max(present) >= len(given) or min(present) < 0:
        named = f", but there are {count(len(known), 'class name')}" if known else ""
        problem = f"the labels range from {min(present)} to {max(present)}{named}"
        fix = "number the classes from 0, e.g. labels - labels.min(), and name all or none of them"
        raise DataError(f"{source}: {problem}", fix=fix)
    width = max(len(name) for name in given) if all(n.isdecimal() for n in given) else 0
    names = [
        re.sub(r"[/\x00]", "_", given[i].rjust(width, "0")).strip()
        or ("" if several else f"class {i}")
        for i in present
    ]
    classes = tuple(sorted(names))
    if len({*names}) < len(names) or len(names) < 2:
        found = count(len({*names}), "distinct class name")
        problem = f"found {found} for {count(len(names), 'class', 'classes')}"
        fix = "use at least two classes, each with its own name"
        raise DataError(f"{source}: {problem}", fix=fix)
    table = np.full(max(present) + 1, -1)
    table[present] = [classes.index(name) for name in names]
    parts = [part._replace(labels=table[part.labels]) for part in parts]
    rows = [
        Row(_path_of(part, classes, i), int(label), part_named(part.name) if len(parts) > 1 else "")
        for part in parts
        for i, label in enumerate(part.labels.tolist())
    ]
    rows.sort(key=lambda row: (row.label, row.path))
    labels = label_names(classes) if several else ()
    layout: Any = "split" if len(parts) > 1 else "classes"
    return Images(Path(source), classes, rows, labels, layout, notes=notes), tuple(parts)


def _check_part(part: _Part, where: str) -> None:
    """Raise a DataError if the images or the labels of a subset cannot be used."""
    images, labels = part.images, part.labels
    if images.ndim != 4 or images.shape[3] not in (1, 3) or images.dtype != np.uint8:
        problem = f"images of shape {images.shape} and dtype {images.dtype} are not supported"
        fix = "use the shape (images, height, width) or (images, height, width, 1 or 3), and uint8 "
        fix += "from 0 to 255. For values from 0 to 1: (255 * images).round().astype('uint8')"
    elif labels.shape != (len(images),) or not len(images):
        problem = f"labels of shape {labels.shape} do not suit {len(images)} images"
        fix = "provide a class index, a class name or a row of zeros and ones for each image. For "
        fix += "probabilities, use the most probable class of each image: labels.argmax(axis=1)"
    elif not np.issubdtype(labels.dtype, np.integer):
        problem = f"labels of dtype {labels.dtype} are not supported"
        fix = "provide class indices or names. Regression is not supported: replace measured "
        fix += "values with class indices, e.g. numpy.digitize(labels, limits)"
    else:
        return
    raise DataError(f"{where}: {problem}", fix=fix)
