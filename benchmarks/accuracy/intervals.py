"""Coverage of every 95% interval that vitft shows, with and without groups of images.

    python -m benchmarks.accuracy.intervals [--groups 0 3 10 30] [--images 40 100 300 1000] [--draws 400]
    python -m benchmarks.accuracy.intervals --weights FILE --data DIR [DIR ...] [--clips 5] [--draws 200]

First form: logits of six classes, and of four labels, are drawn; in each group, the evidence for the true class is stronger
or weaker by a normal term, so that the images of a group are right or wrong together. The truth is that of 200,000 images,
each of its own group. Each cell is the percentage of draws (for classes and labels: of draws
and classes) whose interval contains the truth, or `none` if no interval is shown. `--draws 400` has a standard error of 1.1 at 95%.

Second form: the cross-validated accuracy on real photos. For each draw, so many images are chosen, a fifth is held out, the
head is solved on the others as `vitft finetune` solves it, and all are cross-validated. The truth is the accuracy of that head
on the other photos, with the class frequencies of the chosen ones; its own error is taken into account: an interval is widened by 1.96 times their standard error in
quadrature. With `--clips K`, each photo becomes K frames (moving crop, zoom, brightness), and the photo is the group.
"""

import argparse
import math
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from benchmarks.accuracy.blocks_read import extract
from benchmarks.folders import merge_splits
from vitft.features.head import cross_validate, solve_head
from vitft.metrics.calibration import (
    bin_by_confidence,
    binned_error,
    confidence_and_correctness,
    log_losses,
)
from vitft.metrics.classification import classification_metrics, probability_metrics
from vitft.metrics.intervals import PairedDifference, accuracy_interval, mean_interval
from vitft.metrics.outputs import Outputs

CLASSES, LABELS = 6, 4
PRIOR = np.array([0.3, 0.25, 0.2, 0.12, 0.08, 0.05])
SHARES = np.array([0.1, 0.2, 0.3, 0.5])
SURE = 0.8
FRESH = 200_000
SLOW = 200
"""Draws for the calibration error, which is slower."""
SHARPER = 2
"""Factor of the logits whose calibration error is large enough to be measured."""
Array = np.ndarray[Any, Any]
Ends = tuple[float, float]


def effects(rng: np.random.Generator, images: int, groups: int, spread: float) -> tuple[Array, Any]:
    """Return a normal term for each image, and the groups; 0 groups give each image its own term."""
    if not groups:
        return rng.normal(0, spread, images), None
    shares = rng.dirichlet(np.full(groups, 4.0))
    own = np.concatenate([np.arange(groups), rng.choice(groups, images - groups, p=shares)])
    return rng.normal(0, spread, groups)[own], own


def classes(rng: np.random.Generator, term: Array) -> tuple[Array, Array, Array]:
    """Return logits of two models (n, C) and the labels (n,)."""
    labels = rng.choice(CLASSES, len(term), p=PRIOR)
    shared = rng.normal(0, 1, (len(term), CLASSES))
    both = []
    for _ in range(2):
        logits = 0.8 * shared + 0.6 * rng.normal(0, 1, (len(term), CLASSES))
        logits[np.arange(len(term)), labels] += 2.6 + term
        both.append(2 * logits)
    return both[0], both[1], labels


def several(rng: np.random.Generator, term: Array) -> tuple[Array, Array]:
    """Return logits (n, L) of several labels, and whether each image has them."""
    truth = rng.random((len(term), LABELS)) < SHARES
    return rng.normal(0, 1, truth.shape) + (2.2 + term[:, None]) * (truth - 0.5) * 1.2, truth


def shown(logits: Array, other: Array, labels: Array, groups: Any, *, slow: bool) -> dict[str, Any]:
    """Return the intervals (lists, one per class where there are several) by name."""
    x, y = torch.from_numpy(logits), torch.from_numpy(labels)
    found: Any = classification_metrics(x, y, Outputs.of(map(str, range(CLASSES))), groups=groups)
    rows = found["per_class"].values()
    conf, right = confidence_and_correctness(logits, labels)
    kept = conf >= SURE
    also = other.argmax(axis=1) == labels
    result = {
        "accuracy": [found["top1_interval"]],
        "top-5 accuracy": [found["top5_interval"]],
        "balanced accuracy": [found["balanced_interval"]],
        **{
            name: [row[f"{name.lower()}_interval"] for row in rows]
            for name in ("recall", "precision", "F1")
        },
        "kept fraction": [accuracy_interval(kept, groups)],
        "accuracy of kept": [
            accuracy_interval(right[kept] > 0, None if groups is None else groups[kept])
            if kept.any()
            else None
        ],
        "difference of two models": [PairedDifference.of(right > 0, also, groups).interval()],
        "log-loss": [mean_interval(log_losses(logits, labels), groups)],
    }
    for name, factor in {"small": 1, "large": SHARPER}.items() if slow else ():
        more: Any = probability_metrics(factor * logits, y, groups=groups)
        result[f"calibration error, {name}"] = [more["calibration"]["ece_interval"]]
    return result


def shown_labels(logits: Array, truth: Array, groups: Any) -> dict[str, Any]:
    x, y = torch.from_numpy(logits), torch.from_numpy(truth.astype(np.int64))
    found: Any = classification_metrics(
        x, y, Outputs.of(map(str, range(LABELS)), several=True), groups=groups
    )
    labels = found["labels"]
    return {
        "all labels right": [found["top1_interval"]],
        "average precision of a label": [r["ap_interval"] for r in labels["per_label"].values()],
        "mean average precision": [labels["map_interval"]],
        "F1 over all decisions": [labels["micro_f1_interval"]],
        "mean F1 of the labels": [labels["macro_f1_interval"]],
        "recall of a label": [row["recall_interval"] for row in found["per_class"].values()],
    }


def true_values(rng: np.random.Generator, spread: float) -> dict[str, Any]:
    """Return the same numbers of `FRESH` images, each of its own group."""
    term = rng.normal(0, spread, FRESH)
    logits, _, labels = classes(rng, term)
    x, y = torch.from_numpy(logits), torch.from_numpy(labels)
    found: Any = classification_metrics(x, y, Outputs.of(map(str, range(CLASSES))))
    rows = found["per_class"].values()
    conf, right = confidence_and_correctness(logits, labels)
    kept = conf >= SURE
    scores, truth = several(rng, term)
    many: Any = classification_metrics(
        torch.from_numpy(scores),
        torch.from_numpy(truth.astype(np.int64)),
        Outputs.of(map(str, range(LABELS)), several=True),
    )
    of_labels = many["labels"]
    return {
        "accuracy": [found["top1"]],
        "top-5 accuracy": [found["top5"]],
        "balanced accuracy": [found["balanced"]],
        **{name: [row[name.lower()] for row in rows] for name in ("recall", "precision", "F1")},
        "kept fraction": [kept.mean()],
        "accuracy of kept": [right[kept].mean()],
        "difference of two models": [0.0],
        "log-loss": [log_losses(logits, labels).mean()],
        "calibration error, small": [binned_error(bin_by_confidence(conf, right))],
        "calibration error, large": [
            binned_error(bin_by_confidence(*confidence_and_correctness(SHARPER * logits, labels)))
        ],
        "all labels right": [many["top1"]],
        "average precision of a label": [r["ap"] for r in of_labels["per_label"].values()],
        "mean average precision": [of_labels["map"]],
        "F1 over all decisions": [of_labels["micro_f1"]],
        "mean F1 of the labels": [of_labels["macro_f1"]],
        "recall of a label": [row["recall"] for row in many["per_class"].values()],
    }


def simulate(groups: int, images: list[int], draws: int, spread: float) -> None:
    """Print a table of coverage in % for a number of groups."""
    truth = true_values(np.random.default_rng(10**6), spread)
    rng = np.random.default_rng(10**6)
    term = rng.normal(0, spread, FRESH)
    twice = [logits.argmax(axis=1) == y for logits, _, y in (classes(rng, term) for _ in range(2))]
    correlation = float(np.corrcoef(*twice)[0, 1])  # of two images of a group
    table: dict[str, dict[int, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for number in images:
        for draw in range(draws):
            rng = np.random.default_rng([groups, number, draw])
            term, own = effects(rng, number, groups, spread)
            logits, other, labels = classes(rng, term)
            found = shown(logits, other, labels, own, slow=draw < SLOW)
            found |= shown_labels(*several(rng, term), own)
            for name, ends in found.items():
                table[name][number] += [
                    low <= value <= high for value, (low, high) in zip_known(truth[name], ends)
                ]
    print(
        f"\n{groups or 'no'} groups, {draws} draws, accuracy {100 * truth['accuracy'][0]:.1f}%, "
        f"correlation within groups {correlation if groups else 0:.2f}"
    )
    print(f"| interval | {' | '.join(f'{n:,} images' for n in images)} |")
    print(f"|---|{'---|' * len(images)}")
    for name, columns in table.items():
        cells = [f"{100 * np.mean(columns[n]):.1f}" if columns[n] else "none" for n in images]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def zip_known(values: list[float], ends: list[Ends | None]) -> Iterator[tuple[float, Ends]]:
    """Yield the pairs whose interval is known."""
    for value, bounds in zip(values, ends, strict=True):
        if bounds is not None:
            yield value, bounds


def make_clips(data: Path, frames: int, into: Path) -> Path:
    """Write frames of every photo, as from a short video, and return the folder."""
    for file in sorted(data.glob("*/*")):
        rng, image = (
            random.Random(file.name),
            ImageOps.exif_transpose(Image.open(file)).convert("RGB"),
        )
        x, y, zoom = rng.uniform(0.3, 0.7), rng.uniform(0.3, 0.7), rng.uniform(0.65, 0.85)
        for number in range(frames):
            x = min(0.7, max(0.3, x + rng.gauss(0, 0.06)))
            y = min(0.7, max(0.3, y + rng.gauss(0, 0.06)))
            zoom = min(0.95, max(0.6, zoom + rng.gauss(0, 0.04)))
            width, height = zoom * image.width, zoom * image.height
            left = min(max(0.0, x * image.width - width / 2), image.width - width)
            top = min(max(0.0, y * image.height - height / 2), image.height - height)
            box = (round(left), round(top), round(left + width), round(top + height))
            frame = ImageEnhance.Brightness(image.crop(box)).enhance(rng.uniform(0.85, 1.15))
            to = into / file.parent.name / f"{file.stem}_{number:04}.jpg"
            to.parent.mkdir(parents=True, exist_ok=True)
            frame.save(to, quality=rng.randint(80, 95))
    return into


def real(data: Path, weights: str, images: list[int], draws: int, clips: int) -> None:
    """Print coverage of the validation and the cross-validated accuracy for a folder of photos."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = merge_splits(data, Path(temporary) / "merged")
        if clips:
            folder = make_clips(folder, clips, Path(temporary) / "clips")
        found = extract(folder, weights)
    x, y, read = found.x[:, : found.read], found.y, found.read
    names = [path.rpartition("_")[0] if clips else path for path in found.paths]
    group = np.unique(names, return_inverse=True)[1]
    for number in images:
        hits: dict[str, list[float]] = defaultdict(list)
        for draw in range(draws):
            rng = np.random.default_rng([number, draw])
            order = rng.permutation(group.max() + 1)
            own, validated = order[:number], order[: number // 5]
            if clips:  # as many of each class
                of_group = np.zeros(len(order), int)
                of_group[group] = y
                each = number // clips // found.classes
                parts = [order[of_group[order] == c][:each] for c in range(found.classes)]
                own = np.concatenate(parts)
                validated = np.concatenate([part[: max(1, each // 5)] for part in parts])
            held = np.isin(group, validated)
            chosen = np.isin(group, own)
            train, rest = torch.from_numpy(chosen & ~held), torch.from_numpy(~chosen)
            if len(y[train].unique()) < found.classes:
                continue
            ids = torch.from_numpy(group)
            units = group if clips else None
            head = solve_head(
                x[train], y[train], classes=found.classes, l2=0, balanced=False, seed=0,
                groups=ids[train], read=read,
            )  # fmt: skip
            right = ((x @ head.weight.T + head.bias).argmax(dim=1) == y).numpy()
            rows = torch.from_numpy(
                np.concatenate([np.flatnonzero(chosen & ~held), np.flatnonzero(held)])
            )
            scored = cross_validate(
                x[rows], y[rows], Outputs.of(map(str, range(found.classes))), method=head.method,
                balanced=False, seed=0, groups=ids[rows],
                units=None if units is None else units[rows.numpy()],
            )  # fmt: skip
            if scored is None:
                continue
            labels, others = y.numpy(), rest.numpy()
            share = np.bincount(labels[chosen], minlength=found.classes) / chosen.sum()
            size = np.bincount(labels[others], minlength=found.classes)
            hit = np.bincount(labels[others], right[others], minlength=found.classes) / size
            truth = float((share * hit).sum())  # with the class frequencies of the chosen images
            terms = np.where(others, (right - hit[labels]) * (share / size)[labels], 0.0)
            error = math.sqrt(float((np.bincount(group, terms) ** 2).sum()))
            validation = accuracy_interval(right[held], None if units is None else units[held])
            cells = {
                "validation": (float(right[held].mean()), validation),
                "cross-validated": (scored[0]["top1"], scored[0]["top1_interval"]),
                "cross-validated, Wilson": (
                    scored[0]["top1"],
                    accuracy_interval(np.arange(len(rows)) < round(scored[0]["top1"] * len(rows))),
                ),
            }
            for name, (top1, (low, high)) in cells.items():
                low = top1 - math.hypot(top1 - low, 1.96 * error)
                high = top1 + math.hypot(high - top1, 1.96 * error)
                hits[name].append(low <= truth <= high)
                hits[f"{name}, width"].append(high - low)
            hits["difference"].append(scored[0]["top1"] - truth)
            hits["binomial"].append(truth * (1 - truth) / len(rows))
            hits["error"].append(error)
        noise = np.mean(np.square(hits["error"]))
        ratio = math.sqrt(max(0.0, np.var(hits["difference"]) - noise) / np.mean(hits["binomial"]))
        print(
            f"| {data.name}{f', clips of {clips}' if clips else ''} | {number} | {len(hits['error'])} | "
            + " | ".join(
                f"{100 * np.mean(hits[name]):.1f} ({np.mean(hits[f'{name}, width']):.3f})"
                for name in ("validation", "cross-validated", "cross-validated, Wilson")
            )
            + f" | {np.mean(hits['difference']):+.3f} | {ratio:.2f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, nargs="+", default=[0, 3, 10, 30])
    parser.add_argument("--images", type=int, nargs="+", default=[40, 100, 300, 1000])
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--spread", type=float, default=0.7, help="of the terms of groups")
    parser.add_argument("--weights")
    parser.add_argument("--data", type=Path, nargs="+", default=[])
    parser.add_argument("--clips", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for groups in [] if args.data else args.groups:
        simulate(groups, args.images, args.draws, args.spread)
    if args.data:
        print(
            "| photos | images | draws | validation | cross-validated | as without an effect | "
            "difference | standard deviations |"
        )
        print("|---|---|---|---|---|---|---|---|")
    for data in args.data:
        real(data, args.weights, args.images, args.draws, args.clips)


if __name__ == "__main__":
    main()
