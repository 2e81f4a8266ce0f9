"""Sentences and metrics on 8-bit weights, for the README of an export.

All other results of a run were measured with its float32 weights. A file with 8-bit weights is
therefore described by the accuracy that the export itself has measured.
"""

from collections.abc import Sequence

from vitft.export.compare import ExportComparison
from vitft.metrics.intervals import wilson_interval
from vitft.metrics.values import Interval
from vitft.system.text import count, interval, percent

WHAT_IS_ROUNDED = (
    "8-bit weights in its linear layers; the inputs of those layers are rounded to 8 bits too, "
    "except after the activation function of a block"
)
FLOAT_RESULTS = (
    "The results by class, the confusions and the calibration were measured with the original "
    "float32 model, not with 8-bit weights."
)


def is_eight_bits(row: ExportComparison) -> bool:
    """Return whether a comparison is one of a graph with 8-bit weights."""
    return row.name.endswith("int8")


def eight_bit_lines(row: ExportComparison, small: ExportComparison | None) -> list[str]:
    """Return the lines of the introduction that say which file of an export has 8-bit weights.

    Args:
        row: Comparison of the export that the README describes.
        small: Comparison of its 8-bit graph; `row` itself if there is no other graph. None if no
            file has 8-bit weights.
    """
    if small is None:
        return []
    file = "model.onnx"
    if small is not row:
        file = "onnx/model_quantized.onnx, which web pages load by default,"
    return [f"The graph {file} has {WHAT_IS_ROUNDED}. {eight_bit_accuracy(small)}", ""]


def eight_bit_accuracy(row: ExportComparison) -> str:
    """Return a sentence about the accuracy with 8-bit weights and with the original weights."""
    before, after = (number / row.images for number in row.correct)
    bounds = wilson_interval(row.correct[1], row.images)
    whole = " (images whose labels are all right)" if row.several_labels else ""
    return (
        f"Its accuracy{whole} is {percent(after)} (95% interval {interval(bounds)}) on "
        f"{count(row.images, 'validation image')}, compared with {percent(before)} for the "
        f"original float32 model on the same images ({count(row.changed, 'changed prediction')})."
    )


def eight_bit_metrics(row: ExportComparison) -> Sequence[tuple[str, str, float, Interval]]:
    """Return kind, name, value and interval of the accuracy measured with 8-bit weights."""
    name = "accuracy (all labels right)" if row.several_labels else "accuracy"
    bounds = wilson_interval(row.correct[1], row.images)
    return [("accuracy", f"{name} with 8-bit weights", row.correct[1] / row.images, bounds)]
