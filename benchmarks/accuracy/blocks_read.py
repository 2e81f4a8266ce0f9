"""Accuracy of heads that read several blocks beside heads that read the last block only.

    python -m benchmarks.accuracy.blocks_read --weights FILE --data DIR [DIR ...] [--draws 10]
        [--images 5 10 25] [--sequences]

The features of every image are extracted once. For each draw, that many training images per class are chosen
at random (0 for 80% of each class), the others test. Both heads are solved as `vitft finetune` solves them, so
cross-validation on the training images alone chooses the penalty and whether the head reads several blocks.
Differences are paired: mean over the draws, and its standard error. `--sequences` keeps neighbouring file
numbers on one side, for folders of pictures that were taken one after the other.
"""

import argparse
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.folders import merge_splits
from vitft.config.sections import ModelSpec, TrainSpec, WeightsSpec
from vitft.data.scan import scan
from vitft.data.transforms import eval_view
from vitft.features.head import SolvedHead, solve_head
from vitft.features.pipeline import inspect_dataset, load_pipeline, read_several_blocks


class Features(NamedTuple):
    """Features of a folder's images; the leading `read` columns are those of the last block."""

    x: Tensor
    y: Tensor
    paths: list[str]
    read: int
    classes: int


class Scores(NamedTuple):
    """Test results of one head."""

    top1: float  # in %
    loss: float
    seconds: float
    reads: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--images", type=int, nargs="+", default=[5, 10, 25, 0])
    parser.add_argument("--sequences", action="store_true")
    args = parser.parse_args()
    print(
        "| data | images per class | last block, % | difference | loss | s, last and all | chosen |"
    )
    print("|---|---|---|---|---|---|---|")
    for data in args.data:
        found = extract(data, args.weights)
        for images in args.images:
            print(row(data.name, found, images, args.draws, args.sequences), flush=True)


def extract(data: Path, weights: str) -> Features:
    """Return the features of every readable image."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = scan(merge_splits(data, Path(temporary)))
        train = TrainSpec()
        pipeline, _ = load_pipeline(
            folder,
            "head",
            weights=WeightsSpec(name=weights),
            model=ModelSpec(),
            train=train,
            max_pixels=10**9,
        )
        pipeline = read_several_blocks(pipeline, train, images=len(folder.files))
        extractor, view = (
            pipeline.open_extractor(train, max_pixels=10**9),
            eval_view(pipeline.transform),
        )
        assert extractor is not None
        seen = inspect_dataset(
            folder, max_pixels=10**9, allow_bad=True, extractor=extractor, view=view
        )
        return Features(
            x=extractor.rows([file.sha256 for file in seen.good], view),
            y=torch.tensor([file.label for file in seen.good]),
            paths=[file.path for file in seen.good],
            read=extractor.prefix.leading,
            classes=len(folder.classes),
        )


def row(name: str, found: Features, images: int, draws: int, sequences: bool) -> str:
    """Return a row of the table: both heads on the same draws."""
    pairs = []
    for seed in range(draws):
        train = chosen_rows(found, images, seed, sequences)
        pairs.append((score(found, train, seed, None), score(found, train, seed, found.read)))
    last = np.array([one.top1 for one, _ in pairs])
    gain = np.array([other.top1 - one.top1 for one, other in pairs])
    error = gain.std(ddof=1) / draws**0.5
    losses = [np.mean([pair[i].loss for pair in pairs]) for i in (0, 1)]
    seconds = [np.median([pair[i].seconds for pair in pairs]) for i in (0, 1)]
    chosen = Counter(other.reads for _, other in pairs)
    return (
        f"| {name}{', sequences' if sequences else ''} | {images or '80%'} | {last.mean():.1f} | "
        f"{gain.mean():+.1f} ± {error:.1f} | {losses[0]:.3f} to {losses[1]:.3f} | "
        f"{seconds[0]:.1f}, {seconds[1]:.1f} | "
        f"{', '.join(f'{count} {reads}' for reads, count in chosen.most_common())} |"
    )


def chosen_rows(found: Features, images: int, seed: int, sequences: bool) -> Tensor:
    """Return a mask (n,) of the training images, the same number of each class."""
    random = np.random.default_rng(seed)
    mask = torch.zeros(len(found.y), dtype=torch.bool)
    start = random.random()
    for label in range(found.classes):
        rows = np.flatnonzero(found.y.numpy() == label)
        count = images or round(0.8 * len(rows))
        if sequences:  # a contiguous stretch of the file numbers, at the same place in each class
            order = sorted(rows, key=lambda i: [int(n) for n in re.findall(r"\d+", found.paths[i])])
            rows = np.roll(order, -round(start * len(order)))
        else:
            rows = random.permutation(rows)
        mask[torch.from_numpy(rows[:count].copy())] = True
    return mask


def score(found: Features, train: Tensor, seed: int, read: int | None) -> Scores:
    """Solve a head that may read all features, or without `read` only those of the last block."""
    x = found.x if read else found.x[:, : found.read].contiguous()
    begun = time.perf_counter()
    head: SolvedHead = solve_head(
        x[train],
        found.y[train],
        classes=found.classes,
        seed=seed,
        read=read,
        l2=0.0,
        balanced=False,
    )
    seconds = time.perf_counter() - begun
    logits = x[~train][:, : head.weight.shape[1]] @ head.weight.T + head.bias
    factor = 1.0 if head.method.reads_several else head.method.alone
    truth = found.y[~train]
    top1 = 100 * (logits.argmax(dim=-1) == truth).float().mean().item()
    loss = F.cross_entropy(logits * factor, truth).item()
    return Scores(top1, loss, seconds, head.method.name)


if __name__ == "__main__":
    main()
