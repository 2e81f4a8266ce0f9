"""The accuracy that `vitft predict` expects of a batch, beside the true one, where images have changed.

    python -m benchmarks.accuracy.batches --weights FILE --data DIR [DIR ...] [--seed N]

Half of each class (drawn by the digest of seed and name) trains a head. The other half is predicted as it is,
blurred, darkened and of low resolution, and with half of the classes rare. The images of the other folders are
foreign: every answer is wrong. Each line has the true accuracy, the expected one, which is the line `expected:` of
the command before rounding, and the mean confidence without the correction for foreign images.
"""

import argparse
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from PIL import Image, ImageEnhance, ImageFilter

import vitft
from benchmarks.folders import merge_splits
from vitft.predict.rows import OUT_OF_DISTRIBUTION, Prediction

USUAL = 0.02
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
    return hashlib.sha256(f"{seed}/{image.name}".encode()).digest()[0] < 128


def changed(images: Iterable[Path], change: str, into: Path) -> list[str]:
    """Write changed copies of images of at most 400 pixels and return their paths."""
    paths = []
    for number, path in enumerate(images):
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        image.thumbnail((400, 400))
        target = into / path.parent.name / f"{number}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        CHANGES[change](image).save(target, quality=92)
        paths.append(str(target))
    return paths


def line(name: str, predictions: list[Prediction], classes: list[str]) -> str:
    """Return a line of the table; `classes` are the true ones."""
    confidence = [one.probability for one in predictions]
    unlike = [OUT_OF_DISTRIBUTION in one.notes for one in predictions]
    of_unlike = sum(p for p, odd in zip(confidence, unlike, strict=True) if odd)
    excess = max(0.0, sum(unlike) - USUAL * len(unlike))
    expected = sum(confidence) - excess * of_unlike / max(1, sum(unlike))
    right = sum(one.answer == own for one, own in zip(predictions, classes, strict=True))
    return (
        f"| {name} | {len(unlike)} | {100 * right / len(unlike):.1f} | "
        f"{100 * expected / len(unlike):.1f} | {100 * sum(confidence) / len(unlike):.1f} | "
        f"{100 * sum(unlike) / len(unlike):.1f} |"
    )


def table(data: Path, foreign: list[Path], args: argparse.Namespace, work: Path) -> None:
    """Train on half of a folder and print the lines of the other half."""
    folder, new = work / f"{data.name}-half", list[Path]()
    for image in sorted(data.glob("*/*")):
        if is_trained(image, args.seed):
            target = folder / image.parent.name / image.name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(image.resolve(), target)
        else:
            new.append(image)
    run = work / f"run-{data.name}"
    vitft.finetune(data=folder, weights=str(args.weights), out=run)
    model = vitft.load(run)
    classes = [image.parent.name for image in new]
    rare = sorted({*classes})[::2]
    for change in CHANGES:
        paths = changed(new, change, work / f"{data.name}-{len(change)}")
        found = list(model.predict(paths))
        print(line(f"{data.name}, {change}", found, classes), flush=True)
        if change == "as they are":
            kept = [i for i, own in enumerate(classes) if own not in rare or i % 10 == 0]
            some = line(
                f"{data.name}, {', '.join(rare)} one tenth as frequent",
                [found[i] for i in kept],
                [classes[i] for i in kept],
            )
            print(some, flush=True)
    for other in foreign:
        images = [str(image) for image in sorted(other.glob("*/*"))[::4]]
        print(line(f"{other.name} instead", list(model.predict(images)), [""] * len(images)))


def main() -> None:
    """Print a table for each folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print("| images | number | true accuracy | expected | mean confidence | unlike |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        folders = [merge_splits(path, work) for path in args.data]
        for data in folders:
            table(data, [other for other in folders if other != data], args, work)


if __name__ == "__main__":
    main()
