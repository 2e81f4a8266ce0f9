"""Photos that keep their side of the split when the data grow, and what `--like` adds to it.

    python -m benchmarks.accuracy.growth --data flower_photos [--seeds 20]
    python -m benchmarks.accuracy.growth --data flower_photos --weights FILE --cache DIR [--changes ...]

A data set is drawn from the photos, split, changed and split again: photos are added, removed, or all files are renamed. The
table gives the percentage of the former validation photos that are still there and validation photos again, for
the split by content and the random split, and the largest distance of a class from the number of images that the rule wants.

The second form trains on the photos before and after a change (seed 0, a head on the last block), the second time with `--like`,
and prints what stays, how many held-out photos were trained on, the distance, the seconds of the second run and the conclusion of `vitft compare`.
The change "a new class" adds the last class of the folder.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from vitft.config.run import config_from_table
from vitft.config.sections import DataSpec
from vitft.data.image_table import Images, Row
from vitft.data.images import inspect_folder
from vitft.data.scan import scan
from vitft.data.split import split
from vitft.report.comparison import compare_runs
from vitft.report.run_files import read_run
from vitft.training.run import run_finetuning

Photos = Sequence[Row]


def divide(found: Images, photos: Photos, spec: DataSpec) -> Images:
    """Return the split of some photos of a folder, listed as a folder lists them."""
    rows = sorted(photos, key=lambda row: (row.label, row.path))
    return split(replace(found, rows=rows), spec)


def thinned(photos: Photos, fraction: float, seed: int) -> list[Row]:
    """Return a fraction of the photos of each class, drawn at random."""
    stream, chosen = random.Random(seed), list[Row]()
    for label in sorted({file.label for file in photos}):
        own = [file for file in photos if file.label == label]
        chosen += stream.sample(own, round(len(own) * fraction))
    return chosen


def renamed(photos: Photos, seed: int) -> list[Row]:
    """Return the photos with random file names."""
    names = random.Random(seed).sample(range(10**9), len(photos))
    return [
        file._replace(path=f"{file.path.partition('/')[0]}/{name:09}.jpg")
        for file, name in zip(photos, names, strict=True)
    ]


CHANGES: dict[str, Callable[[Photos, int], tuple[Photos, Photos]]] = {
    "1% more": lambda photos, seed: (thinned(photos, 1 / 1.01, seed), photos),
    "10% more": lambda photos, seed: (thinned(photos, 1 / 1.1, seed), photos),
    "100% more": lambda photos, seed: (thinned(photos, 1 / 2, seed), photos),
    "10% fewer": lambda photos, seed: (photos, thinned(photos, 0.9, seed)),
    "all renamed": lambda photos, seed: (photos, renamed(photos, seed)),
}
"""The photos before and after each change."""


def without_last_class(photos: Photos) -> Photos:
    """Return the photos of all classes but the last."""
    last = max(file.label for file in photos)
    return [file for file in photos if file.label < last]


def staying(before: Images, after: Images) -> float:
    """Return the fraction of the former validation photos, without removed ones, that stay."""
    present = {row.sha256 for row in after.rows}
    held = {row.sha256 for row in before.val} & present
    return len(held & {row.sha256 for row in after.val}) / len(held)


def distance(manifest: Images, rate: float) -> float:
    """Return the largest distance of a class from the wanted number of validation images."""
    found = 0.0
    for label in range(len(manifest.classes)):
        rows = [row for row in manifest.rows if row.label == label]
        found = max(found, abs(sum(row.split == "val" for row in rows) - rate * len(rows)))
    return found


def measure(found: Images, seeds: int) -> None:
    """Print a line for each change: what stays by content and at random, and the distance."""
    print("| change | stay, by content (lowest of the seeds) | stay, at random | distance |")
    print("|---|---|---|---|")
    for name, change in CHANGES.items():
        kept: dict[str, list[float]] = {"content": [], "random": []}
        farthest = 0.0
        for seed in range(seeds):
            one, other = change(found.rows, seed)
            for mode, fractions in kept.items():
                spec = DataSpec(split=mode, seed=seed)  # type: ignore[arg-type]
                before, after = divide(found, one, spec), divide(found, other, spec)
                fractions.append(staying(before, after))
                if mode == "content":
                    both = distance(before, spec.val_rate), distance(after, spec.val_rate)
                    farthest = max(farthest, *both)
        content, drawn = (100 * sum(f) / seeds for f in kept.values())
        low = 100 * min(kept["content"])
        print(f"| {name} | {content:.1f}% ({low:.1f}) | {drawn:.1f}% | {farthest:.1f} |")


def link(data: Path, before: Photos, after: Photos, into: Path) -> None:
    """Link photos into a folder; the name is taken from `after`, the content from `before`."""
    contents = {file.sha256: file.path for file in before}
    for file in after:
        place = into / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to((data / contents[file.sha256]).resolve())


def run_with_like(data: Path, found: Images, name: str, weights: Path, cache: str) -> None:
    """Train before and after a change, the second time with `--like`, and print a line."""
    changes = {**CHANGES, "a new class": lambda photos, _: (without_last_class(photos), photos)}
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder) / "first", Path(folder) / "second"]
        for run, photos in zip(runs, changes[name](found.rows, 0), strict=True):
            images = run.with_name(f"{run.name} photos")
            link(data, found.rows, photos, images)
            table = {
                "data": {"path": str(images), "like": str(runs[0]) if run is runs[1] else ""},
                "weights": {"name": str(weights)},
                "train": {"cache": cache, "head_blocks": 1},
            }
            started = time.monotonic()
            run_finetuning(config_from_table(table), out=run)
            seconds = time.monotonic() - started
        before, after = (Images.from_csv(run / "split.csv", run) for run in runs)
        trained = {row.sha256 for row in after.train} & {row.sha256 for row in before.val}
        text = compare_runs([read_run(run) for run in runs]).conclusions[0]
        print(
            f"| {name} | {100 * staying(before, after):.1f}% | {len(trained)} | "
            f"{distance(after, 0.2):.1f} | {seconds:.0f} | {text} |",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--cache", default="")
    parser.add_argument("--changes", nargs="+", default=[*CHANGES, "a new class"])
    args = parser.parse_args()
    inspected = inspect_folder(scan(args.data))
    if args.weights is None:
        measure(inspected, args.seeds)
    else:
        for change in args.changes:
            run_with_like(args.data, inspected, change, args.weights, args.cache)
