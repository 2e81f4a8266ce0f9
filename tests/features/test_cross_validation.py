"""Cross-validation of linear heads on fixed features."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.features.test_head import blobs, unfolded
from vitft.features import (
    HeadMethod,
    choose_penalty,
    cross_validate,
    cross_validation_rows,
    gain_from_twice,
    solve_head,
    stratified_folds,
)
from vitft.metrics import Outputs


def right_at(*errors: float, images: int) -> Any:
    """Return which images are right at each point (n, P); none is unlearned."""
    places = np.random.default_rng(0).permutation(images)[:, None]
    return np.asarray(places >= np.round(np.array(errors) * images))


@pytest.mark.parametrize(
    ("images", "errors", "gain"),
    [
        pytest.param([1, 2, 4, 8], [0.8, 0.4, 0.2, 0.1], 0.05, id="halved by doubling"),
        pytest.param([1, 2, 4, 8], [0.1, 0.4, 0.2, 0.1], 0.05, id="without the smallest"),
        pytest.param([2, 4, 8], [0.4, 0.2, 0.1], 0.05, id="three points"),
        pytest.param([2, 4, 8], [0.4, 0.2, 0.2], 0.2 * (1 - 2**-0.5), id="a line through all"),
        pytest.param([4, 8], [0.2, 0.1], None, id="two points"),
        pytest.param([2, 4, 8], [0.2, 0.3, 0.3], None, id="more images do not help"),
        pytest.param([2, 4, 8], [0.2, 0.2, 0.2], None, id="the error does not change"),
        pytest.param([1, 2, 4, 8], [0.2, 0.1, 0.0, 0.0], None, id="no errors left"),
        pytest.param([2, 4, 8], [0.1, 0.099, 0.098], 0.098 * (1 - 0.98**0.5), id="hardly any gain"),
    ],
)
def test_the_gain_from_twice_the_images_follows_the_power_law(
    images: list[int], errors: list[float], gain: float | None
) -> None:
    found = gain_from_twice(images, right_at(*errors, images=1000), np.arange(1000))

    assert (found and found[0]) == (None if gain is None else pytest.approx(gain))
    assert found is None or found[1][0] < found[0] < found[1][1]


def test_the_interval_of_the_gain_counts_groups_rather_than_images() -> None:
    right = right_at(0.4, 0.2, 0.1, images=60)

    alone = gain_from_twice([20, 40, 80], right, np.arange(60))
    copied = gain_from_twice([20, 40, 80], right.repeat(10, axis=0), np.arange(600) // 10)

    assert alone is not None
    assert copied is not None
    assert copied[1] == pytest.approx(alone[1])


def test_every_image_is_scored_by_a_head_that_was_not_fitted_to_it() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(120, 60, generator=generator), torch.arange(3).repeat(40)

    found = cross_validate(
        x, y, Outputs.of("abc"), method=HeadMethod(l2=1e-4, read=60), balanced=False, seed=0
    )

    assert found is not None
    told, (rows, logits) = found
    assert told["images"] == 120
    assert told["top1"] < 0.5  # noise: a third by chance, all of it if judged on what was seen
    assert told["top1_interval"][0] < 1 / 3 < told["top1_interval"][1] or told["top1"] < 1 / 3
    assert [point["images"] for point in told["curve"]] == [12, 24, 48, 96]
    assert len(told["weak_spots"]) == 3
    right = (logits.argmax(dim=-1) == y[rows]).float().mean().item()
    assert right == pytest.approx(told["top1"])


@pytest.mark.parametrize(
    ("images", "most", "classes", "is_enough"),
    [
        pytest.param(5, 1000, 4, True, id="as many outside each fold as classes"),
        pytest.param(4, 1000, 4, False, id="fewer outside a fold"),
        pytest.param(40, 20, 4, True, id="a subset with five images per class"),
        pytest.param(40, 20, 5, False, id="a subset with four images per class"),
        pytest.param(50_000, 60_000, 4_000, True, id="at most 100 million logits"),
    ],
)
def test_cross_validation_needs_images_of_each_class(
    images: int, most: int, classes: int, is_enough: bool
) -> None:
    rows = cross_validation_rows(torch.zeros(images).long(), classes, 0, most=most)

    assert (rows is not None) == is_enough
    assert rows is None or len(rows) == min(images, most, 10**8 // classes)


def test_balanced_classes_count_the_same_in_cross_validation() -> None:
    x = torch.randn(220, 2, generator=torch.Generator().manual_seed(0))
    y = (torch.arange(220) % 11 == 0).long()  # 20 images of the second class
    x[:, 0] += y
    method = HeadMethod(l2=0.01, read=2)

    plain, fair = (
        cross_validate(x, y, Outputs.of("ab"), method=method, balanced=b, seed=0)
        for b in (False, True)
    )

    assert plain is not None
    assert fair is not None
    recalls = [(found[1][1].argmax(dim=-1)[y == 1] == 1).float().mean() for found in (plain, fair)]
    assert recalls[0] < 0.2 < 0.5 < recalls[1]
    assert [point["images"] for point in fair[0]["curve"]] == [
        point["images"] for point in plain[0]["curve"]
    ]


def test_no_head_is_fitted_to_images_that_are_apart() -> None:
    x, y = blobs(per_class=20)
    apart = torch.arange(len(y)) % 5 == 0
    shown = x.clone()
    shown[apart] += 1000  # would change every head that is fitted to them
    method = HeadMethod(l2=0.1, read=8)

    near, far = (
        cross_validate(v, y, Outputs.of("abc"), method=method, balanced=False, seed=0, apart=apart)
        for v in (x, shown)
    )

    assert near is not None
    assert far is not None
    assert near[0] == far[0]
    assert near[0]["images"] == near[0]["of"] == 48
    assert near[0]["curve"][-1]["images"] == pytest.approx(0.8 * 48, abs=1)
    assert torch.equal(near[1][1][~apart], far[1][1][~apart])
    assert near[1][0].tolist() == list(range(60))  # all images have logits


def test_a_penalty_is_tried_for_each_half_power_of_ten_while_the_loss_falls() -> None:
    y = torch.arange(2).repeat(1000)
    x = 100 * (2 * y[:, None] - 1).float()  # the weaker the penalty, the more certain

    _, path = choose_penalty(unfolded(x / 100, y, classes=2))

    half_powers = [10 ** (-i / 2) for i in range(9)]  # from 1 to 0.0001
    assert [score["l2"] for score in path] == pytest.approx(half_powers, rel=0.06)


def test_copies_of_an_image_are_held_out_together() -> None:
    _, y = blobs()
    noisy = torch.randn(len(y), 30, generator=torch.Generator().manual_seed(3))
    twice, pictures = torch.arange(len(y)).repeat(2), torch.cat([noisy, noisy])

    held = stratified_folds(y.repeat(2), 5, seed=0, groups=twice)
    solved = solve_head(
        pictures, y.repeat(2), classes=3, l2=0, balanced=False, seed=0, groups=twice
    )

    assert torch.equal(held[: len(y)], held[len(y) :])
    assert max(tried["cv_top1"] for tried in solved.path) < 0.5  # a third is chance


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("per_class", [2, 3, 6])
def test_a_class_with_several_groups_is_never_in_one_fold_only(seed: int, per_class: int) -> None:
    # 4 classes of 12 images: `per_class` groups each, or as many groups that all classes share
    y = torch.arange(4).repeat_interleave(12)
    number = torch.arange(48) % per_class
    for groups in (number + 10 * y, number):
        fold_id = stratified_folds(y, 5, seed, groups)

        assert all(len(fold_id[groups == g].unique()) == 1 for g in groups.unique())
        assert all(len(fold_id[y == label].unique()) > 1 for label in range(4))
        assert (fold_id == 0).any()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("groups", "size", "most"), [(4, 25, 50), (6, 20, 60), (10, 10, 40)])
def test_few_large_groups_are_spread_evenly_over_the_folds(
    groups: int, size: int, most: int, seed: int
) -> None:
    y = torch.arange(2).repeat_interleave(groups * size)
    own = torch.arange(2 * groups).repeat_interleave(size)

    fold_id = stratified_folds(y, 5, seed, own)

    assert torch.bincount(fold_id).max() == most  # of 5 folds, with whole groups


def test_a_class_in_one_group_is_known_to_every_head_but_not_counted() -> None:
    random = torch.Generator().manual_seed(0)
    y = torch.tensor([0] * 20 + [1] * 20 + [2] * 3)
    centres = torch.tensor([[4.0, 0.0], [-4.0, 0.0], [0.0, 9.0]])
    x = centres[y] + torch.randn(len(y), 2, generator=random)
    groups = torch.tensor([*range(40), 40, 40, 40])
    x[40] = centres[0]  # as if it was an image of the first class

    method = HeadMethod(l2=0.01, read=2)
    outputs = Outputs.of("abc")
    scores = cross_validate(x, y, outputs, method=method, balanced=False, seed=0, groups=groups)

    assert scores is not None
    results, (rows, logits) = scores
    assert (results["images"], results["of"], results["top1"]) == (40, 40, 1.0)
    assert rows.tolist() == [*range(40)]
    assert logits[:, 2].isfinite().all()
    assert {weak["class"] for weak in results["weak_spots"]} == {"a", "b"}


def test_a_label_in_one_group_is_known_to_every_head_but_not_counted() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(60, 8, generator=random)
    y = torch.stack([x[:, 0] > 0, torch.arange(60) < 12], dim=1).float()
    groups = torch.arange(60).clamp(min=11)  # the images with the second label are one group

    method = HeadMethod(l2=0.01, read=8)
    outputs = Outputs.of("ab", several=True)
    scores = cross_validate(x, y, outputs, method=method, balanced=False, seed=0, groups=groups)

    assert scores is not None
    assert scores[0]["images"] == 48
    assert scores[1][0].tolist() == [*range(12, 60)]
