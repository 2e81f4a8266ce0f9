"""Coverage of the 95% intervals in eval.json, and the effect of the temperature.

    python -m benchmarks.accuracy.coverage [--splits 1000] [--slow 300] [--worlds 0 1 2 3]
    python -m benchmarks.accuracy.coverage --weights FILE --data DIR [DIR ...] [--seeds 5]

First form: simulated features of known classes (unit Gaussians around random centres, some wrong labels).
For each split: draw images, hold back a fifth of each class, solve the head on the others and evaluate it
on the held-back images as a run does. The truth is the accuracy of the same head on 100,000 new images, so
each split has its own head and its own truth. The alternative is the usual percentile bootstrap,
stratified by class, on the same data. What simulates (calibration error) or resamples is computed for the
first `--slow` splits only.

Second form: `vitft finetune` on real photos over split seeds; calibration error and loss before and after,
"after" always on images that the temperature was not fitted to.
"""

import argparse
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.accuracy.seeds import run_arm
from benchmarks.folders import merge_splits
from benchmarks.timing import mean_deviation
from vitft.data.image_table import Images
from vitft.data.split import draw
from vitft.features.head import solve_head
from vitft.metrics.calibration import (
    ScoredSet,
    bin_by_confidence,
    binned_error,
    calibrate_temperature,
    confidence_and_correctness,
)
from vitft.metrics.classification import calibrated_metrics, classification_metrics
from vitft.metrics.outputs import Outputs

FRESH = 100_000
RESAMPLES = 1000


@dataclass(frozen=True)
class World:
    """Distribution from which images are drawn."""

    name: str
    images: tuple[int, ...]  # of each class
    apart: float  # distance of each centre from the origin, in standard deviations
    wrong: float  # fraction of wrong labels
    l2: float
    width: int = 24

    def centres(self) -> Tensor:
        rng = torch.Generator().manual_seed(7)
        return self.apart * F.normalize(
            torch.randn(len(self.images), self.width, generator=rng), dim=1
        )

    def draw(self, counts: list[int], rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return features and labels; a fraction of the features belongs to another class."""
        labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        actual = labels.clone()
        mixed = torch.rand(len(labels), generator=rng) < self.wrong
        actual[mixed] = torch.randint(0, len(counts), (int(mixed.sum()),), generator=rng)
        return self.centres()[actual] + torch.randn(len(labels), self.width, generator=rng), labels


WORLDS = (
    World("60 held back, 5 classes", (60,) * 5, 2.6, 0.03, 0.1),
    World("240 held back, 5 classes", (240,) * 5, 3.2, 0.02, 0.1),
    World("240 held back, 5 classes, weak penalty", (240,) * 5, 2.6, 0.02, 0.0001),
    World(
        "10 classes of 15 to 500 images",
        (500, 400, 300, 200, 150, 100, 60, 40, 25, 15),
        3.0,
        0.05,
        0.03,
    ),
)


def confusion_of(logits: Tensor, labels: Tensor) -> np.ndarray[Any, Any]:
    """Return the confusion matrix by true class (row) and predicted class (column)."""
    names = [str(i) for i in range(logits.shape[1])]
    return np.array(classification_metrics(logits, labels, Outputs.of(names))["confusion"])


def truths(logits: Tensor, labels: Tensor, prior: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return the metrics of the head on new images, with the class frequencies of the data."""
    matrix = confusion_of(logits, labels)
    rates = matrix / matrix.sum(axis=1, keepdims=True)
    mass = rates * prior[:, None]
    hit = mass.diagonal()
    return {
        "accuracy": hit.sum(),
        "balanced accuracy": rates.diagonal().mean(),
        "recall": rates.diagonal(),
        "precision": hit / np.maximum(mass.sum(axis=0), 1e-12),
        "F1": 2 * hit / (mass.sum(axis=0) + mass.sum(axis=1)),
        "calibration error": binned_error(
            bin_by_confidence(*confidence_and_correctness(logits.double().numpy(), labels.numpy()))
        ),
        "log-loss": F.cross_entropy(logits, labels).item(),
    }


def percentile(draws: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    return np.quantile(draws, 0.025, axis=0), np.quantile(draws, 0.975, axis=0)


def bootstrap(
    logits: Tensor, labels: Tensor, rng: np.random.Generator
) -> dict[str, tuple[Any, Any]]:
    """Return intervals of the percentile bootstrap, stratified by class where labels are counted."""
    matrix = confusion_of(logits, labels)
    drawn = np.stack(
        [rng.multinomial(row.sum(), row / row.sum(), RESAMPLES) for row in matrix], axis=1
    )
    hits = np.diagonal(drawn, axis1=1, axis2=2)
    rows, columns = drawn.sum(axis=2), drawn.sum(axis=1)
    conf, right = confidence_and_correctness(logits.double().numpy(), labels.numpy())
    picks = rng.integers(0, len(labels), (200, len(labels)))
    loss = F.cross_entropy(logits, labels, reduction="none").numpy()
    many = rng.integers(0, len(labels), (RESAMPLES, len(labels)))
    return {
        "accuracy": percentile(hits.sum(axis=1) / rows.sum(axis=1)),
        "balanced accuracy": percentile((hits / rows).mean(axis=1)),
        "recall": percentile(hits / rows),
        "precision": percentile(hits / np.maximum(columns, 1)),
        "F1": percentile(2 * hits / (rows + columns)),
        "calibration error": percentile(
            np.array([binned_error(bin_by_confidence(conf[i], right[i])) for i in picks])
        ),
        "log-loss": percentile(loss[many].mean(axis=1)),
    }


def ours(figures: dict[str, Any]) -> dict[str, list[tuple[float, float] | None]]:
    """Return our intervals under the names of `truths`."""
    found = {
        "accuracy": [figures["top1_interval"]],
        "balanced accuracy": [figures["balanced_interval"]],
        **{
            name: [row[f"{key}_interval"] for row in figures["per_class"].values()]
            for name, key in (("recall", "recall"), ("precision", "precision"), ("F1", "f1"))
        },
    }
    if figures["calibration"]:
        found["calibration error"] = [figures["calibration"]["ece_interval"]]
        found["log-loss"] = [figures["loss_interval"]]
    return found


def simulate(world: World, splits: int, slow: int) -> None:
    """Simulate splits and print a table of coverage."""
    counts = list(world.images)
    prior = np.array(counts) / sum(counts)
    held, kept = defaultdict(list), defaultdict(list)
    widths, rough = defaultdict(list), defaultdict(list)
    errors = defaultdict(list)
    chance = np.random.default_rng(1)
    for number in range(splits):
        rng = torch.Generator().manual_seed(number)
        x, y = world.draw(counts, rng)
        drawn = draw(counts, 0.2, number, at_least=1)
        starts = np.cumsum([0, *counts[:-1]])
        back = torch.zeros(len(y), dtype=torch.bool)
        back[[int(s) + i for s, picks in zip(starts, drawn, strict=True) for i in picks]] = True
        head = solve_head(
            x[~back], y[~back], classes=len(counts), l2=world.l2, balanced=False, seed=0
        )
        logits, labels = x[back] @ head.weight.T + head.bias, y[back]
        names = [str(i) for i in range(len(counts))]
        figures = classification_metrics(logits, labels, Outputs.of(names))
        temperature = calibrate_temperature(ScoredSet(logits.double().numpy(), labels.numpy()))
        if number < slow:
            figures |= calibrated_metrics(logits, labels, temperature)
        fresh = [int(FRESH * p) for p in prior]
        fresh_x, fresh_y = world.draw(fresh, rng)
        raw = fresh_x @ head.weight.T + head.bias
        truth = truths(raw / temperature.value, fresh_y, prior)
        for name, intervals in ours(figures).items():
            for value, interval in zip(np.atleast_1d(truth[name]), intervals, strict=True):
                if interval is not None:
                    held[name].append(interval[0] <= value <= interval[1])
                    widths[name].append(interval[1] - interval[0])
        if number < slow:
            for name, (low, high) in bootstrap(logits / temperature.value, labels, chance).items():
                inside = (low <= truth[name]) & (truth[name] <= high)
                kept[name] += np.atleast_1d(inside).tolist()
                rough[name] += np.atleast_1d(high - low).tolist()
            before = binned_error(
                bin_by_confidence(
                    *confidence_and_correctness(raw.double().numpy(), fresh_y.numpy())
                )
            )
            calibration = figures["calibration"]
            errors["true, before"].append(before)
            errors["estimated, before"].append(calibration["ece_before"])
            errors["true, after"].append(truth["calibration error"])
            errors["estimated, after"].append(calibration["ece"])
            errors["plain sum over bins, after"].append(calibration["ece_binned"])
            errors["log-loss, true minus estimated"].append(truth["log-loss"] - figures["loss"])
            errors["log-loss, true, before"].append(F.cross_entropy(raw, fresh_y).item())
            errors["log-loss, true, after"].append(truth["log-loss"])
            errors["left at 1"].append(bool(calibration["note"]))
    print(f"\n{world.name}: {splits} splits ({slow} for the last two rows and the bootstrap)")
    print("| metric | coverage % | mean width | bootstrap: coverage % | width |")
    for name in held:
        print(
            f"| {name} | {100 * np.mean(held[name]):.1f} | {np.mean(widths[name]):.3f} "
            f"| {100 * np.mean(kept[name]):.1f} | {np.mean(rough[name]):.3f} |"
        )
    means = "; ".join(f"{name} {np.mean(values):.4f}" for name, values in errors.items())
    print(f"calibration error, means: {means}", flush=True)


def real(data: Path, weights: Path, seeds: int, into: Path) -> None:
    """Print calibration before and after on photos, for two penalties."""
    root = merge_splits(data, into)
    for arm, optim in (("default", {}), ("penalty 0.0001", {"l2": 0.0001})):
        rows = defaultdict(list)
        for seed in range(seeds):
            done = run_arm(arm, {"optim": optim}, root, weights, seed, into)
            out, figures = done.out, done.figures
            calibration = figures["calibration"]
            with np.load(out / "validation.npz") as file:
                logits = torch.from_numpy(file["logits"]).double() * calibration["temperature"]
            labels = torch.tensor(
                [row.label for row in Images.from_csv(out / "split.csv", root).val]
            )
            rows["temperature"].append(calibration["temperature"])
            rows["error before"].append(100 * calibration["ece_before"])
            rows["error after"].append(100 * calibration["ece"])
            rows["upper end after"].append(100 * calibration["ece_interval"][1])
            rows["plain sum, before"].append(
                100
                * binned_error(
                    bin_by_confidence(*confidence_and_correctness(logits.numpy(), labels.numpy()))
                )
            )
            rows["plain sum, after"].append(100 * calibration["ece_binned"])
            rows["loss before"].append(F.cross_entropy(logits, labels).item())
            rows["loss after"].append(figures["loss"])
        print(f"\n{data.name}, {arm}, {seeds} split seeds, {figures['images']} images held back")
        for name, values in rows.items():
            print(f"| {name} | {mean_deviation(values, '.3g')} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--slow", type=int, default=300)
    parser.add_argument("--worlds", type=int, nargs="+", default=range(len(WORLDS)), help="which")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", type=Path, nargs="+", default=[])
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    if not args.data:
        for number in args.worlds:
            simulate(WORLDS[number], args.splits, min(args.slow, args.splits))
    with tempfile.TemporaryDirectory() as temporary:
        for data in args.data:
            real(data, args.weights, args.seeds, Path(temporary))


if __name__ == "__main__":
    main()
