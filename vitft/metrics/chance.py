"""Detection of models at chance level.

Such a model is not measurably more accurate than always predicting the largest class. This module
does not import torch.
"""

from collections import Counter

from vitft.metrics.confusions import class_pair_counts
from vitft.metrics.estimate import best_estimate
from vitft.metrics.intervals import wilson_interval
from vitft.metrics.results import RunResults
from vitft.system.text import count, percent

CONSTANT = 0.95
"""Predictions count as constant if at least this fraction of the images has the same prediction."""


def chance_level(results: RunResults) -> str:
    """Return a phrase such as `always predicts 7` for a model at chance level, otherwise "".

    A model is at chance level unless the 95% interval of its accuracy, from the images that
    tell most (see `best_estimate`), is above the accuracy of always predicting the largest
    class. If not even an accuracy of 100% would be, the phrase says so. A multi-label model is at
    chance level unless the interval of its mean average precision is above that of random scores.
    The phrase can follow the words `the model`. It is also empty for results of older runs, which
    do not contain the interval.
    """
    if not {"top1_interval", "majority"} <= results.keys():  # an older run
        return ""
    if "labels" in results:
        bounds = results["labels"]["map_interval"]
        if bounds is None or bounds[0] > results["labels"]["chance_map"]:
            return ""
        return "does not rank images measurably better than random scores"
    found = best_estimate(results)
    if found.interval[0] > found.majority:
        return ""
    if constant := constant_class(results):
        name, fraction = constant
        if fraction == 1:
            return f"always predicts {name}"
        return f"predicts {name} for {percent(fraction, 0)} of the validation images"
    clause = "is not measurably better than always predicting the largest class"
    if wilson_interval(found.images, found.images)[0] <= found.majority:
        verb = "was" if found.images == 1 else "were"
        clause += f", because only {count(found.images, found.kind)} {verb} scored"
    return clause


def distinguishes(model: str, classes: str, clause: str) -> str:
    """Return what a model distinguishes, or what a model at chance level was trained for.

    Args:
        model: Subject of the sentence, e.g. `This model`.
        classes: Number and names of the classes, e.g. `3 classes`.
        clause: Result of `chance_level`.
    """
    if clause:
        return f"{model} was trained to distinguish {classes}, but it {clause}"
    return f"{model} distinguishes {classes}"


def constant_class(results: RunResults) -> tuple[str, float] | None:
    """Return the class predicted for nearly all images, and the fraction of these images.

    The fraction is at least `CONSTANT`. The result is None if no class reaches this fraction, if
    there are fewer than two classes, or if the results of an older run lack the confusion matrix.
    """
    names, counts = list(results.get("per_class", {})), Counter[int]()
    for (_, predicted), images in class_pair_counts(results).items():
        counts[predicted] += images
    if len(names) < 2 or not counts or max(counts) >= len(names):
        return None
    best = max(counts, key=counts.__getitem__)
    fraction = counts[best] / sum(counts.values())
    return (names[best], fraction) if fraction >= CONSTANT else None


def chance_remedy(weights: str, solver: str, *, mirrored: bool = False) -> str:
    """Return advice for a model at chance level.

    Args:
        weights: Name of the initial weights.
        solver: Solver of the last stage.
        mirrored: Whether training images were mirrored at random.
    """
    remedy = "train longer, with another learning rate, or on more images"
    if weights == "none" or weights.startswith("random:"):
        remedy = "train longer or start from pretrained weights"
    elif solver == "lbfgs":
        remedy = (
            "use more images or other weights, or train more layers, e.g. with --freeze blocks:2"
        )
    if mirrored:
        remedy += ". If left and right differ in meaning, add --set train.flip=0"
    return remedy
