"""The accuracy in one sentence."""

from typing import Any, cast

import pytest

from tests.metrics.test_chance import results
from vitft.metrics.budget_results import StartTrial
from vitft.metrics.estimate import better_estimate
from vitft.metrics.intervals import wilson_interval
from vitft.metrics.results import RunResults
from vitft.metrics.verdict import describe_start, verdict


@pytest.mark.parametrize(
    ("matrix", "sentence"),
    [
        pytest.param(
            [[94, 6], [6, 94]],
            "About 6% of new images will be misclassified (3 to 10%).",
            id="rare errors",
        ),
        pytest.param(
            [[18, 2], [6, 14]],
            "About 20% of new images will be misclassified (10 to 35%).",
            id="frequent errors",
        ),
        pytest.param(
            [[19, 1], [2, 18]],  # 1 - 0.925 is below 0.075 in floating point
            "About 8% of new images will be misclassified (3 to 20%).",
            id="half a percent",
        ),
        pytest.param(
            [[1996, 4], [6, 1994]],
            "About 0.2% of new images will be misclassified (0.1 to 0.5%).",
            id="very rare errors",
        ),
        pytest.param([[0, 50], [0, 50]], "This model always predicts b.", id="chance"),
    ],
)
def test_the_sentence_says_how_many_new_images_will_be_misclassified(
    matrix: list[list[int]], sentence: str
) -> None:
    assert verdict(results(matrix)) == sentence


def test_few_images_without_an_error_leave_room_for_errors() -> None:
    found = results([[22, 0], [0, 21]])
    found["images"] = 43

    assert verdict(found) == (
        "All 43 validation images were classified correctly, but up to 8% of new images may be "
        "misclassified."
    )


def test_results_of_older_runs_have_no_verdict() -> None:
    older: RunResults = results([[9, 1], [1, 9]])
    del older["top1_interval"]  # type: ignore[misc]

    assert verdict(older) == ""


def crossed(matrix: list[list[int]], *, right: int, scored: int, **changes: Any) -> RunResults:
    """Return results with a cross-validated head, comparable with the validation images."""
    more = {
        "images": scored,
        "of": scored,
        "top1": right / scored,
        "top1_interval": wilson_interval(right, scored),
    }
    found = {
        **results(matrix),
        "images": sum(map(sum, matrix)),
        "best_epoch": 1,
        "calibration": {"cross_validated": scored - 33},
        "seconds": 1.0,
        "cross_validation": more,
    }
    return cast("RunResults", {**found, **changes})


def test_few_validation_images_yield_to_cross_validation_on_many() -> None:
    lucky = crossed([[15, 1], [2, 15]], right=172, scored=202)

    assert verdict(lucky) == (
        "About 15% of new images will be misclassified (11 to 20%; cross-validated on 202 images)."
    )
    perfect = crossed([[16, 0], [0, 17]], right=202, scored=202)
    assert verdict(perfect) == (
        "All 202 images were classified correctly in cross-validation, but up to 2% of new images "
        "may be misclassified."
    )


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"best_epoch": 3}, id="other layers were trained after the head"),
        pytest.param({"calibration": {"cross_validated": 0}}, id="the validation is harder"),
        pytest.param({"calibration": None}, id="no calibration"),
        pytest.param({"images": 68}, id="validation images are not few"),
        pytest.param({"labels": {}}, id="several labels"),
        pytest.param({"cross_validation": None}, id="not cross-validated"),
    ],
)
def test_cross_validation_that_tells_less_does_not_change_the_verdict(
    changes: dict[str, Any],
) -> None:
    matrix = [[15, 1], [2, 15]]

    assert better_estimate(crossed(matrix, right=172, scored=202)) is not None
    assert better_estimate(crossed(matrix, right=172, scored=202, **changes)) is None


def test_the_verdict_rests_on_the_test_images_unless_they_are_few() -> None:
    results = crossed([[15, 1], [2, 15]], right=172, scored=202)
    tested = {"images": 80, "top1": 0.8, "top1_interval": (0.7, 0.87)}
    beside_many = {**tested, "images": 60}
    few = {"images": 5, "top1": 0.8, "top1_interval": (0.38, 0.96)}

    assert verdict(cast("RunResults", {**results, "test": tested})) == (
        "About 20% of new images will be misclassified (13 to 30%; 80 test images)."
    )
    for less in (beside_many, few):
        assert "cross-validated" in verdict(cast("RunResults", {**results, "test": less}))


@pytest.mark.parametrize(
    ("matrix", "is_used"),
    [([[15, 1], [2, 15]], True), ([[8, 8], [9, 8]], False), ([[11, 5], [6, 12]], False)],
    ids=["alike", "the validation is harder", "harder, although the intervals overlap"],
)
def test_an_unfinished_run_uses_cross_validation_if_the_accuracies_do_not_differ(
    matrix: list[list[int]], is_used: bool
) -> None:
    added_at_the_end = ("seconds", "calibration")
    results = crossed(matrix, right=172, scored=202)
    unfinished = {key: value for key, value in results.items() if key not in added_at_the_end}

    assert (better_estimate(cast("RunResults", unfinished)) is not None) == is_used


@pytest.mark.parametrize(
    ("top1", "interval", "sentence"),
    [
        pytest.param(
            0.921,
            (0.008, 0.034),
            "the weights vit_small would bring about +2.1 points (+0.8 to +3.4) on 960 training "
            "images in cross-validation and take about 3.1 times as long: --weights vit_small",
            id="clearly better",
        ),
        pytest.param(
            0.899,
            (-0.01, 0.008),
            "the weights vit_small would bring no clear gain: -0.1 points (-1.0 to +0.8) on 960 "
            "training images in cross-validation, 3.1 times as long",
            id="no clear gain",
        ),
    ],
)
def test_other_weights_are_recommended_only_for_a_clear_gain(
    top1: float, interval: tuple[float, float], sentence: str
) -> None:
    trial: StartTrial = {
        "image_size": [224, 224],
        "weights": "vit_small",
        "chosen": False,
        "images": 960,
        "top1": top1,
        "usual_top1": 0.9,
        "gain_interval": interval,
        "relative_time": 3.14,
    }

    assert describe_start(trial) == sentence
