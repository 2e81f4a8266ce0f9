"""The accuracy that `vitft predict` expects of a batch, beside the true one, where images have changed.

    python -m benchmarks.accuracy.batches --weights FILE --data DIR [DIR ...] [--seeds 3] [--most 150]

For each seed, half of each class (drawn by the digest of seed and name) trains a head. Of the other half, at most so many
are predicted as they are, blurred, darkened and of low resolution, and with half of the classes rare. As many of the other
folders are foreign: every answer is wrong. Each line has means over the seeds: the true accuracy, its range, the numbers on the line
`expected:` of the command, how far the true accuracy is below or above them, at most, and the images that are unlike.
"""

import argparse
import contextlib
import csv
import hashlib
import io
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

import vitft
from benchmarks.folders import merge_splits
from vitft.cli.main import main as run_command

CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "as they are": lambda image: image,
    "blurred, radius 2": lambda image: image.filter(ImageFilter.GaussianBlur(2)),
    "blurred, radius 5": lambda image: image.filter(ImageFilter.GaussianBlur(5)),
    "30% of the light": lambda image: ImageEnhance.Brightness(image).enhance(0.3),
    "10% of the light": lambda image: ImageEnhance.Brightness(image).enhance(0.1),
    "24 pixels": lambda image: image.resize((24, 24)).resize((240, 240)),
}


def is_trained(image: Path, seed: int) -> bool:
    """Return whether an image belongs to the half that trains."""
    return hashlib.sha256(f"{seed} {image.name}".encode()).digest()[0] < 128


def spread(images: list[Path], most: int) -> list[Path]:
    """Return at most so many of the images, evenly spaced."""
    return [images[i * len(images) // most] for i in range(most)] if len(images) > most else images


def changed(images: Iterable[Path], change: str, into: Path) -> list[str]:
    """Write changed copies of images of at most 400 pixels, if they are missing, and return their paths."""
    paths = []
    for path in images:
        target = into / path.parent.name / f"{path.stem}.jpg"
        paths.append(str(target))
        if target.exists():
            continue
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        image.thumbnail((400, 400))
        target.parent.mkdir(parents=True, exist_ok=True)
        CHANGES[change](image).save(target, quality=92)
    return paths


def predicted(run: Path, paths: list[str], classes: list[str]) -> tuple[float, ...]:
    """Return in % how many answers are right, the two numbers expected by the command, and how many are unlike."""
    names, out = run / "names.txt", run / "rows.csv"
    names.write_text("".join(f"{path}\n" for path in paths))
    command = ["predict", "--list", str(names), "--run", str(run), "--out", str(out)]
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        assert run_command(command) == 0, printed.getvalue()
    stated = re.search(r"expected: about (?:(\d+) to )?(\d+)%", printed.getvalue())
    assert stated is not None, printed.getvalue()
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    out.unlink()
    right = [row["class"] == own for row, own in zip(rows, classes, strict=True)]
    unlike = ["unlike" in row["notes"] for row in rows]
    low, high = float(stated[1] or stated[2]), float(stated[2])
    return len(rows), 100 * float(np.mean(right)), low, high, 100 * float(np.mean(unlike))


def line(name: str, found: list[tuple[float, ...]]) -> str:
    """Return a line of the table, given the results of each seed."""
    number, right, low, high, unlike = np.array(found).T
    below, above = max(0.0, (low - right).max()), max(0.0, (right - high).max())
    return (
        f"| {name} | {number.mean():.0f} | {right.mean():.1f} ({right.min():.1f} to {right.max():.1f}) | "
        f"{low.mean():.1f} to {high.mean():.1f} | {below:.1f}, {above:.1f} | {unlike.mean():.1f} |"
    )


def measure(
    data: Path, foreign: list[Path], args: argparse.Namespace, seed: int, work: Path
) -> dict[str, tuple[float, ...]]:
    """Train on half of a folder and return the results for the other half and for foreign images."""
    folder, new, found = work / "half" / data.name, list[Path](), dict[str, tuple[float, ...]]()
    for image in sorted(data.glob("*/*")):
        if is_trained(image, seed):
            target = folder / image.parent.name / image.name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(image.resolve(), target)
        else:
            new.append(image)
    run = work / "run"
    vitft.finetune(data=folder, weights=str(args.weights), out=run, seed=seed)
    new = spread(new, args.most)
    classes = [image.parent.name for image in new]
    rare = sorted({*classes})[::2]
    for number, change in enumerate(CHANGES):
        paths = changed(new, change, work.parent / f"{data.name}-change-{number}")
        found[change] = predicted(run, paths, classes)
        if not number:
            kept = [i for i, own in enumerate(classes) if own not in rare or i % 10 == 0]
            found[f"{', '.join(rare)} one tenth as frequent"] = predicted(
                run, [paths[i] for i in kept], [classes[i] for i in kept]
            )
    for other in foreign:
        images = [*map(str, spread(sorted(other.glob("*/*")), args.most))]
        found[f"{other.name} instead"] = predicted(run, images, [""] * len(images))
    return found


def main() -> None:
    """Print the lines of each folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--most", type=int, default=150)
    args = parser.parse_args()
    print("| images | number | true accuracy | expected | at most below, above | unlike |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folders = [merge_splits(path, Path(temporary)) for path in args.data]
        for data in folders:
            found = defaultdict[str, list[tuple[float, ...]]](list)
            for seed in range(args.seeds):
                work = Path(temporary) / f"{data.name}-{seed}"
                others = [other for other in folders if other != data]
                for name, result in measure(data, others, args, seed, work).items():
                    found[name].append(result)
            for name, results in found.items():
                print(line(f"{data.name}, {name}", results), flush=True)


if __name__ == "__main__":
    main()
