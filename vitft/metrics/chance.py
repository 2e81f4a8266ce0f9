"""Detection of models at chance level.

Such a model is not measurably better than guessing, whatever the frequencies of the classes. This
module does not import torch.
"""

from collections import Counter
from typing import NamedTuple

from vitft.metrics.confusions import class_pair_counts
from vitft.metrics.estimate import model_cross_validation
from vitft.metrics.intervals import wilson_interval
from vitft.metrics.results import RunResults
from vitft.metrics.values import Interval
from vitft.system.text import count, percent


class Balanced(NamedTuple):
    """A measured balanced accuracy."""

    images: int
    interval: Interval
    lowest: float
    """Lower end of the interval for the comparison with guessing (see `CHANCE_MARGIN`)."""
    classes: int
    """Number of classes that have images."""
    where: str = ""
    """Ends the clause on a model at chance level with how it was measured."""

    @property
    def guessing(self) -> float:
        """Balanced accuracy of guessing."""
        return 1 / self.classes


RARE = 0.1
"""Predictions are nearly constant if all other classes together are predicted at most this many
times as often as they occur."""
CHANCE_MARGIN = 1 / 3
"""Fraction by which the lower half of the interval of a cross-validated balanced accuracy is
widened for the comparison with guessing: where there is nothing to learn, heads fitted to the same
images make the same mistakes. With shuffled labels of 40 to 240 photos of two classes, 35 of 550
intervals were above the accuracy of guessing without it, and 9 with it (expected: 14)."""


def balanced_evidence(results: RunResults) -> Balanced | None:
    """Return the most images on which the balanced accuracy of the model was measured.

    The results of older runs may be without any.
    """
    found, more = list[Balanced](), model_cross_validation(results)
    for one in (results, results.get("test")):
        sizes = [row.get("images") for row in one.get("per_class", {}).values()] if one else []
        if one and any(sizes) and "balanced_interval" in one:
            bounds = one["balanced_interval"]
            found.append(Balanced(one["images"], bounds, bounds[0], sum(map(bool, sizes))))
    if more and "balanced_interval" in more:
        bounds = more["balanced_interval"]
        low = bounds[0] - CHANCE_MARGIN * (more["balanced"] - bounds[0])
        where = " in cross-validation"
        found.append(Balanced(more["images"], bounds, low, more["classes"], where))
    return max(found, key=lambda one: one.images, default=None)


def chance_level(results: RunResults) -> str:
    """Return a phrase such as `always predicts 7` for a model at chance level, otherwise "".

    A model is at chance level unless the 95% interval of its balanced accuracy (see
    `balanced_evidence`) is above that of guessing, 1 / classes. If not even an accuracy of 100%
    would be, the phrase says so. A multi-label model is at chance level unless the interval of its
    mean average precision is above that of random scores. The phrase can follow the words `the
    model`. It is also empty for results of older runs, which do not contain the interval.
    """
    if "labels" in results:
        bounds = results["labels"]["map_interval"]
        if bounds is None or bounds[0] > results["labels"]["chance_map"]:
            return ""
        return "does not rank images measurably better than random scores"
    found = balanced_evidence(results)
    if found is None or found.lowest > found.guessing:
        return ""
    if constant := constant_class(results):
        name, fraction = constant
        if fraction == 1:
            return f"always predicts {name}"
        return f"predicts {name} for {percent(fraction, 0)} of the validation images"
    clause, images = f"is not measurably better than guessing{found.where}", found.images
    if wilson_interval(images, images)[0] <= found.guessing:
        clause += (
            f", because only {count(images, 'image')} {'was' if images == 1 else 'were'} scored"
        )
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

    The result is None if other classes are predicted more often (see `RARE`), if there are fewer
    than two classes, or if the results of an older run lack the confusion matrix.
    """
    names, counts, truth = list(results.get("per_class", {})), Counter[int](), Counter[int]()
    for (true, predicted), images in class_pair_counts(results).items():
        counts[predicted] += images
        truth[true] += images
    if len(names) < 2 or not counts or max(counts) >= len(names):
        return None
    best, total = max(counts, key=counts.__getitem__), counts.total()
    is_constant = total - counts[best] <= RARE * (total - truth[best])
    return (names[best], counts[best] / total) if is_constant else None


def chance_remedy(weights: str, solver: str, *, mirrored: bool = False) -> str:
    """Return advice for a model at chance level, given its initial weights and its solver."""
    if mirrored:
        found = chance_remedy(weights, solver)
        return f"{found}. If left and right differ in meaning, add --set train.flip=0"
    if weights == "none" or weights.startswith("random:"):
        return "train longer or start from pretrained weights"
    if solver == "lbfgs":
        return "use more images or other weights, or train more layers, e.g. with --train blocks:2"
    return "train longer, with another learning rate, or on more images"
