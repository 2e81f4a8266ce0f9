"""Accuracy of heads that read several blocks beside heads that read the last block only.

    python -m benchmarks.accuracy.blocks_read --weights FILE --data DIR [DIR ...] [--draws 10]
        [--images 5 10 25] [--sequences]

`--weights demo` is the bundled model, `--data demo` the drawn flowers of `vitft finetune --data demo`.

The features of every image are extracted once. For each draw, that many training images per class are chosen
at random (0 for 80% of each class), the others test. Both heads are solved as `vitft finetune` solves them, so
cross-validation on the training images alone chooses the penalty and whether the head reads several blocks.
Differences are paired: mean over the draws, and its standard error. Losses and calibration errors (of the
test predictions of all draws together) are those after a temperature that is fitted to cross-validated logits
of the training images; a run also uses its validation images. `--sequences` keeps neighbouring file
numbers on one side, for folders of pictures that were taken one after the other.
"""

import argparse
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.folders import merge_splits
from benchmarks.timing import cpu_seconds
from vitft.config.run import Config
from vitft.config.sections import DataSpec, TrainSpec, WeightsSpec
from vitft.data.demo import temporary_demo_data
from vitft.data.scan import scan
from vitft.data.transforms import eval_view
from vitft.features.extract import inspect_dataset, load_pipeline, read_several_blocks
from vitft.features.head import SolvedHead, cross_validate, solve_head, tempered
from vitft.metrics.calibration import (
    bin_by_confidence,
    calibration_error,
    confidence_and_correctness,
)
from vitft.metrics.outputs import Outputs


class Features(NamedTuple):
    """Features of a folder's images; the leading `read` columns are those of the last block."""

    x: Tensor
    y: Tensor
    paths: list[str]
    read: int
    classes: int


class Scores(NamedTuple):
    """Test results of one head."""

    logits: Tensor  # (test images, C), after a temperature
    truth: Tensor
    seconds: float  # processor time
    reads: str

    @property
    def top1(self) -> float:
        """Accuracy in %."""
        return 100 * (self.logits.argmax(dim=-1) == self.truth).float().mean().item()

    @property
    def loss(self) -> float:
        """Mean cross-entropy in nats."""
        return F.cross_entropy(self.logits, self.truth).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--images", type=int, nargs="+", default=[5, 10, 25, 0])
    parser.add_argument("--sequences", action="store_true")
    args = parser.parse_args()
    print(
        "| data | images per class | last block, % | difference | loss | calibration error | "
        "s, last and all | chosen |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for data in args.data:
        with temporary_demo_data(DataSpec(path=str(data))) as spec:
            found = extract(Path(spec.path), args.weights)
        size = found.x.shape[1]
        print(
            f"{data.name}: {2 * found.read:,} bytes per image in the cache for the last block, "
            f"{2 * size:,} for all that are read ({size:,} dimensions)",
            file=sys.stderr,
        )
        for images in args.images:
            print(row(data.name, found, images, args.draws, args.sequences), flush=True)


def extract(data: Path, weights: str) -> Features:
    """Return the features of every readable image."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = scan(merge_splits(data, Path(temporary)))
        train = TrainSpec()
        config = Config(
            data=DataSpec(max_pixels=10**9), weights=WeightsSpec(name=weights), train=train
        )
        pipeline, _ = load_pipeline(folder, "head", config)
        pipeline = read_several_blocks(pipeline, images=len(folder.rows))
        extractor, view = (
            pipeline.open_extractor(),
            eval_view(pipeline.transform),
        )
        assert extractor is not None
        seen = inspect_dataset(
            folder, max_pixels=10**9, allow_bad=True, extractor=extractor, view=view
        )
        return Features(
            x=extractor.rows([file.sha256 for file in seen.rows], view),
            y=torch.tensor([file.label for file in seen.rows]),
            paths=[file.path for file in seen.rows],
            read=extractor.prefix.leading,
            classes=len(folder.classes),
        )


def row(name: str, found: Features, images: int, draws: int, sequences: bool) -> str:
    """Return a row of the table: both heads on the same draws."""
    pairs = []
    for seed in range(draws):
        train = chosen_rows(found, images, seed, sequences)
        last = score(found, train, seed, None)
        pairs.append((last, score(found, train, seed, last)))
    top1 = np.array([one.top1 for one, _ in pairs])
    gain = np.array([other.top1 - one.top1 for one, other in pairs])
    error = gain.std(ddof=1) / draws**0.5
    losses = [np.mean([pair[i].loss for pair in pairs]) for i in (0, 1)]
    errors = [100 * pooled_error([pair[i] for pair in pairs]) for i in (0, 1)]
    seconds = [np.median([pair[i].seconds for pair in pairs]) for i in (0, 1)]
    chosen = Counter(other.reads for _, other in pairs)
    return (
        f"| {name}{', sequences' if sequences else ''} | {images or '80%'} | {top1.mean():.1f} | "
        f"{gain.mean():+.1f} ± {error:.1f} | {losses[0]:.3f} to {losses[1]:.3f} | "
        f"{errors[0]:.1f} to {errors[1]:.1f} | "
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


def pooled_error(scores: list[Scores]) -> float:
    """Return the calibration error of the test predictions of all draws together."""
    logits = torch.cat([one.logits for one in scores]).double().numpy()
    truth = torch.cat([one.truth for one in scores]).numpy()
    return calibration_error(bin_by_confidence(*confidence_and_correctness(logits, truth)))[0]


def score(found: Features, train: Tensor, seed: int, last: Scores | None) -> Scores:
    """Solve a head on the last block or, given the scores of that head, one that may read all."""
    x = found.x[:, : found.read].contiguous() if last is None else found.x
    begun = cpu_seconds()
    head: SolvedHead = solve_head(
        x[train],
        found.y[train],
        classes=found.classes,
        seed=seed,
        read=found.read,
        l2=0.0,
        balanced=False,
    )
    seconds = cpu_seconds() - begun
    if last is not None and not head.method.reads_several:
        return last._replace(seconds=seconds, reads=head.method.name)
    logits = x[~train] @ head.weight.T + head.bias
    if last is None:  # a head that reads several blocks is fitted to be calibrated
        logits = logits * temperature_factor(x[train], found, train, head, seed)
    return Scores(logits, found.y[~train], seconds, head.method.name)


def temperature_factor(
    x: Tensor, found: Features, train: Tensor, head: SolvedHead, seed: int
) -> float:
    """Return the factor that calibrates cross-validated logits of the training images, or 1."""
    y, names = found.y[train], [str(label) for label in range(found.classes)]
    scores = cross_validate(x, y, Outputs.of(names), method=head.method, balanced=False, seed=seed)
    return 1.0 if scores is None else tempered(scores[1].logits, y[scores[1].rows])[0]


if __name__ == "__main__":
    main()
