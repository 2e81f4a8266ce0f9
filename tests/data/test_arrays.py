"""Data sets stored as arrays behave like folders of image files."""

import gzip
import hashlib
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision import datasets

from vitft.cli.main import main
from vitft.data.array_files import CLASSES, PUBLISHED_SIZES, open_torchvision
from vitft.data.arrays import data_path, encode_bmp, find_arrays
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
@pytest.mark.parametrize("place", ["", "MNIST/raw"], ids=["itself", "as torchvision puts them"])
def test_idx_files_are_a_folder_of_digits(tmp_path: Path, packed: bool, place: str) -> None:
    images, labels = write_idx(tmp_path / "set" / place, packed=packed)

    arrays = find_arrays(tmp_path / "set")

    assert arrays is not None
    assert arrays.shape == (6, 5, 1)
    assert np.array_equal(arrays.parts[0].images[..., 0], images[:9])
    assert np.array_equal(arrays.parts[1].labels, labels[9:])


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


def test_the_published_sizes_are_those_of_all_supported_datasets() -> None:
    assert {*PUBLISHED_SIZES} == {*CLASSES}


def test_a_folder_of_arrays_in_place_of_images_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path / "digits")

    with pytest.raises(DataError, match="digits is a dataset of 15 images") as caught:
        sources([str(tmp_path / "digits")])

    assert "name one, e.g. " in caught.value.fix
    assert open_image(caught.value.fix.split()[3].rstrip(","))


def test_an_unknown_set_of_torchvision_names_the_known_ones() -> None:
    with pytest.raises(DataError, match="fix: use one of CIFAR10, CIFAR100, MNIST"):
        scan(data_path("torchvision:Nonsense"))


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        pytest.param({"a": np.zeros(3)}, "contains no labelled images", id="other names"),
        pytest.param({"x": np.zeros((4, 3, 3)), "y": np.arange(4)},
                     r"float64(.|\n)*from 0 to 1: \(255 \* images\)", id="floats"),
        pytest.param({"x": np.zeros((4, 3, 3), np.uint8), "y": np.eye(4)}, "argmax", id="one-hot"),
        pytest.param({"x": np.zeros((4, 3, 3), np.uint8), "y": np.arange(3)}, "of the 4 images",
                     id="too few labels"),
        pytest.param({"x": np.zeros((4, 3, 3), np.uint8), "y": np.zeros(4, int)},
                     "1 distinct class name for 1 class", id="one class"),
        pytest.param({"x": np.zeros((4, 3, 3), np.uint8), "y": np.arange(4) - 1},
                     r"from -1 to 2\n(.*)from 0, e.g. labels - labels.min\(\)",
                     id="negative labels"),
        pytest.param({"x": np.zeros((4, 3, 3), np.uint8), "y": np.arange(4), "classes": ["a", "b"]},
                     "from 0 to 3, but there are 2 class names", id="too few class names"),
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

    for path in ("all/0/99999.bmp", "train/0/00000.bmp", "nonsense.bmp"):
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
