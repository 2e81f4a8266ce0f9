"""Several labels per image: mAP and F1 of a solved head, of scikit-learn and of fine-tuned blocks.

    python -m benchmarks.accuracy.labels WEIGHTS CLOTHING WORK     # about 10 minutes on two cores

CLOTHING is a copy of github.com/alexeygrigorev/clothing-dataset-small with train/ and validation/. Each class is
described by two attributes, the part of the body and the length of sleeves or legs; some classes have no length. The
scenes are drawn here with the code of `--data demo`: 400 pictures with none, one, two or three kinds of flower, in
which about one in ten shows no flower. WORK is a new folder for the tables, the pictures and the runs.

scikit-learn solves one logistic regression per label on the same standardised features, with the penalty that the run
chose for that label, so both minimise the same function. The fine-tuned run trains the last two blocks for 6 epochs.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from vitft.data.demo import (
    CORE_COLOURS,
    FLOWERS_BY_KIND,
    PETALS,
    SUPERSAMPLING,
    Bloom,
    background,
    photographed,
    scatter,
    stem,
    varied,
)

BODY = {"upper": ("longsleeve", "outwear", "shirt", "t-shirt"), "lower": ("pants", "shorts", "skirt"),
        "whole": ("dress",), "head": ("hat",), "feet": ("shoes",)}  # fmt: skip
LENGTH = {"long": ("longsleeve", "outwear", "shirt", "pants"), "short": ("t-shirt", "shorts")}
SCENES, SIDE = 400, 160


def attribute(name: str, values: dict[str, tuple[str, ...]]) -> str:
    return next((value for value, names in values.items() if name in names), "")


def write_clothing(source: Path, table: Path) -> None:
    """Write a table with two attributes of each photo and its part of the split."""
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "body", "length", "split"])
        for part, name in (("train", "train"), ("validation", "val")):
            for path in sorted((source / part).glob("*/*")):
                kind = path.parent.name
                rows.writerow([path, attribute(kind, BODY), attribute(kind, LENGTH), name])


def scene(number: int) -> tuple[Image.Image, list[str]]:
    """Draw a picture of up to three kinds of flower, one bloom each, side by side."""
    rng = np.random.default_rng([7, number])
    side = SIDE * SUPERSAMPLING
    canvas = background(rng, side)
    brush = ImageDraw.Draw(canvas)
    scatter(brush, rng, side, count=int(rng.integers(2, 7)))
    kinds = list(rng.permutation(list(FLOWERS_BY_KIND))[: rng.choice(4, p=[0.1, 0.3, 0.35, 0.25])])
    slots = rng.permutation(3)
    for kind, slot in zip(kinds, slots, strict=False):
        upright = kind == "tulip"
        x, y = (slot + 0.5 + rng.uniform(-0.1, 0.1)) / 3, rng.uniform(0.25, 0.7)
        bloom = Bloom(
            brush=brush, rng=rng, centre=(x * side, y * side), radius=rng.uniform(0.13, 0.19) * side,
            turn=rng.normal(0, 0.35) if upright else rng.uniform(0, 6.283),
            tilt=rng.uniform(0.85, 1.1) if upright else rng.uniform(0.62, 1.0),
            petal=varied(rng, PETALS), core=varied(rng, CORE_COLOURS),
        )  # fmt: skip
        stem(bloom, side)
        FLOWERS_BY_KIND[kind](bloom)
    scatter(brush, rng, side, count=int(rng.integers(0, 3)))
    return photographed(canvas.resize((SIDE, SIDE), Image.Resampling.BOX), rng), kinds


def write_scenes(folder: Path) -> Path:
    """Draw the scenes and write their table, with labels such as `rose|tulip`."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "labels"])
        for number in range(SCENES):
            picture, kinds = scene(number)
            picture.save(folder / f"{number:04}.jpg", quality=88)
            rows.writerow([f"{number:04}.jpg", "|".join(kinds)])
    return folder / "labels.csv"


def finetune(out: Path, *options: str) -> dict:
    command = [sys.executable, "-m", "vitft", "finetune", "--out", str(out), *options]
    if not (out / "eval.json").exists():
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return json.loads((out / "eval.json").read_text())


def scikit_learn(run: Path) -> tuple[float, float, float, float]:
    """Return mAP and macro F1 (at probability 0.5) of scikit-learn, then of vitft's head, uncalibrated."""
    import torch
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import average_precision_score, f1_score

    from vitft.data.images import decode_images
    from vitft.data.split import run_manifest
    from vitft.features.logistic import Standardizer, linear_logits, solve_logistic
    from vitft.predict.torch_engine import Predictor

    manifest, predictor = run_manifest(run), Predictor.from_run(str(run), device="cpu")
    assert manifest is not None
    penalties = json.loads((run / "eval.json").read_text())["label_l2"]

    def features(rows: Any) -> Any:
        views = decode_images((manifest.locate(row) for row in rows),
                              lambda _, image: predictor.transform.pixels(image),
                              max_pixels=10**9, grey_range=(), workers=2)  # fmt: skip
        return np.concatenate([predictor.scores(view[None]).features for view in views])

    x, val = features(manifest.train), features(manifest.val)
    y, truth = (
        np.asarray(manifest.targets(manifest.train)),
        np.asarray(manifest.targets(manifest.val)),
    )
    scale = Standardizer.fit(torch.from_numpy(x))
    train, test = scale(torch.from_numpy(x)), scale(torch.from_numpy(val))
    theirs = np.stack([
        LogisticRegression(C=1 / (l2 * len(x)), max_iter=5000, tol=1e-7)
        .fit(train.double().numpy(), y[:, i]).decision_function(test.double().numpy())
        for i, l2 in enumerate(penalties)
    ], axis=1)  # fmt: skip
    heads = solve_logistic(train.double(), torch.from_numpy(y).float(), torch.ones(1, len(x)),
                           classes=y.shape[1], l2=tuple(penalties))  # fmt: skip
    ours = linear_logits(test.double(), heads[0]).numpy()
    return tuple(
        float(metric)
        for scores in (theirs, ours)
        for metric in (average_precision_score(truth, scores, average="macro"),
                       f1_score(truth, scores >= 0, average="macro", zero_division=0))
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("weights", "clothing", "work"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("VITFT_CACHE", str(args.work.resolve() / "cache"))
    clothing = args.work / "clothing.csv"
    write_clothing(args.clothing.resolve(), clothing)
    data = {
        "clothing": ("--data", str(clothing), "--set", "data.label=body,length",
                     "--set", f"data.root={args.clothing.resolve()}"),
        "scenes": ("--data", str(write_scenes(args.work / "scenes"))),
    }  # fmt: skip
    for name, options in data.items():
        options = (*options, "--weights", str(args.weights))
        head = args.work / f"{name}-head"
        solved = finetune(head, *options)
        tuned = finetune(
            args.work / f"{name}-blocks", *options, "--train", "head,blocks:2", "--epochs", "6"
        )
        print(f"{name}: {solved['images']} validation images, {len(solved['per_class'])} labels")
        for what, found in (("solved head", solved), ("last 2 blocks", tuned)):
            labels = found["labels"]
            low, high = (100 * end for end in labels["map_interval"])
            none = labels["none"]
            print(f"  {what}: mAP {100 * labels['map']:.1f} ({low:.1f} to {high:.1f}), macro F1 {100 * labels['macro_f1']:.1f}, "
                  f"micro F1 {100 * labels['micro_f1']:.1f}, all labels right {100 * found['top1']:.1f}, "
                  f"none: recall {none['recall']}, precision {none['precision']}, ECE {100 * found['calibration']['ece']:.1f}, "
                  f"{found['seconds']:.0f} s")  # fmt: skip
        theirs = scikit_learn(head)
        theirs, ours = theirs[:2], theirs[2:]
        print("  at 0.5, same penalties: " + "; ".join(
            f"{who} mAP {100 * m:.2f}, F1 {100 * f:.2f}"
            for who, (m, f) in (("scikit-learn", theirs), ("vitft", ours))))  # fmt: skip


if __name__ == "__main__":
    main()
