"""Which images train and which test. Starts without torch.

Within a seed the training images are nested, those of five shots among those of ten, and every
number of shots and every contestant is tested on the same images: differences between them are
not differences between test sets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitft.data.inspection import InspectedFile, InspectedFolder

Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Draw:
    """One seed's choice among the pictures of a study."""

    order: tuple[Rows, ...]
    """Of each class the training candidates, first drawn first; only the first shots train."""
    test: Rows
    """Rows that test, whatever the shots; rising."""

    def train(self, shots: int) -> Rows:
        """Rows that train, the classes one after the other: (classes * shots,)."""
        return np.concatenate([rows[:shots] for rows in self.order])


def pictures(checked: InspectedFolder) -> list[InspectedFile]:
    """The files of a study: each picture once, none under two labels, none on both sides.

    A picture in the folder's own training and test part stays in the test part.
    """
    labels: dict[str, set[int]] = {}
    for file in checked.good:
        labels.setdefault(file.sha256, set()).add(file.label)
    tests = {file.sha256 for file in checked.good if file.part == "val"}
    kept: dict[str, InspectedFile] = {}
    for file in checked.good:
        if len(labels[file.sha256]) == 1 and (file.part == "val" or file.sha256 not in tests):
            kept.setdefault(file.sha256, file)
    return list(kept.values())


def draw(files: Sequence[InspectedFile], classes: int, *, most: int, seed: int) -> Draw:
    """Shuffle each class, and set apart what tests.

    Args:
        files: The pictures.
        classes: How many classes there are.
        most: The largest number of shots. Without test images of the folder's own, all images
            behind so many of each class test.
        seed: Each class has a random stream of its own, so another class changes nothing.
    """
    labels = np.array([file.label for file in files])
    own = np.array([file.part == "val" for file in files])
    order = []
    for label in range(classes):
        rows = np.flatnonzero((labels == label) & ~own)
        order.append(np.random.default_rng([seed, label]).permutation(rows))
    if own.any():
        return Draw(tuple(order), np.flatnonzero(own))
    return Draw(
        tuple(rows[:most] for rows in order), np.sort(np.concatenate([r[most:] for r in order]))
    )
