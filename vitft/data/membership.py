"""Membership of labels in label sets, as an array."""

from collections.abc import Sequence

import numpy as np

from vitft.data.label_sets import split_labels
from vitft.metrics.intervals import Flags


def membership(sets: Sequence[str], labels: Sequence[str]) -> Flags:
    """Return whether each set contains each label, as an array (sets, labels)."""
    index = {name: number for number, name in enumerate(labels)}
    found = np.zeros((len(sets), len(labels)), dtype=bool)
    for row, text in enumerate(sets):
        found[row, [index[label] for label in split_labels(text)]] = True
    return found
