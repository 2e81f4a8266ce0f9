"""Comparison of exports with the original: what is counted, and how much may differ."""

import math
from typing import Any

import numpy as np
import pytest

from tests.export.test_card import compared
from vitft.export import ExportComparison
from vitft.metrics import Outputs, wilson_interval
from vitft.system import RunError


def log(logits: Any, *seconds: float) -> tuple[list[Any], list[float]]:
    """Return a log of two batches."""
    rows = np.array(logits, np.float32)
    return [rows[:1], rows[1:]], [*(seconds or (0.5, 0.5))]


def row_of(after: Any, before: Any, labels: list[Any], **options: Any) -> Any:
    logs = log(after, 0.1, 0.2, 0.7), log(before, 0.5, 0.25, 0.125)
    outputs = Outputs.of("abc")
    return ExportComparison.of("timm", "timm 1", *logs, labels, 9, outputs=outputs, **options)


BEFORE = [[1.0, 0, 0], [0, -4, 0.5], [0, 0, 2], [3, 0, 0]]


def test_a_row_counts_changed_and_right_predictions_and_takes_the_median_speed() -> None:
    after = [[1.0, 0, 0], [0, -4.25, 0.5], [0, 2.125, 2], [3, 0, 0]]

    row = row_of(after, BEFORE, [0, 1, 2, 0])

    assert (row.images, row.changed, row.correct) == (4, 1, (3, 2))
    assert (row.difference, row.largest) == (2.125, 4)
    assert (row.speed, row.original_speed) == (5, 4)
    assert (row.name, row.by, row.size, row.several_labels) == ("timm", "timm 1", 9, False)
    low, high = (100 * end for end in wilson_interval(2, 4))
    assert row.cost == (
        f"--timm: the accuracy is 50.0% (95% CI {low:.1f} to {high:.1f}%) on 4 validation images, "
        "compared with 75.0% for the original"
    )
    assert row_of(BEFORE, BEFORE, [0, 1, 2, 0]).cost == ""


@pytest.mark.parametrize(
    "after",
    [
        pytest.param([[math.nan, 0, 0], *BEFORE[1:]], id="not a number"),
        pytest.param([[math.inf, 0, 0], *BEFORE[1:]], id="infinite"),
    ],
)
def test_a_graph_whose_logits_are_not_finite_differs_infinitely(after: Any) -> None:
    assert row_of(after, BEFORE, [0] * 4).difference == math.inf


@pytest.mark.parametrize(
    ("fields", "is_accepted"),
    [
        pytest.param({"difference": 1e-4, "largest": 0.5}, True, id="small logits"),
        pytest.param({"difference": 1.01e-4, "largest": 0.5}, False, id="too far"),
        pytest.param({"difference": 4e-4, "largest": 4.0}, True, id="relative to the largest"),
        pytest.param({"difference": 4.04e-4, "largest": 4.0}, False, id="too far from it"),
        pytest.param({"name": "int8", "images": 10, "changed": 1}, True, id="one image of ten"),
        pytest.param({"name": "int8", "images": 10, "changed": 2}, False, id="two of ten"),
        pytest.param({"name": "int8", "images": 60, "changed": 3}, True, id="one of twenty"),
        pytest.param({"name": "int8", "images": 59, "changed": 3}, False, id="more"),
        pytest.param({"name": "int8", "images": 6, "difference": 3.0}, True, id="other logits"),
        pytest.param({"name": "int8", "difference": math.inf}, False, id="infinite"),
        pytest.param({"name": "transformers-js, int8", "images": 10, "changed": 2}, False, id="js"),
    ],
)
def test_logits_may_differ_by_a_ten_thousandth_and_8_bits_on_a_twentieth_of_the_images(
    fields: dict[str, Any], *, is_accepted: bool
) -> None:
    if is_accepted:
        compared(**fields).check()
        return
    with pytest.raises(RunError, match="the predictions of the --"):
        compared(**fields).check()
