"""Data sets stored as arrays behave like folders of image files."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from vitft.data import open_image, read_bytes, scan
from vitft.system import DataError

Array = np.ndarray[Any, np.dtype[Any]]


def drawn(count: int, shape: tuple[int, ...], classes: int = 3) -> tuple[Array, Array]:
    """Images of noise, and labels in turn."""
    random = np.random.default_rng(0)
    return random.integers(0, 256, (count, *shape), np.uint8), np.arange(count) % classes


@pytest.mark.parametrize("shape", [(6, 5, 3), (5, 7, 3), (8, 8, 3)], ids=str)
def test_the_bytes_of_an_image_are_those_that_pillow_writes(
    tmp_path: Path, shape: tuple[int, int, int]
) -> None:
    images, labels = drawn(2, shape)
    np.savez(tmp_path / "set.npz", x=images, y=labels)
    stream = io.BytesIO()
    Image.fromarray(images[0]).save(stream, "BMP")
    expected = stream.getvalue()

    found = read_bytes(tmp_path / "set.npz" / "all" / "0" / "00000.bmp")

    assert found[:34] == expected[:34]  # after it: an optional size, and dots per metre
    assert found[34:54] == bytes(20)
    assert found[54:] == expected[54:]


@pytest.mark.parametrize(
    ("numbers", "names", "classes"),
    [
        pytest.param([0, 9], [], ["0", "9"], id="two digits"),
        pytest.param([3, 10], [], ["03", "10"], id="numbers of equal width"),
        pytest.param([0, 1], ["b", ""], ["b", "class 1"], id="no name"),
        pytest.param([1, 0], ["a/b", " c "], ["a_b", "c"], id="no part of a path"),
        pytest.param([2, 0], ["7", "-", "10"], ["10", "7"], id="names that are not all numbers"),
    ],
)
def test_class_names_of_arrays_are_made_usable(
    tmp_path: Path, numbers: list[int], names: list[str], classes: list[str]
) -> None:
    images, _ = drawn(6, (4, 4))
    arrays = {"x": images, "y": np.array(numbers * 3)}
    if names:
        arrays |= {"classes": np.array(names), "label_names": np.array(["not used"] * 3)}
    np.savez(tmp_path / "set.npz", allow_pickle=False, **arrays)

    folder = scan(tmp_path / "set.npz")

    assert folder.classes == tuple(classes)
    in_order = sorted(numbers) if not names or names[0] != "7" else [2, 0]
    for file in folder.rows:
        assert numbers[int(file.path[-9:-4]) % 2] == in_order[file.label]


def test_cifar_records_are_read_with_the_names_of_their_classes(tmp_path: Path) -> None:
    images, labels = drawn(8, (32, 32, 3), classes=2)
    records = np.concatenate([labels[:, None], images.transpose(0, 3, 1, 2).reshape(8, -1)], axis=1)
    (tmp_path / "data_batch_1.bin").write_bytes(records[:4].astype(np.uint8).tobytes())
    (tmp_path / "test_batch.bin").write_bytes(records[4:].astype(np.uint8).tobytes())
    (tmp_path / "batches.meta.txt").write_text("zebra\nape\n")

    folder = scan(tmp_path)

    assert folder.classes == ("ape", "zebra")  # sorted, whatever their numbers were
    first = next(file for file in folder.rows if file.path == "train/zebra/00000.bmp")
    assert folder.classes[first.label] == "zebra"
    assert np.array_equal(np.asarray(open_image(f"{tmp_path}/{first.path}")), images[0])


def test_cifar_100_has_the_class_in_the_second_of_two_bytes(tmp_path: Path) -> None:
    images, labels = drawn(6, (32, 32, 3))
    planes = images.transpose(0, 3, 1, 2).reshape(6, -1)
    records = np.concatenate([labels[:, None] // 2, labels[:, None], planes], axis=1)
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    (folder / "train.bin").write_bytes(records.astype(np.uint8).tobytes())
    (folder / "fine_label_names.txt").write_text("apple\nbear\ncup\n")

    found = scan(tmp_path)

    assert found.classes == ("apple", "bear", "cup")
    for row in found.rows:
        number = int(row.path[-9:-4])
        assert row.label == labels[number]
        assert np.array_equal(np.asarray(open_image(f"{tmp_path}/{row.path}")), images[number])


def test_pickles_of_cifar_with_another_digest_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.CIFAR10, "url", "http://127.0.0.1:9/nobody-listens.tar.gz")
    place = tmp_path / "cifar-10-batches-py"
    place.mkdir()
    (place / "data_batch_1").write_bytes(b"cos\nsystem\n(S'touch /tmp/x'\ntR.")

    with pytest.raises(DataError, match="CIFAR10 is missing or incomplete in"):
        scan(tmp_path)
