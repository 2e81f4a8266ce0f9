"""Prediction sets (`--coverage`) and certain thresholds (`--confidence`) on new photos.

    python -m benchmarks.accuracy.guarantees --weights FILE --data DIR [--images 600] [--draws 250] [--persons]
        [--coverages 0.9 0.95] [--precisions 0.95]

"run": for each draw, so many images (with --persons: persons) are chosen, a fifth is held out, and the head is solved,
cross-validated and calibrated as `vitft finetune` does it. Sets and thresholds come from the held-out predictions. They are
tested on the other photos, with the class frequencies of the chosen ones. The truth has an error of its own here, which
raises the number of draws below a precision.

"known": the head is solved on the chosen images. The held-out images are drawn from the others with replacement, as many as
there are, and the temperature is fitted to them. The truth is that of the others, without an error.

--persons takes the persons of sign_language_digits as groups. They are guessed: photos of a person have consecutive numbers
from digit 0 to 9, so the number minus the digit is the same.
"""

import argparse
import math
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.accuracy.blocks_read import Features, extract
from vitft.features.head import cross_validate, solve_head
from vitft.metrics.calibration import (
    ScoredSet,
    are_comparable,
    calibrate_temperature,
    softmax,
)
from vitft.metrics.outputs import Outputs
from vitft.predict.threshold import Answers, SetLimits, certain_cover, smallest_cover

CONFIDENCE = 0.95
Array = np.ndarray[Any, Any]


class Scored(NamedTuple):
    """Calibrated probabilities (n, C) of photos, their classes, groups and weights."""

    p: Array
    y: Array
    group: Array
    weight: Array

    @property
    def right(self) -> Array:
        return self.p.argmax(axis=1) == self.y

    @property
    def of_label(self) -> Array:
        return self.p[np.arange(len(self.y)), self.y]


def persons(found: Features) -> Array:
    """Return the group of each photo: persons guessed from the numbers of the files."""
    names = [Path(path) for path in found.paths]
    first = np.array(
        [
            int("".join(filter(str.isdigit, p.stem.split("_")[-1]))) - int(p.parent.name)
            for p in names
        ]
    )
    known = np.unique(first)
    return np.append(0, np.cumsum(np.diff(known) > 1))[np.searchsorted(known, first)]


def as_a_run(found: Features, group: Array, rng: np.random.Generator, number: int) -> Any:
    """Return the held-out and the new photos of a draw as in a run, or None."""
    order = rng.permutation(group.max() + 1)
    held, chosen = np.isin(group, order[: number // 5]), np.isin(group, order[:number])
    train = chosen & ~held
    x, y, ids = found.x[:, : found.read], found.y, torch.from_numpy(group)
    if len(y[train].unique()) < found.classes:
        return None
    options: Any = {"balanced": False, "seed": 0}
    head = solve_head(x[train], y[train], classes=found.classes, l2=0, groups=ids[train], **options)
    rows = np.concatenate([np.flatnonzero(train), np.flatnonzero(held)])
    names = [str(i) for i in range(found.classes)]
    units = group[rows] if len(group) > group.max() + 1 else None
    scored = cross_validate(
        x[rows],
        y[rows],
        Outputs.of(names),
        method=head.method,
        groups=ids[rows],
        units=units,
        **options,
    )
    if scored is None:
        return None
    logits = (x @ head.weight.T + head.bias).double().numpy()
    own = scored[1][0].numpy()
    is_training = own < train.sum()
    crossed = rows[own[is_training]]
    labels = y.numpy()
    validation = ScoredSet(logits[held], labels[held], group[held])
    training = ScoredSet(
        scored[1][1].double().numpy()[is_training], labels[crossed], group[crossed]
    )
    if not are_comparable(validation, training):
        training, crossed = ScoredSet(logits[:0], labels[:0]), crossed[:0]
    warm = calibrate_temperature(validation, training if len(crossed) else None).value
    every = np.concatenate([np.flatnonzero(held), crossed])
    share = np.bincount(labels[every], minlength=found.classes) / len(every)
    size = np.maximum(1, np.bincount(labels[~chosen], minlength=found.classes))
    known = Scored(
        softmax(np.concatenate([logits[held], training.logits]) / warm),
        labels[every],
        group[every],
        np.ones(len(every)),
    )
    new = labels[~chosen]
    return known, Scored(softmax(logits[~chosen] / warm), new, group[~chosen], (share / size)[new])


def with_known_truth(found: Features, group: Array, rng: np.random.Generator, number: int) -> Any:
    """Return held-out photos drawn with replacement, and all photos from which they are drawn."""
    order = rng.permutation(group.max() + 1)
    train, labels = np.isin(group, order[:number]), found.y.numpy()
    x = found.x[:, : found.read]
    if len(np.unique(labels[train])) < found.classes:
        return None
    head = solve_head(
        x[train], found.y[train], classes=found.classes, l2=0, balanced=False, seed=0,
        groups=torch.from_numpy(group[train]),
    )  # fmt: skip
    logits = (x @ head.weight.T + head.bias).double().numpy()
    picks = rng.choice(order[number:], len(order) - number)
    rows = [np.flatnonzero(group == one) for one in picks]
    drawn, own = np.concatenate(rows), np.repeat(np.arange(len(picks)), [len(r) for r in rows])
    warm = calibrate_temperature(ScoredSet(logits[drawn], labels[drawn], own)).value
    # A person counts as one for sets, whatever the number of photos
    sizes = np.bincount(group)[group[~train]]
    return (
        Scored(softmax(logits[drawn] / warm), labels[drawn], own, np.ones(len(drawn))),
        Scored(softmax(logits[~train] / warm), labels[~train], group[~train], 1 / sizes),
    )


def quantile(scores: Array, coverage: float) -> float:
    """Return the quantile of split conformal prediction, infinite if there are too few scores."""
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else math.inf


def adaptive(p: Array, rng: np.random.Generator, penalty: float) -> Array:
    """Return the randomised scores (n, C) of APS, or of RAPS with a penalty beyond rank 1.

    Sources: Romano, Sesia & Candes 2020, and Angelopoulos et al. 2021 (ICLR).
    """
    order = np.argsort(-p, axis=1, kind="stable")
    total = np.cumsum(np.take_along_axis(p, order, 1), axis=1) + penalty * np.arange(p.shape[1])
    scores = np.empty_like(p)
    np.put_along_axis(scores, order, total, 1)
    return scores - rng.random((len(p), 1)) * p


def sets_of(known: Scored, new: Scored, coverage: float, groups: Any, seed: int) -> dict[str, Any]:
    """Return the sets of new photos (n, C) by method, and the limits of ours."""
    rng, at = np.random.default_rng(seed), np.arange(len(known.y))
    ours = SetLimits.fit(known.of_label, known.y, coverage, classes=known.p.shape[1], groups=groups)
    found: dict[str, Any] = {"LAC by class (adopted)": new.p >= ours.limits} if ours else {}
    found["LAC, one limit"] = -new.p <= quantile(-known.of_label, coverage)
    for name, penalty in (("APS", 0.0), ("RAPS 0.01", 0.01), ("RAPS 0.1", 0.1)):
        limit = quantile(adaptive(known.p, rng, penalty)[at, known.y], coverage)
        found[name] = adaptive(new.p, rng, penalty) <= limit
    return {"ours": ours, **found}


def measure_sets(
    known: Scored, new: Scored, coverage: float, groups: Any, seed: int, rows: Any
) -> None:
    """Add the coverage of each method to its rows."""
    found, at = sets_of(known, new, coverage, groups, seed), np.arange(len(new.y))
    ours, weight = found.pop("ours"), new.weight / new.weight.sum()
    for name, members in found.items():
        members[at, new.p.argmax(axis=1)] = True
        inside, sizes = members[at, new.y], members.sum(axis=1)
        truth, row = float(weight @ inside), rows[coverage, name]
        row["coverage"].append(truth)
        row["size"].append(float(weight @ sizes))
        row["single"].append(float(weight @ (sizes == 1)))
        row["ambiguous"].append(inside[sizes > 1].mean() if (sizes > 1).any() else np.nan)
        row["classes"].append(
            [
                inside[new.y == c].mean() if (new.y == c).any() else np.nan
                for c in range(known.p.shape[1])
            ]
        )
        if ours is None or "adopted" not in name:
            continue
        stated, (low, high) = ours.measured(known.right, groups)
        error = math.sqrt(float((np.bincount(new.group, weight * (inside - truth)) ** 2).sum()))
        error *= float(rows["design"] == "run")
        row["stated"].append(stated)
        row["held"].append(
            stated - math.hypot(stated - low, 1.96 * error)
            <= truth
            <= stated + math.hypot(high - stated, 1.96 * error)
        )


def measure_thresholds(
    known: Scored, new: Scored, precision: float, groups: Any, rows: Any
) -> None:
    """Add the precision and the fraction of kept photos of both rules to their rows."""
    names = None if groups is None else list(map(str, groups))
    answers = Answers.sorted(known.p.max(axis=1).tolist(), known.right.tolist(), names)
    weight = new.weight if rows["design"] == "run" else np.ones(len(new.y))
    for name, covered in (
        ("--precision", smallest_cover(answers, precision)),
        ("and --confidence", certain_cover(answers, precision, CONFIDENCE)),
    ):
        row = rows[precision, name]
        row["refused"].append(not covered)
        if not covered:
            row["kept"].append(0.0)
            row["below"].append(False)
            continue
        above = new.p.max(axis=1) >= answers.probability[covered - 1]
        kept = weight * above / max(1e-12, (weight * above).sum())
        reached = float(kept @ new.right)
        row["kept"].append((weight * above).sum() / weight.sum())
        row["below"].append(reached < precision - 1e-12)
        row["precision"].append(reached)
        row["noise"].append((np.bincount(new.group, kept * (new.right - reached)) ** 2).sum())


def print_rows(rows: Any, name: str, draws: int) -> None:
    """Print a row for each coverage or precision and method."""
    for (wanted, method), row in ((k, v) for k, v in rows.items() if k != "design"):
        start = f"| {name} | {rows['design']} | {draws} | {wanted:g} | {method} |"
        if "coverage" in row:
            values, by_class = row["coverage"], np.nanmean(row["classes"], axis=0)
            held = (
                f"{100 * np.mean(row['stated']):.1f}, {100 * np.mean(row['held']):.0f}"
                if row["held"]
                else "-"
            )
            print(
                f"{start} {100 * np.mean(values):.1f} ± {100 * np.std(values) / len(values) ** 0.5:.1f} | "
                f"{100 * by_class.min():.1f} to {100 * by_class.max():.1f} | {np.mean(row['size']):.2f} | "
                f"{100 * np.mean(row['single']):.0f} | {100 * np.nanmean(row['ambiguous']):.1f} | {held} |",
                flush=True,
            )
        else:
            noise = np.mean(row["noise"]) ** 0.5 if row["noise"] else math.nan
            noise *= float(rows["design"] == "run")
            print(
                f"{start} {100 * np.mean(row['below']):.1f} | {100 * np.mean(row['precision'] or np.nan):.1f} ± "
                f"{100 * np.std(row['precision'] or np.nan):.1f} (noise {100 * noise:.1f}) | {100 * np.mean(row['kept']):.1f} | "
                f"{100 * np.mean(row['refused']):.1f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--draws", type=int, default=250)
    parser.add_argument("--persons", action="store_true")
    parser.add_argument("--coverages", type=float, nargs="*", default=[0.9, 0.95])
    parser.add_argument("--precisions", type=float, nargs="*", default=[0.95])
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = extract(args.data, args.weights)
    group = persons(found) if args.persons else np.arange(len(found.y))
    print(
        "| photos | design | draws | wanted | sets | coverage % | by class % | size | one class % | of larger sets % | stated, held % |"
    )
    print(
        "| photos | design | draws | wanted | threshold | draws below % | precision % | kept % | refused % |"
    )
    for design, draw in (("run", as_a_run), ("known", with_known_truth)):
        rows: Any = defaultdict(lambda: defaultdict(list))
        rows["design"], done = design, 0
        for seed in range(args.draws):
            pair = draw(found, group, np.random.default_rng([args.images, seed]), args.images)
            if pair is None:
                continue
            groups = pair[0].group if args.persons else None
            for coverage in args.coverages:
                measure_sets(*pair, coverage, groups, seed, rows)
            for precision in args.precisions:
                measure_thresholds(*pair, precision, groups, rows)
            done += 1
        print_rows(rows, f"{args.data.name}, {args.images}", done)


if __name__ == "__main__":
    main()
