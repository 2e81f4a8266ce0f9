"""The accuracy in one sentence."""

import pytest

from tests.metrics.test_chance import results
from vitft.metrics.results import RunResults
from vitft.metrics.verdict import verdict


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
