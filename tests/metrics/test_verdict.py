"""The accuracy in one sentence."""

from typing import Any, cast

import pytest

from tests.metrics.test_chance import results
from vitft.metrics import estimate
from vitft.metrics.budget_results import StartTrial, TrialResults
from vitft.metrics.estimate import (
    best_estimate,
    better_estimate,
    cross_validated_text,
)
from vitft.metrics.intervals import wilson_interval
from vitft.metrics.results import FinalTestResults, LabelResults, RunResults
from vitft.metrics.verdict import (
    describe_interpolation,
    describe_skipped,
    describe_start,
    needed_budget,
    selected_epoch,
    start_trials,
    verdict,
    weakest_label,
)


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
            "About 8% of new images will be misclassified (2 to 20%).",
            id="half a percent",
        ),
        pytest.param(
            [[1996, 4], [6, 1994]],
            "About 0.2% of new images will be misclassified (0.1 to 0.5%).",
            id="very rare errors",
        ),
        pytest.param(
            [[99, 1], [1, 99]],
            "About 1% of new images will be misclassified (0 to 4%).",
            id="one percent",
        ),
        pytest.param(
            [[199, 1], [2, 198]],
            "About 0.8% of new images will be misclassified (0.2 to 2.2%).",
            id="less than one percent",
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


def test_many_images_without_an_error_leave_room_for_a_fraction_of_a_percent() -> None:
    found = results([[500, 0], [0, 500]])

    assert verdict(found).endswith("but up to 0.4% of new images may be misclassified.")


def test_an_epoch_that_was_selected_on_the_same_images_is_probably_worse() -> None:
    found = results([[94, 6], [6, 94]])
    found["selected_on_validation"] = True

    assert verdict(found).endswith(
        "(3 to 10%; probably more, because the epoch was selected on the same images)."
    )
    tested = {"images": 80, "top1": 0.8, "top1_interval": (0.7, 0.87)}
    on_others = cast("RunResults", {**found, "test": tested})
    assert "(13 to 30%; 80 test images)." in verdict(on_others)


def test_labels_of_several_per_image_are_wrong_or_right_as_a_whole() -> None:
    found = {**results([[200, 0], [0, 200]]), "labels": {"map_interval": None}}

    assert verdict(cast("RunResults", found)) == (
        "About 0.0% of new images will get wrong labels (0.0 to 1.0%)."
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
        pytest.param({"top1": 0.69, "top1_interval": (0.53, 0.82)}, id="the accuracy is lower"),
        pytest.param({"cross_validation": None}, id="not cross-validated"),
    ],
)
def test_cross_validation_that_tells_less_does_not_change_the_verdict(
    changes: dict[str, Any],
) -> None:
    matrix = [[15, 1], [2, 15]]

    assert better_estimate(crossed(matrix, right=172, scored=202)) is not None
    assert better_estimate(crossed(matrix, right=172, scored=202, **changes)) is None


@pytest.mark.parametrize(("scored", "is_used"), [pytest.param(201, True), pytest.param(200, False)])
def test_cross_validation_on_three_times_as_many_images_tells_more(
    scored: int, is_used: bool
) -> None:
    found = crossed([[30, 3], [4, 30]], right=170, scored=scored)  # 67 validation images

    assert (better_estimate(found) is not None) == is_used


@pytest.mark.parametrize(("right", "scored"), [(202, 202), (2, 202)])
def test_a_validation_far_from_the_cross_validation_of_an_unfinished_run_is_kept(
    right: int, scored: int
) -> None:
    """Without the validation images, more than all or fewer than none would be right."""
    found = crossed([[8, 8], [9, 8]], right=right, scored=scored)
    del found["seconds"]

    assert better_estimate(found) is None


def test_the_estimates_are_described_with_their_images() -> None:
    tested: dict[str, Any] = {"images": 240, "top1": 0.88, "top1_interval": (0.833, 0.915)}
    labels = {"map": 0.7, "map_interval": (0.6, 0.8)}

    assert estimate.tested_text(cast("FinalTestResults", tested)) == (
        "test: 88.0% (83.3 to 91.5%) on 240 images, evaluated once"
    )
    assert estimate.tested_text(cast("FinalTestResults", {**tested, "labels": labels})) == (
        "test: mean average precision 70.0% (60.0 to 80.0%) on 240 images, evaluated once"
    )
    labels["map_interval"] = None
    assert estimate.tested_text(cast("FinalTestResults", {**tested, "labels": labels})) == (
        "test: mean average precision 70.0% on 240 images, evaluated once"
    )
    assert cross_validated_text(
        {"top1": 0.856, "top1_interval": (0.802, 0.898), "images": 202}
    ) == ("cross-validated on 202 images: 85.6% (80.2 to 89.8%)")


@pytest.mark.parametrize(
    ("tested", "sentence"),
    [
        pytest.param(
            {"images": 60, "top1": 0.8, "top1_interval": (0.7, 0.87)},
            "About 20% of new images will be misclassified (13 to 30%; 60 test images).",
            id="few",
        ),
        pytest.param(
            {"images": 300, "top1": 0.6, "top1_interval": (0.54, 0.65)},
            "About 40% of new images will be misclassified (35 to 46%; 300 test images). The test "
            "images are harder than the training images, of which 14.9% are misclassified in "
            "cross-validation.",
            id="harder",
        ),
        pytest.param(
            {"images": 300, "top1": 1.0, "top1_interval": (0.987, 1.0)},
            "All 300 test images were classified correctly, but up to 1% of new images may be "
            "misclassified. The test images are easier than the training images, of which 14.9% "
            "are misclassified in cross-validation.",
            id="easier",
        ),
    ],
)
def test_the_verdict_rests_on_the_test_images_and_tells_a_difference(
    tested: dict[str, Any], sentence: str
) -> None:
    found = crossed([[15, 1], [2, 15]], right=172, scored=202, test=tested)

    assert best_estimate(found) == (tested, "test image")
    assert verdict(found) == sentence


def test_test_images_are_compared_with_the_validation_without_a_cross_validation() -> None:
    tested = {"images": 300, "top1": 0.6, "top1_interval": (0.54, 0.65)}
    found = {**results([[94, 6], [6, 94]]), "test": tested}

    assert verdict(cast("RunResults", found)).endswith(
        "The test images are harder than the validation images, of which 6.0% are misclassified."
    )


def test_a_harder_validation_set_is_quoted_and_called_so() -> None:
    found = crossed([[90, 30], [20, 100]], right=904, scored=960)

    assert verdict(found) == (
        "About 21% of new images will be misclassified (16 to 26%). The validation images are "
        "harder than the training images, of which 5.8% are misclassified in cross-validation."
    )


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
        pytest.param(
            0.921,
            (0.0, 0.034),
            "the weights vit_small would bring no clear gain: +2.1 points (+0.0 to +3.4) on 960 "
            "training images in cross-validation, 3.1 times as long",
            id="perhaps none",
        ),
    ],
)
def test_other_weights_are_recommended_only_for_a_clear_gain(
    top1: float, interval: tuple[float, float], sentence: str
) -> None:
    trial: StartTrial = {
        "image_size": (224, 224),
        "weights": "vit_small",
        "chosen": False,
        "images": 960,
        "top1": top1,
        "usual_top1": 0.9,
        "gain_interval": interval,
        "relative_time": 3.14,
    }

    assert describe_start(trial) == sentence


def test_a_larger_input_is_described_as_chosen_or_not() -> None:
    trial: StartTrial = {
        "image_size": (384, 384),
        "chosen": True,
        "images": 1960,
        "top1": 0.921,
        "usual_top1": 0.9,
        "usual_size": [224, 192],
    }
    rest = (
        "a head classifies 92.1% of 1,960 training images correctly in cross-validation "
        "(at 224x192 pixels: 90.0%)"
    )

    assert describe_start(trial) == f"an input of 384 pixels was chosen: {rest}"
    trial["chosen"] = False
    assert describe_start(trial) == f"an input of 384 pixels was tried, but not chosen: {rest}"


def test_a_start_that_was_not_tried_is_described_with_the_budget_it_needs() -> None:
    size: StartTrial = {"image_size": (384, 256), "chosen": False, "seconds_needed": 61}
    weights: StartTrial = {**size, "weights": "vit_small"}

    assert describe_start(size) == (
        "an input of 384x256 pixels was not tried: this needs about --budget 2m"
    )
    assert describe_start(weights) == (
        "the weights vit_small were not tried: this needs about --budget 2m"
    )
    assert start_trials({"weights": weights, "size": size}) == [size, weights]
    assert start_trials({"weights": weights}) == [weights]
    assert describe_skipped({"layers": "blocks:2", "seconds_needed": 121.0}).endswith(
        "was not tried: this needs about --budget 3m"
    )


@pytest.mark.parametrize(("seconds", "minutes"), [(1, 1), (60, 1), (60.5, 2), (120, 2), (3601, 61)])
def test_the_budget_is_rounded_up_to_minutes(seconds: float, minutes: int) -> None:
    assert needed_budget(seconds) == f"about --budget {minutes}m"


def test_the_part_of_the_trained_change_that_is_kept_is_described() -> None:
    kept = cast("TrialResults", {"interpolation": 0.5})

    assert describe_interpolation(kept) == "keeping 50% of the change in the weights"
    assert describe_interpolation(cast("TrialResults", {"interpolation": 1.0})) == ""
    assert describe_interpolation(cast("TrialResults", {})) == ""


@pytest.mark.parametrize(
    ("best", "freeze", "planned", "words"),
    [
        pytest.param(3, "blocks:2", 20, "epoch 3 of 20", id="one stage"),
        pytest.param(3, "none", 0, "epoch 3", id="unknown number of epochs"),
        pytest.param(1, "head,none", 20, "the fitted head", id="head"),
        pytest.param(4, "head,none", 20, "epoch 3 of 20 after fitting the head", id="after head"),
        pytest.param(5, "head,blocks:1,none", 4, "epoch 4 of 8 after fitting the head", id="three"),
        pytest.param(5, "blocks:1,none", 4, "epoch 5 of 8", id="two stages"),
    ],
)
def test_the_selected_epoch_is_counted_without_the_fitted_head(
    best: int, freeze: str, planned: int, words: str
) -> None:
    found = cast("RunResults", {"best_epoch": best})

    assert selected_epoch(found, freeze, planned) == words
    assert selected_epoch(found, freeze) == selected_epoch(found, freeze, 0)
    assert " of " not in selected_epoch(found, freeze)


def test_the_weakest_label_is_one_with_errors() -> None:
    def labels(*precisions: float | None) -> LabelResults:
        rows = {"abc"[i]: {"ap": value} for i, value in enumerate(precisions)}
        return cast("LabelResults", {"per_label": rows})

    weakest = weakest_label(labels(0.9, 0.8, None))
    assert weakest is not None
    assert (weakest.name, weakest.value, weakest.interval) == ("b", 0.8, None)
    assert weakest_label(labels(1.0, None)) is None
