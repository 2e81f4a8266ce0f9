"""Sentences and metrics on 8-bit weights, for the README of an export.

All other results of a run were measured with its float32 weights. A file with 8-bit weights is
therefore described by the accuracy that the export itself has measured.
"""

from collections.abc import Sequence

from vitft.export.compare import ExportComparison
from vitft.metrics.intervals import wilson_interval
from vitft.metrics.values import Interval
from vitft.system.text import count, interval, percent


def is_eight_bits(row: ExportComparison) -> bool:
    """Return whether a comparison is one of a graph with 8-bit weights."""
    return row.name.endswith("int8")


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
