"""Selection and order of the training images in an epoch.

Both depend only on the labels, the seed and the epoch, so a resumed or distributed run uses the
same images as an uninterrupted one. This module does not import torch.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from vitft.system.text import count

_Order = np.ndarray[Any, np.dtype[np.int64]]


def images_per_epoch(labels: Sequence[int], *, balanced: bool) -> int:
    """Return the number of images in an epoch.

    An epoch has as many images as the dataset. A balanced epoch uses the same number of images from
    each class, so its size is rounded down to a multiple of the number of classes.
    """
    total = len(labels)
    return total - total % len({*labels}) if balanced and total else total


def sample_order(labels: Sequence[int], seed: int, epoch: int, *, balanced: bool) -> _Order:
    """Return the indices of an epoch's images, in the order in which they are used."""
    random = np.random.default_rng([seed, epoch])
    if not balanced:
        return random.permutation(len(labels))
    # The images of a class are drawn from a permutation that is reshuffled whenever it is used up.
    # Each epoch continues where the previous one ended, so over a run, the use counts of any two
    # images of a class differ by at most one.
    known = np.asarray(labels)
    classes = sorted({*labels})
    each = len(labels) // len(classes)
    drawn = []
    for label in classes:
        own = np.flatnonzero(known == label)
        places = np.arange(epoch * each, (epoch + 1) * each)
        piles = range(places[0] // len(own), places[-1] // len(own) + 1)
        dealt = [np.random.default_rng([seed, label, pile, 1]).permutation(own) for pile in piles]
        drawn.append(np.concatenate(dealt)[places - piles[0] * len(own)])
    return random.permutation(np.concatenate(drawn))


def repeat_counts(order: _Order) -> list[int]:
    """Return, for each position in the order, how often its image occurs before that position."""
    seen: Counter[int] = Counter()
    found = []
    for position in order.tolist():
        found.append(seen[position])
        seen[position] += 1
    return found


def describe_epoch(labels: Sequence[int], classes: Sequence[str]) -> str:
    """Return a sentence describing a balanced epoch."""
    counts = Counter(labels)
    each = len(labels) // len(counts)
    rarest, largest = min(counts, key=lambda c: counts[c]), max(counts, key=lambda c: counts[c])
    text = (
        f"balanced sampling: each epoch uses {count(each, 'image')} from each of {len(counts)} "
        f"classes, {each * len(counts):,} in total"
    )
    if counts[rarest] == counts[largest]:
        return f"{text}; the classes have equal sizes, so every image is used once"
    return (
        f"{text}; on average, an image of {classes[rarest]} is used {each / counts[rarest]:.1f} "
        f"times and an image of {classes[largest]} {each / counts[largest]:.1f} times"
    )
