"""Choice of a threshold by the precision on validation images."""

from pathlib import Path

import pytest

from vitft.predict.validation import (
    ValidationPrediction,
    choose_threshold,
    smallest_threshold,
)
from vitft.system.errors import RunError


def verdicts(*pairs: tuple[float, bool]) -> list[ValidationPrediction]:
    return [
        ValidationPrediction(path=f"{i}.jpg", sha256="", label="a", predicted="a" if right else "b",
                probability=probability, label_probability=0.5)
        for i, (probability, right) in enumerate(pairs)
    ]  # fmt: skip


def test_the_threshold_is_the_smallest_that_reaches_the_precision() -> None:
    # Right at 0.9 and 0.8, wrong at 0.7, then three right: 5 of 6 at 0.4 again reach 80 %.
    given = verdicts((0.7, False), (0.9, True), (0.8, True), (0.6, True), (0.5, True), (0.4, True))

    most = smallest_threshold(given, 0.8)
    all_right = smallest_threshold(given, 1.0)

    assert most is not None
    assert all_right is not None
    assert (most.value, most.precision, most.covered) == (0.4, 5 / 6, 6)
    assert (all_right.value, all_right.precision, all_right.covered) == (0.8, 1.0, 2)
    assert all_right.interval[0] == pytest.approx(0.342, abs=0.001)  # Wilson, 2 of 2


def test_predictions_of_equal_probability_are_all_above_or_all_below() -> None:
    found = smallest_threshold(verdicts((0.9, True), (0.8, True), (0.8, False)), 0.9)

    assert found is not None
    assert found.value == 0.9


def test_an_unreachable_precision_gives_no_threshold() -> None:
    assert smallest_threshold(verdicts((0.9, False), (0.8, True)), 0.9) is None


def test_a_run_without_validation_predictions_suggests_threshold(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="--threshold"):
        choose_threshold(tmp_path, 0.9)
