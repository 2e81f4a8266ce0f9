"""How often images of unknown classes are flagged as unlike the training images, by way of training.

    python -m benchmarks.accuracy.ood --weights FILE --data flower_photos clothing_small sign_language_digits \
        [--runs DIR] [--image-size 112]

Every set is a known one, asked for images of the others (far), and so is every set without its class of the
most images' name order, asked for that class (near). A known set gets 48 training, 24 validation and 24 test
images per class (24, 8 and 8 if it has fewer than 96). Each line states the fraction noted by the model, and,
in brackets, the fraction below the probability that 2% of the validation images do not reach; the false
alarms are the same fractions of the test images. Finished runs are kept in --runs and used again.
"""

import argparse
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import vitft
from benchmarks.folders import merge_splits
from vitft.config.run import config_from_table
from vitft.predict.rows import OUT_OF_DISTRIBUTION, Prediction
from vitft.training.run import run_finetuning

SCRATCH = {"patch_size": 4, "width": 64, "depth": 4, "heads": 4}
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "head": {},
    "blocks:2": {"train": {"layers": "blocks:2"}, "optim": {"epochs": 8}},
    "LoRA": {"train": {"layers": "lora"}, "optim": {"epochs": 4}},
    "everything": {"train": {"layers": "all"}, "optim": {"epochs": 4}},
    "from scratch, 32 pixels": {
        "weights": {"name": "none", "image_size": [32, 32]},
        "model": SCRATCH,
        "optim": {"epochs": 20},
    },
}
LEFT_OUT = {"flower_photos": "tulips", "clothing_small": "dress"}
"""The class that a near pairing leaves out; of other sets none is."""
ASKED = 120
"""Number of foreign images."""

Images = Mapping[str, Sequence[Path]]


@dataclass(frozen=True)
class Known:
    """A set without some class, in three parts by class name."""

    name: str
    parts: Mapping[str, Images]
    asked: Mapping[str, Sequence[Path]]
    """Images of unknown classes, by the name of their source."""


def images_of(data: Path) -> Images:
    """Return the images of each class in a fixed random order."""
    suffixes = (".jpg", ".jpeg", ".png")
    return {
        label.name: sorted(
            (path for path in label.iterdir() if path.suffix.lower() in suffixes),
            key=lambda path: hashlib.sha256(path.name.encode()).hexdigest(),
        )
        for label in sorted(data.iterdir())
        if label.is_dir()
    }


def known_sets(folders: Mapping[str, Path]) -> list[Known]:
    """Return the known sets of all pairings."""
    images = {name: images_of(folder) for name, folder in folders.items()}
    mixed = {
        name: sorted(
            (path for paths in found.values() for path in paths),
            key=lambda path: hashlib.sha256(path.name.encode()).hexdigest(),
        )[:ASKED]
        for name, found in images.items()
    }
    sets = []
    for name, found in images.items():
        far = {other: mixed[other] for other in images if other != name}
        sets.append(Known(name, split(found, ""), far))
        if label := LEFT_OUT.get(name):
            near = {label: found[label][:ASKED]}
            sets.append(Known(f"{name} without {label}", split(found, label), near))
    return sets


def split(images: Images, left_out: str) -> dict[str, Images]:
    """Return training, validation and test images by class."""
    fewest = min(map(len, images.values()))
    sizes = (
        {"train": 48, "val": 24, "test": 24} if fewest >= 96 else {"train": 24, "val": 8, "test": 8}
    )
    ends = np.cumsum([0, *sizes.values()])
    return {
        part: {
            label: paths[ends[i] : ends[i + 1]]
            for label, paths in images.items()
            if label != left_out
        }
        for i, part in enumerate(sizes)
    }


def trained(known: Known, way: str, weights: Path, size: int, runs: Path) -> Path:
    """Return the run of a known set and a way, training it unless it is finished."""
    name = known.name.replace(" ", "-")
    run = runs / f"{name}-{way.split(',')[0].replace(':', '').replace(' ', '-')}"
    environment = run / "environment.json"
    if environment.exists() and json.loads(environment.read_text())["status"] == "finished":
        return run
    data = runs / "data" / name
    for part in ("train", "val"):
        for label, paths in known.parts[part].items():
            (data / part / label).mkdir(parents=True, exist_ok=True)
            for path in paths:
                if not (data / part / label / path.name).exists():
                    os.symlink(path.resolve(), data / part / label / path.name)
    settings = WAYS[way]
    table = {
        **settings,
        "data": {"path": str(data)},
        "weights": {
            "name": str(weights),
            "image_size": [size, size],
            **settings.get("weights", {}),
        },
        "train": {"cache": str(runs / "cache"), **settings.get("train", {})},
    }
    if run_finetuning(config_from_table(table), out=run).interrupted:
        raise SystemExit(130)
    return run


def fractions(predictions: Sequence[Prediction], limit: float) -> tuple[float, float]:
    """Return the percentages of noted predictions and of those below a probability."""
    noted = np.mean([OUT_OF_DISTRIBUTION in one.notes for one in predictions])
    below = np.mean([one.probabilities[0] < limit for one in predictions])
    return 100 * float(noted), 100 * float(below)


def measure(known: Known, way: str, run: Path) -> None:
    """Print a line for each source of unknown images."""
    model = vitft.load(run, device="cpu")
    parts = {
        part: model.predict([path for paths in known.parts[part].values() for path in paths])
        for part in ("val", "test")
    }
    limit = float(np.quantile([one.probabilities[0] for one in parts["val"]], 0.02))
    false, false_below = fractions(parts["test"], limit)
    power = json.loads((run / "audit.json").read_text())["out_of_distribution"][
        "unknown_class_range"
    ]
    for source, paths in known.asked.items():
        noted, below = fractions(model.predict(paths), limit)
        print(
            f"| {known.name} <- {source} | {way} | {noted:.0f} ({below:.0f}) "
            f"| {false:.1f} ({false_below:.1f}) | {100 * power[0]:.0f} to {100 * power[1]:.0f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--runs", type=Path, default=Path("ood-runs"))
    parser.add_argument("--image-size", type=int, default=112)
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    merged = args.runs / "merged"
    folders = {
        data.name: merged / data.name
        if (merged / data.name).exists()
        else merge_splits(data, merged)
        for data in args.data
    }
    print("| known <- asked | way | noted (by probability) % | of known images | left out |")
    for known in known_sets(folders):
        for way in WAYS:
            measure(known, way, trained(known, way, args.weights, args.image_size, args.runs))


if __name__ == "__main__":
    main()
