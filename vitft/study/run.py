"""Execution of a study: selection of images, features, linear heads and their accuracies.

For each seed, the training sets are nested: the images for 5 shots are a subset of those for 10
shots. The test images are the same for all feature sources and numbers of shots. They are used only
to measure accuracy: the penalty of each head is selected by cross-validation on its training
images.
"""

import functools
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitft.config.sections import DataSpec, ModelSpec, TrainSpec, WeightsSpec
from vitft.data.image_table import Images, Row
from vitft.data.images import GreyRange, open_image
from vitft.data.inspection import Pixels, in_order, log_inspection, measure_grey_range
from vitft.data.split import images_of_weights
from vitft.data.transforms import EvalTransform, eval_view
from vitft.features.cache import default_folder, prune
from vitft.features.extract import vanished_error
from vitft.features.folds import CV_FOLDS, Folded
from vitft.features.head import choose_penalty
from vitft.features.logistic import SINGLE_THREAD_COST, Standardizer, linear_logits, solve_logistic
from vitft.features.pipeline import inspect_dataset, load_pipeline, log_cached_features
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
from vitft.models.pretrained.catalog import RANDOM
from vitft.report.html import filled
from vitft.study.plan import BASELINES, FeatureSource, Plan, fit_shots
from vitft.system import console
from vitft.system.device import describe_device, one_thread, pick_device, pick_precision
from vitft.system.errors import DataError, ImageError
from vitft.system.files import atomic_folder, write_atomically, write_json
from vitft.system.text import count, scored_images

log = logging.getLogger(__name__)


# results of a study: accuracies and differences with intervals, as files and text -----------------

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
        """95% interval of the accuracy: the smallest interval that contains both of these.

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
    it is computed per seed and averaged.
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
    text = filled(
        "study.j2",
        study=study,
        plan=plan,
        leads=leads,
        command=console.visible(command),
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
    return "".join(f"\\{c}" if c in "\\|`*_<>[]#" else c for c in console.visible(text))


# execution of a study: selection of images, features, linear heads and their accuracies -----------

_Rows = Callable[[Sequence[str]], Tensor]
"""Function that returns the features (n, D) of images, given their digests."""
BASELINE_VIEW = EvalTransform(
    image_size=(128, 128), crop=1.0, interpolation="bilinear", fit="squash"
)
_SMALL_SIDE = 32  # pixels
_HISTOGRAM_LEVELS = 8
"""Number of levels per colour channel."""


def _backbone_features(
    plan: Plan,
    source: FeatureSource,
    data: DataSpec,
    train: TrainSpec,
    *,
    allow_pickle: bool,
    grey_range: GreyRange,
) -> tuple[Images, _Rows]:
    """Inspect every image, and compute its features in the same pass."""
    pipeline, _ = load_pipeline(
        plan.folder,
        "head",
        weights=WeightsSpec(name=source.weights, allow_pickle=allow_pickle),
        model=ModelSpec(),
        train=train,
        max_pixels=data.max_pixels,
        announce=not source.weights.startswith(RANDOM),
    )
    extractor = pipeline.open_extractor(train, max_pixels=data.max_pixels)
    assert extractor is not None
    log.info(
        f"{source.name}: {pipeline.model.feature_size}-dimensional features, computed on "
        f"{describe_device(pipeline.device)} in {pipeline.precision}"
    )
    view = eval_view(replace(pipeline.transform, grey_range=grey_range))
    inspected = inspect_dataset(
        plan.folder,
        extractor=extractor,
        view=view,
        max_pixels=data.max_pixels,
        allow_bad=data.allow_bad,
    )
    log_cached_features(inspected, extractor.computed)
    return inspected, functools.partial(extractor.rows, view=view)


def baseline_features(
    folder: Images,
    files: Sequence[Row],
    *,
    max_pixels: int,
    grey_range: GreyRange = (),
) -> dict[str, Tensor]:
    """Return the features (n, D) of each baseline by its name, computed in one pass.

    Raises:
        DataError: A file has been deleted or replaced since the start of the study.
    """

    def view_of(file: Row) -> Pixels | ImageError:
        try:
            path = f"{folder.root}/{file.path}"
            image = open_image(path, max_pixels=max_pixels, grey_range=grey_range)
        except ImageError as error:
            return ImageError(file.path, error.reason)
        return BASELINE_VIEW.pixels(image)

    images, histograms = [], []
    with console.Progress("computing baselines", len(files)) as progress:
        for view in in_order(view_of, files, workers=torch.get_num_threads()):
            if isinstance(view, ImageError):
                raise vanished_error(view)
            images.append(small_image(view))
            histograms.append(colour_histogram(view))
            progress.advance()
    return {
        "pixels": torch.from_numpy(np.stack(images)),
        "histogram": torch.from_numpy(np.stack(histograms)),
    }


def small_image(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Shrink an image (S, S, 3) by averaging square blocks: (_SMALL_SIDE**2 * 3,) from 0 to 1."""
    side = len(pixels) // _SMALL_SIDE
    squares = pixels.reshape(_SMALL_SIDE, side, _SMALL_SIDE, side, 3)
    return (squares.mean(axis=(1, 3), dtype=np.float32) / 255).ravel()


def colour_histogram(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the square root (_HISTOGRAM_LEVELS**3,) of each colour's fraction of an image.

    Square roots suit linear heads better than the fractions themselves (Hellinger distance, as in
    Arandjelovic & Zisserman 2012).
    """
    levels = pixels.reshape(-1, 3).astype(np.int64) * _HISTOGRAM_LEVELS // 256
    colours = (levels[:, 0] * _HISTOGRAM_LEVELS + levels[:, 1]) * _HISTOGRAM_LEVELS + levels[:, 2]
    counts = np.bincount(colours, minlength=_HISTOGRAM_LEVELS**3)
    return np.sqrt(counts / len(colours)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class FewShotSplit:
    """Training and test images for one seed, as row indices."""

    candidates: tuple[NDArray[np.int64], ...]
    """Shuffled training rows of each class. The first k rows are used for k shots."""
    test: NDArray[np.int64]
    """Rows of the test images in ascending order, the same for every number of shots."""
    groups: Groups | None = None
    """Groups (m,) of the test images, if the data defines any."""

    def train(self, shots: int) -> NDArray[np.int64]:
        """Return the rows (classes * shots,) of the training images, grouped by class."""
        return np.concatenate([rows[:shots] for rows in self.candidates])


def unique_images(inspected: Images) -> list[Row]:
    """Return each distinct image of a folder once, leaving out images with conflicting labels.

    An image in both the training set and the test set of the folder stays in the test set only. The
    number of files left out is logged.
    """
    labels: dict[str, set[int]] = {}
    for file in inspected.rows:
        labels.setdefault(file.sha256, set()).add(file.label)
    tests = {file.sha256 for file in inspected.rows if file.split == "val"}
    kept: dict[str, Row] = {}
    for file in inspected.rows:
        if len(labels[file.sha256]) == 1 and (file.split == "val" or file.sha256 not in tests):
            kept.setdefault(file.sha256, file)
    if left := len(inspected.rows) - len(kept):
        log.info(
            f"skipped {count(left, 'file')}: duplicates, or identical images with different labels"
        )
    return list(kept.values())


def few_shot_split(files: Sequence[Row], classes: int, *, most: int, seed: int) -> FewShotSplit:
    """Return the shuffled training images of each class, and the test images.

    If the folder has no test images, all images of a class after the first `most` are used for
    testing. Each class is shuffled independently of the images of other classes.
    """
    labels = np.array([file.label for file in files])
    is_test = np.array([file.split == "val" for file in files])
    order = []
    for label in range(classes):
        rows = np.flatnonzero((labels == label) & ~is_test)
        order.append(np.random.default_rng([seed, label]).permutation(rows))
    if is_test.any():
        units = [file.group or file.sha256 for file in files if file.split == "val"]
        groups = np.unique(units, return_inverse=True)[1] if any(f.group for f in files) else None
        return FewShotSplit(tuple(order), np.flatnonzero(is_test), groups)
    rest = np.concatenate([rows[most:] for rows in order])
    return FewShotSplit(tuple(rows[:most] for rows in order), np.sort(rest))


def run_study(
    plan: Plan, *, data: DataSpec, train: TrainSpec, allow_pickle: bool = False
) -> StudyResults:
    """Inspect the images, compute all features, fit all heads and return the results."""
    first = next((one for one in plan.sources if not one.is_baseline), None)
    max_pixels = data.max_pixels
    grey_range = measure_grey_range(plan.folder, max_pixels=max_pixels)
    load = functools.partial(
        _backbone_features, data=data, train=train, allow_pickle=allow_pickle, grey_range=grey_range
    )
    read: dict[str, _Rows] = {}
    if first:
        inspected, read[first.name] = load(plan, first)
    else:
        inspected = inspect_dataset(plan.folder, max_pixels=max_pixels, allow_bad=data.allow_bad)
    log_inspection(inspected)
    files = unique_images(inspected)
    known: Counter[str] = Counter()  # on how many of the images each backbone was trained
    for one in plan.sources:
        trained = set() if one.is_baseline else images_of_weights(one.weights)
        if number := sum(file.sha256 in trained for file in files):
            known[one.name] = number
            log.warning(known_images_note(one.name, number, len(files)))
    plan, classes = _fit_plan(plan, files), len(plan.folder.classes)
    splits = [
        few_shot_split(files, classes, most=plan.shots[-1], seed=seed) for seed in range(plan.seeds)
    ]
    y = torch.tensor([file.label for file in files])
    baselines = {}
    if any(one.is_baseline for one in plan.sources):
        baselines = baseline_features(
            plan.folder, files, max_pixels=max_pixels, grey_range=grey_range
        )
    curves = []
    for one in plan.sources:
        if one.is_baseline:
            x = baselines[one.name]
        else:
            rows = read.pop(one.name, None) or load(plan, one)[1]
            x = rows([file.sha256 for file in files])
        points, heads = [], len(plan.shots) * len(splits)
        step = f"fitting heads on {console.visible(one.name)}"
        with console.Progress(step, heads, unit="heads") as progress:
            for shots in plan.shots:
                correct = []
                for seed, split in enumerate(splits):
                    correct.append(evaluate_head(x, y, split, shots, classes=classes, seed=seed))
                    progress.advance()
                point = CurvePoint(shots=shots, correct=tuple(correct), groups=splits[0].groups)
                points.append(point)
        curves.append(
            FewShotCurve(
                name=one.name,
                weights=one.weights,
                features=x.shape[1],
                points=tuple(points),
                known_images=known[one.name],
            )
        )
    if first and not train.cache:
        prune(default_folder(), idle_s=3600)
    device = pick_device(train.device)
    return StudyResults(
        plan=plan,
        images=len(files),
        test_images=len(splits[0].test),
        majority=float(np.bincount(y[splits[0].test].numpy()).max() / len(splits[0].test)),
        device=describe_device(device),
        precision=pick_precision(train.precision, device),
        curves=tuple(curves),
    )


def _fit_plan(plan: Plan, files: Sequence[Row]) -> Plan:
    """Return the plan, limited to the numbers of shots with enough usable images."""
    if plan.folder.layout == "split" and not any(file.split == "val" for file in files):
        raise DataError(
            f"{plan.folder.source} has no usable test images",
            fix="add readable images to the val or test folder. Identical images with different "
            "labels are not used",
        )
    counts = dict.fromkeys(range(len(plan.folder.classes)), 0)
    for file in files:
        counts[file.label] += file.split != "val"
    shots, dropped, most = fit_shots(plan.folder, counts, plan.shots)
    return replace(plan, shots=shots, left_out=(*dropped, *plan.left_out), most=most)


def evaluate_head(
    x: Tensor, y: Tensor, split: FewShotSplit, shots: int, *, classes: int, seed: int
) -> NDArray[np.bool_]:
    """Fit a head to the training images, and return a mask (m,) of correct test predictions."""
    train, test = torch.from_numpy(split.train(shots)), torch.from_numpy(split.test)
    cost = len(train) * min(len(train), x.shape[1]) * classes
    with one_thread(when=cost < SINGLE_THREAD_COST / CV_FOLDS):
        x_train, x_test = reduce_dimensions(x[train], x[test])
        y_train, weight = y[train], torch.ones(len(train))
        l2, _ = choose_penalty(
            Folded(x=x_train, y=y_train, sample_weight=weight, classes=classes, seed=seed)
        )
        head = solve_logistic(x_train.double(), y_train, weight[None], classes=classes, l2=l2)[0]
        return (linear_logits(x_test, head).argmax(dim=-1) == y[test]).numpy()


def reduce_dimensions(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Standardise features (n, D) and (m, D), and rotate them into at most n dimensions.

    With an L2 penalty, the weights of a head lie in the span of its training features, and a
    rotation changes neither the penalty nor the logits. The reduction is therefore exact. It makes
    fitting much faster if there are fewer images than dimensions.

    Source: Hastie & Tibshirani 2004, "Efficient quadratic regularization for expression arrays".
    """
    scaling = Standardizer.fit(train)
    train, test = scaling(train), scaling(test)
    if train.shape[1] <= len(train):
        return train, test
    _, _, basis = torch.linalg.svd(train.double(), full_matrices=False)  # (n, D)
    return (train.double() @ basis.T).float(), (test.double() @ basis.T).float()
