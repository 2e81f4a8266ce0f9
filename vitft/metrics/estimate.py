"""Which measured accuracy tells most about a model: validation, cross-validation or test.

This module does not import torch.
"""

from collections.abc import Mapping
from typing import Any

from vitft.metrics.intervals import proportions_differ
from vitft.metrics.results import CrossValidation, FinalTestResults, RunResults
from vitft.metrics.values import Interval
from vitft.system.text import interval, percent, scored_images

Measured = CrossValidation | FinalTestResults | RunResults
"""Results with an accuracy and its interval."""
MORE_IMAGES = 3
"""Cross-validation on this many times as many images tells more than the validation images."""


def model_cross_validation(results: RunResults) -> CrossValidation | None:
    """Return the cross-validation of a run, or None if its model is not the cross-validated head.

    The results of a fitted head are kept even if the run then trained further layers.
    """
    is_head = results.get("best_epoch") == 1  # the fitted head counts as the first epoch
    return results.get("cross_validation") if is_head else None


def better_estimate(results: RunResults) -> CrossValidation | None:
    """Return the cross-validation of a run if it tells more about the model than the validation.

    This requires that the model is the cross-validated head, that at least `MORE_IMAGES` times as
    many images were scored, and that neither the two accuracies differ (a validation set from
    another place may be harder) nor, in a finished run, the losses (`calibration.are_comparable`).
    The result is None for multi-label models, which cross-validation scores without their
    thresholds.
    """
    more, calibration = model_cross_validation(results), results.get("calibration")
    if not more or "labels" in results or more["images"] < MORE_IMAGES * results["images"]:
        return None
    is_comparable = "seconds" not in results or bool(
        calibration and calibration.get("cross_validated")
    )
    return more if is_comparable and not accuracies_differ(results, more) else None


def accuracies_differ(one: Measured, other: Measured) -> bool:
    """Return whether the accuracies of two sets of images differ significantly.

    If validation images are among the cross-validated ones, this is rarer than 1 in 20 by chance.
    """
    first, second = ((found["top1"], found["top1_interval"]) for found in (one, other))
    return proportions_differ(first, second)


def difference_text(results: RunResults) -> str:
    """Return a sentence if test or validation images are harder or easier than the others, or "".

    Test images are compared with the cross-validation, or else with the validation images.
    """
    test, more = results.get("test"), model_cross_validation(results)
    one, other = test or results, more or results
    if "labels" in results or one is other or not accuracies_differ(one, other):
        return ""
    how = "harder" if one["top1"] < other["top1"] else "easier"
    wrong = percent(1 - other["top1"])
    than = f"the training images, of which {wrong} are misclassified in cross-validation"
    if not more:
        than = f"the validation images, of which {wrong} are misclassified"
    return f"The {'test' if test else 'validation'} images are {how} than {than}."


def cross_validated_text(found: Mapping[str, Any]) -> str:
    """Return e.g. `cross-validated on 202 images: 85.6% (80.2 to 89.8%)`."""
    value = f"{percent(found['top1'])} ({interval(found['top1_interval'])})"
    return f"cross-validated on {scored_images(found)}: {value}"


def growth_text(found: CrossValidation) -> str:
    """Return e.g. `0.2 to 1.1 points higher (95% interval, extrapolated)`, or "" if unknown.

    This is the accuracy with twice as many images. It is given even if the interval contains 0:
    otherwise, only gains that seem large by chance would be shown.
    """
    if not (bounds := found.get("gain_interval")):
        return ""
    low, high = (100 * max(0.0, end) for end in bounds)  # more images do no harm
    return f"{low:.1f} to {high:.1f} points higher (95% interval, extrapolated)"


def best_estimate(results: RunResults) -> tuple[Measured, str]:
    """Return the accuracy of a run that tells most about its model, and the kind of its images.

    This is that on the test images, if there are any, because they are used only once; otherwise,
    that of cross-validation, if it tells more than the validation (`better_estimate`). The kind is
    `test image`, `image` (in cross-validation) or `validation image`.
    """
    if test := results.get("test"):
        return test, "test image"
    if more := better_estimate(results):
        return more, "image"
    return results, "validation image"


def tested_number(found: FinalTestResults | RunResults) -> tuple[float, Interval | None]:
    """Return the accuracy on test or validation images with its interval.

    For a multi-label model, this is the mean average precision.
    """
    if labels := found.get("labels"):
        return labels["map"], labels["map_interval"]
    return found["top1"], found["top1_interval"]


def tested_text(found: FinalTestResults) -> str:
    """Return e.g. `test: 88.0% (83.3 to 91.5%) on 240 images, evaluated once`."""
    return test_text(*tested_number(found), scored_images(found), several="labels" in found)


def test_text(value: float, bounds: Interval | None, images: str, *, several: bool) -> str:
    """Return the same, given the accuracy or, for `several` labels, mean average precision."""
    name = "mean average precision " if several else ""
    within = f" ({interval(bounds)})" if bounds else ""
    return f"test: {name}{percent(value)}{within} on {images}, evaluated once"
