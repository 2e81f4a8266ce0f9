"""The column `chosen` of a table of `vitft label`: how each image was chosen."""

from collections.abc import Collection, Mapping

from vitft.data.parts import Part
from vitft.system.text import count

CHOSEN = "chosen"
"""Name of the column in which `vitft label` records how it chose each image."""
PICKED, CONFIRMED, AUDIT, SKIPPED = "picked", "confirmed", "audit", "skipped"
"""Values of the column `chosen`: chosen as informative, confirmed together with others, drawn at
random, and skipped, i.e. without a label.
"""
CHOSEN_PARTS: Mapping[str, Part] = {PICKED: "train", CONFIRMED: "train", AUDIT: "val"}
"""Subset to which each value of the column `chosen` assigns an image if it serves as the split."""


def note_on_chosen(images: Collection[tuple[str, str]]) -> str:
    """Return a note that suggests the column as the split, or an empty string.

    The column can be the split only if every class then has training and validation images.

    Args:
        images: Class of each image and its value in the column; empty if there is no column.
    """
    drawn = sum(chosen == AUDIT for _, chosen in images)
    parts = {(name, CHOSEN_PARTS.get(chosen, "")) for name, chosen in images}
    names = {name for name, _ in images}
    if not drawn or not all({(name, "train"), (name, "val")} <= parts for name in names):
        return ""
    return (
        f"vitft label drew {count(drawn, 'image')} at random; to validate only on images drawn at "
        f"random, use --set data.split_column={CHOSEN}"
    )
