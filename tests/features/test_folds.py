"""Folds for cross-validation and samples of images."""

import numpy as np
import pytest
import torch

from vitft.features import Folded, sample_classes, stratified_folds, stratified_subset


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
    x, y, weight = torch.zeros(12, 1), torch.zeros(12).long(), torch.arange(1.0, 13.0)

    data = Folded(x=x, y=y, sample_weight=weight, classes=1, seed=0, views=2)

    held = torch.stack([data.fold_id == k for k in range(5)]).repeat(1, 2)
    assert held.sum() == 12
    assert torch.equal(data.weights, torch.where(held, 0, weight))


def test_the_views_of_an_image_are_chosen_together() -> None:
    rows = torch.arange(15)
    data = Folded(x=rows[:, None], y=rows, sample_weight=rows, classes=1, seed=0, views=3)

    some = data.some(torch.tensor([1, 3]))

    for found in (some.x[:, 0], some.y, some.sample_weight):
        assert found.tolist() == [1, 3, 6, 8, 11, 13]
    assert some.truth.tolist() == [1, 3]


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

    rows, targets, count = sample_classes(
        y, 4, most=most, most_logits=most_logits, per_class=per_class, seed=0
    )

    assert count == classes
    assert len(rows) == images
    assert sorted({*targets.tolist()}) == [*range(classes)]
    kept = sorted({*y[rows].tolist()})
    assert y[rows].tolist() == [kept[i] for i in targets]


@pytest.mark.parametrize(("classes", "most_logits"), [(200, 4000), (400, 20_000), (400, 1000)])
def test_a_sample_of_classes_keeps_to_the_number_of_logits(classes: int, most_logits: int) -> None:
    y = torch.arange(classes).repeat_interleave(12)

    rows, _, count = sample_classes(
        y, classes, most=1000, most_logits=most_logits, per_class=5, seed=0
    )

    assert 0.6 * most_logits <= len(rows) * count <= 3 * most_logits
    assert len(rows) >= 5 * count


def test_a_class_with_a_single_image_is_left_out_first() -> None:
    y = torch.tensor([0] * 6 + [1] + [2] * 6 + [3])

    for seed in range(6):
        rows, _, _ = sample_classes(y, 4, most=6, most_logits=100, per_class=3, seed=seed)
        assert {*y[rows].tolist()} == {0, 2}
    _, _, count = sample_classes(torch.arange(8), 8, most=4, most_logits=100, per_class=2, seed=0)
    assert count == 2


def test_labels_of_a_sample_are_kept_whole() -> None:
    y = torch.eye(4, dtype=torch.int64).repeat(5, 1)

    rows, targets, count = sample_classes(y, 4, most=10, most_logits=1000, per_class=9, seed=0)

    assert (count, len(rows)) == (4, 10)
    assert torch.equal(targets, y[rows])
