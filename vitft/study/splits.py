"""Training and test images of a study, drawn at random for each seed. Does not import torch.

Within a seed the training images are nested: those of 5 shots are among those of 10. All numbers of
shots and all contestants have the same test images, so that their differences are not differences
between test sets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitft.data.inspection import InspectedFile, InspectedFolder


@dataclass(frozen=True, slots=True)
class FewShotSplit:
    """Training and test images of one seed, as row numbers."""

    candidates: tuple[NDArray[np.int64], ...]
    """Shuffled training images of each class; those of k shots are the first k."""
    test: NDArray[np.int64]
    """Rows of the test images, for any number of shots, ascending."""

    def train(self, shots: int) -> NDArray[np.int64]:
        """Return the rows of the training images, class after class: (classes * shots,)."""
        return np.concatenate([rows[:shots] for rows in self.candidates])


def unique_images(inspected: InspectedFolder) -> list[InspectedFile]:
    """Return the files of a study: each image once, and none that has two labels.

    An image that is in both the training and the test part of the folder stays in the test part.
    """
    labels: dict[str, set[int]] = {}
    for file in inspected.good:
        labels.setdefault(file.sha256, set()).add(file.label)
    tests = {file.sha256 for file in inspected.good if file.part == "val"}
    kept: dict[str, InspectedFile] = {}
    for file in inspected.good:
        if len(labels[file.sha256]) == 1 and (file.part == "val" or file.sha256 not in tests):
            kept.setdefault(file.sha256, file)
    return list(kept.values())


def few_shot_split(
    files: Sequence[InspectedFile], classes: int, *, most: int, seed: int
) -> FewShotSplit:
    """Shuffle each class and set the test images apart.

    Args:
        files: The images.
        classes: Number of classes.
        most: The largest number of shots. If the folder has no test images, all images of a class
            after the first `most` are test images.
        seed: Each class has a random stream of its own, so that other classes do not affect it.
    """
    labels = np.array([file.label for file in files])
    is_test = np.array([file.part == "val" for file in files])
    order = []
    for label in range(classes):
        rows = np.flatnonzero((labels == label) & ~is_test)
        order.append(np.random.default_rng([seed, label]).permutation(rows))
    if is_test.any():
        return FewShotSplit(tuple(order), np.flatnonzero(is_test))
    rest = np.concatenate([rows[most:] for rows in order])
    return FewShotSplit(tuple(rows[:most] for rows in order), np.sort(rest))
