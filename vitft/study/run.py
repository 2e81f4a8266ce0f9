"""Execution of a study: selection of images, features, linear heads and their accuracies.

For each seed, the training sets are nested: the images for 5 shots are a subset of those for 10
shots. The test images are the same for all feature sources and numbers of shots. They are used only
to measure accuracy: the penalty of each head is selected by cross-validation on its training
images.
"""

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitft.config.run import Config
from vitft.data.image_table import Images, Row
from vitft.data.images import (
    GreyRange,
    Pixels,
    in_order,
    log_inspection,
    measure_grey_range,
    open_image,
)
from vitft.data.transforms import EvalTransform
from vitft.features.cache import default_folder, prune
from vitft.features.extract import inspect_dataset, inspect_with, load_pipeline
from vitft.features.folds import CV_FOLDS, Folded
from vitft.features.head import choose_penalty
from vitft.features.logistic import Standardizer, linear_logits, solve_logistic, threads_for
from vitft.messages.results import known_images_note
from vitft.metrics.intervals import (
    PRIOR_OF_CHANGES,
    Groups,
    Interval,
    Z,
    design_effect,
    number_groups,
    student_t_quantile,
    wilson_interval,
)
from vitft.models.ancestry import images_of_weights
from vitft.models.pretrained.catalog import RANDOM
from vitft.report.html import filled
from vitft.study.plan import BASELINES, Plan, fit_shots
from vitft.system import console
from vitft.system.cores import usable_cores
from vitft.system.device import describe_device, pick_device, pick_precision
from vitft.system.errors import DataError
from vitft.system.files import atomic_folder, write_atomically, write_json
from vitft.system.imports import version
from vitft.system.text import count, percent, scored_images

log = logging.getLogger(__name__)

HEAD_NOTE = (
    "every head uses the last block only. The head of vitft finetune may use several blocks and be "
    "more accurate, especially on images unlike photos"
)
"""What a user must know before comparing the accuracies with those of runs."""

# accuracies and their differences, with intervals -------------------------------------------------

Correct = Sequence[NDArray[np.bool_]]
"""For each seed, which of the test images (n,) are classified correctly."""
_Difference = tuple[float, Interval]
"""Mean difference in accuracy between two feature sources, with its 95% interval."""


def accuracy(correct: Correct, groups: Groups | None = None) -> tuple[float, Interval]:
    """Return the mean accuracy over the seeds, and its 95% interval.

    It is the smallest interval that contains both of these. Student's t interval for the mean over
    the seeds accounts for the choice of training images. Wilson's interval for the test images of
    one seed accounts for the number of test images, or of their `groups` (n,), and remains valid if
    all seeds happen to agree.
    """
    each = [float(mask.mean()) for mask in correct]
    top1, images = math.fsum(each) / len(each), min(map(len, correct))
    effect = design_effect(correct[0] - correct[0].mean(), groups)
    low, high = wilson_interval(round(top1 * images), images, effect)
    half = _half_width_of_mean(each)
    return top1, (max(0.0, min(low, top1 - half)), min(1.0, max(high, top1 + half)))


def difference(first: Correct, second: Correct, groups: Groups | None = None) -> _Difference:
    """Return the accuracy of `first` minus the accuracy of `second` on the same test images.

    Two half-widths are computed for the interval, and the larger one is used. One comes from
    Student's t over the seeds. The other comes from the normal approximation over the test images;
    it is computed per seed and averaged.
    """
    both = zip(first, second, strict=True)
    pairs = [a.astype(np.float64) - b.astype(np.float64) for a, b in both]
    means = [float(pair.mean()) for pair in pairs]
    mean = math.fsum(means) / len(means)
    effects = [design_effect(p - p.mean(), groups, PRIOR_OF_CHANGES) for p in pairs]
    errors = (p.std() * math.sqrt(e / len(p)) for p, e in zip(pairs, effects, strict=True))
    half = max(_half_width_of_mean(means), Z * math.fsum(errors) / len(pairs))
    return mean, (max(-1.0, mean - half), min(1.0, mean + half))


def _half_width_of_mean(values: Sequence[float]) -> float:
    """Return the half-width of the 95% interval of a mean (Student 1908); 0 for a single value."""
    if len(values) < 2:
        return 0.0
    deviation = float(np.std(values, ddof=1))
    return student_t_quantile(len(values) - 1) * deviation / math.sqrt(len(values))


# results as files and text ------------------------------------------------------------------------


def leads(study: Mapping[str, Any]) -> dict[str, list[_Difference]]:
    """Return the lead of the first curve over each other curve, for each number of shots."""
    found: dict[str, list[_Difference]] = {}
    for one in study["lead_of_the_first"]:
        found.setdefault(one["over"], []).append((one["difference"], one["interval"]))
    return found


def short_rows(study: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return one table row per curve: name, percent, ± the longer side of the 95% interval."""

    def cell(point: Mapping[str, Any]) -> str:
        top1, (low, high) = point["top1"], point["interval"]
        return f"{100 * top1:.1f} ±{100 * max(high - top1, top1 - low):.1f}"

    return [(curve["name"], *map(cell, curve["points"])) for curve in study["curves"]]


def _write_results(study: Mapping[str, Any], plan: Plan, described: str, command: str) -> None:
    """Write study.json, study.md and study.png to the output folder of the plan."""
    from vitft.report.plots import accuracy_curves_png

    def cell(text: str) -> str:
        """Escape a name so that it does not end its table cell and is not parsed as Markdown."""
        return "".join(f"\\{c}" if c in "\\|`*_<>[]#" else c for c in console.visible(text))

    text = filled(
        "study.j2",
        study=study,
        plan=plan,
        leads=leads(study),
        command=console.visible(command),
        described=described,
        head_note=HEAD_NOTE,
        known_images_note=known_images_note,
        cell=cell,
    )
    curves = [
        (
            curve["name"],
            [point["top1"] for point in curve["points"]],
            [point["interval"] for point in curve["points"]],
            curve["name"] in BASELINES,
        )
        for curve in study["curves"]
    ]
    figure = accuracy_curves_png(
        plan.shots,
        curves,
        majority=study["always_the_largest_class"],
        title=f"{plan.folder.name}: linear heads on frozen features",
        detail=f"{_mean_of(plan)}, bands: 95% intervals, "
        f"{count(study['test_images'], 'test image')}",
    )
    with atomic_folder(plan.out) as folder:
        write_json(folder / "study.json", study)
        write_atomically(folder / "study.md", f"{text.rstrip()}\n")
        write_atomically(folder / "study.png", figure)


# features of weights, and baselines that need none ------------------------------------------------

_Rows = Callable[[Sequence[str]], Tensor]
"""Function that returns the features (n, D) of images, given their digests."""
_BASELINE_VIEW = EvalTransform(
    image_size=(128, 128), crop=1.0, interpolation="bilinear", fit="squash"
)
_SMALL_SIDE = 32  # pixels
_HISTOGRAM_LEVELS = 8  # per colour channel


def _backbone_features(
    plan: Plan, name: str, config: Config, grey_range: GreyRange
) -> tuple[Images, _Rows]:
    """Inspect every image, and compute its features in the same pass."""
    weights = plan.sources[name]
    own = replace(config, weights=replace(config.weights, name=weights))
    is_shown = not weights.startswith(RANDOM)
    pipeline, _ = load_pipeline(plan.folder, "head", own, announce=is_shown)
    log.info(
        f"{name}: {pipeline.model.feature_size}-dimensional features, computed on "
        f"{describe_device(pipeline.device)} in {pipeline.precision}"
    )
    pipeline = replace(pipeline, transform=replace(pipeline.transform, grey_range=grey_range))
    return inspect_with(pipeline, plan.folder, allow_bad=config.data.allow_bad)


def baseline_features(
    folder: Images, files: Sequence[Row], *, max_pixels: int, grey_range: GreyRange = ()
) -> dict[str, Tensor]:
    """Return the features (n, D) of each baseline by its name, computed in one pass.

    `pixels` are those of small images, from 0 to 1. `histogram` has the square root of each
    colour's fraction of the image: square roots suit linear heads better than the fractions
    themselves (Hellinger distance, as in Arandjelovic & Zisserman 2012).

    Raises:
        DataError: A file has been deleted or replaced since the start of the study.
    """

    def view_of(file: Row) -> Pixels:
        path = f"{folder.root}/{file.path}"
        return _BASELINE_VIEW.pixels(open_image(path, max_pixels=max_pixels, grey_range=grey_range))

    images, histograms = [], []
    with console.Progress("computing baselines", len(files)) as progress:
        for view in in_order(view_of, files, workers=usable_cores()):
            side = len(view) // _SMALL_SIDE
            squares = view.reshape(_SMALL_SIDE, side, _SMALL_SIDE, side, 3)
            images.append((squares.mean(axis=(1, 3), dtype=np.float32) / 255).ravel())
            levels = view.reshape(-1, 3).astype(np.int64) * _HISTOGRAM_LEVELS // 256
            colours = levels @ np.array([_HISTOGRAM_LEVELS**2, _HISTOGRAM_LEVELS, 1])
            counts = np.bincount(colours, minlength=_HISTOGRAM_LEVELS**3)
            histograms.append(np.sqrt(counts / len(colours)).astype(np.float32))
            progress.advance()
    pixels, histogram = torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(histograms))
    return {"pixels": pixels, "histogram": histogram}


# selection of images, heads and their accuracies --------------------------------------------------


def run_study(plan: Plan, config: Config, command: str) -> tuple[dict[str, Any], str]:
    """Inspect the images, compute all features, fit all heads, and write the results.

    `command` is the command line that reproduces the study. The content of study.json is returned,
    which does not change when the study is repeated, and a description of the accuracies.
    """
    data, train, max_pixels = config.data, config.train, config.data.max_pixels
    grey_range, names = measure_grey_range(plan.folder, max_pixels=max_pixels), plan.folder.classes
    load = functools.partial(_backbone_features, plan, config=config, grey_range=grey_range)
    first = next((name for name in plan.sources if name not in BASELINES), "")
    read: dict[str, _Rows] = {}
    if first:
        inspected, read[first] = load(first)
    else:
        inspected = inspect_dataset(plan.folder, max_pixels=max_pixels, allow_bad=data.allow_bad)
    log_inspection(inspected)
    files = _unique_images(inspected)
    known = dict[str, int | None]()  # on how many of the images each backbone was trained
    for name, weights in plan.sources.items():
        known[name] = 0 if name in BASELINES else images_of_weights(weights).count(files)
        if known[name] != 0:
            log.warning(known_images_note(name, known[name], len(files)))
    plan, y = _fit_plan(plan, files), torch.tensor([file.label for file in files])
    splits = [
        few_shot_split(files, len(names), most=plan.shots[-1], seed=seed)
        for seed in range(plan.seeds)
    ]
    tested = [files[i] for i in splits[0][1].tolist()]
    groups = number_groups([file.group for file in tested], [file.sha256 for file in tested])
    baselines = {}
    if plan.sources.keys() & {*BASELINES}:
        baselines = baseline_features(
            plan.folder, files, max_pixels=max_pixels, grey_range=grey_range
        )
    right: dict[str, list[Correct]] = {}  # of each source, by number of shots
    curves = []
    for name, weights in plan.sources.items():
        x = baselines.get(name)
        if x is None:
            x = (read.pop(name, None) or load(name)[1])([file.sha256 for file in files])
        right[name] = _fit_heads(name, x, y, splits, plan.shots, classes=len(names))
        points = []
        for shots, correct in zip(plan.shots, right[name], strict=True):
            top1, interval = accuracy(correct, groups)
            each = [float(mask.mean()) for mask in correct]
            points.append({"shots": shots, "top1": top1, "interval": interval, "each_seed": each})
        curves.append(
            {
                "name": name,
                "weights": weights,
                "features": x.shape[1],
                "trained_on_images": known[name],
                "points": points,
            }
        )
    if first and not train.cache:
        prune(default_folder(), idle_s=3600)
    device, (leader, *others) = pick_device(train.device), right
    majority = float(np.bincount([file.label for file in tested]).max() / len(tested))
    study = {
        "vitft": version("vitft"),
        "data": plan.folder.name,
        "classes": list(names),
        "images": len(files),
        "test_images": len(tested),
        "own_test_images": plan.folder.layout == "split",
        "shots": list(plan.shots),
        "left_out": list(plan.left_out),
        "seeds": list(range(plan.seeds)),
        "always_the_largest_class": majority,
        "device": describe_device(device),
        "precision": pick_precision(train.precision, device),
        "curves": curves,
        "lead_of_the_first": [
            {"over": name, "shots": shots, "difference": mean, "interval": interval}
            for name in others
            for shots, own, other in zip(plan.shots, right[leader], right[name], strict=True)
            for mean, interval in [difference(own, other, groups)]
        ],
    }
    scored = {"images": len(tested), "groups": groups is not None and len(np.unique(groups))}
    origin = (
        "the folder's validation or test set" if study["own_test_images"] else "all other images"
    )
    described = (
        f"accuracy in % by number of training images per class, {_mean_of(plan)}, with 95% "
        f"intervals. {scored_images(scored, 'test image')} ({origin}), baseline (largest class): "
        f"{percent(majority)}"
    )
    _write_results(study, plan, described, command)
    return study, described


def _mean_of(plan: Plan) -> str:
    return "1 seed" if plan.seeds == 1 else f"mean of {plan.seeds} seeds"


def _unique_images(inspected: Images) -> list[Row]:
    """Return each distinct image once, without those whose copies have other labels; tests win."""
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


_Split = tuple[Sequence[NDArray[np.int64]], NDArray[np.int64]]
"""For one seed, the shuffled training rows of each class, of which the first k are used for k
shots, and the rows of the test images in ascending order."""


def few_shot_split(files: Sequence[Row], classes: int, *, most: int, seed: int) -> _Split:
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
        return order, np.flatnonzero(is_test)
    rest = np.concatenate([rows[most:] for rows in order])
    return [rows[:most] for rows in order], np.sort(rest)


def _fit_heads(
    name: str, x: Tensor, y: Tensor, splits: Sequence[_Split], shots: Sequence[int], *, classes: int
) -> list[Correct]:
    """Fit a head for each number of shots and seed, and return which test images are right."""
    found: list[Correct] = []
    step = f"fitting heads on {console.visible(name)}"
    with console.Progress(step, len(shots) * len(splits), unit="heads") as progress:
        for number in shots:
            correct = []
            for seed, (candidates, test) in enumerate(splits):
                train = np.concatenate([rows[:number] for rows in candidates])
                correct.append(evaluate_head(x, y, train, test, classes=classes, seed=seed))
                progress.advance()
            found.append(correct)
    return found


def evaluate_head(
    x: Tensor,
    y: Tensor,
    train: NDArray[np.int64],
    test: NDArray[np.int64],
    *,
    classes: int,
    seed: int,
) -> NDArray[np.bool_]:
    """Fit a head to the training images, and return a mask (m,) of correct test predictions.

    If there are fewer training images n than dimensions D, the standardised features are rotated
    into n dimensions. With an L2 penalty, the weights of a head lie in the span of its training
    features, and a rotation changes neither the penalty nor the logits. The reduction is therefore
    exact, and it makes fitting much faster.

    Source: Hastie & Tibshirani 2004, "Efficient quadratic regularization for expression arrays".
    """
    y_train, weight = y[train], torch.ones(len(train))
    with threads_for(len(train), min(len(train), x.shape[1]), heads=CV_FOLDS * classes):
        scaling = Standardizer.fit(x[train])
        x_train, x_test = scaling(x[train]), scaling(x[test])
        if x.shape[1] > len(train):
            _, _, basis = torch.linalg.svd(x_train.double(), full_matrices=False)  # (n, D)
            x_train, x_test = ((some.double() @ basis.T).float() for some in (x_train, x_test))
        l2, _ = choose_penalty(
            Folded(x=x_train, y=y_train, sample_weight=weight, classes=classes, seed=seed)
        )
        head = solve_logistic(x_train.double(), y_train, weight[None], classes=classes, l2=l2)[0]
        return (linear_logits(x_test, head).argmax(dim=-1) == y[test]).numpy()
