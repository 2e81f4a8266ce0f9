"""Sentences on 8-bit weights, for the README of an export.

All other results of a run were measured with its float32 weights. A file with 8-bit weights is
therefore described by the accuracy that the export itself has measured.
"""

from vitft.export.compare import ExportComparison
from vitft.system.text import count, interval, percent


def is_eight_bits(row: ExportComparison) -> bool:
    """Return whether a comparison is one of a graph with 8-bit weights."""
    return row.name.endswith("int8")


def eight_bit_accuracy(row: ExportComparison) -> str:
    """Return a sentence about the accuracy with 8-bit weights and with the original weights."""
    before, after = (number / row.images for number in row.correct)
    whole = " (images whose labels are all right)" if row.several_labels else ""
    return (
        f"Its accuracy{whole} is {percent(after)} (95% interval {interval(row.interval)}) on "
        f"{row.compared_on}, compared with {percent(before)} for the "
        f"original float32 model on the same images ({count(row.changed, 'changed prediction')})."
    )
