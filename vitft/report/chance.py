"""Whether two models on the same images differ by more than chance, and how many images tell."""

import math
from collections.abc import Sequence

from vitft.metrics.intervals import Z


def mcnemar(only_one: int, only_other: int) -> float:
    """Exact two-sided p-value that two models are equally often right.

    Args:
        only_one: Images that only the first names right.
        only_other: Images that only the second names right; the others say nothing.

    Source: McNemar 1947, with the binomial distribution itself in place of its approximation.
    """
    decided = only_one + only_other
    tail = sum(math.comb(decided, k) for k in range(min(only_one, only_other) + 1))
    return min(1.0, 2 * tail / 2**decided)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for how many were looked at, in the same order.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def paired_interval(only_one: int, only_other: int, images: int) -> tuple[float, float]:
    """95 % interval of (share right of the first - share right of the second), same images.

    Source: Bonett & Price 2012, "Adjusted Wald confidence interval for a difference of binomial
    proportions based on paired data".
    """
    one, other = (only_one + 1) / (images + 2), (only_other + 1) / (images + 2)
    spread = Z * math.sqrt((one + other - (one - other) ** 2) / (images + 2))
    return max(-1.0, one - other - spread), min(1.0, one - other + spread)


def images_for(half_width: float, share: float) -> int:
    """How many images narrow the interval of a share to plus or minus `half_width`."""
    variance = max(share * (1 - share), 0.01)
    return math.ceil(Z * Z * variance / half_width**2)
