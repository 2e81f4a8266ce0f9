"""Counts of classes and notes at the end of a prediction job."""

from typing import Any

import pytest

from vitft.predict.prediction import NOT_SURE, OUT_OF_DISTRIBUTION, Prediction
from vitft.predict.tally import Tally


def prediction(*classes: str, notes: tuple[str, ...] = (), **more: Any) -> Prediction:
    probabilities = (0.9, *(0.05 for _ in classes[1:]))
    return Prediction(
        path="a.jpg", classes=classes, probabilities=probabilities, notes=notes, **more
    )


def lines(*predictions: Prediction, beginning: str = "", **options: Any) -> list[str]:
    tally = Tally()
    for one in predictions:
        tally.add(one)
    return [*tally.lines(beginning, **options)]


def test_the_most_probable_classes_are_counted_most_frequent_first() -> None:
    found = lines(prediction("rose", "tulip"), prediction("tulip", "rose"), prediction("tulip"))

    assert found == ["predicted: tulip: 2, rose: 1"]
    tied = lines(prediction("tulip"), prediction("rose"), prediction("aster"))
    assert tied == ["predicted: aster: 1, rose: 1, tulip: 1"]


def test_notes_and_unreadable_images_are_counted_as_far_as_the_colon() -> None:
    found = lines(
        prediction("rose", notes=(NOT_SURE, OUT_OF_DISTRIBUTION)),
        prediction("rose", notes=("blank: one uniform colour",)),
        Prediction(path="b.jpg", error="not an image"),
        beginning=" after resuming",
    )

    assert found == [
        f"predicted after resuming: rose: 2, including 1 {OUT_OF_DISTRIBUTION}",
        f"marked after resuming: 1 not sure, 1 {OUT_OF_DISTRIBUTION}, 1 blank, 1 unreadable",
    ]


@pytest.mark.parametrize(
    ("has_threshold", "expected"), [(True, ["marked: 0 not sure"]), (False, [])]
)
def test_a_threshold_that_marks_nothing_is_stated(has_threshold: bool, expected: list[str]) -> None:
    found = lines(prediction("rose"), has_threshold=has_threshold)

    assert found == ["predicted: rose: 1", *expected]
    assert lines(prediction("rose")) == ["predicted: rose: 1"]


def test_each_label_of_an_image_is_counted() -> None:
    found = lines(
        prediction("cat", "dog", "sea", labels=("cat", "sea")),
        prediction("cat", "dog", "sea", labels=("sea",)),
        prediction("cat", "dog", "sea", labels=()),
    )

    assert found == ["predicted: sea: 2, cat: 1, no label: 1"]


@pytest.mark.parametrize(("classes", "end"), [(7, "6: 1"), (8, "5: 1 and 2 more")])
def test_counts_of_numbered_classes_are_distinct_from_their_names(classes: int, end: str) -> None:
    (found,) = lines(*(prediction(str(number)) for number in range(classes)))

    assert found.startswith("predicted: 0: 1, 1: 1, ")
    assert found.endswith(f", {end}")
