"""Labelled images for evaluation."""

from pathlib import Path

import pytest

from tests.conftest import draw_folder
from vitft.data import find_labelled
from vitft.system import UsageError


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


def test_a_test_part_is_the_default_without_a_val_part(tmp_path: Path) -> None:
    draw_folder(tmp_path / "d" / "train", per_class=5)
    draw_folder(tmp_path / "d" / "test", per_class=2)

    found = find_labelled(tmp_path / "d")

    assert len(found.images) == 6
    assert found.notes == ("evaluating the images in test/",)
    with pytest.raises(UsageError, match="has no val subset"):
        find_labelled(tmp_path / "d", subset="val")


@pytest.mark.parametrize(("subset", "paths"), [(None, ["b.jpg"]), ("train", ["a.jpg", "c.jpg"])])
def test_one_part_of_a_table_with_a_split_is_listed(
    tmp_path: Path, subset: str | None, paths: list[str]
) -> None:
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        (tmp_path / name).touch()
    rows = ["path,label,split", "a.jpg,cat,train", "b.jpg,cat,valid", "c.jpg,dog,train"]
    (tmp_path / "t.csv").write_text("\n".join(rows))

    found = find_labelled(tmp_path / "t.csv", subset=subset)

    assert [path for path, _ in found.images] == paths
    assert found.classes == ("cat", "dog")
    with pytest.raises(UsageError, match="has no test subset; subsets found: train, val"):
        find_labelled(tmp_path / "t.csv", subset="test")
