"""Significance of the difference between two models that were evaluated on the same images."""

import math
from collections.abc import Sequence

from vitft.metrics.intervals import Z


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of the exact McNemar test.

    Args:
        only_first: Number of images that only the first model classifies correctly.
        only_second: Number of images that only the second model classifies correctly.

    Source: McNemar 1947, with the exact binomial distribution instead of its approximation.
    """
    discordant = only_first + only_second
    tail = sum(math.comb(discordant, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / 2**discordant)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected for multiple testing, in the same order.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def paired_interval(only_first: int, only_second: int, images: int) -> tuple[float, float]:
    """Return the 95 % interval of the difference in accuracy of two models on the same images.

    Source: Bonett & Price 2012, "Adjusted Wald confidence interval for a difference of binomial
    proportions based on paired data".
    """
    first, second = (only_first + 1) / (images + 2), (only_second + 1) / (images + 2)
    half_width = Z * math.sqrt((first + second - (first - second) ** 2) / (images + 2))
    difference = first - second
    return max(-1.0, difference - half_width), min(1.0, difference + half_width)


def sample_size(half_width: float, accuracy: float) -> int:
    """Return how many images narrow the interval of an accuracy to plus or minus `half_width`."""
    variance = max(accuracy * (1 - accuracy), 0.01)
    return math.ceil(Z * Z * variance / half_width**2)
