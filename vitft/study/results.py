"""Results of a study: accuracies and differences with intervals, as files and text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from vitft.export.facts import program
from vitft.messages.comparison import HEAD_NOTE, figure_heading, known_images_note, study_heading
from vitft.metrics.intervals import (
    PRIOR_OF_CHANGES,
    Groups,
    Z,
    design_effect,
    student_t_quantile,
    wilson_interval,
)
from vitft.metrics.results import Interval
from vitft.study.plan import BASELINES, Plan
from vitft.system.console import visible
from vitft.system.files import atomic_folder, write_atomically, write_json
from vitft.system.text import scored_images

_Difference = tuple[float, Interval]
"""Mean difference in accuracy between two feature sources, with its 95% interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Test results of one feature source at one number of shots."""

    shots: int
    correct: tuple[NDArray[np.bool_], ...]
    """One mask (n,) per seed, true for the test images that are classified correctly."""
    groups: Groups | None = None
    """Groups (n,) of the test images, if they have any."""

    @property
    def accuracies(self) -> list[float]:
        return [float(correct.mean()) for correct in self.correct]

    @property
    def top1(self) -> float:
        """Mean accuracy over the seeds."""
        return math.fsum(self.accuracies) / len(self.accuracies)

    @property
    def interval(self) -> Interval:
        """95% interval of the accuracy: the smallest interval that contains two others.

        Student's t interval for the mean over the seeds accounts for the choice of training images.
        Wilson's interval for the test images of one seed accounts for the number of test images,
        and remains valid if all seeds happen to agree.
        """
        images, first = min(len(correct) for correct in self.correct), self.correct[0]
        effect = design_effect(first - first.mean(), self.groups)
        low, high = wilson_interval(round(self.top1 * images), images, effect)
        half = half_width_of_mean(self.accuracies)
        return max(0.0, min(low, self.top1 - half)), min(1.0, max(high, self.top1 + half))


@dataclass(frozen=True, slots=True, kw_only=True)
class FewShotCurve:
    """Accuracy of one feature source at each number of shots."""

    name: str
    weights: str
    features: int  # dimensions of the feature vector
    points: tuple[CurvePoint, ...]
    known_images: int = 0
    """Number of images of the study on which the backbone was trained by a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResults:
    """Results of all feature sources in a study."""

    plan: Plan
    """Plan of the study, limited to the numbers of shots with enough usable images."""
    images: int
    test_images: int
    """Number of test images for each seed."""
    majority: float
    """Accuracy of always predicting the largest class of the test images."""
    device: str
    precision: str
    curves: tuple[FewShotCurve, ...]

    def leads(self) -> dict[str, list[_Difference]]:
        """Return the lead of the first curve over each other curve, for each number of shots."""
        first, *others = self.curves
        return {
            other.name: [difference(*pair) for pair in zip(first.points, other.points, strict=True)]
            for other in others
        }


def difference(first: CurvePoint, second: CurvePoint) -> _Difference:
    """Return the accuracy of `first` minus the accuracy of `second` on the same test images.

    Two half-widths are computed for the interval, and the larger one is used. One comes from
    Student's t over the seeds. The other comes from the normal approximation over the test images;
    it is computed for each seed and averaged over the seeds.
    """
    both = zip(first.correct, second.correct, strict=True)
    pairs = [a.astype(np.float64) - b.astype(np.float64) for a, b in both]
    means = [float(pair.mean()) for pair in pairs]
    mean = math.fsum(means) / len(means)
    effects = [design_effect(p - p.mean(), first.groups, PRIOR_OF_CHANGES) for p in pairs]
    errors = (p.std() * math.sqrt(e / len(p)) for p, e in zip(pairs, effects, strict=True))
    by_images = Z * math.fsum(errors) / len(pairs)
    half = max(half_width_of_mean(means), by_images)
    return mean, (max(-1.0, mean - half), min(1.0, mean + half))


def half_width_of_mean(values: Sequence[float]) -> float:
    """Return the half-width of the 95% interval of a mean (Student's t), or 0 for a single value.

    Source: Student 1908, "The probable error of a mean", Biometrika 6.
    """
    if len(values) < 2:
        return 0.0
    deviation = float(np.std(values, ddof=1))
    return student_t_quantile(len(values) - 1) * deviation / math.sqrt(len(values))


def write_results(study: StudyResults, command: str) -> None:
    """Write study.json, study.md and study.png to the output folder of the plan.

    `command` is the command line that reproduces the study.
    """
    from vitft.report.plots import AccuracyCurve, accuracy_curves_png

    plan, leads = study.plan, study.leads()
    text = program(
        "study",
        study=study,
        plan=plan,
        leads=leads,
        command=visible(command),
        described=heading(study),
        head_note=HEAD_NOTE,
        known_images_note=known_images_note,
        cell=_markdown_cell,
    )
    curves = [
        AccuracyCurve(
            name=curve.name,
            accuracies=[point.top1 for point in curve.points],
            intervals=[point.interval for point in curve.points],
            is_baseline=curve.name in BASELINES,
        )
        for curve in study.curves
    ]
    figure = accuracy_curves_png(
        plan.shots,
        curves,
        majority=study.majority,
        title=f"{plan.folder.name}: linear heads on frozen features",
        detail=figure_heading(plan.seeds, study.test_images),
    )
    with atomic_folder(plan.out) as folder:
        write_json(folder / "study.json", _to_json(study, leads))
        write_atomically(folder / "study.md", f"{text.rstrip()}\n")
        write_atomically(folder / "study.png", figure)


def _to_json(study: StudyResults, leads: Mapping[str, Sequence[_Difference]]) -> dict[str, object]:
    """Return the content of study.json, which does not change when the study is repeated."""
    plan = study.plan
    return {
        "vitft": version("vitft"),
        "data": plan.folder.name,
        "classes": list(plan.folder.classes),
        "images": study.images,
        "test_images": study.test_images,
        "own_test_images": plan.folder.layout == "split",
        "shots": list(plan.shots),
        "left_out": list(plan.left_out),
        "seeds": list(range(plan.seeds)),
        "always_the_largest_class": study.majority,
        "device": study.device,
        "precision": study.precision,
        "curves": [
            {
                "name": curve.name,
                "weights": curve.weights,
                "features": curve.features,
                "trained_on_images": curve.known_images,
                "points": [
                    {
                        "shots": point.shots,
                        "top1": point.top1,
                        "interval": list(point.interval),
                        "each_seed": point.accuracies,
                    }
                    for point in curve.points
                ],
            }
            for curve in study.curves
        ],
        "lead_of_the_first": [
            {"over": name, "shots": shots, "difference": mean, "interval": list(interval)}
            for name, differences in leads.items()
            for shots, (mean, interval) in zip(plan.shots, differences, strict=True)
        ],
    }


def heading(study: StudyResults) -> str:
    """Return a description of the accuracies, the test images and the baseline."""
    units = study.curves[0].points[0].groups
    found = {"images": study.test_images, "groups": units is not None and len(np.unique(units))}
    return study_heading(
        study.plan.seeds,
        scored_images(found, "test image"),
        study.majority,
        has_tests=study.plan.folder.layout == "split",
    )


def short_rows(study: StudyResults) -> list[tuple[str, ...]]:
    """Return one table row per curve: its name, then accuracies in percent.

    The number after ± is the longer side of the 95% interval.
    """

    def cell(point: CurvePoint) -> str:
        low, high = point.interval
        return f"{100 * point.top1:.1f} ±{100 * max(high - point.top1, point.top1 - low):.1f}"

    return [(curve.name, *map(cell, curve.points)) for curve in study.curves]


def _markdown_cell(text: str) -> str:
    """Escape a name so that it does not end its table cell and is not parsed as Markdown."""
    return "".join(f"\\{c}" if c in "\\|`*_<>[]#" else c for c in visible(text))
