"""Comparison of exports with the original: what is counted, and how much may differ."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.export.test_card import compared
from tests.support.export_run import make_run
from vitft.data.split import Row
from vitft.export.compare import (
    PredictionLog,
    check_comparison,
    compare_exports,
    comparison_row,
)
from vitft.export.formats.base import OpenedModel
from vitft.export.trained import (
    LabelledImage,
    comparison_images,
    evenly_spaced,
    load_trained,
    num_comparison_images,
)
from vitft.metrics.intervals import wilson_interval
from vitft.system.errors import RunError


def log(logits: Any, *seconds: float) -> PredictionLog:
    """Return a log of two batches."""
    rows = np.array(logits, np.float32)
    return PredictionLog([rows[:1], rows[1:]], [*(seconds or (0.5, 0.5))])


def row_of(after: Any, before: Any, labels: list[Any], **options: Any) -> Any:
    logs = log(after, 0.1, 0.2, 0.7), log(before, 0.5, 0.25, 0.125)
    return comparison_row("timm", "timm 1", *logs, labels, 9, **options)


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
        f"--timm: accuracy 50.0% on 4 validation images (95% interval {low:.1f} to {high:.1f}%), "
        "compared with 75.0% for the original"
    )
    assert row_of(BEFORE, BEFORE, [0, 1, 2, 0]).cost == ""


def test_on_noise_no_accuracy_is_claimed() -> None:
    row = row_of([BEFORE[1], BEFORE[0], *BEFORE[2:]], BEFORE, [-1] * 4)

    assert (row.images, row.correct, row.cost) == (0, (0, 0), "")
    assert row.changed == 2


@pytest.mark.parametrize(
    "after",
    [
        pytest.param([[math.nan, 0, 0], *BEFORE[1:]], id="not a number"),
        pytest.param([[math.inf, 0, 0], *BEFORE[1:]], id="infinite"),
    ],
)
def test_a_graph_whose_logits_are_not_finite_differs_infinitely(after: Any) -> None:
    assert row_of(after, BEFORE, [0] * 4).difference == math.inf


def test_an_image_of_several_labels_is_right_only_if_all_of_them_are() -> None:
    labels = [np.array(flags) for flags in ([True, False], [True, True], [False, False])]
    before = [[1.0, -1], [1, 1], [-1, -1]]
    after = [[1.0, 1], [1, 1], [-1, -1]]

    row = row_of(after, before, labels, thresholds=(0.5, 0.5))
    noise = row_of(after, before, [-1] * 3, thresholds=(0.5, 0.5))

    assert (row.changed, row.correct, row.images) == (1, (3, 2), 3)
    assert row.several_labels
    assert (noise.images, noise.correct) == (0, (0, 0))


def opened(calls: list[tuple[str, int]], name: str, classes: Sequence[str] = "ab") -> OpenedModel:
    """Return a model that records how many images it predicts."""

    def logits(inputs: Any) -> Any:
        calls.append((name, len(inputs)))
        return np.zeros((len(inputs), 2), np.float32)

    return OpenedModel(
        by=name,
        classes=tuple(classes),
        thresholds=(),
        prepare=lambda _: np.zeros(1, np.float32),
        logits=logits,
    )


def test_models_take_turns_with_batches_of_eight_and_warm_up_once() -> None:
    calls: list[tuple[str, int]] = []
    done: list[int] = []
    samples = [LabelledImage(Image.new("RGB", (2, 2)), 0)] * 18
    exports = {name: opened(calls, name) for name in ("timm", "onnx")}

    rows = compare_exports(
        opened(calls, ""), exports, samples, {"timm": 1, "onnx": 2}, done=done.append
    )

    assert done == [8, 8, 2]
    assert [name for name, _ in calls] == [
        *("", "", "timm", "timm", "onnx", "onnx"),  # the first pass of each is not timed
        *("timm", "onnx", ""),
        *("onnx", "", "timm"),
    ]
    assert [size for _, size in calls] == [8] * 9 + [2] * 3
    assert [(row.name, row.size, row.images, row.correct) for row in rows] == [
        ("timm", 1, 18, (18, 18)),
        ("onnx", 2, 18, (18, 18)),
    ]


def test_an_export_with_other_classes_is_refused() -> None:
    samples = [LabelledImage(Image.new("RGB", (2, 2)), 0)]

    with pytest.raises(RunError, match="the --timm export and the run have different class names"):
        compare_exports(opened([], ""), {"timm": opened([], "timm", "ba")}, samples, {"timm": 1})


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
        check_comparison(compared(**fields))
        return
    with pytest.raises(RunError, match="the predictions of the --"):
        check_comparison(compared(**fields))


def test_the_option_to_remove_is_that_of_the_format() -> None:
    row = compared(name="transformers-js, int8", images=0)

    with pytest.raises(RunError, match="cannot be measured") as caught:
        check_comparison(row)

    assert caught.value.fix.endswith("or remove --transformers-js")


# images ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 10])
def test_images_are_spaced_evenly(number: int, count: int) -> None:
    rows = [Row(str(i), 0, "val", str(i)) for i in range(number)]

    found = [int(row.path) for row in evenly_spaced(rows, count)]

    assert len({*found}) == len(found) == min(number, count)
    gaps = [b - a for a, b in zip(found, [*found[1:], number], strict=True)]
    assert found[0] == 0
    assert sum(gaps) == number
    assert min(gaps) >= 1
    assert max(gaps) - min(gaps) <= 1


def test_only_unchanged_validation_images_are_compared(tmp_path: Path) -> None:
    kept = make_run(tmp_path)
    trained = load_trained(str(kept))

    every = list(comparison_images(trained, 99))
    some = list(comparison_images(trained, 3))
    assert sorted(int(one.label) for one in every) == [0, 0, 1, 1, 2, 2]
    assert [one.label for one in some] == [0, 1, 2]
    assert (num_comparison_images(trained, 99), num_comparison_images(trained, 3)) == (6, 3)

    photos = sorted((tmp_path / "photos").rglob("*.png"))
    for photo in photos[:5]:
        photo.write_bytes(photo.read_bytes() + b"changed")
    remaining = list(comparison_images(trained, 99))
    assert 0 < len(remaining) < 6
    assert all(one.label != -1 for one in remaining)


def test_without_images_eight_noise_images_of_several_sizes_are_compared(tmp_path: Path) -> None:
    kept = make_run(tmp_path)
    (kept / "split.csv").unlink()
    trained = load_trained(str(kept))
    height, width = trained.card.transform.image_size

    found = list(comparison_images(trained, 99))

    assert num_comparison_images(trained, 99) == len(found) == 8
    assert {one.label for one in found} == {-1}
    assert len({one.image.size for one in found}) == 8
    assert all(one.image.width > width and one.image.height >= height for one in found)
    assert len({one.image.tobytes()[:64] for one in found}) == 8
