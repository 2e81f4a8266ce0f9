"""Which measured accuracy tells most about a model: validation, cross-validation or test.

This module does not import torch.
"""

from vitft.metrics.intervals import proportions_differ
from vitft.metrics.results import CrossValidation, FinalTestResults, RunResults
from vitft.metrics.values import Interval
from vitft.system.text import count, interval, percent

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

    This requires that the model is the cross-validated head, that the training images are measured
    to be comparable with the validation images (as for the calibration: a validation set from
    another place may be harder; in an unfinished run, which is not calibrated, the two accuracies
    must not differ significantly), and that at least `MORE_IMAGES` times as many images were
    scored.
    The result is None for multi-label models, which cross-validation scores without their
    thresholds.
    """
    more, calibration = model_cross_validation(results), results.get("calibration")
    if not more or "labels" in results or not more.get("top1_interval"):
        return None
    is_comparable = bool(calibration and calibration.get("cross_validated"))
    if "seconds" not in results:
        is_comparable = bool(results.get("top1_interval")) and not proportions_differ(
            (more["top1"], more["top1_interval"]), (results["top1"], results["top1_interval"])
        )
    are_many = more["images"] >= MORE_IMAGES * results["images"]
    return more if is_comparable and are_many else None


def cross_validated_text(top1: float, bounds: Interval, images: int) -> str:
    """Return e.g. `cross-validated on 202 images: 85.6% (80.2 to 89.8%)`."""
    return f"cross-validated on {count(images, 'image')}: {percent(top1)} ({interval(bounds)})"


def sufficient_test(results: RunResults) -> FinalTestResults | None:
    """Return the results on the test images, unless there are few of them or none.

    They are few if there are more than `MORE_IMAGES` times as many validation images.
    """
    found = results.get("test")
    return found if found and MORE_IMAGES * found["images"] >= results["images"] else None


def tested_text(found: FinalTestResults) -> str:
    """Return e.g. `test: 88.0% (83.3 to 91.5%) on 240 images, evaluated once`.

    For a multi-label model, the number is the mean average precision.
    """
    value, name = found["top1"], ""
    bounds: Interval | None = found["top1_interval"]
    if labels := found.get("labels"):
        value, bounds, name = labels["map"], labels["map_interval"], "mean average precision "
    within = f" ({interval(bounds)})" if bounds else ""
    return (
        f"test: {name}{percent(value)}{within} on {count(found['images'], 'image')}, evaluated once"
    )
