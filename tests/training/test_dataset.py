"""Images of a run and the inputs to its stages."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import draw_folder
from tests.support.thread_ranks import run_ranks
from tests.support.training_data import (
    data_set,
    digest,
    file_digest,
    pooled_inputs,
    row,
    watched_progress,
)
from vitft.data import augment
from vitft.data.split import Manifest, Row
from vitft.data.transforms import CropTransform, EvalTransform
from vitft.system.errors import DataError
from vitft.training.dataset import Dataset, ImageTable, fold_groups


def test_distinct_images_are_those_that_are_not_only_tested() -> None:
    copy = row("copy", 1, "val", sha256=digest("one"))
    rows = [row("one", 0), row("two", 1, "val"), copy, row("three", 2, "test")]

    found = data_set(rows).distinct

    assert found == [copy, rows[1]]  # in order of their first occurrence, each with its last row


def test_targets_are_classes_or_a_flag_for_each_label() -> None:
    rows = [row("one", 2), row("two", 0)]

    one = data_set(rows).labels(rows)
    several = data_set(rows, classes=("x", "y", "x|y"), labels=("x", "y")).labels(rows)

    assert (one.tolist(), one.dtype) == ([2, 0], torch.long)
    assert (several.tolist(), several.dtype) == ([[1.0, 1.0], [1.0, 0.0]], torch.float32)


def test_images_of_a_group_share_a_number() -> None:
    rows = [row("one", 0), row("two", 0), row("three", 1), row("copy", 1, sha256=digest("two"))]
    data = data_set(rows, groups={digest("one"): "g", digest("three"): "g"})

    assert data.group_ids(rows).tolist() == [0, 1, 0, 1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return draw_folder(tmp_path / "colours", per_class=4)


def stored(folder: Path, **more: object) -> Dataset:
    """Return a data set of the images of a folder, in the order of their paths."""
    paths = sorted(folder.rglob("*.png"))
    rows = [
        row(p.relative_to(folder).as_posix(), "bgr".index(p.parent.name[0]), sha256=file_digest(p))
        for p in paths
    ]
    return data_set(rows, root=folder, classes=("blue", "green", "red"), **more)


def view_of(data: Dataset, one: Row) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return data.transform.pixels(Image.open(data.manifest.locate(one)).convert("RGB"))


@pytest.mark.parametrize("channels", [1, 3])
def test_all_images_are_kept_in_memory_in_the_order_of_the_split(
    folder: Path, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitft.training.dataset.EVAL_BATCH", 1)  # 12 images in batches of 8 and 4
    transform = EvalTransform(image_size=(8, 6), mean=(0.5,) * channels, std=(0.5,) * channels)
    data = stored(folder, transform=transform)

    table = data.load_images()

    assert table is not None
    assert table.pixels.shape == (12, 8, 6, channels)
    assert table.pixels.dtype == torch.uint8
    for i, one in enumerate(data.manifest.rows):
        assert table.positions[one.path] == i
        np.testing.assert_array_equal(table.pixels[i], view_of(data, one)[..., :channels])


def test_images_that_do_not_fit_are_not_kept_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(augment, "MEMORY_BYTES", 12 * 8 * 8 * 3)
    assert stored(folder).load_images() is not None

    monkeypatch.setattr(augment, "MEMORY_BYTES", 12 * 8 * 8 * 3 - 1)
    assert stored(folder).load_images() is None


def test_processes_load_the_images_together_and_show_how_far_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitft.training.dataset.EVAL_BATCH", 1)
    bars = watched_progress(monkeypatch)
    data = stored(draw_folder(tmp_path / "colours", per_class=6))
    rows = data.manifest.rows[:17]  # 16 in a batch of two processes, and then one
    data = replace(data, manifest=replace(data.manifest, rows=rows))
    alone = data.load_images()

    tables = run_ranks(2, lambda group: replace(data, group=group).load_images())

    assert alone is not None
    for table in tables:
        assert table is not None
        assert torch.equal(table.pixels, alone.pixels)
    assert [(bar.total, bar.done) for bar in bars] == [(17, 17)] * 3


def test_a_table_of_images_yields_batches_of_the_wanted_sizes() -> None:
    rows = [row(name, 0) for name in "abcde"]
    pixels = torch.arange(5, dtype=torch.uint8)[:, None]
    table = ImageTable({name: 4 - i for i, name in enumerate("abcde")}, pixels)

    found = list(table.batches([rows[0], rows[4], rows[0], rows[2]], [3, 1]))

    assert [[one.path for one in chunk] for chunk, _ in found] == [["a", "e", "a"], ["c"]]
    assert [part.flatten().tolist() for _, part in found] == [[4, 0, 4], [2]]


def test_files_are_decoded_in_batches_without_augmentation(folder: Path) -> None:
    data = stored(folder)
    rows = data.manifest.rows[2:7]

    batches = list(data.decode(rows, 2))

    assert [len(chunk) for chunk, _ in batches] == [2, 2, 1]
    assert [one for chunk, _ in batches for one in chunk] == list(rows)
    for chunk, pixels in batches:
        for one, found in zip(chunk, pixels, strict=True):
            np.testing.assert_array_equal(found, view_of(data, one))


def test_each_crop_has_its_own_key(folder: Path) -> None:
    data, crop = stored(folder), CropTransform(image_size=(8, 8))
    rows = [data.manifest.rows[0]] * 2

    ((_, pixels),) = data.decode(rows, 2, crop=crop, keys=["one", "two"])

    image = Image.open(data.manifest.locate(rows[0])).convert("RGB")
    for key, found in zip(("one", "two"), pixels, strict=True):
        np.testing.assert_array_equal(found, crop.pixels(image, key=key))


def test_a_file_that_was_deleted_meanwhile_is_an_error(folder: Path) -> None:
    data = stored(folder)
    (folder / data.manifest.rows[1].path).unlink()

    with pytest.raises(DataError, match=r"001\.png"):
        list(data.decode(data.manifest.rows[:3], 2))


GROUPS = {digest("a1"): "p", digest("a2"): "p", digest("b1"): "p", digest("b2"): "q"}


def split_of(*names: str) -> Manifest:
    """Return training images whose class is the first letter of their name.

    One more image of each class is held out.
    """
    rows = [row(name, "abc".index(name[0])) for name in names]
    rows += [row(f"{name}0", "abc".index(name), "val") for name in {name[0] for name in names}]
    return data_set(rows).manifest


def test_groups_are_kept_together_if_every_class_has_two() -> None:
    manifest = split_of("a1", "a2", "a3", "b1", "b2")

    assert fold_groups(manifest, GROUPS, {digest("a3"): "copies"}) == GROUPS


def test_a_class_in_a_single_group_is_divided_except_for_copies(
    caplog: pytest.LogCaptureFixture,
) -> None:
    manifest = split_of("a1", "a2", "b1", "b2")
    copies = {digest("a1"): "copies", digest("a2"): "copies", digest("b2"): "others"}

    with caplog.at_level(logging.INFO, "vitft"):
        found = fold_groups(manifest, GROUPS, copies)

    assert found == {
        digest("a1"): "copies",
        digest("a2"): "copies",
        digest("b1"): "p",
        digest("b2"): "q",
    }
    assert "all training images of a class are in one group" in caplog.text
    assert "has to divide (a)" in caplog.text


def test_a_class_of_one_image_has_no_group_to_divide(caplog: pytest.LogCaptureFixture) -> None:
    manifest = split_of("a1", "b1", "b2")

    with caplog.at_level(logging.INFO, "vitft"):
        found = fold_groups(manifest, GROUPS, {})

    assert found == {name: group for name, group in GROUPS.items() if name != digest("a1")}
    assert not caplog.messages


def test_a_class_without_validation_images_keeps_its_group() -> None:
    manifest = data_set([row("a1", 0), row("a2", 0), row("b1", 1), row("b2", 1, "val")]).manifest

    assert fold_groups(manifest, {digest("a1"): "p", digest("a2"): "p"}, {}) == {
        digest("a1"): "p",
        digest("a2"): "p",
    }


def test_groups_of_copies_and_groups_of_several_labels_are_never_divided() -> None:
    alone = {digest("a1"): "p", digest("a2"): "p"}
    manifest = split_of("a1", "a2", "b1", "b2")
    assert fold_groups(manifest, alone, alone) is alone

    labelled = Manifest(manifest.root, ("x", "y", "x|y"), manifest.rows, ("x", "y"))
    assert fold_groups(labelled, alone, {}) is alone


def test_only_training_images_count_for_the_groups_of_a_class() -> None:
    rows = [row("a1", 0), row("a2", 0), row("a3", 0, "val"), row("b1", 1), row("b2", 1)]
    manifest = data_set(rows).manifest
    groups = {digest(name): "p" for name in ("a1", "a2", "b1")}

    found = fold_groups(manifest, groups, {})

    assert found == {digest("b1"): "p"}


def test_features_are_those_of_the_images_and_the_head_may_read_more_than_the_last_block() -> None:
    rows = [row("one", 0), row("two", 1)]
    features = {digest("one"): torch.tensor([1.0, 2, 3]), digest("two"): torch.tensor([4.0, 5, 6])}
    inputs = pooled_inputs(data_set(rows), features)

    assert inputs.features([rows[1], rows[0]]).tolist() == [[4, 5, 6], [1, 2, 3]]
    assert inputs.last_features(rows).tolist() == [[1, 2], [4, 5]]
    assert inputs.limit.images == 256
