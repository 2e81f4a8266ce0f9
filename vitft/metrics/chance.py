"""Detection of models at chance level: not better than always predicting the largest class.

This module does not import torch.
"""

from vitft.metrics.results import RunResults
from vitft.system.text import percent

CONSTANT = 0.95
"""Fraction of the images above which predictions of one class count as constant."""


def chance_level(results: RunResults) -> str:
    """Return a clause on a model at chance level, such as `always predicts 7`, or an empty string.

    A model is at chance level unless the 95 % interval of its accuracy is above the accuracy of
    always predicting the largest class. The subject of the clause is the model.
    """
    if not {"top1_interval", "majority"} <= results.keys():  # an older run
        return ""
    if results["top1_interval"][0] > results["majority"]:
        return ""
    if found := constant_class(results):
        name, fraction = found
        if fraction == 1:
            return f"always predicts {name}"
        return f"predicts {name} for {percent(fraction, 0)} of the validation images"
    return "is not measurably better than always predicting the largest class"


def constant_class(results: RunResults) -> tuple[str, float] | None:
    """Return the class predicted for nearly all images and their fraction, or None."""
    names, matrix = list(results.get("per_class", {})), results.get("confusion", [])
    counts = [sum(column) for column in zip(*matrix, strict=True)]
    if len(names) < 2 or len(counts) != len(names) or not sum(counts):
        return None
    best = max(range(len(counts)), key=counts.__getitem__)
    fraction = counts[best] / sum(counts)
    return (names[best], fraction) if fraction >= CONSTANT else None


def chance_remedy(weights: str) -> str:
    """Return what to do about a model at chance level, given the name of its initial weights."""
    if weights == "none" or weights.startswith("random:"):
        return "train longer or start from pretrained weights"
    return "train longer, with another learning rate, or on more images"
