"""Label sets: all labels of an image in multi-label data, as text such as `a|b`.

Images with the same labels are treated like a class: `Images.classes` lists the label sets, and
`Images.labels` the individual labels, which are the outputs of the model.
"""

import unicodedata
from collections.abc import Iterable

JOINER = "|"  # separator between the labels of a set; no label contains this character


def join_labels(labels: Iterable[str]) -> str:
    """Join the sorted labels of a set; the result is empty for an image without labels."""
    return JOINER.join(sorted({*labels}))


def split_labels(text: str) -> tuple[str, ...]:
    """Return the labels of a set, given its text."""
    return tuple(text.split(JOINER)) if text else ()


def label_names(sets: Iterable[str]) -> tuple[str, ...]:
    """Return the labels that occur in any of the sets, sorted as strings."""
    return tuple(sorted({label for text in sets for label in split_labels(text)}))


def normal_form(label: str) -> str:
    """Return a label in Unicode form NFC, because macOS encodes accents differently."""
    return label if label.isascii() else unicodedata.normalize("NFC", label)
