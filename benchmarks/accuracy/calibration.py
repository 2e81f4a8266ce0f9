"""Calibration error and thresholds of solved heads on new photos, by the number of validation images.

    python -m benchmarks.accuracy.calibration --weights FILE --data DIR [--fresh DIR] [--splits 5]

For each split and size, that many images per class are drawn from --data, `vitft finetune` trains on four
fifths and validates on one fifth, and its calibrated head is applied to the cached features of new photos:
those of --fresh, or those of --data that were not drawn. "before" is the same head without its temperature.
The calibration error is corrected for chance, as in eval.json. The oracle is the smallest threshold that
reaches the precision on the new photos themselves.
"""

import argparse
import os
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.accuracy.seeds import Settings, run_arm
from benchmarks.folders import merge_splits
from benchmarks.timing import mean_deviation
from vitft.config.run import config_from_table
from vitft.data.scan import scan
from vitft.data.transforms import eval_view
from vitft.features.extract import inspect_dataset, load_pipeline
from vitft.metrics.calibration import (
    bin_by_confidence,
    calibration_error,
    confidence_and_correctness,
)
from vitft.models.checkpoint import load_checkpoint
from vitft.predict.threshold import choose_threshold
from vitft.system.errors import UsageError

SIZES = (30, 60, 120, 240)
PRECISIONS = (0.95, 0.97, 0.99)
ARMS: dict[str, Settings] = {"solved": {}, "steps": {"optim": {"solver": "adamw", "epochs": 20}}}


@dataclass(frozen=True)
class Photos:
    """Features and labels of a folder, and the paths of its images."""

    root: Path
    classes: tuple[str, ...]
    paths: list[str]
    features: Tensor
    labels: np.ndarray[Any, Any]


def read_photos(root: Path, weights: Path, cache: Path) -> Photos:
    """Return the features of a folder as a run computes them, from the cache where possible."""
    table = {"data": {"path": str(root)}, "weights": {"name": str(weights)}, "train": {"cache": str(cache)}}  # fmt: skip
    config, folder = config_from_table(table), scan(root)
    pipeline, report = load_pipeline(folder, "head", config)
    extractor = pipeline.open_extractor()
    assert extractor is not None
    view = eval_view(report.transform)
    found = inspect_dataset(
        folder,
        max_pixels=config.data.max_pixels,
        allow_bad=True,
        extractor=extractor,
        view=view,
    )
    return Photos(
        root,
        folder.classes,
        [file.path for file in found.rows],
        extractor.rows([file.sha256 for file in found.rows], view),
        np.array([file.label for file in found.rows]),
    )


def draw_folder(photos: Photos, images: int, seed: int, into: Path) -> np.ndarray[Any, Any]:
    """Link randomly drawn images, equally many of each class, and return their indices."""
    random = np.random.default_rng(seed)
    each = images // len(photos.classes)
    drawn = [
        random.permutation(np.flatnonzero(photos.labels == label))[:each]
        for label in range(len(photos.classes))
    ]
    chosen = np.concatenate(drawn)
    for i in chosen:
        path = into / photos.paths[i]
        path.parent.mkdir(parents=True, exist_ok=True)
        os.symlink((photos.root / photos.paths[i]).resolve(), path)
    return chosen


def head_logits(run: Path, features: Tensor) -> np.ndarray[Any, Any]:
    """Return the logits of the saved head of a run."""
    tensors, _ = load_checkpoint(run / "model.safetensors")
    logits = features @ tensors["head.weight"].T + tensors["head.bias"]
    return logits.double().numpy()


def error_percent(logits: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> float:
    bins = bin_by_confidence(*confidence_and_correctness(logits, labels))
    return 100 * calibration_error(bins)[0]


def oracle_kept(
    confidence: np.ndarray[Any, Any], right: np.ndarray[Any, Any], precision: float
) -> float:
    """Return the largest fraction of the photos that reaches a precision, most confident first."""
    ranked = right[np.argsort(-confidence)]
    n = np.arange(1, len(ranked) + 1)
    reached = np.flatnonzero(np.cumsum(ranked) >= precision * n)
    return float(reached[-1] + 1) / len(n) if len(reached) else 0.0


def measure(
    run: Path, temperature: float, fresh: Photos, chosen: slice | np.ndarray[Any, Any]
) -> dict[str, float]:
    """Return the figures of a run on new photos, in percent."""
    logits, labels = head_logits(run, fresh.features[chosen]), fresh.labels[chosen]
    confidence, right = confidence_and_correctness(logits, labels)
    found = {
        "accuracy": 100 * right.mean(),
        "before": error_percent(logits * temperature, labels),
        "after": error_percent(logits, labels),
    }
    for precision in PRECISIONS:
        best = 100 * oracle_kept(confidence, right, precision)
        found[f"oracle {precision}"] = best
        try:
            kept = confidence >= choose_threshold(run, precision).value
        except UsageError:
            found[f"refused {precision}"] = 1.0
            continue
        found[f"kept {precision}"] = 100 * kept.mean()
        found[f"short {precision}"] = best - 100 * kept.mean()
        found[f"precision {precision}"] = 100 * right[kept].mean()
    return found


def print_table(name: str, size: int, rows: list[dict[str, float]]) -> None:
    """Print the mean and standard deviation of each figure over the splits."""
    values: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for key, value in row.items():
            values[key].append(value)
    errors = " to ".join(mean_deviation(values[key]) for key in ("before", "after"))
    accuracy = mean_deviation(values["accuracy"])
    print(f"| {name} | {size} | {accuracy} | {errors} | {max(values['after']):.1f} |", flush=True)
    for precision in PRECISIONS:
        refused = len(values[f"refused {precision}"])
        if refused < len(rows):
            kept, got = (mean_deviation(values[f"{k} {precision}"]) for k in ("kept", "precision"))
            short = max(values[f"short {precision}"])
            text = f"kept {kept}, at most {short:.1f} below the oracle; precision {got}"
        else:
            text = "-"
        oracle = mean_deviation(values[f"oracle {precision}"])
        print(f"    {precision}: oracle {oracle}; {text}; refused {refused} of {len(rows)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--fresh", type=Path, help="other photos of the same classes")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[*ARMS])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        into = Path(temporary)
        cache = into / "cache"
        photos = read_photos(merge_splits(args.data, into), args.weights, cache)
        fresh = read_photos(args.fresh, args.weights, cache) if args.fresh else photos
        for arm in args.arms:
            for size in SIZES:
                images = 5 * size
                if images > len(photos.paths) - (0 if args.fresh else 100):
                    continue
                rows = []
                for seed in range(args.splits):
                    data = into / f"{size}-{seed}-{arm}"
                    drawn = draw_folder(photos, images, seed, data)
                    done = run_arm(arm, ARMS[arm], data, args.weights, seed, into)
                    rest = (
                        slice(None)
                        if args.fresh
                        else np.delete(np.arange(len(photos.paths)), drawn)
                    )
                    temperature = done.figures["calibration"]["temperature"]
                    rows.append(measure(done.out, temperature, fresh, rest))
                print_table(f"{args.data.name}, {arm}", size, rows)


if __name__ == "__main__":
    main()
