"""Rows of predictions.csv, and the predictions kept above a threshold."""

import csv

import pytest

from vitft.metrics.intervals import wilson_interval
from vitft.predict.labelled_prediction import (
    PREDICTION_COLUMNS,
    LabelledPrediction,
    kept_results,
)
from vitft.predict.prediction import NOT_SURE, OUT_OF_DISTRIBUTION, Prediction


def labelled(label: str, answer: str, *notes: str) -> LabelledPrediction:
    one = Prediction(
        path="a.jpg",
        classes=(answer,),
        probabilities=(0.9,),
        notes=notes,
        target_probability=0.25,
    )
    return LabelledPrediction(label, one)


LEFT_OUT = LabelledPrediction("cat", Prediction(path="b.jpg", notes=("training image",)))
BROKEN = LabelledPrediction("cat", Prediction(path="c.jpg", error="empty file"))


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        (labelled("cat", "cat"), ["a.jpg", "cat", "cat", "0.900000", "0.250000", "1", "", ""]),
        (
            labelled("cat", "dog", NOT_SURE),
            ["a.jpg", "cat", "dog", "0.900000", "0.250000", "0", NOT_SURE, ""],
        ),
        (LEFT_OUT, ["b.jpg", "cat", "", "", "", "", "training image", ""]),
        (BROKEN, ["c.jpg", "cat", "", "", "", "", "", "empty file"]),
    ],
    ids=["right", "wrong", "left out", "unreadable"],
)
def test_a_row_has_label_answer_both_probabilities_and_whether_it_is_right(
    row: LabelledPrediction, cells: list[str]
) -> None:
    (found,) = csv.reader([row.to_csv()])

    assert found == cells
    assert len(PREDICTION_COLUMNS) == len(cells)
    assert row.is_correct == (cells[5] == "1")


def test_a_row_of_several_labels_has_the_probability_of_the_set() -> None:
    one = Prediction(
        path="a.jpg",
        classes=("sea", "cat"),
        probabilities=(0.9, 0.2),
        labels=("sea",),
        labels_probability=0.72,
        target_probability=0.18,
    )

    (found,) = csv.reader([LabelledPrediction("cat|sea", one).to_csv()])

    assert found == ["a.jpg", "cat|sea", "sea", "0.720000", "0.180000", "0", "", ""]


def test_kept_are_the_scored_predictions_that_are_not_marked_unsure() -> None:
    rows = [
        labelled("cat", "cat"),
        labelled("cat", "cat", OUT_OF_DISTRIBUTION),
        labelled("cat", "dog"),
        labelled("cat", "cat", NOT_SURE),
        *(LEFT_OUT, BROKEN),
    ]

    found = kept_results(rows, 0.7)

    assert found == {
        "threshold": 0.7,
        "images": 3,
        "fraction": 3 / 4,
        "fraction_interval": wilson_interval(3, 4),
        "top1": 2 / 3,
        "top1_interval": wilson_interval(2, 3),
    }
    assert kept_results(rows, 0.0) is None


def test_if_no_prediction_is_kept_their_accuracy_is_unknown() -> None:
    found = kept_results([labelled("cat", "cat", NOT_SURE)], 0.95)

    assert found is not None
    assert (found["images"], found["fraction"], found["top1"]) == (0, 0.0, None)
    assert found["top1_interval"] is None
