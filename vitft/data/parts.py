"""Subsets of a dataset that has its own split, and their usual names."""

from typing import Literal

Part = Literal["train", "val", "test", ""]
"""Subset of a dataset; empty before the data are split."""

PART_NAMES: tuple[tuple[Part, frozenset[str]], ...] = (
    ("train", frozenset({"train", "training", "trn"})),
    ("val", frozenset({"val", "valid", "validation", "dev", "eval"})),
    ("test", frozenset({"test", "testing", "tst"})),
)
"""Each subset and its usual names, in lower case."""


def part_named(name: str) -> Part:
    """Return the subset to which a name such as `Validation` refers, or an empty string."""
    return next((part for part, names in PART_NAMES if name.lower() in names), "")
