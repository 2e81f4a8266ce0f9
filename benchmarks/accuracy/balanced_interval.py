"""Coverage of two intervals of balanced accuracy, simulated with classes of known recalls.

    python -m benchmarks.accuracy.balanced_interval

The first is the square-and-add interval (Zou, Huang & Zhang 2009, "A note on confidence interval
estimation for a linear function of binomial proportions"), the second that of vitft
(`metrics.intervals.mean_fraction_interval`). Prints one row of a Markdown table per set of classes:
the percentage of intervals that contain the true mean recall, that end below it, and that begin
above it, and the mean width in percentage points.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from vitft.metrics.intervals import Interval, mean_fraction_interval, square_and_add

REPEATS = 4000
CLASSES: dict[str, tuple[Sequence[int], Sequence[float]]] = {
    "10 of 35 images, recall 0.955": ([35] * 10, [0.955] * 10),
    "10 of 35, 0.98": ([35] * 10, [0.98] * 10),
    "5 of 10, 0.94": ([10] * 5, [0.94] * 5),
    "100 of 10, 0.9": ([10] * 100, [0.9] * 100),
    "8 of 1, 0.8": ([1] * 8, [0.8] * 8),
    "5 of 20, 0.5 to 1": ([20] * 5, [1, 0.99, 0.9, 0.7, 0.5]),
    "100 to 5, 0.95 to 0.7": ([100, 50, 20, 10, 5], [0.95, 0.9, 0.85, 0.8, 0.7]),
    "100 to 5, 0.7 to 0.95": ([100, 50, 20, 10, 5], [0.7, 0.8, 0.85, 0.9, 0.95]),
    "1,000 and 10, 0.99 and 0.6": ([1000, 10], [0.99, 0.6]),
    "1,000 and 10, 0.99 and 0.9": ([1000, 10], [0.99, 0.9]),
    "9 of 200 and 1 of 2, 0.995 and 0.7": ([200] * 9 + [2], [0.995] * 9 + [0.7]),
    "9 of 100 and 1 of 3, 0.99 and 0.6": ([100] * 9 + [3], [0.99] * 9 + [0.6]),
    "9 of 40 and 1 of 4, 0.98 and 0.75": ([40] * 9 + [4], [0.98] * 9 + [0.75]),
    "1,000 and 20, 0.999 and 0.9": ([1000, 20], [0.999, 0.9]),
    "3 of 200, 0.4 to 0.6": ([200] * 3, [0.5, 0.6, 0.4]),
}


def added(counts: Sequence[tuple[int, int]]) -> Interval:
    """Return the interval of the mean recall by square-and-add alone."""
    recalls = [right / total for right, total in counts]
    return square_and_add(counts, math.fsum(recalls) / len(counts))


def row(
    method: Callable[[Sequence[tuple[int, int]]], Interval],
    images: Sequence[int],
    recalls: Sequence[float],
) -> str:
    """Return the cells of a method for one set of classes."""
    drawn = np.random.default_rng(0).binomial(images, recalls, size=(REPEATS, len(images)))
    ends = [method([*zip(one.tolist(), images, strict=True)]) for one in drawn]
    low, high = (np.array(end) for end in zip(*ends, strict=True))
    truth = sum(recalls) / len(recalls)
    inside = (low <= truth) & (truth <= high)
    fractions = [inside.mean(), (high < truth).mean(), (low > truth).mean(), (high - low).mean()]
    return " / ".join(f"{100 * fraction:.1f}" for fraction in fractions)


def main() -> None:
    """Print the table."""
    print("| classes | square-and-add: covered / below / above / width | vitft |")
    print("|---|---|---|")
    for name, (images, recalls) in CLASSES.items():
        cells = [row(one, images, recalls) for one in (added, mean_fraction_interval)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
