"""Numbers of images by true and predicted class, as a matrix or as its nonzero entries."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from vitft.system.structure import AtLeastOne, Natural

MAX_DENSE_CLASSES = 1000
"""Maximum number of classes for which the confusion matrix is written as a table. With 5,000
classes, it would take 76 MB, almost all of it zeros."""


class ConfusionResults(TypedDict):
    """Part of eval.json; `class_pair_counts` reads either form."""

    confusion: list[list[Natural]]
    """Matrix by true class (row) and predicted class (column); empty for multi-label models and for
    more than `MAX_DENSE_CLASSES` classes."""
    confused_pairs: NotRequired[list[tuple[Natural, Natural, AtLeastOne]]]
    """Nonzero entries as (true class, predicted class, images), for more classes than that."""


def most_frequent(counts: Mapping[str, int]) -> str | None:
    """Return the name with the highest count, or two such names as `one or other`.

    The result is None if all counts are 0, or if more than two names share the highest.
    """
    highest = max(counts.values(), default=0)
    names = [name for name, number in counts.items() if number == highest > 0]
    return " or ".join(names) if 0 < len(names) <= 2 else None


def mostly_taken_for(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the most frequent wrong prediction of each class that has one, by name."""
    names, wrong = list(results["per_class"]), dict[str, Counter[str]]()
    for (true, predicted), images in class_pair_counts(results).items():
        if true != predicted:
            wrong.setdefault(names[true], Counter())[names[predicted]] += images
    return {name: other for name, counts in wrong.items() if (other := most_frequent(counts))}


def class_pair_counts(results: Mapping[str, Any]) -> dict[tuple[int, int], int]:
    """Return the numbers of images by true and predicted class, omitting zeros.

    The dictionary is empty for multi-label models.
    """
    if pairs := results.get("confused_pairs"):
        return {(i, j): n for i, j, n in pairs}
    return {
        (i, j): n
        for i, row in enumerate(results.get("confusion", []))
        for j, n in enumerate(row)
        if n
    }
