"""Heads on rows of numbers: how often they are right, and how sure that is.

Nothing of the test images is used but to count: the penalty of each head is cross-validated on
its own training images.
"""

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitft.config.run import Config
from vitft.data.inspection import InspectedFile
from vitft.data.summary import log_inspection
from vitft.features.cache import default_folder, prune
from vitft.features.cross_validation import FOLDS, choose_penalty
from vitft.features.logistic import SINGLE_THREAD_COST, Standardizer, linear_logits, solve_logistic
from vitft.features.pipeline import inspect_images
from vitft.metrics.intervals import Z, student, wilson
from vitft.metrics.results import Interval
from vitft.study.features import BackboneFeatures, baselines
from vitft.study.plan import Plan, fitting_shots, too_few
from vitft.study.splits import Draw, draw, pictures
from vitft.system import console
from vitft.system.device import describe_device, one_thread, pick_device, pick_precision

log = logging.getLogger(__name__)

Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A contestant at one number of shots."""

    shots: int
    right: tuple[Bools, ...]
    """Of each seed, which of its test images were answered rightly, (n,)."""

    @property
    def each(self) -> list[float]:
        """Accuracy by seed."""
        return [float(right.mean()) for right in self.right]

    @property
    def top1(self) -> float:
        """Mean accuracy."""
        return math.fsum(self.each) / len(self.each)

    @property
    def interval(self) -> Interval:
        """95 % interval of the accuracy that such a draw and such test images give.

        At each end the farther of two: of the mean over seeds by Student's t, which knows how
        draws differ, and Wilson's for the test images of one seed, which knows how few they are
        and holds where three seeds agree by luck.
        """
        images = min(len(right) for right in self.right)
        low, high = wilson(round(self.top1 * images), images)
        spread = spread_of_mean(self.each)
        return max(0.0, min(low, self.top1 - spread)), min(1.0, max(high, self.top1 + spread))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A contestant at every number of shots."""

    name: str
    weights: str
    features: int
    """Numbers per image."""
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What came out."""

    plan: Plan
    """With the shots that were left after unreadable files and copies."""
    images: int
    """Different pictures."""
    tests: int
    """Pictures that test, in each seed."""
    chance: float
    """Accuracy of always naming the largest class of the test images."""
    curves: tuple[Curve, ...]


def run_study(plan: Plan, config: Config) -> Study:
    """Look at the images, compute every contestant's rows, solve every head.

    Raises:
        DataError: Too few usable images, or one that was taken away meanwhile.
        WeightsError: Weights that cannot be fetched or read.
    """
    first = next((one for one in plan.contestants if not one.is_baseline), None)
    backbone = BackboneFeatures(first, plan.folder, config) if first else None
    inspected = (
        backbone.inspect()
        if backbone
        else inspect_images(
            plan.folder, max_pixels=config.data.max_pixels, allow_bad=config.data.allow_bad
        )
    )
    log_inspection(inspected)
    files = pictures(inspected)
    if left := len(inspected.good) - len(files):
        log.info(f"{left:,} files are copies of others, or under two labels: left out")
    plan = with_what_is_left(plan, files)
    draws = [
        draw(files, len(plan.folder.classes), most=plan.shots[-1], seed=seed)
        for seed in range(plan.seeds)
    ]
    y = torch.tensor([file.label for file in files])
    plain = {}
    if any(one.is_baseline for one in plan.contestants):
        plain = baselines(plan.folder, files, config)
    curves = []
    for one in plan.contestants:
        if one.is_baseline:
            x = plain[one.name]
        else:
            if backbone is None or one is not first:
                backbone = BackboneFeatures(one, plan.folder, config)
            x = backbone.rows(files)
        points = judged(x, y, draws, plan, label=one.name)
        curves.append(Curve(name=one.name, weights=one.weights, features=x.shape[1], points=points))
    if first and not config.train.cache:
        prune(default_folder(), idle_s=3600)
    return Study(
        plan=plan,
        images=len(files),
        tests=len(draws[0].test),
        chance=float(np.bincount(y[draws[0].test].numpy()).max() / len(draws[0].test)),
        curves=tuple(curves),
    )


def with_what_is_left(plan: Plan, files: Sequence[InspectedFile]) -> Plan:
    """The plan with the shots that the usable pictures allow."""
    own = plan.folder.layout == "split"
    counts = np.bincount(
        [file.label for file in files if file.part != "val"], minlength=len(plan.folder.classes)
    )
    shots, fewer = fitting_shots(plan.shots, counts.tolist(), own_tests=own)
    if not shots or (own and not any(file.part == "val" for file in files)):
        raise too_few(plan.folder, Counter(dict(enumerate(counts.tolist()))))
    return replace(plan, shots=shots, left_out=(*fewer, *plan.left_out))


def judged(
    x: Tensor, y: Tensor, draws: Sequence[Draw], plan: Plan, *, label: str
) -> tuple[Point, ...]:
    """Accuracy of a linear head by shots, with the right answers of every seed."""
    classes, points = len(plan.folder.classes), []
    with console.Progress(
        f"heads on {console.visible(label)}", len(plan.shots) * len(draws), unit="heads"
    ) as progress:
        for shots in plan.shots:
            right = []
            for seed, drawn in enumerate(draws):
                right.append(answered(x, y, drawn, shots, classes=classes, seed=seed))
                progress.advance()
            points.append(Point(shots=shots, right=tuple(right)))
    return tuple(points)


def answered(x: Tensor, y: Tensor, drawn: Draw, shots: int, *, classes: int, seed: int) -> Bools:
    """Which test images a head that was solved on the drawn images answers rightly, (n,)."""
    train, test = torch.from_numpy(drawn.train(shots)), torch.from_numpy(drawn.test)
    with one_thread(
        when=len(train) * min(len(train), x.shape[1]) * classes < SINGLE_THREAD_COST / FOLDS
    ):
        known, asked = as_few_numbers(x[train], x[test])
        truth, counted = y[train], torch.ones(1, len(train))
        l2, _ = choose_penalty(known, truth, counted, classes=classes, seed=seed)
        head = solve_logistic(known.double(), truth, counted, classes=classes, l2=l2)[0]
        return (linear_logits(asked, head).argmax(dim=-1) == y[test]).numpy()


def as_few_numbers(known: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Standardised rows (n, D) and (m, D), turned so that n numbers say all that heads learn from.

    A head with an L2 penalty lies in the span of the rows that it is solved on, and a rotation
    changes neither its penalty nor its scores: this is exact, and spares most of the work where
    images are fewer than numbers.

    Source: Hastie & Tibshirani 2004, "Efficient quadratic regularization for expression arrays".
    """
    scaling = Standardizer.fit(known)
    known, asked = scaling(known), scaling(asked)
    if known.shape[1] <= len(known):
        return known, asked
    _, _, turned = torch.linalg.svd(known.double(), full_matrices=False)  # (n, D)
    return (known.double() @ turned.T).float(), (asked.double() @ turned.T).float()


def spread_of_mean(values: Sequence[float]) -> float:
    """Half the 95 % interval of a mean of few values, by Student's t; 0 for a single one.

    Source: Student 1908, "The probable error of a mean", Biometrika 6.
    """
    if len(values) < 2:
        return 0.0
    deviation = float(np.std(values, ddof=1))
    return student(len(values) - 1) * deviation / math.sqrt(len(values))


def difference(one: Point, other: Point) -> tuple[float, Interval]:
    """How far `one` is ahead of `other` on the same images, and its 95 % interval.

    Half the interval is the larger of two: over the seeds by Student's t, and over the images of
    one seed, of which only those count that one of the two answers rightly.
    """
    pairs = [
        a.astype(np.float64) - b.astype(np.float64)
        for a, b in zip(one.right, other.right, strict=True)
    ]
    means = [float(pair.mean()) for pair in pairs]
    mean = math.fsum(means) / len(means)
    by_images = Z * math.fsum(float(p.std()) / math.sqrt(len(p)) for p in pairs) / len(pairs)
    half = max(spread_of_mean(means), by_images)
    return mean, (max(-1.0, mean - half), min(1.0, mean + half))


def leads(study: Study) -> Mapping[str, tuple[tuple[float, Interval], ...]]:
    """The first contestant's lead over each other one, by shots."""
    first, *others = study.curves
    return {
        other.name: tuple(difference(a, b) for a, b in zip(first.points, other.points, strict=True))
        for other in others
    }


def setting_of(config: Config) -> dict[str, str]:
    """On what the features were computed."""
    device = pick_device(config.train.device)
    return {
        "device": describe_device(device),
        "precision": pick_precision(config.train.precision, device),
    }
