"""The parts of a data set that has its own split, and their usual names."""

from typing import Literal

Part = Literal["train", "val", "test", ""]
"""Part of a data set; empty if it is yet to be drawn."""

PART_NAMES: tuple[tuple[Part, frozenset[str]], ...] = (
    ("train", frozenset({"train", "training", "trn"})),
    ("val", frozenset({"val", "valid", "validation", "dev", "eval"})),
    ("test", frozenset({"test", "testing", "tst"})),
)
"""Each part and its usual names in lower case."""


def part_named(name: str) -> Part:
    """Return the part that a name such as `Validation` means, or an empty string."""
    return next((part for part, names in PART_NAMES if name.lower() in names), "")
