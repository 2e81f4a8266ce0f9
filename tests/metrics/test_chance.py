"""Models at chance level."""

import statistics
from typing import Any, cast

import numpy as np
import pytest
from scipy.stats import norm

from vitft.messages import chance_clause
from vitft.metrics import (
    Results,
    RunResults,
    mean_fraction_interval,
    p_of_guessing,
    wilson_interval,
)


def results(matrix: list[list[int]]) -> RunResults:
    """Return the metrics that follow from a confusion matrix of the classes a, b, ..."""
    total = sum(map(sum, matrix))
    right = sum(row[i] for i, row in enumerate(matrix))
    return cast(
        "RunResults",
        {
            "images": total,
            "top1": right / total,
            "top1_interval": wilson_interval(right, total),
            "balanced_interval": mean_fraction_interval(
                [(row[i], sum(row)) for i, row in enumerate(matrix) if sum(row)]
            ),
            "balanced": statistics.mean(
                row[i] / sum(row) for i, row in enumerate(matrix) if sum(row)
            ),
            "majority": max(map(sum, matrix)) / total,
            "per_class": {
                "abcdefgh"[i]: {
                    "images": sum(row),
                    "recall": row[i] / sum(row) if sum(row) else None,
                    "recall_interval": wilson_interval(row[i], sum(row)) if sum(row) else None,
                }
                for i, row in enumerate(matrix)
            },
            "confusion": matrix,
        },
    )


GUESSING = "is not measurably better than guessing"
FEW = f"{GUESSING}, because only 9 images were scored"
MOSTLY = "predicts b for {}% of the validation images"


@pytest.mark.parametrize(
    ("matrix", "clause"),
    [
        pytest.param([[0, 50], [0, 50]], "always predicts b", id="constant"),
        pytest.param([[2, 48], [2, 48]], MOSTLY.format(96), id="nearly constant"),
        pytest.param([[2, 48], [3, 47]], MOSTLY.format(95), id="95% of one class"),
        pytest.param([[3, 47], [3, 47]], GUESSING, id="94% of one class are not called constant"),
        pytest.param([[25, 25], [25, 25]], GUESSING, id="guesses"),
        pytest.param([[40, 10], [10, 40]], "", id="better than chance"),
        pytest.param([[30, 0], [0, 970]], "", id="rare class, always right"),
        pytest.param([[1, 0], [0, 8]], FEW, id="all right, but too few"),
        pytest.param([[12, 3], [28, 257]], "", id="rare class, found by weights"),
        pytest.param([[0, 30], [0, 970]], "always predicts b", id="rare class, never found"),
        pytest.param([[1, 49], [49, 901]], GUESSING, id="guesses with the frequencies of classes"),
    ],
)
def test_a_model_is_at_chance_level_unless_its_balanced_accuracy_is_above_guessing(
    matrix: list[list[int]], clause: str
) -> None:
    assert chance_clause(Results.of(results(matrix))) == clause


@pytest.mark.parametrize(
    ("matrix", "p", "is_at_chance"),
    [
        pytest.param([[2, 10], [3, 225]], 0.02, False, id="rare class, seldom found"),
        pytest.param([[2, 10], [3, 225]], 0.03, True, id="logits that say little"),
        pytest.param([[40, 10], [10, 40]], 0.03, False, id="its interval is above one half"),
        pytest.param([[0, 12], [0, 228]], 0.001, True, id="constant, whatever the logits are"),
    ],
)
def test_a_model_whose_logits_depend_on_the_class_is_better_than_guessing(
    matrix: list[list[int]], p: float, is_at_chance: bool
) -> None:
    found = cast("RunResults", {**results(matrix), "p_guessing": p})

    assert bool(Results.of(found).at_chance) == is_at_chance


def test_for_two_classes_the_test_is_that_of_a_correlation() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3 // 2
    for shift in (0.0, 0.5, -0.5):
        logits = rng.normal(size=(60, 2)) + shift * np.eye(2)[labels]
        r = np.corrcoef(labels, logits[:, 1] - logits[:, 0])[0, 1]

        assert p_of_guessing(logits, labels) == pytest.approx(norm.sf(r * 59**0.5))
        assert p_of_guessing(logits + rng.normal(size=(60, 1)), labels) == pytest.approx(
            p_of_guessing(logits, labels)
        )


def test_a_rare_class_that_is_never_predicted_can_be_told_by_its_logits() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [6, 100, 100])
    logits = rng.normal(size=(206, 3)) - [9, 0, 0]
    told = logits + 3 * (labels == 0)[:, None] * [1, 0, 0]

    assert (told.argmax(axis=1) > 0).all()
    assert p_of_guessing(told, labels) < 0.001
    assert p_of_guessing(logits, labels) > 0.05
    assert p_of_guessing(told, rng.permutation(labels)) > 0.05


def test_labels_in_random_order_have_small_p_values_as_often_as_they_should() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2, 3], [40, 20, 10, 5])
    logits = rng.normal(size=(75, 4)) ** 3  # skewed, and alike for images that are alike
    p = [p_of_guessing(logits, rng.permutation(labels)) for _ in range(1000)]

    assert np.mean(np.array(p) < 0.025) == pytest.approx(0.025, abs=0.015)
    assert np.mean(np.array(p) < 0.5) == pytest.approx(0.5, abs=0.06)


def test_copies_in_groups_tell_no_more_than_one_of_each() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 2
    logits = rng.normal(size=(80, 2)) + 0.3 * np.eye(2)[labels]
    copies, groups = np.repeat(logits, 3, axis=0), np.repeat(np.arange(80), 3)
    alone = p_of_guessing(logits, labels)

    assert p_of_guessing(copies, np.repeat(labels, 3)) < alone / 2
    assert p_of_guessing(copies, np.repeat(labels, 3), groups) == pytest.approx(alone, rel=0.3)


def test_no_p_value_is_below_that_of_a_single_order() -> None:
    logits = np.array([[5.0, 0.0]] * 8 + [[0.0, 5.0]])

    assert p_of_guessing(logits, np.array([0] * 8 + [1])) == pytest.approx(1 / 9)
    assert p_of_guessing(np.ones((9, 2)), np.array([0] * 8 + [1])) == 1
    assert p_of_guessing(np.ones((1, 2)), np.array([1])) == 1


@pytest.mark.parametrize(("low", "is_at_chance"), [(0.55, True), (0.6, False)])
def test_cross_validation_on_more_images_decides_whether_a_model_is_at_chance_level(
    low: float, is_at_chance: bool
) -> None:
    more: dict[str, Any] = {"images": 100, "top1": 0.9, "top1_interval": (0.8, 0.95)}
    more |= {"balanced": 0.75, "balanced_interval": (low, 0.9), "classes": 2, "majority": 0.5}
    more |= {"weak_spots": [], "gain_interval": None}
    perfect, guesses = (
        {**results(m), "best_epoch": 1} for m in ([[18, 0], [0, 2]], [[9, 9], [1, 1]])
    )

    for few in (perfect, guesses):
        found = {**few, "cross_validation": more}
        assert bool(Results.of(cast("RunResults", found)).at_chance) == is_at_chance
        later = {**found, "best_epoch": 2}  # the model is not the cross-validated head
        alone = Results.of(cast("RunResults", few)).at_chance
        assert Results.of(cast("RunResults", later)).at_chance == alone


@pytest.mark.parametrize(
    ("interval", "is_at_chance"),
    [((0.3, 0.6), True), ((0.25, 0.6), True), ((0.301, 0.6), False), (None, False)],
)
def test_a_multi_label_model_is_at_chance_level_unless_it_ranks_better_than_random_scores(
    interval: tuple[float, float] | None, is_at_chance: bool
) -> None:
    labels: Any = {"map": 0.4, "map_interval": interval, "chance_map": 0.3, "per_label": {}}
    found = {**results([[50, 0], [50, 0]]), "labels": labels}

    assert chance_clause(Results.of(cast("RunResults", found))) == (
        "does not rank images measurably better than random scores" if is_at_chance else ""
    )
