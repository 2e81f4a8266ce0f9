"""Data sets stored as arrays behave like folders of image files."""

import gzip
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from vitft.data import encode_bmp, find_arrays, open_image, scan
from vitft.system import DataError, ImageError

Array = np.ndarray[Any, np.dtype[Any]]


def drawn(count: int, shape: tuple[int, ...], classes: int = 3) -> tuple[Array, Array]:
    """Images of noise, and labels in turn."""
    random = np.random.default_rng(0)
    return random.integers(0, 256, (count, *shape), np.uint8), np.arange(count) % classes


def idx(array: Array) -> bytes:
    """An IDX file."""
    head = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_idx(root: Path, *, packed: bool = False) -> tuple[Array, Array]:
    """MNIST in small: nine images train, six are the test."""
    images, labels = drawn(15, (6, 5))
    root.mkdir(parents=True)
    for part, rows in (("train", slice(0, 9)), ("t10k", slice(9, 15))):
        for kind, array in (("images-idx3", images[rows]), ("labels-idx1", labels[rows])):
            content = idx(array)
            path = root / f"{part}-{kind}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(content) if packed else content)
    return images, labels


@pytest.mark.parametrize("shape", [(6, 5, 3), (5, 7, 3), (8, 8, 3)], ids=str)
def test_the_bytes_of_an_image_are_those_that_pillow_writes(shape: tuple[int, int, int]) -> None:
    images, _ = drawn(1, shape)
    stream = io.BytesIO()
    Image.fromarray(images[0]).save(stream, "BMP")
    expected = stream.getvalue()

    found = encode_bmp(images[0])

    assert found[:34] == expected[:34]  # after it: an optional size, and dots per metre
    assert found[34:54] == bytes(20)
    assert found[54:] == expected[54:]


@pytest.mark.parametrize(
    "names",
    [("x_train", "y_train", "x_test", "y_test"),
     ("train_images", "train_labels", "val_images", "val_labels")],
    ids=["as Keras", "as MedMNIST"],
)  # fmt: skip
def test_an_npz_with_its_own_split_keeps_it(tmp_path: Path, names: tuple[str, ...]) -> None:
    images, labels = drawn(15, (4, 4))
    path = tmp_path / "set.npz"
    values = images[:9], labels[:9, None], images[9:], labels[9:]
    np.savez(path, allow_pickle=False, **dict(zip(names, values, strict=True)))

    folder = scan(path)

    assert folder.layout == "split"
    assert folder.classes == ("0", "1", "2")
    rows = [(file.label, file.path) for file in folder.files]
    assert rows == sorted(rows)
    second = "test" if "x_test" in names else "val"
    assert [sum(f.part == part for f in folder.files) for part in ("train", second)] == [9, 6]
    for file in folder.files:
        number, own = int(file.path[-9:-4]), images[:9] if file.part == "train" else images[9:]
        assert np.array_equal(np.asarray(open_image(f"{path}/{file.path}"))[..., 0], own[number])


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
    for file in folder.files:
        assert numbers[int(file.path[-9:-4]) % 2] == in_order[file.label]


def test_cifar_records_are_read_with_the_names_of_their_classes(tmp_path: Path) -> None:
    images, labels = drawn(8, (32, 32, 3), classes=2)
    records = np.concatenate([labels[:, None], images.transpose(0, 3, 1, 2).reshape(8, -1)], axis=1)
    (tmp_path / "data_batch_1.bin").write_bytes(records[:4].astype(np.uint8).tobytes())
    (tmp_path / "test_batch.bin").write_bytes(records[4:].astype(np.uint8).tobytes())
    (tmp_path / "batches.meta.txt").write_text("zebra\nape\n")

    folder = scan(tmp_path)

    assert folder.classes == ("ape", "zebra")  # sorted, whatever their numbers were
    first = next(file for file in folder.files if file.path == "train/zebra/00000.bmp")
    assert folder.classes[first.label] == "zebra"
    assert np.array_equal(np.asarray(open_image(f"{tmp_path}/{first.path}")), images[0])
    (tmp_path / "batches.meta.txt").unlink()
    assert find_arrays(tmp_path) is None


def test_cifar_100_has_the_class_in_the_second_of_two_bytes(tmp_path: Path) -> None:
    images, labels = drawn(6, (32, 32, 3))
    planes = images.transpose(0, 3, 1, 2).reshape(6, -1)
    records = np.concatenate([labels[:, None] // 2, labels[:, None], planes], axis=1)
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    (folder / "train.bin").write_bytes(records.astype(np.uint8).tobytes())
    (folder / "fine_label_names.txt").write_text("apple\nbear\ncup\n")

    arrays = find_arrays(tmp_path)

    assert arrays is not None
    assert arrays.classes == ("apple", "bear", "cup")
    assert np.array_equal(arrays.parts[0].images, images)
    assert np.array_equal(arrays.parts[0].labels, labels)


def test_pickles_of_cifar_with_another_digest_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.CIFAR10, "url", "http://127.0.0.1:9/nobody-listens.tar.gz")
    place = tmp_path / "cifar-10-batches-py"
    place.mkdir()
    (place / "data_batch_1").write_bytes(b"cos\nsystem\n(S'touch /tmp/x'\ntR.")

    with pytest.raises(DataError, match="CIFAR10 is missing or incomplete in"):
        scan(tmp_path)


def test_a_damaged_idx_file_is_refused(tmp_path: Path) -> None:
    write_idx(tmp_path / "set")
    path = tmp_path / "set" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(DataError, match="cannot read"):
        scan(tmp_path / "set")


def test_an_idx_file_of_another_type_is_refused(tmp_path: Path) -> None:
    write_idx(tmp_path / "set")
    path = tmp_path / "set" / "train-labels-idx1-ubyte"
    path.write_bytes(b"\0\0\x09" + path.read_bytes()[3:])  # signed bytes

    with pytest.raises(DataError, match="cannot read"):
        scan(tmp_path / "set")


def test_an_image_of_a_set_is_not_found_under_another_class(tmp_path: Path) -> None:
    images, labels = drawn(6, (4, 4))
    np.savez(tmp_path / "a set.npz", x=images, y=labels)
    right, wrong = (f"{tmp_path}/a set.npz/all/{name}/00000.bmp" for name in (0, 1))

    with pytest.raises(ImageError) as raised:
        open_image(wrong)

    assert f"the path of image 0, with its class, is '{right}'" in raised.value.reason
    assert np.array_equal(np.asarray(open_image(right))[..., 0], images[0])
