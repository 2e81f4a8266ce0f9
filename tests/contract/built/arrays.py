"""Data sets of arrays."""

import io
import struct
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np


def several_labels(folder: Path) -> None:
    """Write chest.npz: 12 images with five 0/1 labels each."""
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (12, 16, 16, 3), dtype=np.uint8)
    np.savez(folder / "chest.npz", x=images, y=random.integers(0, 2, (12, 5)))


def named_labels(folder: Path) -> None:
    """Write chest.npz: training and test images with three named 0/1 labels each."""
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (56, 16, 16, 3), dtype=np.uint8)
    flags = random.integers(0, 2, (56, 3)).astype(bool)
    flags[48] = False
    np.savez(
        folder / "chest.npz",
        train_images=images[:48],
        train_labels=flags[:48],
        test_images=images[48:],
        test_labels=flags[48:],
        classes=["edema", "mass", "nodule"],
    )


def one_hot(folder: Path) -> None:
    """Write set.npz: 12 images with one 1 in three columns."""
    write(folder, np.eye(3)[np.arange(12) % 3])


def probabilities(folder: Path) -> None:
    """Write set.npz: 12 images with probabilities of three classes."""
    write(folder, np.full((12, 3), [0.2, 0.3, 0.5]))


def measured(folder: Path) -> None:
    """Write set.npz: 12 images with measured values."""
    write(folder, 20.5 + np.arange(12) / 4)


def write(folder: Path, labels: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    """Write set.npz with these labels of random images."""
    shape = (len(labels), 16, 16, 3)
    images = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    np.savez(folder / "set.npz", x=images, y=labels)


def bomb(folder: Path) -> None:
    """Write set.npz: black images that take a thousandth of their size."""
    images = np.zeros((40, 1000, 1000, 3), np.uint8)
    np.savez_compressed(folder / "set.npz", x=images, y=np.arange(40) % 2)


def forged(folder: Path) -> None:
    """Write set.npz, whose images have a header that states a pebibyte."""
    header, labels = io.BytesIO(), io.BytesIO()
    shape = {"descr": "|u1", "fortran_order": False, "shape": (2**20, 2**20, 2**10)}
    np.lib.format.write_array_header_1_0(header, shape)
    np.save(labels, np.arange(2))
    with zipfile.ZipFile(folder / "set.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
        archive.writestr("y.npy", labels.getvalue())


def unnamed_labels(folder: Path) -> None:
    """Write set.npz: 12 images with four 0/1 labels, two of them with a name."""
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (12, 16, 16, 3), dtype=np.uint8)
    flags = random.integers(0, 2, (12, 4))
    np.savez(folder / "set.npz", x=images, y=flags, classes=["a", "b"])


def parts(folder: Path) -> None:
    """Write set.npz: 12 images for training and 6 for testing, of the classes cat and dog."""
    pixels = coloured(18)
    np.savez(
        folder / "set.npz",
        x_train=pixels[:12],
        y_train=np.arange(12) % 2,
        x_test=pixels[12:],
        y_test=np.arange(6) % 2,
        classes=["cat", "dog"],
    )


def coloured(images: int, side: int = 16) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return noisy images, every second of which is brighter."""
    noise = np.random.default_rng(0).integers(0, 100, (images, side, side, 3), dtype=np.uint8)
    return noise + (np.arange(images) % 2 * 100).astype(np.uint8)[:, None, None, None]


def labelled(folder: Path, **changes: Any) -> None:
    """Write set.npz with 12 images x of two classes y, and the given arrays in their place."""
    arrays: dict[str, Any] = {"x": coloured(12), "y": np.arange(12) % 2} | changes
    present = {name: array for name, array in arrays.items() if array is not None}
    np.savez(folder / "set.npz", **present)


TWO = np.arange(12) % 2
in_parts = partial(labelled, x=None, y=None)
names = partial(labelled, y=np.array(["cat", "dog"] * 6))
channels_first = partial(labelled, x=coloured(12)[..., :1].transpose(0, 3, 1, 2))
other_names = partial(in_parts, pictures=coloured(12), classes_of=TWO)
lonely = partial(in_parts, x_train=coloured(12), y_train=TWO, x_test=coloured(2))
two_of_a_part = partial(lonely, y_test=TWO[:2], train_images=coloured(12), train_labels=TWO)
valid = partial(
    labelled, x_train=coloured(12), y_train=TWO, x_valid=coloured(16)[12:], y_valid=TWO[:4],
    patient=TWO, classes=np.array([b"cat", b"dog"]),
)  # fmt: skip
test_only = partial(in_parts, x_test=coloured(12), y_test=TWO)
two_sizes = partial(
    in_parts, x_train=coloured(12), y_train=TWO, x_test=coloured(4, side=8), y_test=TWO[:4]
)
objects = partial(labelled, y=np.array([{"a": 1}] * 12, dtype=object))
floats = partial(labelled, x=coloured(12) / 255)
five_channels = partial(labelled, x=np.zeros((12, 16, 16, 5), np.uint8))
too_many_labels = partial(labelled, y=np.arange(13) % 2)
negative = partial(labelled, y=np.arange(12) % 3 - 1)
few_names = partial(labelled, y=np.arange(12) % 3, classes=np.array(["a", "b"]))
one_class = partial(labelled, y=np.zeros(12, np.int64))


def weights(folder: Path) -> None:
    found: dict[str, Any] = {"Transformer/encoder_norm/scale": np.ones(4), "cls": np.ones(1)}
    np.savez(folder / "vit.npz", **found)


def idx(folder: Path) -> None:
    """Write the four files of MNIST, with 14 and 6 grey images of two classes."""
    root = folder / "data" / "MNIST" / "raw"
    root.mkdir(parents=True)
    for stem, images in (("train", 14), ("t10k", 6)):
        pixels, labels = coloured(images)[..., 0], (np.arange(images) % 2).astype(np.uint8)
        head = struct.pack(">IIII", 0x803, images, 16, 16)
        (root / f"{stem}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        head = struct.pack(">II", 0x801, images)
        (root / f"{stem}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def idx_without_labels(folder: Path) -> None:
    idx(folder)
    (folder / "data" / "MNIST" / "raw" / "train-labels-idx1-ubyte").unlink()


def idx_truncated(folder: Path) -> None:
    idx(folder)
    path = folder / "data" / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-100])


def idx_signed(folder: Path) -> None:
    idx(folder)
    path = folder / "data" / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    path.write_bytes(b"\0\0\x09" + path.read_bytes()[3:])


def cifar(folder: Path) -> None:
    """Write CIFAR-10's binary files, with two images each."""
    root = folder / "cifar-10-batches-bin"
    root.mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        pixels = coloured(2, side=32).transpose(0, 3, 1, 2).reshape(2, -1)
        rows = np.concatenate([np.arange(2, dtype=np.uint8)[:, None], pixels], axis=1)
        (root / f"{name}.bin").write_bytes(rows.tobytes())
    (root / "batches.meta.txt").write_text("airplane\nbird\n")
