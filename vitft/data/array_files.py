"""Reads files that hold images as arrays: .npz, IDX (MNIST), CIFAR's, torchvision's classes.

Pickles are not opened here: torchvision reads CIFAR's, after it has compared their digests with
those it knows. What the arrays mean is checked in `arrays`.
"""

import contextlib
import gzip
import io
import logging
import re
import socket
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitft.system.errors import DataError

log = logging.getLogger(__name__)

TORCHVISION = "torchvision:"
CLASSES: Mapping[str, str] = {
    "CIFAR10": "train", "CIFAR100": "train", "MNIST": "train", "FashionMNIST": "train",
    "KMNIST": "train", "USPS": "train", "SVHN": "split", "STL10": "split",
}  # fmt: skip
"""Classes of torchvision.datasets that hold arrays, and the argument that names their part."""
PAIRS: Mapping[tuple[str, str], str] = {
    ("x_train", "y_train"): "train", ("train_images", "train_labels"): "train",
    ("x_val", "y_val"): "val", ("val_images", "val_labels"): "val",
    ("x_test", "y_test"): "test", ("test_images", "test_labels"): "test",
    ("x", "y"): "all", ("images", "labels"): "all",
}  # fmt: skip
"""Names of arrays in .npz files (Keras', MedMNIST's, plain ones) and the part that they are."""
IDX = re.compile(r"(train|t10k|test)-(images|labels)[-.]idx[13]-ubyte(\.gz)?")
RECORDS: Mapping[str, tuple[int, str]] = {
    "data_batch_1.bin": (1, "batches.meta.txt"), "train.bin": (2, "fine_label_names.txt"),
}  # fmt: skip
"""CIFAR's binary files: the first one's name, bytes of labels per record, names of the classes."""
PICKLED = {"cifar-10-batches-py": "CIFAR10", "cifar-100-python": "CIFAR100"}
PATIENCE_S = 20.0
"""Seconds that a server of data may be silent."""
DAMAGE = (OSError, ValueError, EOFError, KeyError, zlib.error, zipfile.BadZipFile)

Array = np.ndarray[Any, np.dtype[Any]]


class Part(NamedTuple):
    """Images (N, H, W, C) with whole numbers as labels (N,)."""

    name: str
    """train, val, test, or all where the files do not part them."""
    images: Array
    labels: Array


@dataclass(frozen=True, slots=True)
class Read:
    """What some files hold."""

    parts: tuple[Part, ...]
    classes: tuple[str, ...] = ()
    """Names by label; empty where the files name none."""
    notes: tuple[str, ...] = ()


def holds_arrays(folder: Path) -> bool:
    """Whether a folder holds IDX files or CIFAR's, itself or where torchvision puts them."""
    return bool(idx_files(folder) or records_in(folder) or pickles_in(folder))


def read(source: Path) -> Read:
    """All arrays of a source that `arrays.find_arrays` knows.

    Raises:
        DataError: Damaged, incomplete, or not to be had.
    """
    try:
        if source.name.startswith(TORCHVISION):
            return read_torchvision(source.name.removeprefix(TORCHVISION), source.parent)
        if source.suffix.lower() == ".npz":
            return read_npz(source)
        if files := idx_files(source):
            return read_idx(files)
        if records := records_in(source):
            return read_records(*records)
        found = pickles_in(source)
        assert found is not None, "asked without holds_arrays"
        return read_torchvision(PICKLED[found.name], found.parent)
    except DAMAGE as error:
        raise DataError(
            f"{source} cannot be read: {' '.join(str(error).split())[:200]}",
            fix="get the file again from where it came",
        ) from error


def read_npz(path: Path) -> Read:
    """Arrays under one of the usual pairs of names; Python objects in it are refused."""
    with path.open("rb") as stream, zipped(np.load(stream, allow_pickle=False)) as file:
        by_case = {name.lower(): name for name in file.files}
        parts = [
            Part(name, channels_last(file[by_case[x]]), file[by_case[y]].squeeze())
            for (x, y), name in PAIRS.items()
            if x in by_case and y in by_case
        ]
        if not parts:
            raise DataError(
                f"{path} holds {', '.join(file.files[:8]) or 'nothing'}: no images with labels",
                fix="name the arrays x and y, or x_train, y_train, x_test and y_test",
            )
        return Read(tuple(parts))


def zipped(loaded: Any) -> "np.lib.npyio.NpzFile":  # noqa: ANN401 - numpy tells by the content
    """What numpy read, if it is a file of named arrays."""
    if not isinstance(loaded, np.lib.npyio.NpzFile):
        raise ValueError("one array without a name, not a file of named arrays")
    return loaded


def channels_last(images: Array) -> Array:
    """Images (N, H, W, C) from those without a channel axis, or with it in front."""
    if images.ndim == 3:
        return images[..., None]
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        return np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    return images


def idx_files(folder: Path) -> dict[str, Path]:
    """IDX files by part and kind, e.g. `train-images`."""
    for place in (folder, folder / "raw", folder / "MNIST" / "raw"):
        if place.is_dir():
            matches = {path: IDX.fullmatch(path.name) for path in sorted(place.iterdir())}
            found = {f"{m[1].replace('t10k', 'test')}-{m[2]}": p for p, m in matches.items() if m}
            if found:
                return found
    return {}


def read_idx(files: Mapping[str, Path]) -> Read:
    """The parts whose images and labels are both there."""
    parts = []
    for name in ("train", "test"):
        pair = files.get(f"{name}-images"), files.get(f"{name}-labels")
        if pair[0] is not None and pair[1] is not None:
            parts.append(Part(name, channels_last(idx_array(pair[0])), idx_array(pair[1])))
    return Read(tuple(parts))


def idx_array(path: Path) -> Array:
    """The bytes of an IDX file in their shape.

    Source: the format's description on Yann LeCun's page of MNIST: two zeros, 8 for unsigned bytes,
    the number of axes, the length of each as a big-endian 32-bit number, the values.
    """
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    axes = content[3] if content[:3] == b"\0\0\x08" else 0
    shape = tuple(np.frombuffer(content, ">u4", axes, 4).tolist())
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def records_in(folder: Path) -> tuple[Path, int, str] | None:
    """The folder of CIFAR's binary files, the bytes of labels per record, the file of names."""
    for place in (folder, folder / "cifar-10-batches-bin", folder / "cifar-100-binary"):
        for first, (labels, names) in RECORDS.items():
            if (place / first).is_file() and (place / names).is_file():
                return place, labels, names
    return None


def read_records(folder: Path, labels: int, names: str) -> Read:
    """CIFAR's binary files: records of labels (the last one is the class) and 3 x 32 x 32 bytes."""
    kinds = {"train": ("data_batch_*.bin", "train.bin"), "test": ("test_batch.bin", "test.bin")}
    parts = []
    for part, patterns in kinds.items():
        files = sorted(path for pattern in patterns for path in folder.glob(pattern))
        records = [
            np.frombuffer(file.read_bytes(), np.uint8).reshape(-1, labels + 3072) for file in files
        ]
        if records:
            table = np.concatenate(records)
            planes = table[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            parts.append(Part(part, np.ascontiguousarray(planes), table[:, labels - 1].astype(int)))
    lines = (folder / names).read_text(encoding="utf-8").split("\n")
    return Read(tuple(parts), tuple(line.strip() for line in lines if line.strip()))


def pickles_in(folder: Path) -> Path | None:
    """The folder of CIFAR's Python files."""
    for name in PICKLED:
        place = folder if folder.name == name else folder / name
        if (place / "data_batch_1").is_file() or (place / "train").is_file():
            return place
    return None


def read_torchvision(name: str, root: Path) -> Read:
    """Both parts of a data set of torchvision, which fetches what is missing where it can.

    Raises:
        DataError: Not one of `CLASSES`; or neither there nor to be fetched.
    """
    if name not in CLASSES:
        raise DataError(
            f"torchvision:{name} is not one of the data sets that vitft takes from torchvision",
            fix=f"one of {', '.join(CLASSES)}; others as a folder of images",
        )
    from torchvision import datasets

    kind = getattr(datasets, name)
    parts: list[Part] = []
    names: tuple[str, ...] = ()
    for part in ("train", "test"):
        which = {"train": part == "train"} if CLASSES[name] == "train" else {"split": part}
        found = one_part(kind, root, which)
        labels = np.asarray(getattr(found, "targets", getattr(found, "labels", None)))
        parts.append(Part(part, channels_last(np.asarray(found.data)), labels.astype(int)))
        names = tuple(getattr(found, "classes", ()))
    if all(re.match(r"\d+ - ", text) for text in names):  # MNIST has "7 - seven"
        names = tuple(text.partition(" ")[0] for text in names)
    return Read(tuple(parts), names)


def one_part(kind: Any, root: Path, which: Mapping[str, Any]) -> Any:  # noqa: ANN401 - torchvision
    """A data set of torchvision: from the folder if it is there, else fetched into it."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(RuntimeError):
        return kind(str(root), **which, download=False)
    log.info(f"{kind.__name__} does not lie in {root!s}: fetching it")
    waits, existed = socket.getdefaulttimeout(), root.exists()
    try:
        socket.setdefaulttimeout(PATIENCE_S)  # torchvision sets none
        with contextlib.redirect_stdout(io.StringIO()):
            return kind(str(root), **which, download=True)
    except (OSError, RuntimeError) as error:  # no network, or the source is gone
        raise DataError(
            f"{kind.__name__} does not lie in {root}, or is not whole, and cannot be fetched "
            f"({' '.join(str(error).split())[:120]})",
            fix=f"put {wanted_files(kind)} into {placed(kind, root)}",
        ) from error
    finally:
        socket.setdefaulttimeout(waits)
        if not existed:
            with contextlib.suppress(OSError):
                root.rmdir()  # only if it is empty


def wanted_files(kind: Any) -> str:  # noqa: ANN401 - a class of torchvision
    """The files that torchvision looks for, as their makers name them."""
    if hasattr(kind, "resources"):
        return " and ".join(name for name, _ in kind.resources)
    if hasattr(kind, "split_list"):
        entries = [v for v in kind.split_list.values() if isinstance(v, (list, tuple))]
        return " and ".join(str(entry[1]) for entry in entries[:2])
    return str(getattr(kind, "filename", "its files"))


def placed(kind: Any, root: Path) -> Path:  # noqa: ANN401 - a class of torchvision
    """Where torchvision looks for them."""
    return root / kind.__name__ / "raw" if hasattr(kind, "resources") else root
