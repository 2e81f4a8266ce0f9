"""Intervals that count groups of images, such as patients or videos, instead of images."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from vitft.metrics import (
    Outputs,
    accuracy_interval,
    classification_metrics,
    design_effect,
    mean_error,
    probability_metrics,
    student_t_quantile,
    wilson_interval,
)


def flags(*right: int, of: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which images are right and their groups, given the right images of each group."""
    rows = np.concatenate([np.arange(of) < number for number in right])
    return rows, np.repeat(np.arange(len(right)), of)


@pytest.mark.parametrize("groups", [None, np.arange(40), np.arange(40)[::-1]])
def test_without_groups_and_with_groups_of_one_image_the_interval_is_that_of_wilson(
    groups: "np.ndarray | None",
) -> None:
    right = np.arange(40) < 34

    assert accuracy_interval(right, groups) == wilson_interval(34, 40)


def test_with_many_groups_the_effective_number_is_that_of_korn_and_graubard() -> None:
    sizes = np.random.default_rng(0).integers(5, 40, 3000)
    rates = np.random.default_rng(1).beta(8, 2, 3000)
    right = np.concatenate([np.random.default_rng(2).random(n) < p for n, p in zip(sizes, rates)])  # noqa: B905
    groups = np.repeat(np.arange(3000), sizes)
    p, n = right.mean(), len(right)
    totals = np.bincount(groups, right) - p * sizes

    between = (totals**2).sum() * 3000 / 2999 / n**2  # variance of the ratio, Taylor series

    effective = p * (1 - p) / between
    assert n / design_effect(right - p, groups) == pytest.approx(effective, rel=0.01)
    assert effective < n / 2


def test_groups_that_are_all_right_or_all_wrong_count_as_one_image_each() -> None:
    right, groups = flags(*[30] * 80, *[0] * 20, of=30)

    low, high = accuracy_interval(right, groups)

    wanted = wilson_interval(80, 100)
    assert (low, high) == pytest.approx(wanted, abs=0.01)
    assert high - low > 5 * np.subtract(*wilson_interval(2400, 3000)[::-1])


def test_groups_that_do_not_matter_hardly_widen_the_interval() -> None:
    right, groups = flags(*[9, 8, 8, 7] * 50, of=10)

    low, high = accuracy_interval(right, groups)

    assert 1 <= (high - low) / np.subtract(*wilson_interval(1600, 2000)[::-1]) < 1.05


def test_one_group_has_an_interval_too() -> None:
    right, groups = flags(18, of=20)

    low, high = accuracy_interval(right, groups)

    assert 0 < low < wilson_interval(18, 20)[0]
    assert wilson_interval(18, 20)[1] < high <= 1


def test_few_groups_widen_the_interval_as_students_t_does() -> None:
    right, groups = flags(9, 9, 9, of=10)

    effect = design_effect(right - 0.9, groups)

    least = (student_t_quantile(4) / student_t_quantile(31)) ** 2
    assert effect >= least


@pytest.mark.parametrize(("groups", "share"), [(30, 0.8), (30, 0.9), (10, 0.8), (3, 0.9)])
@pytest.mark.parametrize("correlation", [0.05, 0.2, 0.4])
def test_intervals_of_groups_cover_the_truth(groups: int, share: float, correlation: float) -> None:
    random = np.random.default_rng(groups)
    inside = 0
    for _ in range(400):
        scale = (1 - correlation) / correlation
        rates = random.beta(share * scale, (1 - share) * scale, groups)
        own = random.integers(0, groups, 200)
        low, high = accuracy_interval(random.random(200) < rates[own], own)
        inside += low <= share <= high

    assert inside / 400 > 0.91  # Wilson intervals of these images: 0.51 to 0.94


def test_the_error_of_a_mean_counts_groups() -> None:
    values = np.array([0.1, 0.5, 0.2, 0.9])

    assert mean_error(values) == pytest.approx(values.std(ddof=1) / 2)
    assert mean_error(values, np.array([7, 3, 9, 1])) == pytest.approx(mean_error(values))
    # Four copies of each value are as good as one.
    copies = mean_error(np.repeat(values, 4), np.repeat(np.arange(4), 4))
    assert copies == pytest.approx(mean_error(values))


def test_every_interval_of_the_results_is_wider_with_groups() -> None:
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 6)
    shift = random.normal(0, 2.5, 40)[groups]
    labels = random.integers(0, 7, 240)
    logits = random.normal(0, 1, (240, 7))
    logits[np.arange(240), labels] += 2 + shift
    x, y, names = torch.from_numpy(logits), torch.from_numpy(labels), [*"abcdefg"]

    alone: Any = {
        **classification_metrics(x, y, Outputs.of(names)),
        **probability_metrics(logits, y),
    }
    grouped: Any = {
        **classification_metrics(x, y, Outputs.of(names), groups=groups),
        **probability_metrics(logits, y, groups=groups),
    }

    assert grouped.pop("groups") == 40
    wide, narrow = (
        [
            *(found[f"{name}_interval"] for name in ("top1", "top5", "balanced", "loss")),
            found["per_class"]["a"]["recall_interval"],
            found["per_class"]["b"]["precision_interval"],
            found["per_class"]["c"]["f1_interval"],
            found["calibration"]["ece_interval"],
        ]
        for found in (grouped, alone)
    )
    for one, other in zip(wide, narrow, strict=True):
        assert one[1] - one[0] > 1.1 * (other[1] - other[0])


@pytest.mark.parametrize(("groups", "has_interval"), [(29, False), (30, True), (240, True)])
def test_losses_of_few_groups_have_no_interval(groups: int, has_interval: bool) -> None:
    random = np.random.default_rng(0)
    scores, labels = random.normal(0, 1, (240, 3)), torch.from_numpy(random.integers(0, 3, 240))

    found: Any = probability_metrics(scores, labels, groups=np.arange(240) % groups)

    assert (found["loss_interval"] is not None) == has_interval
    assert (found["calibration"]["ece_interval"] is not None) == has_interval


def test_one_group_that_has_most_images_counts_as_few_groups() -> None:
    sizes = [81, *[1] * 19]
    groups, right = np.repeat(np.arange(20), sizes), np.arange(100) % 5 > 0

    low, high = accuracy_interval(right, groups)
    equal = accuracy_interval(right, np.arange(100) // 5)

    assert high - low > 2 * (equal[1] - equal[0])


def test_intervals_of_several_labels_count_groups() -> None:
    random = np.random.default_rng(0)
    truth = random.random((200, 3)) < 0.4
    groups = np.repeat(np.arange(10), 20)
    scores = random.normal(0, 1, (200, 3)) + truth * (2 + random.normal(0, 1.5, 10))[groups, None]

    at_one = Outputs(classes=("a", "b", "c"), thresholds=(1 / (1 + math.exp(-1)),) * 3)  # of logits
    x, y = torch.from_numpy(scores), torch.from_numpy(truth)
    alone = classification_metrics(x, y, at_one)["labels"]
    grouped = classification_metrics(x, y, at_one, groups=groups)["labels"]

    for name in ("map", "micro_f1", "macro_f1"):
        low, high = grouped[f"{name}_interval"]  # type: ignore[literal-required]
        assert math.isclose(grouped[name], alone[name])
        bounds = alone[f"{name}_interval"]  # type: ignore[literal-required]
        assert high - low > 1.1 * (bounds[1] - bounds[0])


def test_labels_of_which_each_image_has_one_have_the_balanced_interval_of_classes() -> None:
    random = np.random.default_rng(0)
    groups, truth = np.repeat(np.arange(20), 5), np.repeat([0, 1, 2], [70, 20, 10])
    given = np.where(random.random(20)[groups] < 0.4, 2, truth)
    one_hot, names = torch.eye(3)[torch.from_numpy(given)] - 0.5, ("a", "b", "c")
    both = (torch.eye(3)[truth].bool(), True), (torch.from_numpy(truth), False)

    labels, classes = (
        classification_metrics(one_hot, y, Outputs.of(names, several=several), groups=groups)
        for y, several in both
    )

    assert labels["balanced_interval"] == pytest.approx(classes["balanced_interval"])
