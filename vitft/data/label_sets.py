"""Label sets: the labels of images that may have several of them, or none, as text such as `a|b`.

In a data set with several labels per image, the images with the same labels form a group, like a
class: `Folder.classes` then lists the label sets, and `Folder.labels` the single labels, which are
the outputs of the model. This module does not import NumPy.
"""

from collections.abc import Iterable

JOINER = "|"
"""Text between the labels of a set; no label contains it."""


def join_labels(labels: Iterable[str]) -> str:
    """Return the text of a set of labels, sorted; it is empty for an image without labels."""
    return JOINER.join(sorted({*labels}))


def split_labels(text: str) -> tuple[str, ...]:
    """Return the labels of a set, given its text."""
    return tuple(text.split(JOINER)) if text else ()


def label_names(sets: Iterable[str]) -> tuple[str, ...]:
    """Return the labels that occur in any of the sets, sorted as strings."""
    return tuple(sorted({label for text in sets for label in split_labels(text)}))
