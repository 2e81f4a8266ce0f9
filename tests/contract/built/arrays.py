"""Data sets of arrays."""

import io
import zipfile
from pathlib import Path

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
