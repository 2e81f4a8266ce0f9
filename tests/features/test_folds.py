"""Folds for cross-validation and samples of images."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from vitft.features import (
    CV_FOLDS,
    Folded,
    rows_of_views,
    sample_classes,
    spread_classes,
    stratified_folds,
    stratified_subset,
)


@pytest.mark.parametrize(
    ("labels", "group", "fold", "count", "expected"),
    [
        pytest.param([0, 0, 1, 1], [0, 1, 2, 3], [0, 0, 0, 1], 2, [0, 1, 0, 1], id="last group"),
        pytest.param([0, 0, 1, 1], [0, 1, 2, 3], [0, 0, 0, 1], 3, [0, 2, 0, 1], id="empty fold"),
        pytest.param([0, 0, 1, 1], [0, 0, 1, 2], [2, 2, 0, 2], 3, [1, 1, 0, 1], id="one group"),
        pytest.param([0, 0, 1, 1], [0, 1, 1, 2], [0, 0, 0, 0], 2, [0, 1, 1, 0], id="shared group"),
        pytest.param([5, 5, 9, 9], [7, 7, 8, 8], [1, 1, 1, 1], 2, [0, 0, 0, 0], id="one fold"),
        pytest.param([], [], [], 2, [], id="no images"),
    ],
)
def test_a_class_with_several_groups_is_in_two_folds(
    labels: Sequence[int],
    group: Sequence[int],
    fold: Sequence[int],
    count: int,
    expected: Sequence[int],
) -> None:
    fold_id, classes, groups = (np.array(v, dtype=np.int64) for v in (fold, labels, group))

    assert spread_classes(fold_id, classes, groups, count).tolist() == expected


def test_groups_of_one_image_change_no_fold() -> None:
    y = torch.tensor([0] * 7 + [1] * 5 + [2] * 6)

    alone = stratified_folds(y, 5, 3)
    grouped = stratified_folds(y, 5, 3, torch.randperm(len(y)))

    assert grouped.tolist() == alone.tolist()
    assert sorted(np.bincount(alone)) == [3, 3, 4, 4, 4]
    for label in range(3):
        of_class = np.bincount(alone[y == label], minlength=5)
        assert of_class.max() - of_class.min() <= 1
    assert stratified_folds(y, 5, 4).tolist() != alone.tolist()


@pytest.mark.parametrize(
    ("most", "sizes"), [(10, [6, 4]), (11, [6, 4]), (9, [3, 2]), (5, [3, 2]), (1, [1, 0])]
)
def test_a_subset_has_at_most_so_many_images_in_proportion(most: int, sizes: list[int]) -> None:
    y = torch.tensor([0, 0, 0, 1, 1] * 2)

    rows = stratified_subset(y, most, 0)

    assert torch.bincount(y[rows], minlength=2).tolist() == sizes
    assert rows.tolist() == sorted({*rows.tolist()})


def test_rows_that_a_fold_holds_out_have_no_weight_in_any_view() -> None:
    weight = torch.arange(1.0, 13.0)

    data = Folded.of(torch.zeros(12, 1), torch.zeros(12).long(), weight, classes=1, seed=0, views=2)

    held = torch.stack([data.fold_id == k for k in range(CV_FOLDS)]).repeat(1, 2)
    assert held.sum() == 12
    assert torch.equal(data.weights, torch.where(held, 0, weight))


def test_the_views_of_an_image_are_so_many_rows_apart() -> None:
    assert rows_of_views(torch.tensor([1, 3]), 5, 3).tolist() == [1, 3, 6, 8, 11, 13]
    assert rows_of_views(torch.tensor([1, 3]), 5, 1).tolist() == [1, 3]


@pytest.mark.parametrize(
    ("most", "most_logits", "per_class", "classes", "images"),
    [
        pytest.param(20, 80, 5, 4, 20, id="everything"),
        pytest.param(20, 79, 2, 4, 10, id="half, for the logits"),
        pytest.param(10, 1000, 2, 4, 10, id="half, for the images"),
        pytest.param(10, 1000, 3, 3, 8, id="three classes"),
        pytest.param(10, 40, 5, 2, 10, id="at least two classes"),
    ],
)
def test_classes_are_left_out_if_too_few_images_of_each_would_remain(
    most: int, most_logits: int, per_class: int, classes: int, images: int
) -> None:
    y = torch.arange(20) % 4

    found = sample_classes(y, 4, most=most, most_logits=most_logits, per_class=per_class, seed=0)

    assert found.classes == classes
    assert len(found.images) == images
    assert sorted({*found.y.tolist()}) == [*range(classes)]
    kept = sorted({*y[found.images].tolist()})
    assert y[found.images].tolist() == [kept[i] for i in found.y]


@pytest.mark.parametrize(("classes", "most_logits"), [(200, 4000), (400, 20_000), (400, 1000)])
def test_a_sample_of_classes_keeps_to_the_number_of_logits(classes: int, most_logits: int) -> None:
    y = torch.arange(classes).repeat_interleave(12)

    found = sample_classes(y, classes, most=1000, most_logits=most_logits, per_class=5, seed=0)

    assert 0.6 * most_logits <= len(found.images) * found.classes <= 3 * most_logits
    assert len(found.images) >= 5 * found.classes


def test_a_class_with_a_single_image_is_left_out_first() -> None:
    y = torch.tensor([0] * 6 + [1] + [2] * 6 + [3])

    for seed in range(6):
        found = sample_classes(y, 4, most=6, most_logits=100, per_class=3, seed=seed)
        assert {*y[found.images].tolist()} == {0, 2}
    alone = sample_classes(torch.arange(8), 8, most=4, most_logits=100, per_class=2, seed=0)
    assert alone.classes == 2


def test_labels_of_a_sample_are_kept_whole() -> None:
    y = torch.eye(4, dtype=torch.int64).repeat(5, 1)

    found = sample_classes(y, 4, most=10, most_logits=1000, per_class=9, seed=0)

    assert found.classes == 4
    assert len(found.images) == 10
    assert torch.equal(found.y, y[found.images])
