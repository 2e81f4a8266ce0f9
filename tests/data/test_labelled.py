"""Labelled images for evaluation."""

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import draw_folder
from vitft.data.labelled import find_labelled, with_changed_classes
from vitft.system.errors import DataError, UsageError


def test_a_folder_gives_every_image_under_its_folders_name(image_folder: Path) -> None:
    found = find_labelled(image_folder)

    assert found.classes == ("blue", "green", "red")
    assert len(found.images) == 30
    assert all(path.split("/")[0] == label for path, label in found.images)
    assert all(Path(found.locate(path)).is_file() for path, _ in found.images)


def test_one_class_is_enough_and_a_class_may_be_empty(tmp_path: Path, image_folder: Path) -> None:
    (image_folder / "red").rename(tmp_path / "red")
    (tmp_path / "some").mkdir()
    (tmp_path / "red").rename(tmp_path / "some" / "red")
    (tmp_path / "some" / "green").mkdir()

    found = find_labelled(tmp_path / "some")

    assert found.classes == ("green", "red")
    assert {label for _, label in found.images} == {"red"}


@pytest.mark.parametrize(("subset", "images"), [(None, 6), ("val", 6), ("train", 15)])
def test_the_val_part_of_a_folder_is_the_default(
    tmp_path: Path, subset: str | None, images: int
) -> None:
    draw_folder(tmp_path / "d" / "train", per_class=5)
    draw_folder(tmp_path / "d" / "validation", per_class=2)

    found = find_labelled(tmp_path / "d", subset=subset)

    assert len(found.images) == images
    assert found.classes == ("blue", "green", "red")
    assert "evaluating the images in " in found.notes[0]


def test_a_subset_of_data_without_parts_is_refused(image_folder: Path) -> None:
    with pytest.raises(UsageError, match="is not divided into subsets"):
        find_labelled(image_folder, subset="val")


def test_a_test_part_is_the_default_without_a_val_part(tmp_path: Path) -> None:
    draw_folder(tmp_path / "d" / "train", per_class=5)
    draw_folder(tmp_path / "d" / "test", per_class=2)

    found = find_labelled(tmp_path / "d")

    assert len(found.images) == 6
    assert found.notes == ("evaluating the images in test/",)
    with pytest.raises(UsageError, match="has no val subset"):
        find_labelled(tmp_path / "d", subset="val")


def test_a_table_names_images_relative_to_itself(tmp_path: Path) -> None:
    (tmp_path / "a, b.jpg").touch()
    table = tmp_path / "labels.csv"
    table.write_bytes(b'\xef\xbb\xbfid,Label,path\r\n1,cat,"a, b.jpg"\r\n\r\n2,dog,x/c.jpg\r\n')

    found = find_labelled(table)

    assert found.images == (("a, b.jpg", "cat"), ("x/c.jpg", "dog"))
    assert found.classes == ("cat", "dog")
    assert found.locate("a, b.jpg") == str(tmp_path / "a, b.jpg")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        pytest.param("", 1, "found: nothing", id="empty"),
        pytest.param("photo,class\na,b\n", 1, "no path column", id="header"),
        pytest.param("path,colour\na,b\n", 1, "no label column", id="no label column"),
        pytest.param("path,label\na,b\nc\n", 3, "found 1 cell instead of 2", id="short row"),
        pytest.param("path,label\na,\n", 2, "the label is empty", id="no label"),
        pytest.param("path,label\na,b\na,c\n", 3, "is listed twice", id="twice"),
        pytest.param('path,label\n"a,b\n', 2, "unexpected end of data", id="open quote"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int, problem: str
) -> None:
    (tmp_path / "t.csv").write_text(text)

    with pytest.raises(DataError, match=f"line {line}.*: .*{problem}"):
        find_labelled(tmp_path / "t.csv")


@pytest.mark.parametrize(("subset", "paths"), [(None, ["b.jpg"]), ("train", ["a.jpg", "c.jpg"])])
def test_one_part_of_a_table_with_a_split_is_listed(
    tmp_path: Path, subset: str | None, paths: list[str]
) -> None:
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        (tmp_path / name).touch()
    rows = ["path,label,split", "a.jpg,cat,train", "b.jpg,cat,valid", "c.jpg,dog,training"]
    (tmp_path / "t.csv").write_text("\n".join(rows))

    found = find_labelled(tmp_path / "t.csv", subset=subset)

    assert [path for path, _ in found.images] == paths
    assert found.classes == ("cat", "dog")
    with pytest.raises(UsageError, match="has no test subset; subsets found: train, val"):
        find_labelled(tmp_path / "t.csv", subset="test")


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label\n")

    with pytest.raises(DataError, match="lists no images"):
        find_labelled(tmp_path / "t.csv")


def test_the_error_for_a_folder_without_images_explains_the_layout(tmp_path: Path) -> None:
    (tmp_path / "loose.jpg").write_bytes(b"x")

    with pytest.raises(DataError, match=r"(?s)1 image outside.*fix: put each class in its own"):
        find_labelled(tmp_path)


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not found"):
        find_labelled(tmp_path / "nowhere")


def test_a_table_of_one_part_is_listed_completely_with_its_groups(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).touch()
    rows = ["path,label,split,group", "a.jpg,cat,train,g", "b.jpg,dog,train,"]
    (tmp_path / "t.csv").write_text("\n".join(rows))

    found = find_labelled(tmp_path / "t.csv")

    assert found.images == (("a.jpg", "cat"), ("b.jpg", "dog"))
    assert found.groups == {"a.jpg": "g"}
    assert found.notes == ("1 group of images in the column group",)
    assert not found.predicted
    with pytest.raises(UsageError, match="is not divided into subsets"):
        find_labelled(tmp_path / "t.csv", subset="train")


def test_a_table_of_predictions_is_known(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).touch()
    (tmp_path / "p.csv").write_text("path,class,probability\na.jpg,cat,0.9\nb.jpg,dog,0.8\n")

    assert find_labelled(tmp_path / "p.csv").predicted


@pytest.mark.parametrize(("subset", "paths"), [(None, "val"), ("test", "test"), ("train", "train")])
def test_one_part_of_arrays_is_listed(tmp_path: Path, subset: str | None, paths: str) -> None:
    parts = ("train", "val", "test")
    arrays = {f"{kind}_{part}": np.zeros((2, 3, 3), np.uint8) if kind == "x" else np.arange(2)
              for part in parts for kind in ("x", "y")}  # fmt: skip
    np.savez(tmp_path / "set.npz", allow_pickle=False, **arrays)

    found = find_labelled(tmp_path / "set.npz", subset=subset)

    assert found.images == ((f"{paths}/0/00000.bmp", "0"), (f"{paths}/1/00001.bmp", "1"))
    assert found.locate(found.images[0][0]) == f"{tmp_path}/set.npz/{paths}/0/00000.bmp"


def test_arrays_without_parts_are_listed_completely(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", x=np.zeros((2, 3, 3), np.uint8), y=np.arange(2))

    assert len(find_labelled(tmp_path / "set.npz").images) == 2
    with pytest.raises(UsageError, match="is not divided into subsets"):
        find_labelled(tmp_path / "set.npz", subset="val")


def test_bad_files_alone_are_listed_and_empty_classes_are_counted(tmp_path: Path) -> None:
    (tmp_path / "bad" / "cat").mkdir(parents=True)
    (tmp_path / "bad" / "cat" / "1.jpg").symlink_to("nowhere")
    (tmp_path / "none" / "cat").mkdir(parents=True)
    (tmp_path / "none" / "dog").mkdir(parents=True)

    found = find_labelled(tmp_path / "bad")

    assert (found.images, found.bad) == ((), (("cat/1.jpg", "dangling symbolic link"),))
    with pytest.raises(DataError, match=r"no labelled images in .*none: 2 empty class folders\n"):
        find_labelled(tmp_path / "none")


@pytest.mark.parametrize(
    ("rows", "classes", "note"),
    [
        ("red,\n", ("blue", "green"), "1 of 3 classes changed, 2 left (10 images left out)"),
        ("red,green\n", ("blue", "green"), "1 of 3 classes changed, 2 left"),
        (
            "red,\nblue,\nother,\n",
            ("green",),
            "2 of 3 classes changed, 1 left (20 images left out)",
        ),
    ],
)
def test_the_note_on_changed_classes_counts_the_images_that_are_left_out(
    tmp_path: Path, image_folder: Path, rows: str, classes: tuple[str, ...], note: str
) -> None:
    (tmp_path / "c.csv").write_text(f"class,new_class\n{rows}")

    found = with_changed_classes(find_labelled(image_folder), tmp_path / "c.csv")

    assert found.classes == classes
    assert found.notes[-1] == f"c.csv: {note}"
