"""Which measured accuracy tells most about a model: validation, cross-validation or test.

This module does not import torch.
"""

from dataclasses import dataclass

from vitft.metrics.intervals import proportions_differ, wilson_interval
from vitft.metrics.results import CrossValidation, FinalTestResults, RunResults
from vitft.metrics.values import Interval
from vitft.system.text import count, interval, percent, points

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
    if more["images"] < MORE_IMAGES * results["images"]:
        return None
    is_comparable = bool(calibration and calibration.get("cross_validated"))
    if "seconds" not in results:
        is_comparable = bool(results.get("top1_interval")) and not is_harder(results, more)
    return more if is_comparable else None


def is_harder(results: RunResults, more: CrossValidation) -> bool:
    """Return whether the accuracy on the validation images differs from that on the others.

    Cross-validation scores the validation images, too; they are taken out of its counts.
    """
    others = more["images"] - results["images"]
    right = more["images"] * more["top1"] - results["images"] * results["top1"]
    fraction = min(1.0, max(0.0, right / max(1, others)))
    return proportions_differ(
        (fraction, wilson_interval(round(fraction * others), others)),
        (results["top1"], results["top1_interval"]),
    )


def cross_validated_text(top1: float, bounds: Interval, images: int) -> str:
    """Return e.g. `cross-validated on 202 images: 85.6% (80.2 to 89.8%)`."""
    return f"cross-validated on {count(images, 'image')}: {percent(top1)} ({interval(bounds)})"


def growth_text(found: CrossValidation) -> str:
    """Return the gain from twice as many images, or "" if it is not measurably above 0.

    It is given as e.g. `+0.6 points (0.2 to 1.1, extrapolated)`.
    """
    gain, bounds = found.get("gain_from_twice"), found.get("gain_interval")
    if gain is None:
        return ""
    within = f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f}, " if bounds else ""
    return f"{points(gain)} ({within}extrapolated)"


@dataclass(frozen=True, slots=True)
class Estimate:
    """The measured accuracy that tells most about a model, and the images that it rests on."""

    top1: float
    interval: Interval
    images: int
    majority: float
    """Accuracy of always predicting the largest class of these images."""
    kind: str
    """`test image`, `image` (in cross-validation) or `validation image`."""


def best_estimate(results: RunResults) -> Estimate:
    """Return the accuracy of a run that tells most about its model.

    This is that of cross-validation, if it tells more than the validation (`better_estimate`). The
    accuracy on test images, which are used only once, comes first, unless the other one rests on
    more than `MORE_IMAGES` times as many images.
    """
    more, test = better_estimate(results), results.get("test")
    found = estimate_from(results, "validation image", results.get("majority", 0.0))
    if more:
        found = estimate_from(more, "image", found.majority)
    if test and MORE_IMAGES * test["images"] >= found.images:
        found = estimate_from(test, "test image", results.get("majority", 0.0))
    return found


def estimate_from(
    found: RunResults | CrossValidation | FinalTestResults, kind: str, majority: float
) -> Estimate:
    """Return the estimate of one set of images, given the majority of files without one."""
    return Estimate(
        found["top1"],
        found["top1_interval"],
        found["images"],
        found.get("majority", majority),
        kind,
    )


def tested_number(found: FinalTestResults) -> tuple[float, Interval | None]:
    """Return the accuracy on the test images with its interval.

    For a multi-label model, this is the mean average precision.
    """
    if labels := found.get("labels"):
        return labels["map"], labels["map_interval"]
    return found["top1"], found["top1_interval"]


def tested_text(found: FinalTestResults) -> str:
    """Return e.g. `test: 88.0% (83.3 to 91.5%) on 240 images, evaluated once`."""
    top1, bounds = tested_number(found)
    return test_text(top1, bounds, found["images"], several="labels" in found)


def test_text(value: float, bounds: Interval | None, images: int, *, several: bool) -> str:
    """Return the same, given the accuracy or, for `several` labels, mean average precision."""
    name = "mean average precision " if several else ""
    within = f" ({interval(bounds)})" if bounds else ""
    return f"test: {name}{percent(value)}{within} on {count(images, 'image')}, evaluated once"
