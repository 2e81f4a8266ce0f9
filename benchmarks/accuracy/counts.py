"""Numbers of images of each class: error before and after adjustment, and coverage of the 95% intervals.

    python -m benchmarks.accuracy.counts --weights FILE --data DIR [--draws 200] [--sequences | --bursts]
        [--labels 100] [--batches 1% 5% 20% random all] [--cache FILE]

For each draw, half of the images train and validate a head (on features of the last block) as `vitft finetune`
does, and the others are new. Batches of new images are drawn without replacement: one class, another in each draw,
is 1%, 5% or 20% of the batch and the others are equally frequent; `all` has all new images; and `random` has
frequencies from a uniform Dirichlet distribution. For the first three, the error is that of the one class, otherwise
that of all classes. Errors (root of the mean square) and widths are percentages of the batch. `inverse` solves for
the confusion matrix and clips at 0, `EM` is that of Saerens et al. 2002 on calibrated probabilities, and
`vitft` is that of `predict --counts`, and `labels` that of `--labels` with 100 images of the batch. `--sequences`
groups images of one person, which have neighbouring file numbers (less the digit shown), and `--bursts` 2 to 8
similar images of a class. A group is in one half, batches have whole groups where they can, and labelled images are
those of whole groups. `--cache` keeps the features and the scores of the draws.
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.accuracy.blocks_read import Features, extract
from benchmarks.accuracy.bursts import bursts
from vitft.features.head import cross_validate, solve_head
from vitft.metrics.calibration import ScoredSet, calibrate_temperature, softmax
from vitft.metrics.counts import LEVELS, adjusted_counts, confidence_levels, powered_counts
from vitft.metrics.intervals import design_effect
from vitft.metrics.outputs import Outputs

Array = np.ndarray[Any, Any]
SHARES = (0.01, 0.05, 0.2)


class Draw(NamedTuple):
    """Calibrated logits, labels and groups: held-out ones of a run, and those of new images."""

    held: Array
    truth: Array
    units: Array
    new: Array
    labels: Array
    group: Array


def halves(found: Features, group: Array, draw: int) -> Draw | None:
    """Return the results of a run on half of the images; None if it lacks a class."""
    x, labels, order = (
        found.x[:, : found.read],
        found.y.numpy(),
        np.random.default_rng(draw).permutation(group.max() + 1),
    )
    run, held = np.isin(group, order[: len(order) // 2]), np.isin(group, order[: len(order) // 10])
    train = torch.from_numpy(run & ~held)
    names, ids = [str(i) for i in range(found.classes)], torch.from_numpy(group)[train]
    if len(found.y[train].unique()) < found.classes:
        return None
    head = solve_head(
        x[train], found.y[train], classes=found.classes, balanced=False, seed=0, groups=ids
    )
    scored = cross_validate(
        x[train],
        found.y[train],
        Outputs.of(names),
        method=head.method,
        balanced=False,
        seed=0,
        groups=ids,
    )
    if scored is None:
        return None
    logits = (x @ head.weight.T + head.bias).double().numpy()
    rows, crossed = scored[1]
    validation = ScoredSet(logits[held], labels[held])
    own = np.flatnonzero(train.numpy())[rows]
    training = ScoredSet(crossed.double().numpy(), labels[own])
    scale = calibrate_temperature(validation, training).value
    both = np.concatenate([validation.logits, training.logits]) / scale
    truth = np.concatenate([validation.labels, training.labels])
    units = np.concatenate([group[held], group[own]])
    return Draw(both, truth, units, logits[~run] / scale, labels[~run], group[~run])


def batches(
    labels: Array, group: Array, classes: int, focus: int, draw: int
) -> Iterator[tuple[str, Array]]:
    """Yield the names and rows of batches."""
    rng = np.random.default_rng([1, draw])
    per, order = np.bincount(labels, minlength=classes), in_groups(group, rng)
    pools = [order[labels[order] == k] for k in range(classes)]
    mixes = {f"{share:.0%}": np.full(classes, (1 - share) / (classes - 1)) for share in SHARES}
    for share, mix in zip(SHARES, mixes.values(), strict=True):
        mix[focus] = share
    mixes["random"] = rng.dirichlet(np.ones(classes))
    for name, mix in mixes.items():
        images = (per / np.maximum(mix, 1e-9)).min()
        if name == "random":  # a batch of a third, without images that a rare class lacks
            images = max(images, len(labels) / 3)
        sizes = np.minimum(per, np.maximum(1, np.round(mix * images)).astype(int))
        yield name, np.concatenate([pool[:size] for pool, size in zip(pools, sizes, strict=True)])
    yield "all", order


def in_groups(group: Array, rng: np.random.Generator) -> Array:
    """Return all images (n,) in a random order in which those of a group are neighbours."""
    return np.argsort(rng.permutation(group.max() + 1)[group], kind="stable")


def inverse(predicted: Array, confusion: Array) -> Array:
    """Return counts from the inverse of the confusion matrix."""
    smooth = confusion + 1e-9
    found = np.linalg.solve((smooth / smooth.sum(axis=1, keepdims=True)).T, predicted).clip(0)
    return np.asarray(found * predicted.sum() / found.sum())


def expectation_maximisation(probability: Array, prior: Array) -> Array:
    """Return the counts of Saerens, Latinne & Decaestecker 2002, Neural Computation 14."""
    share = prior
    for _ in range(300):
        own = probability * (share / prior)
        own /= own.sum(axis=1, keepdims=True)
        share = own.mean(axis=0)
    return np.asarray(share * len(probability))


def table(name: str, drawn: dict[int, Draw], labelled: int, wanted: list[str]) -> None:
    """Print the rows of a folder."""
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    inside: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for draw, (held, labels, units, new, true, group) in drawn.items():
        classes, has_groups = new.shape[1], len(np.unique(units)) < len(units)
        focus, rng = draw % classes, np.random.default_rng([2, draw])
        values, known = softmax(new), softmax(held)
        answer, own = values.argmax(axis=1), known.argmax(axis=1)
        confusion = np.zeros((classes, classes, LEVELS))
        level = confidence_levels(known.max(axis=1), known.max(axis=1))
        np.add.at(confusion, (labels, own, level), 1)
        level = confidence_levels(values.max(axis=1), known.max(axis=1))
        prior = np.bincount(labels, minlength=classes) / len(own)
        right = (own == labels).astype(float)
        effect = design_effect(right - right.mean(), units)
        for batch, rows in batches(true, group, classes, focus, draw):
            if batch not in wanted:
                continue
            truth = np.bincount(true[rows], minlength=classes)
            apart = np.zeros((classes, LEVELS), int)
            np.add.at(apart, (answer[rows], level[rows]), 1)
            counts = adjusted_counts(apart, confusion, effect)
            order = in_groups(group[rows], rng)
            last = group[rows][order[:labelled]][-1]
            sample = order[: max(labelled, np.flatnonzero(group[rows][order] == last)[-1] + 1)]
            some = rows[sample]
            powered = powered_counts(
                apart, confusion, true[some], (answer[some], level[some]),
                group[some] if has_groups else None,
            )  # fmt: skip
            estimates = {
                "predicted": apart.sum(axis=1),
                "inverse": inverse(apart.sum(axis=1), confusion.sum(axis=2)),
                "EM": expectation_maximisation(values[rows], prior),
                "vitft": np.array([one.images for one in counts]),
                "labels": np.array([one.images for one in powered]),
            }
            which = [focus] if batch.endswith("%") else [*range(classes)]
            errors["images", batch].append(len(rows))
            for method, estimate in estimates.items():
                errors[method, batch] += (100 * (estimate - truth)[which] / len(rows)).tolist()
            inside[batch] += [
                tuple(
                    value
                    for one in (counts[k], powered[k])
                    for value in (
                        one.low <= truth[k] <= one.high,
                        100 * (one.high - one.low) / len(rows),
                    )
                )
                for k in which
            ]
    for batch, found_here in inside.items():
        cells = [
            f"{np.sqrt(np.mean(np.square(errors[method, batch]))):.2f}"
            for method in ("predicted", "inverse", "EM", "vitft", "labels")
        ]
        covered, width, with_labels, its_width = np.mean(found_here, axis=0)
        print(
            f"| {name} | {batch} | {np.mean(errors['images', batch]):.0f} | {' | '.join(cells)} | "
            f"{100 * covered:.1f} | {width:.1f} | {100 * with_labels:.1f} | {its_width:.1f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--batches", nargs="+", default=["1%", "5%", "20%", "random", "all"])
    parser.add_argument("--cache", type=Path)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--sequences", action="store_true")
    group.add_argument("--bursts", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.cache and args.cache.exists():
        with np.load(args.cache) as file:
            names = {int(name.partition(" ")[0]) for name in file}
            drawn = {n: Draw(*(file[f"{n} {one}"] for one in Draw._fields)) for n in names}
    else:
        drawn = scores(args)
        if args.cache:
            parts = [(n, own._asdict().items()) for n, own in drawn.items()]
            np.savez(args.cache, **{f"{n} {k}": one for n, own in parts for k, one in own})
    print(
        "| images | batch | its images | predicted | inverse | EM | vitft | labels | coverage | "
        "width | with labels | width |"
    )
    print(f"|{'---|' * 12}")
    table(args.data.name, drawn, args.labels, args.batches)


def scores(args: argparse.Namespace) -> dict[int, Draw]:
    """Return the draws by number."""
    found = extract(args.data, args.weights)
    group = np.arange(len(found.y))
    if args.bursts:
        group = bursts(found)
    if args.sequences:
        numbers = [int(re.findall(r"\d+", path)[-1]) for path in found.paths]
        group = np.unique(np.array(numbers) - found.y.numpy(), return_inverse=True)[1]
    drawn = {draw: halves(found, group, draw) for draw in range(args.draws)}
    return {draw: one for draw, one in drawn.items() if one is not None}


if __name__ == "__main__":
    main()
