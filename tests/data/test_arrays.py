"""Data sets stored as arrays behave like folders of image files."""

import gzip
import hashlib
import io
import math
import socket
import struct
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from vitft.cli.main import main
from vitft.data.array_files import (
    PUBLISHED_SIZES,
    ArrayPart,
    assumed_arrays,
    channels_last,
    open_torchvision,
    wanted_files,
)
from vitft.data.arrays import (
    ArraySet,
    data_path,
    encode_bmp,
    find_arrays,
    wrong_member_reason,
)
from vitft.data.images import open_image, read_image
from vitft.data.inspection import inspect_folder
from vitft.data.labelled import find_labelled
from vitft.data.scan import scan
from vitft.data.sources import sources
from vitft.system.errors import DataError, ImageError

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


@pytest.mark.parametrize("shape", [(6, 5, 1), (5, 7, 3), (8, 8, 3)], ids=str)
def test_the_bytes_of_an_image_decode_to_the_image(shape: tuple[int, int, int]) -> None:
    images, _ = drawn(1, shape)

    found = np.asarray(read_image(encode_bmp(images[0]), "a.bmp"))

    assert np.array_equal(found, np.broadcast_to(images[0], found.shape))


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
    ("shape", "axes"),
    [
        pytest.param((4, 6, 5), (0, 1, 2), id="grey without an axis of channels"),
        pytest.param((4, 3, 6, 5), (0, 2, 3, 1), id="RGB, channels first"),
        pytest.param((4, 1, 6, 5), (0, 2, 3, 1), id="grey, channels first"),
        pytest.param((4, 6, 5, 3), (0, 1, 2, 3), id="RGB, channels last"),
        pytest.param((4, 3, 5, 3), (0, 1, 2, 3), id="three rows, RGB"),
        pytest.param((4, 3, 5, 1), (0, 1, 2, 3), id="three rows, grey"),
        pytest.param((4, 2, 6, 5), (0, 1, 2, 3), id="two channels are not moved"),
        pytest.param((4, 4, 6, 5), (0, 1, 2, 3), id="four channels are not moved"),
    ],
)
def test_the_channels_are_moved_to_the_last_axis(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    images, _ = drawn(shape[0], shape[1:])
    expected = images.transpose(axes)

    found = channels_last(images)

    assert np.array_equal(found, expected if len(shape) == 4 else expected.reshape(*shape, 1))


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


def test_an_npz_without_a_split_leaves_it_to_our_rule(tmp_path: Path) -> None:
    images, labels = drawn(12, (4, 4, 3), classes=12)
    np.savez(tmp_path / "set.npz", x=images, y=labels)

    folder = scan(tmp_path / "set.npz")

    assert folder.layout == "classes"
    assert folder.classes[:3] == ("00", "01", "02")  # in the order of the numbers
    assert {file.part for file in folder.files} == {""}


def test_an_npz_with_training_images_only_is_split_by_our_rule(tmp_path: Path) -> None:
    images, labels = drawn(12, (4, 4), classes=3)
    np.savez(tmp_path / "set.npz", x_train=images, y_train=labels, x_test=images)

    folder = scan(tmp_path / "set.npz")

    assert folder.layout == "classes"
    assert {file.part for file in folder.files} == {""}
    assert folder.files[0].path.startswith("train/0/")
    assert folder.notes == ("the array x_test is not used: there is no y_test",)


@pytest.mark.parametrize("as_names", [True, False], ids=["labels are names", "names of numbers"])
def test_an_npz_may_name_its_classes(tmp_path: Path, as_names: bool) -> None:
    images, numbers = drawn(12, (4, 4), classes=3)
    names = np.array(["zebra", "ape", "newt"])
    labels = {"y": names[numbers]} if as_names else {"y": numbers, "class_names": names}
    np.savez(tmp_path / "set.npz", allow_pickle=False, x=images, **labels)

    folder = scan(tmp_path / "set.npz")

    assert folder.classes == ("ape", "newt", "zebra")
    for file in folder.files:
        number = int(file.path[-9:-4])
        assert folder.classes[file.label] == names[numbers[number]]
        pixels = np.asarray(open_image(f"{tmp_path}/set.npz/{file.path}"))
        assert np.array_equal(pixels[..., 0], images[number])


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


def test_a_single_array_is_not_a_dataset(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.zeros((4, 3, 3), np.uint8))

    for read in (scan, find_labelled):
        with pytest.raises(DataError, match=r"single array, without labels\n(.*)numpy.savez"):
            read(tmp_path / "images.npy")


def test_train_val_and_test_arrays_are_three_parts(tmp_path: Path) -> None:
    images, labels = drawn(9, (4, 4))
    arrays = {f"{part}_{kind}": value for part in ("train", "val", "test")
              for kind, value in (("images", images), ("labels", labels))}  # fmt: skip
    np.savez(tmp_path / "set.npz", allow_pickle=True, **arrays)

    folder = scan(tmp_path / "set.npz")

    assert Counter(file.part for file in folder.files) == {"train": 9, "val": 9, "test": 9}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("place", ["", "raw", "MNIST/raw"])
def test_idx_files_are_a_folder_of_digits(tmp_path: Path, packed: bool, place: str) -> None:
    images, labels = write_idx(tmp_path / "set" / place, packed=packed)

    arrays = find_arrays(tmp_path / "set")

    assert arrays is not None
    assert arrays.shape == (6, 5, 1)
    assert np.array_equal(arrays.parts[0].images[..., 0], images[:9])
    assert np.array_equal(arrays.parts[1].labels, labels[9:])


def test_images_of_digits_without_labels_are_left_out(tmp_path: Path) -> None:
    write_idx(tmp_path / "set")
    (tmp_path / "set" / "t10k-labels-idx1-ubyte").unlink()

    folder = scan(tmp_path / "set")

    assert len(folder.files) == 9


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


@pytest.mark.parametrize(
    ("inner", "name", "kind"),
    [("cifar-10-batches-py", "data_batch_1", "CIFAR10"), ("cifar-100-python", "train", "CIFAR100")],
)
@pytest.mark.parametrize("is_inside", [False, True])
def test_pickles_of_cifar_are_left_to_torchvision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inner: str, name: str, kind: str,
    is_inside: bool,
) -> None:  # fmt: skip
    (tmp_path / inner).mkdir()
    (tmp_path / inner / name).touch()
    images, labels = drawn(4, (32, 32, 3))

    def opened(found: Any, root: Path, which: dict[str, bool]) -> Any:
        assert (found.__name__, root) == (kind, tmp_path)
        own = slice(0 if which["train"] else 1, 4)
        return SimpleNamespace(data=images[own], targets=labels[own].tolist())

    monkeypatch.setattr("vitft.data.array_files.open_torchvision", opened)

    arrays = find_arrays(tmp_path / inner if is_inside else tmp_path)

    assert arrays is not None
    assert [(part.name, len(part.images)) for part in arrays.parts] == [("train", 4), ("test", 3)]


def test_pickles_of_cifar_with_another_digest_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.CIFAR10, "url", "http://127.0.0.1:9/nobody-listens.tar.gz")
    place = tmp_path / "cifar-10-batches-py"
    place.mkdir()
    (place / "data_batch_1").write_bytes(b"cos\nsystem\n(S'touch /tmp/x'\ntR.")

    with pytest.raises(DataError, match="CIFAR10 is missing or incomplete in"):
        scan(tmp_path)


def test_torchvision_reads_the_files_in_the_named_folder(tmp_path: Path) -> None:
    images, _ = write_idx(tmp_path / "sets" / "MNIST" / "raw")
    for path in (tmp_path / "sets" / "MNIST" / "raw").iterdir():
        path.rename(path.with_name(path.name.replace(".idx", "-idx")))

    place = data_path("torchvision:MNIST", str(tmp_path / "sets"))
    folder = scan(place)

    assert folder.classes == ("0", "1", "2")
    assert "train/0/00000.bmp" in {file.path for file in folder.files}
    first = open_image(f"{place}/train/0/00000.bmp")
    assert np.array_equal(np.asarray(first)[..., 0], images[0])
    assert Counter(file.part for file in folder.files) == {"train": 9, "test": 6}


def test_torchvision_reads_the_folder_data_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, _ = write_idx(tmp_path / "data" / "MNIST" / "raw")
    monkeypatch.chdir(tmp_path)

    assert data_path("torchvision:MNIST") == Path("data/torchvision:MNIST")
    first = open_image("torchvision:MNIST/train/0/00000.bmp")
    assert np.array_equal(np.asarray(first)[..., 0], images[0])


def test_a_download_that_stalls_ends(tmp_path: Path) -> None:
    seen: list[float | None] = []

    def lost(root: str, *, download: bool) -> None:
        seen.append(socket.getdefaulttimeout())
        raise OSError("no network") if download else RuntimeError("not found")

    before = socket.getdefaulttimeout()
    with pytest.raises(DataError):
        open_torchvision(lost, tmp_path, {})

    assert seen[1] == pytest.approx(20.0)  # seconds
    assert socket.getdefaulttimeout() == before
    assert tmp_path.exists()  # it existed before the download


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        (datasets.SVHN, "train_32x32.mat and test_32x32.mat"),
        (datasets.STL10, "stl10_binary.tar.gz"),
        (datasets.CIFAR10, "cifar-10-python.tar.gz"),
        (datasets.MNIST, "train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz and "
                         "t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz"),
    ],
)  # fmt: skip
def test_the_files_of_a_missing_dataset_are_named(kind: Any, files: str) -> None:
    assert wanted_files(kind) == files


def test_without_a_network_the_error_names_the_file_and_its_folder(tmp_path: Path) -> None:
    def lost(root: str, *, download: bool) -> None:
        raise OSError("no network") if download else RuntimeError(f"not found in {root}")

    lost.filename = "lost.tar.gz"  # type: ignore[attr-defined]

    with pytest.raises(DataError, match=r"fix: put lost\.tar\.gz into .*sets"):
        open_torchvision(lost, tmp_path / "sets", {})


@pytest.mark.parametrize("folder", ["MNIST/raw", "."])
def test_a_failed_download_leaves_no_empty_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    def lost(root: str, *, download: bool) -> None:
        Path(root, folder).mkdir(parents=True, exist_ok=True)
        raise OSError("<urlopen error no network>") if download else RuntimeError("not found")

    lost.__name__ = "MNIST"
    if folder != ".":
        lost.resources = [("a.gz", "")]  # type: ignore[attr-defined]
    monkeypatch.chdir(tmp_path)

    with pytest.raises(DataError, match=r"\(no network\)(.|\n)*--data demo --image-size 28"):
        open_torchvision(lost, Path("data"), {})

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "epoch"), [("MNIST", 469), ("CIFAR10", 196)])
def test_a_dry_run_assumes_the_published_size_of_a_dataset_that_cannot_be_fetched(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    epoch: int,
) -> None:
    def lost(kind: Any, root: Path, _: object) -> None:
        raise DataError(f"{kind.__name__} is not in {root}", fix="")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vitft.data.array_files.open_torchvision", lost)
    recipe = f"{name.lower()}-tutorial"
    words = ["finetune", "--recipe", recipe, "--data", f"torchvision:{name}"]

    assert main([*words, "--dry-run"]) == 0

    shown = capsys.readouterr().err
    assert shown.count("could not be fetched: assuming its published size") == 1
    assert f"{epoch} steps per epoch" in shown
    assert list(tmp_path.iterdir()) == []
    assert main(words) == 3
    assert f"{name} is not in data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "shape", "train", "test", "classes"),
    [  # sizes of the files with the images, without their headers and labels
        ("CIFAR10", (32, 32, 3), 5 * 30_720_000, 30_720_000, 10),
        ("CIFAR100", (32, 32, 3), 153_600_000, 30_720_000, 100),
        ("MNIST", (28, 28, 1), 47_040_016 - 16, 7_840_016 - 16, 10),
        ("FashionMNIST", (28, 28, 1), 47_040_016 - 16, 7_840_016 - 16, 10),
        ("KMNIST", (28, 28, 1), 47_040_016 - 16, 7_840_016 - 16, 10),
        ("USPS", (16, 16, 1), 7_291 * 256, (9_298 - 7_291) * 256, 10),
        ("SVHN", (32, 32, 3), 73_257 * 3_072, (99_289 - 73_257) * 3_072, 10),
        ("STL10", (96, 96, 3), 138_240_000, 221_184_000, 10),
    ],
)
def test_the_published_sizes_are_those_of_the_published_files(
    name: str, shape: tuple[int, ...], train: int, test: int, classes: int
) -> None:
    size = PUBLISHED_SIZES[name]

    assert size.shape == shape
    assert (size.train * math.prod(shape), size.test * math.prod(shape)) == (train, test)
    assert size.classes == classes


def test_assumed_images_have_the_size_of_the_dataset_and_every_class() -> None:
    train, test = assumed_arrays("SVHN").parts

    assert (train.images.shape, test.images.shape) == ((73_257, 32, 32, 3), (26_032, 32, 32, 3))
    assert np.bincount(train.labels).tolist() == [7326] * 7 + [7325] * 3
    assert len({*train.images[0, 0, 0].tolist()}) == 3  # a colour
    assert assumed_arrays("CIFAR100").parts[1].labels.max() == 99


def test_a_folder_of_arrays_in_place_of_images_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path / "digits")

    with pytest.raises(DataError, match="digits is a dataset of 15 images") as caught:
        sources([str(tmp_path / "digits")])

    assert "name one, e.g. " in caught.value.fix
    assert open_image(caught.value.fix.split()[3].rstrip(",")).size


def test_an_unknown_set_of_torchvision_names_the_known_ones() -> None:
    with pytest.raises(DataError, match="fix: use one of CIFAR10, CIFAR100, MNIST"):
        scan(data_path("torchvision:Nonsense"))


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        pytest.param({"a": np.zeros(3)}, "contains no labelled images", id="other names"),
        pytest.param({"x": np.zeros((4, 3, 3)), "y": np.arange(4)},
                     r"float64(.|\n)*from 0 to 1: \(255 \* images\)", id="floats"),
        pytest.param({"x": np.zeros((4, 3, 3), np.uint8), "y": np.full((4, 4), 0.25)}, "argmax",
                     id="probabilities"),
        pytest.param({"x": np.zeros((4, 3, 3), np.uint8), "y": np.arange(3)}, "of the 4 images",
                     id="too few labels"),
        pytest.param({"x": np.zeros((4, 3, 3), np.uint8), "y": np.zeros(4, int)},
                     "1 distinct class name for 1 class", id="one class"),
        pytest.param({"x": np.zeros((4, 3, 3), np.uint8), "y": np.arange(4) - 1},
                     r"from -1 to 2\n(.*)from 0, e.g. labels - labels.min\(\)",
                     id="negative labels"),
        pytest.param({"x": np.zeros((4, 3, 3), np.uint8), "y": np.arange(4), "classes": ["a", "b"]},
                     "from 0 to 3, but there are 2 class names", id="too few class names"),
        pytest.param({"x": np.zeros((3, 3, 3), np.uint8), "y": np.arange(3), "classes": ["a", "b"]},
                     "from 0 to 2, but there are 2 class names", id="one class name too few"),
        pytest.param({"x": np.zeros((4, 3, 3), np.uint8), "y": np.arange(4),
                      "classes": ["a", "b", "a", "c"]},
                     "3 distinct class names for 4 classes", id="two classes of one name"),
        pytest.param({"x": np.zeros((0, 3, 3), np.uint8), "y": np.zeros(0, int)},
                     "of the 0 images", id="no images"),
        pytest.param({"x": np.zeros((4, 3, 0), np.uint8), "y": np.arange(4)},
                     "empty images", id="images without a pixel"),
        pytest.param({"x_train": np.zeros((4, 3, 3), np.uint8), "y_train": np.arange(4),
                      "x_test": np.zeros((4, 3, 4), np.uint8), "y_test": np.arange(4)},
                     r"different shapes(.|\n)*resize all", id="two sizes"),
        pytest.param({"x": np.zeros((4, 3, 3, 3, 3), np.uint8), "y": np.arange(4)},
                     r"unsupported shape \(4, 3, 3, 3, 3\)", id="five axes"),
        pytest.param({"x_test": np.zeros((4, 3, 3), np.uint8), "y_test": np.arange(4)},
                     "no training images; subsets found: test", id="nothing to train on"),
        pytest.param({"x": np.zeros((4, 3, 3), np.uint8), "y": np.arange(4.0)},
                     r"dtype \(float64\)(.|\n)*labels.astype\(int\)", id="labels of floats"),
        pytest.param({"x": np.zeros((4, 3, 3), np.uint8), "y": np.array([b"a", b"b"] * 2)},
                     r"labels.astype\(str\)", id="labels of bytes"),
        pytest.param({"x": np.zeros((4, 5, 5, 7), np.uint8), "y": np.arange(4)},
                     r"unsupported shape \(4, 5, 5, 7\)", id="seven channels"),
        pytest.param({"x": np.zeros((4, 3, 3), np.uint8), "y": np.array([*"abc", 1], object)},
                     r"the array y contains Python objects(.|\n)*numpy.array\(y.tolist\(\)\)",
                     id="Python objects"),
    ],
)  # fmt: skip
def test_arrays_that_are_not_images_are_refused(
    tmp_path: Path, arrays: dict[str, Array], said: str
) -> None:
    np.savez(tmp_path / "set.npz", allow_pickle=True, **arrays)

    with pytest.raises(DataError, match=said):
        scan(tmp_path / "set.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04nonsense", b"\x93NUMPY"], ids=str)
def test_a_damaged_npz_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "set.npz").write_bytes(content)

    with pytest.raises(DataError, match="cannot read"):
        scan(tmp_path / "set.npz")


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


def test_every_image_of_a_set_has_a_digest_of_its_own_bytes(tmp_path: Path) -> None:
    images, labels = drawn(6, (4, 4))
    np.savez(tmp_path / "set.npz", x=images, y=labels)

    checked = inspect_folder(scan(tmp_path / "set.npz"), workers=0)

    digests = {hashlib.sha256(encode_bmp(image[..., None])).hexdigest() for image in images}
    assert {file.sha256 for file in checked.good} == digests
    assert not checked.bad
    assert not checked.odd


def test_a_path_outside_a_set_is_not_found(tmp_path: Path) -> None:
    images, labels = drawn(6, (4, 4))
    np.savez(tmp_path / "set.npz", x=images, y=labels)

    for path in ("all/0/99999.bmp", "all/0/00006.bmp", "train/0/00000.bmp", "nonsense.bmp"):
        with pytest.raises(ImageError, match="not found"):
            open_image(tmp_path / "set.npz" / path)


def test_an_image_of_a_set_is_not_found_under_another_class(tmp_path: Path) -> None:
    images, labels = drawn(6, (4, 4))
    np.savez(tmp_path / "a set.npz", x=images, y=labels)
    right, wrong = (f"{tmp_path}/a set.npz/all/{name}/00000.bmp" for name in (0, 1))

    with pytest.raises(ImageError) as raised:
        open_image(wrong)

    assert f"the path of image 0, with its class, is '{right}'" in raised.value.reason
    assert np.array_equal(np.asarray(open_image(right))[..., 0], images[0])


def test_a_set_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    images, labels = drawn(6, (4, 4))
    path = tmp_path / "set.npz"
    np.savez(path, x=images, y=labels)
    scan(path)

    np.savez(path, x=255 - images, y=labels)

    assert np.array_equal(np.asarray(open_image(path / "all/0/00000.bmp"))[..., 0], 255 - images[0])


def test_evaluate_judges_the_part_that_is_held_back(tmp_path: Path) -> None:
    images, labels = drawn(9, (4, 4))
    np.savez(tmp_path / "set.npz", x_train=images[:6], y_train=labels[:6],
             x_test=images[6:], y_test=labels[6:])  # fmt: skip

    found = find_labelled(tmp_path / "set.npz")

    assert [path for path, _ in found.images] == [f"test/{i}/0000{i}.bmp" for i in range(3)]


def test_weights_in_place_of_data_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("vit.npz", allow_pickle=False, **{"head/kernel": np.zeros(3), "x": np.zeros(3)})
    np.savez("other.npz", x=np.zeros(3))
    for name in ("a b.safetensors", "vit.pth"):
        Path(name).write_bytes(b"x")

    for name, quoted in (
        ("vit.npz", "vit.npz"),
        ("a b.safetensors", "'a b.safetensors'"),
        ("vit.pth", "vit.pth"),
    ):
        with pytest.raises(DataError, match="weight") as caught:
            scan(Path(name))
        assert caught.value.fix == f"pass it with --weights {quoted}, and the images with --data"
    with pytest.raises(DataError, match="contains no labelled images; arrays found: x"):
        scan(Path("other.npz"))


def test_images_are_listed_by_class_then_by_path_as_text() -> None:
    images = np.broadcast_to(np.uint8(0), (100_002, 1, 1, 1))
    many, few = np.zeros(100_002, np.int64), np.array([1, 0])
    found = ArraySet(
        classes=("a", "b"),
        parts=(ArrayPart("train", images, many), ArrayPart("test", images[:2], few)),
        notes=(),
    ).listing()

    assert [row[:2] for row in (found[0], found[1], found[-1])] == [
        ("test/a/00001.bmp", 0), ("train/a/00000.bmp", 0), ("test/b/00000.bmp", 1),
    ]  # fmt: skip
    after = [path for path, _, _ in found].index("train/a/10000.bmp") + 1
    assert [path for path, _, _ in found[after : after + 3]] == [
        "train/a/100000.bmp", "train/a/100001.bmp", "train/a/10001.bmp",
    ]  # fmt: skip


def test_nothing_is_wrong_with_a_path_into_what_is_no_set_of_arrays(tmp_path: Path) -> None:
    (tmp_path / "torn.npz").write_bytes(b"PK")
    (tmp_path / "photos").mkdir()
    names = ("torn.npz/train/a/00000.bmp", "torn.npz/x", "photos/train/a/00000.bmp", "photos/x.jpg")

    assert [wrong_member_reason(f"{tmp_path}/{name}") for name in names] == [""] * 4
