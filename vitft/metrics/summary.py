"""Every number about a run that users see, derived once from eval.json: `Results`.

The terminal, the pages, the files of exports, the server and notebooks read these numbers, and
`vitft.messages` puts them into words. All values and intervals are fractions from 0 to 1. Does not
import torch.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from typing import Any, Literal, Self, cast

from vitft.metrics.intervals import proportions_differ, wilson_interval
from vitft.metrics.results import (
    CrossValidation,
    Interval,
    Metrics,
    RunResults,
    class_pair_counts,
    mostly_taken_for,
)
from vitft.system.structure import AtLeastOne, Natural, Share, structured

_Kind = Literal["test", "cross-validation", "validation"]
Measure = Literal["accuracy", "mean average precision", "all labels right"]

_MORE_IMAGES = 3  # times as many as the validation images, so that cross-validation tells more
_MAX_WEAKEST = 3
_SIGNIFICANT = 0.025  # largest one-sided p-value of logits that depend on the class
_RARE = 0.1
"""Predictions are nearly constant if all other classes together are predicted at most this many
times as often as they occur."""
_CHANCE_MARGIN = 1 / 3
"""Fraction by which the lower half of the interval of a cross-validated balanced accuracy is
widened for the comparison with guessing: where there is nothing to learn, heads fitted to the same
images make the same mistakes (benchmarks/notebook/intervals.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A measured fraction, its 95% interval, and the images on which it rests."""

    value: Share
    interval: Interval | None  # None if there are too few images for one
    images: AtLeastOne
    groups: Natural = 0  # (patients, videos, ...), which the interval counts instead of images
    kind: _Kind
    """`test` for images that influenced no decision, `cross-validation` for images predicted by
    heads that were not fitted to them, `validation` for images that may have selected the epoch."""
    measure: Measure = "accuracy"
    baseline: Share | None = None  # of always predicting the largest class, or of random scores


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassEstimate:
    """A class with its recall, or a label with its average precision."""

    name: str
    value: Share
    interval: Interval | None
    images: Natural  # of the class; for a label, all images
    kind: _Kind
    taken_for: str = ""  # most frequent wrong prediction; empty if unknown, and for labels
    measure: Literal["recall", "average precision"] = "recall"


@dataclass(frozen=True, slots=True, kw_only=True)
class AtChance:
    """Images on which a model is not measurably better than guessing."""

    kind: _Kind
    images: Natural
    interval: Interval  # of the balanced accuracy, or of the mean average precision of labels
    guessing: Share  # the balanced accuracy of guessing, or the precision of random scores
    too_few: bool = False
    """Whether not even an accuracy of 100% on so few images would be better than guessing. False if
    `predicts` is known, which says more."""
    predicts: str = ""  # class predicted for nearly all validation images, if any
    fraction: Share = 0.0  # of the validation images, for which `predicts` is predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The numbers of a run. What is unknown is None or empty.

    Exports contain them in JSON (`to_json`), so that their users learn what the run measured.
    """

    name: str = ""  # of the run directory
    data: str = ""  # name of the folder or file
    weights: str = ""  # name of the pretrained weights, or the path of their file
    ended: str = ""  # time in ISO 8601
    status: str = ""  # of a run that has not finished, e.g. `interrupted`; otherwise empty
    headline: Estimate | None = None
    """The number to quote: the accuracy (of a multi-label model: the mean average precision) on the
    test images, if there are any, because they are used only once. Otherwise, that of
    cross-validation, if it tells more than the validation images. Otherwise, that on the validation
    images."""
    supporting: tuple[Estimate, ...] = ()  # all others, e.g. the fraction with exactly right labels
    selected_on_validation: bool = False  # the epoch, so that the result is slightly optimistic
    at_chance: AtChance | None = None  # None for a model measurably better than guessing
    weakest: tuple[ClassEstimate, ...] = ()
    """Up to three classes or labels with the lowest recall or average precision below 100%, lowest
    first, in cross-validation or else on the validation images."""
    growth: Interval | None = None  # of the accuracy from twice as many images, extrapolated
    rounded: bool = False  # the weights, to 8 bits after the measurement

    @classmethod
    def of(cls, found: RunResults | None, environment: Mapping[str, Any] | None = None) -> Self:
        """Derive the numbers from the contents of eval.json and environment.json."""
        environment = environment or {}
        status = environment.get("status", "finished").replace("finished", "")
        known = cls(ended=environment.get("ended", ""), status=status)
        if found is None:
            return known
        test, more = found.get("test"), own_cross_validation(found)
        validation, exact = _estimates(found, "validation")
        tested, tested_exact = _estimates(test, "test") if test else (None, None)
        crossed, headline = None, tested or validation
        if more and "labels" not in found:
            crossed = _estimate(more, "cross-validation")
            if not tested and _tells_more(found, crossed, validation):
                headline = crossed
        others = (tested, crossed, validation, tested_exact, exact)
        gain = more["gain_interval"] if more else None
        weak = sorted(_weak_classes(found, more), key=lambda one: one.value)
        return replace(
            known,
            headline=headline,
            supporting=tuple(one for one in others if one and one is not headline),
            selected_on_validation=found.get("selected_on_validation", False),
            at_chance=_at_chance(found),
            weakest=tuple(weak[:_MAX_WEAKEST]),
            growth=(max(0.0, gain[0]), max(0.0, gain[1])) if gain else None,  # more do no harm
        )

    @classmethod
    def from_json(cls, value: object) -> Self | None:
        """Return results read from JSON (`to_json`), or None if they are missing or not valid.

        Predictions do not depend on them, so a damaged copy is treated as a missing one.
        """
        try:
            return cast("Self", structured(value, cls))
        except ValueError:
            return None

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as a JSON object; `docs/schemas/results.json` describes it."""
        return asdict(self)

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """The headline, followed by the supporting estimates; empty if nothing was measured."""
        return (self.headline, *self.supporting) if self.headline else ()

    def estimate(self, *kinds: _Kind) -> Estimate | None:
        """Return the estimate of the first of these kinds that the run has."""
        found = {one.kind: one for one in reversed(self.estimates)}  # exact labels come last
        return next((found[kind] for kind in kinds if kind in found), None)

    @property
    def exact(self) -> Estimate | None:
        """Fraction of images with exactly the right labels, of a multi-label model."""
        return next((one for one in self.estimates if one.measure == "all labels right"), None)

    @property
    def difference(self) -> tuple[Estimate, Estimate] | None:
        """Test or validation images, and others (see `estimate`) with another accuracy, if any."""
        held = self.estimate("test", "validation")
        other = self.estimate("cross-validation", "validation")
        if held is None or other is None or held is other or self.exact or not _differ(held, other):
            return None
        return held, other


def own_cross_validation(found: RunResults) -> CrossValidation | None:
    """Return the cross-validation of a run, or None if its model is not the cross-validated head.

    The results of a fitted head are kept even if the run then trained further layers.
    """
    is_head = found.get("best_epoch") == 1  # the fitted head counts as the first epoch
    return found.get("cross_validation") if is_head else None


def _estimate(
    found: CrossValidation | Metrics, kind: _Kind, measure: Measure = "accuracy"
) -> Estimate:
    return Estimate(
        value=found["top1"],
        interval=found["top1_interval"],
        images=found["images"],
        groups=found.get("groups", 0),
        kind=kind,
        measure=measure,
        baseline=found["majority"],
    )


def _estimates(found: Metrics, kind: _Kind) -> tuple[Estimate, Estimate | None]:
    """Return the accuracy, or the mean average precision and the fraction with exact labels."""
    labels = found.get("labels")
    if labels is None:
        return _estimate(found, kind), None
    exact = _estimate(found, kind, "all labels right")
    mean_ap = replace(
        exact,
        value=labels["map"],
        interval=labels["map_interval"],
        measure="mean average precision",
        baseline=labels["chance_map"],
    )
    return mean_ap, exact


def _tells_more(found: RunResults, crossed: Estimate, validation: Estimate) -> bool:
    """Return whether cross-validation tells more about the model than the validation images.

    Neither the accuracies may differ (a validation set from another place may be harder) nor, in a
    finished run, the losses (`calibration.are_comparable`).
    """
    if crossed.images < _MORE_IMAGES * validation.images or _differ(crossed, validation):
        return False
    calibration = found.get("calibration")
    return "seconds" not in found or bool(calibration and calibration.get("cross_validated"))


def _differ(one: Estimate, other: Estimate) -> bool:
    """Return whether the accuracies of two sets of images differ significantly."""
    if one.interval is None or other.interval is None:
        return False
    return proportions_differ((one.value, one.interval), (other.value, other.interval))


def _weak_classes(found: RunResults, more: CrossValidation | None) -> list[ClassEstimate]:
    """Return the classes or labels below 100%, in the order of the model's outputs."""
    kind: _Kind = "validation"
    rows: Iterable[tuple[str, float | None, Interval | None, int, str | None]]
    spots = [weak for weak in (more["weak_spots"] if more else ()) if weak["recall"] < 1]
    if labels := found.get("labels"):
        every = labels["per_label"].items()
        rows = [(name, row["ap"], row["ap_interval"], found["images"], "") for name, row in every]
    elif spots:
        kind = "cross-validation"
        rows = map(itemgetter("class", "recall", "recall_interval", "images", "taken_for"), spots)
    else:
        others = mostly_taken_for(found)
        rows = [
            (name, row["recall"], row["recall_interval"], row["images"], others.get(name, ""))
            for name, row in found["per_class"].items()
        ]
    return [
        ClassEstimate(
            name=name,
            value=value,
            interval=interval,
            images=images,
            kind=kind,
            measure="average precision" if labels else "recall",
            taken_for=other or "",
        )
        for name, value, interval, images, other in rows
        if value is not None and value < 1
    ]


def _at_chance(found: RunResults) -> AtChance | None:
    """Return on what a model is not measurably better than guessing, or None if it is better.

    It is better if, on the largest set of images on which this was measured, the 95% interval of
    its balanced accuracy is above that of guessing (1 / classes), or the accuracy itself is, and
    the logits depend on the class (`p_of_guessing`). A multi-label model is better if the interval
    of its mean average precision is above that of random scores.
    """
    if labels := found.get("labels"):
        bounds, chance = labels["map_interval"], labels["chance_map"]
        if bounds is None or bounds[0] > chance:
            return None
        return AtChance(kind="validation", images=found["images"], interval=bounds, guessing=chance)
    sets = list[tuple[_Kind, int, float, Metrics | CrossValidation]]()
    parts: dict[_Kind, Metrics | None] = {"validation": found, "test": found.get("test")}
    for name, part in parts.items():
        if part and (present := sum(row["images"] > 0 for row in part["per_class"].values())):
            sets.append((name, present, 0.0, part))
    if more := own_cross_validation(found):
        sets.append(("cross-validation", more["classes"], _CHANCE_MARGIN, more))
    kind, classes, margin, one = max(sets, key=lambda one: one[-1]["images"])
    images, balanced, bounds = one["images"], one["balanced"], one["balanced_interval"]
    low, guessing = bounds[0] - margin * (balanced - bounds[0]), 1 / classes
    tells = balanced > guessing and one.get("p_guessing", 1) < _SIGNIFICANT
    if low > guessing or tells:
        return None
    predicts, fraction = _constant_class(found) or ("", 0.0)
    few = balanced == 1 or wilson_interval(images, images)[0] <= guessing
    return AtChance(
        kind=kind,
        images=images,
        interval=bounds,
        guessing=guessing,
        too_few=few and not predicts,
        predicts=predicts,
        fraction=fraction,
    )


def _constant_class(found: Metrics) -> tuple[str, float] | None:
    """Return the class predicted for nearly all images (see `_RARE`), if any, and their share."""
    names, counts, truth = list(found["per_class"]), Counter[int](), Counter[int]()
    for (true, predicted), images in class_pair_counts(found).items():
        counts[predicted] += images
        truth[true] += images
    if len(names) < 2:
        return None
    best, total = max(counts, key=counts.__getitem__), counts.total()
    is_constant = total - counts[best] <= _RARE * (total - truth[best])
    return (names[best], counts[best] / total) if is_constant else None
