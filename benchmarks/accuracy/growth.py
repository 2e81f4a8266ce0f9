"""Photos that keep their side of the split when the data grow, and what `--like` adds to it.

    python -m benchmarks.accuracy.growth --data flower_photos [--seeds 20]

A data set is drawn from the photos, split, changed and split again: photos are added, removed, or all files are renamed. The
table gives the percentage of the former validation photos that are still there and validation photos again, for
the split by content and the random split, and the largest distance of a class from the number of images that the rule wants.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from vitft.config.sections import DataSpec
from vitft.data.inspection import InspectedFile, InspectedFolder, inspect_folder
from vitft.data.scan import scan
from vitft.data.split import Manifest, split

Photos = Sequence[InspectedFile]


def divide(found: InspectedFolder, photos: Photos, spec: DataSpec) -> Manifest:
    """Return the split of some photos of a folder, listed as a folder lists them."""
    files = tuple(sorted(photos, key=lambda file: (file.label, file.path)))
    return split(replace(found, good=files), spec)


def thinned(photos: Photos, fraction: float, seed: int) -> list[InspectedFile]:
    """Return a fraction of the photos of each class, drawn at random."""
    stream, chosen = random.Random(seed), list[InspectedFile]()
    for label in sorted({file.label for file in photos}):
        own = [file for file in photos if file.label == label]
        chosen += stream.sample(own, round(len(own) * fraction))
    return chosen


def renamed(photos: Photos, seed: int) -> list[InspectedFile]:
    """Return the photos with random file names."""
    names = random.Random(seed).sample(range(10**9), len(photos))
    return [
        replace(file, path=f"{file.path.partition('/')[0]}/{name:09}.jpg")
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


def staying(before: Manifest, after: Manifest) -> float:
    """Return the fraction of the former validation photos, without removed ones, that stay."""
    present = {row.sha256 for row in after.rows}
    held = {row.sha256 for row in before.val} & present
    return len(held & {row.sha256 for row in after.val}) / len(held)


def distance(manifest: Manifest, rate: float) -> float:
    """Return the largest distance of a class from the wanted number of validation images."""
    found = 0.0
    for label in range(len(manifest.classes)):
        rows = [row for row in manifest.rows if row.label == label]
        found = max(found, abs(sum(row.split == "val" for row in rows) - rate * len(rows)))
    return found


def measure(found: InspectedFolder, seeds: int) -> None:
    """Print a line for each change: what stays by content and at random, and the distance."""
    print("| change | stay, by content (lowest of the seeds) | stay, at random | distance |")
    print("|---|---|---|---|")
    for name, change in CHANGES.items():
        kept: dict[str, list[float]] = {"content": [], "random": []}
        farthest = 0.0
        for seed in range(seeds):
            one, other = change(found.good, seed)
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    measure(inspect_folder(scan(args.data)), args.seeds)
