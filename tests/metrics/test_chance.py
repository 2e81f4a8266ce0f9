"""Models at chance level."""

import statistics
from typing import Any, cast

import pytest

from vitft.messages import chance_clause
from vitft.metrics import Results, RunResults, mean_fraction_interval, wilson_interval


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


@pytest.mark.parametrize(
    ("matrix", "clause"),
    [
        pytest.param([[0, 50], [0, 50]], "always predicts b", id="constant"),
        pytest.param(
            [[2, 48], [2, 48]], "predicts b for 96% of the validation images", id="nearly constant"
        ),
        pytest.param(
            [[2, 48], [3, 47]], "predicts b for 95% of the validation images", id="95% of one class"
        ),
        pytest.param(
            [[3, 47], [3, 47]],
            "is not measurably better than guessing",
            id="94% of one class are not called constant",
        ),
        pytest.param([[25, 25], [25, 25]], "is not measurably better than guessing", id="guesses"),
        pytest.param([[40, 10], [10, 40]], "", id="better than chance"),
        pytest.param([[30, 0], [0, 970]], "", id="rare class, always right"),
        pytest.param(
            [[1, 0], [0, 8]],
            "is not measurably better than guessing, because only 9 images were scored",
            id="all right, but too few",
        ),
        pytest.param([[12, 3], [28, 257]], "", id="rare class, found by weights"),
        pytest.param([[0, 30], [0, 970]], "always predicts b", id="rare class, never found"),
        pytest.param(
            [[1, 49], [49, 901]],
            "is not measurably better than guessing",
            id="guesses with the frequencies of the classes",
        ),
    ],
)
def test_a_model_is_at_chance_level_unless_its_balanced_accuracy_is_above_guessing(
    matrix: list[list[int]], clause: str
) -> None:
    assert chance_clause(Results.of(results(matrix))) == clause


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
    labels: dict[str, Any] = {
        "map": 0.4,
        "map_interval": interval,
        "chance_map": 0.3,
        "per_label": {},
    }
    found = {**results([[50, 0], [50, 0]]), "labels": labels}

    assert chance_clause(Results.of(cast("RunResults", found))) == (
        "does not rank images measurably better than random scores" if is_at_chance else ""
    )
