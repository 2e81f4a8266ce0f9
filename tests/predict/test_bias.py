"""Warnings about images that an evaluation leaves out, and about what biases its results."""

import logging
from typing import Any, cast

import pytest

from vitft.data.labelled import LabelledImages
from vitft.metrics.results import EvaluationResults
from vitft.predict.bias import MOST_NAMED, log_first_pages, warn_of_bias, warn_of_own_answers
from vitft.predict.labelled_prediction import LabelledPrediction
from vitft.predict.prediction import Prediction


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def results(images: int = 10, **data: Any) -> EvaluationResults:
    facts: dict[str, Any] = {
        "unreadable": [],
        "trained": 0,
        "trained_copies": 0,
        "trained_paths": 0,
        "trained_groups": 0,
        "validated": 0,
        "copies": 0,
    }
    return cast("EvaluationResults", {"images": images, "data": facts | data})


def test_unbiased_results_have_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_bias(results())

    assert warnings(caplog) == []


def test_images_left_out_are_counted_by_reason_out_of_all(caplog: pytest.LogCaptureFixture) -> None:
    unreadable = [{"path": "x.jpg", "reason": "empty file"}]

    warn_of_bias(
        results(
            10,
            unreadable=unreadable,
            trained=4,
            trained_copies=3,
            trained_paths=2,
            trained_groups=1,
        )
    )

    assert [text.partition(":")[0] for text in warnings(caplog)] == [
        "skipped x.jpg",
        "skipped 4 of 21 images",
        "skipped 3 of 21 images",
        "skipped 2 of 21 images",
        "skipped 1 of 21 images",
    ]


def test_reasons_that_leave_out_no_image_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_bias(results(10, trained=4))
    warn_of_bias(results(10, trained_copies=1))

    assert [text.partition(":")[0] for text in warnings(caplog)] == [
        "skipped 4 of 14 images",
        "skipped 1 of 11 images",
    ]


@pytest.mark.parametrize("number", [MOST_NAMED, MOST_NAMED + 1, MOST_NAMED + 3])
def test_the_first_ten_unreadable_files_are_named_and_the_others_counted(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"path": f"{i}.jpg", "reason": "empty file"} for i in range(number)]

    warn_of_bias(results(unreadable=rows))

    named = [f"skipped {i}.jpg: empty file" for i in range(10)]
    more = {10: [], 11: ["skipped 1 more unreadable file"], 13: ["skipped 3 more unreadable files"]}
    assert warnings(caplog) == named + more[number]


def test_unknown_training_images_are_warned_of_but_not_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unknown: dict[str, Any] = dict.fromkeys(
        ["trained", "trained_copies", "trained_paths", "trained_groups"]
    )

    warn_of_bias(results(**unknown, validated=None))

    (text,) = warnings(caplog)
    assert "may have been trained on some of these images" in text


def test_validation_images_and_duplicates_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_bias(results(10, validated=6, copies=2))

    first, second = warnings(caplog)
    assert "slightly optimistic: 6 of 10 images are validation images" in first
    assert second.startswith("found 2 duplicates among the images")


def labels(images: int, *, predicted: bool = True) -> LabelledImages:
    return LabelledImages(
        source="table.csv",
        root=".",
        classes=("cat",),
        images=tuple((f"{i}.jpg", "cat") for i in range(images)),
        predicted=predicted,
    )


def rows(right: int, wrong: int = 0, skipped: int = 0) -> list[LabelledPrediction]:
    answers = ["cat"] * right + ["dog"] * wrong
    scored = [Prediction(path="a", classes=(name,), probabilities=(0.9,)) for name in answers]
    return [LabelledPrediction("cat", p) for p in [*scored, *[Prediction(path="b")] * skipped]]


@pytest.mark.parametrize(
    ("right", "wrong", "skipped", "warned"),
    [
        pytest.param(4, 0, 0, True, id="all"),
        pytest.param(3, 1, 0, False, id="one was corrected"),
        pytest.param(3, 0, 1, True, id="most"),
        pytest.param(2, 0, 2, False, id="half"),
        pytest.param(0, 0, 4, False, id="none"),
    ],
)
def test_labels_that_are_the_predictions_of_the_model_are_warned_of(
    right: int, wrong: int, skipped: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_own_answers(labels(4), rows(right, wrong, skipped))

    assert bool(warnings(caplog)) == warned
    caplog.clear()
    warn_of_own_answers(labels(4, predicted=False), rows(right, wrong, skipped))
    assert warnings(caplog) == []


def test_images_of_which_one_page_was_used_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    paged = Prediction(path="a.tif", notes=("first of several pages",))

    with caplog.at_level(logging.INFO):
        log_first_pages([LabelledPrediction("cat", one) for one in (paged, Prediction(path="b"))])
        log_first_pages(rows(2))

    assert [r.getMessage() for r in caplog.records] == [
        "used only the first of several pages in 1 image"
    ]
