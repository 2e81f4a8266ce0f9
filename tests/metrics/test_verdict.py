"""The accuracy in one sentence."""

from typing import Any, cast

import pytest

from tests.metrics.test_chance import results
from vitft.messages import headline_text, needed_budget, selected_epoch
from vitft.metrics import Results, RunResults, wilson_interval


def crossed(matrix: list[list[int]], *, right: int, scored: int, **changes: Any) -> RunResults:
    """Return results with a cross-validated head, comparable with the validation images."""
    more = {
        "images": scored,
        "of": scored,
        "top1": right / scored,
        "top1_interval": wilson_interval(right, scored),
        "balanced": right / scored,
        "balanced_interval": wilson_interval(right, scored),
        "classes": 2,
        "majority": 0.5,
        "weak_spots": [],
        "gain_interval": None,
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


def quoted(found: RunResults) -> str:
    """Return the kind of images of the number to quote."""
    headline = Results.of(found).headline
    assert headline is not None
    return headline.kind


LABELS = {"map": 0.9, "map_interval": (0.8, 0.95), "chance_map": 0.3, "per_label": {}}


def test_few_validation_images_yield_to_cross_validation_on_many() -> None:
    lucky = crossed([[15, 1], [2, 15]], right=172, scored=202)

    assert headline_text(Results.of(lucky)) == (
        "85% of new images are classified correctly (95% CI 80 to 89%), cross-validated on 202 "
        "images."
    )
    nearly = crossed([[16, 0], [0, 17]], right=2999, scored=3000)
    assert headline_text(Results.of(nearly)).startswith("99.97% of new images")
    perfect = crossed([[16, 0], [0, 17]], right=202, scored=202)
    assert headline_text(Results.of(perfect)) == (
        "100.0% of new images are classified correctly (95% CI 98.1 to 100.0%), cross-validated on "
        "202 images."
    )


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"best_epoch": 3}, id="other layers were trained after the head"),
        pytest.param({"calibration": {"cross_validated": 0}}, id="the validation is harder"),
        pytest.param({"calibration": None}, id="no calibration"),
        pytest.param({"images": 68}, id="validation images are not few"),
        pytest.param({"labels": LABELS}, id="several labels"),
        pytest.param({"top1": 0.69, "top1_interval": (0.53, 0.82)}, id="the accuracy is lower"),
        pytest.param({"cross_validation": None}, id="not cross-validated"),
    ],
)
def test_cross_validation_that_tells_less_does_not_change_the_verdict(
    changes: dict[str, Any],
) -> None:
    matrix = [[15, 1], [2, 15]]

    assert quoted(crossed(matrix, right=172, scored=202)) == "cross-validation"
    assert quoted(crossed(matrix, right=172, scored=202, **changes)) == "validation"


@pytest.mark.parametrize(("scored", "is_used"), [pytest.param(201, True), pytest.param(200, False)])
def test_cross_validation_on_three_times_as_many_images_tells_more(
    scored: int, is_used: bool
) -> None:
    found = crossed([[30, 3], [4, 30]], right=170, scored=scored)  # 67 validation images

    assert (quoted(found) == "cross-validation") == is_used


@pytest.mark.parametrize(("seconds", "minutes"), [(1, 1), (60, 1), (60.5, 2), (120, 2), (3601, 61)])
def test_the_budget_is_rounded_up_to_minutes(seconds: float, minutes: int) -> None:
    assert needed_budget(seconds) == f"about --budget {minutes}m"


@pytest.mark.parametrize(
    ("best", "layers", "planned", "words"),
    [
        pytest.param(3, "blocks:2", 20, "epoch 3 of 20", id="one stage"),
        pytest.param(3, "none", 0, "epoch 3", id="unknown number of epochs"),
        pytest.param(1, "head,all", 20, "the fitted head", id="head"),
        pytest.param(4, "head,all", 20, "epoch 3 of 20 after fitting the head", id="after head"),
        pytest.param(5, "head,blocks:1,all", 4, "epoch 4 of 8 after fitting the head", id="three"),
        pytest.param(5, "blocks:1,all", 4, "epoch 5 of 8", id="two stages"),
    ],
)
def test_the_selected_epoch_is_counted_without_the_fitted_head(
    best: int, layers: str, planned: int, words: str
) -> None:
    found = cast("RunResults", {"best_epoch": best})

    assert selected_epoch(found, layers, planned) == words
    assert selected_epoch(found, layers) == selected_epoch(found, layers, 0)
    assert " of " not in selected_epoch(found, layers)
