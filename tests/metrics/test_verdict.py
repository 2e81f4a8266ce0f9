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
            "About 1 in 17 new images will be misclassified (between 1 in 29 and 1 in 10).",
            id="rare errors",
        ),
        pytest.param(
            [[18, 2], [6, 14]],
            "About 20% of new images will be misclassified (10 to 35%).",
            id="a wide interval is given in percent",
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
        "All 43 validation images were classified correctly, but up to 1 in 12 new images may be "
        "misclassified."
    )


def test_results_of_older_runs_have_no_verdict() -> None:
    older: RunResults = results([[9, 1], [1, 9]])
    del older["top1_interval"]  # type: ignore[misc]

    assert verdict(older) == ""
