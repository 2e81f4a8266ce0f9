"""A run loaded for export: its model in float32 on the CPU, its card and its images.

Local paths are removed from the card before it is published.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from vitft.data.image_table import Row
from vitft.data.images import open_image, read_bytes
from vitft.data.split import run_manifest
from vitft.messages.results import fewer_blocks
from vitft.metrics.intervals import Flags, wilson_interval
from vitft.metrics.results import Results, RunResults, read_results
from vitft.models.card import Card
from vitft.models.checkpoint import build_model
from vitft.models.find import find_model
from vitft.models.pretrained.weights import load_classifier
from vitft.models.timm_model import Model
from vitft.predict.postprocess import run_results
from vitft.system.errors import ImageError, RunError

_NUM_NOISE_IMAGES = 8  # number of noise images that are compared if there are no validation images


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """The model of a run with its card."""

    run: Path  # run directory, or the folder that contains a single checkpoint
    state: Mapping[str, Tensor]  # float32 tensors by timm name
    card: Card

    @cached_property
    def model(self) -> Model:
        """Module in eval mode that maps normalised pixels (B, channels, S, S) to logits."""
        return build_model(dict(self.state), self.card.architecture)

    @cached_property
    def measured(self) -> RunResults | None:
        """Contents of the run's eval.json, measured with the run's head; None if there are none."""
        return read_results(self.run / "eval.json")

    @property
    def results(self) -> Results:
        """Numbers of the run, measured with the exported head."""
        return self.card.run or Results()

    @property
    def is_narrow(self) -> bool:
        """Whether the exported head reads fewer blocks than the run's head."""
        return _last_block_accuracy(self.card, self.measured) is not None

    @property
    def last_block_reason(self) -> str:
        """Why an exported head reads fewer blocks than the run's head, and what it costs."""
        head = self.measured.get("head") if self.measured else None
        if not self.measured or not head:
            return fewer_blocks(0, None, 0.0)
        return fewer_blocks(head["blocks"], head["last_block_top1"], self.measured["top1"])

    @cached_property
    def of_last_block(self) -> "TrainedRun":
        """This run with the head that reads only the last block, as other libraries require."""
        if self.card.architecture.read_blocks == 1:
            return self
        state = {n: t for n, t in self.state.items() if not n.startswith(("head.", "last_head."))}
        for part in ("weight", "bias"):
            state[f"head.{part}"] = self.state[f"last_head.{part}"]
        card = replace(self.card, architecture=replace(self.card.vit, read_blocks=1))
        return TrainedRun(self.run, state, _with_results(card, self.run))


def load_trained(run: str | None) -> TrainedRun:
    """Load the model of a run (default: the latest)."""
    source = find_model(run)
    state, card = load_classifier(source)
    if not card.classes:
        raise RunError(
            "the checkpoint contains a backbone without classes",
            fix="fine-tune it first: vitft finetune --data DIR --weights FILE",
        )
    file = card.weights.get("source", "")
    if os.path.isabs(file):  # noqa: PTH117 - it may be a repository name
        card = replace(card, weights={**card.weights, "source": Path(file).name})
    card = _with_results(card, source.parent)
    return TrainedRun(source.parent, state, card)


def _with_results(card: Card, run: Path) -> Card:
    """Return the card with the numbers of a run, which `vitft predict` shows.

    They describe the exported head: if it reads fewer blocks than the run's head, only its accuracy
    on the validation images is known. A folder without results, such as an export that is exported
    again, keeps the numbers of its card.
    """
    found = read_results(run / "eval.json")
    results = run_results(run, found, card.run)
    if found and (top1 := _last_block_accuracy(card, found)) is not None:
        validation = results.estimate("validation")
        assert validation is not None
        images, (low, high) = validation.images, found["top1_interval"]
        usual = wilson_interval(round(found["top1"] * images), images)
        effect = ((high - low) / (usual[1] - usual[0])) ** 2  # of groups, as with the run's head
        bounds = wilson_interval(round(top1 * images), images, max(1.0, effect))
        results = replace(
            results,  # both heads are at chance level, or none is
            headline=replace(validation, value=top1, interval=bounds),
            supporting=(),
            weakest=(),
            growth=None,
        )
    return replace(
        card,
        run=replace(
            results,
            name=results.name or run.resolve().name,
            weights=card.weights.get("name", results.weights),
        ),
    )


def _last_block_accuracy(card: Card, found: RunResults | None) -> float | None:
    """Return the accuracy of an exported head that reads fewer blocks than the run's head."""
    choice = found.get("head") if found else None
    if not choice or card.architecture.read_blocks > 1:
        return None
    return choice["last_block_top1"]


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """An image for comparing predictions."""

    image: Image.Image
    label: "int | Flags"
    """Class index, or for multi-label data one flag per label (C,); -1 for noise images."""
    group: str = ""
    """Name of the group, or the digest of an image without one; empty if no image has a group."""


def comparison_images(trained: TrainedRun, count: int) -> Iterator[LabelledImage]:
    """Yield at most `count` unchanged validation images of a run, or noise if there are none."""
    is_empty = True
    for sample in unchanged_images(trained, count):
        is_empty = False
        yield sample
    random = np.random.default_rng(0)
    height, width = trained.card.transform.image_size
    # Noise images have different heights and are at least as large as the input.
    for i in range(_NUM_NOISE_IMAGES if is_empty else 0):
        pixels = random.integers(0, 256, (height + 3 * i, width + 20, 3), dtype=np.uint8)
        yield LabelledImage(Image.fromarray(pixels), -1)


def num_comparison_images(trained: TrainedRun, count: int) -> int:
    """Return the number of images that `comparison_images` yields unless files have changed."""
    manifest = run_manifest(trained.run)
    return _NUM_NOISE_IMAGES if manifest is None else min(count, len(manifest.val))


def unchanged_images(trained: TrainedRun, count: int) -> Iterator[LabelledImage]:
    """Sample `count` evenly spaced validation images, and yield those unchanged since the run."""
    manifest, grey_range = run_manifest(trained.run), trained.card.transform.grey_range
    if manifest is None:
        return
    rows = evenly_spaced(manifest.val, count)
    has_groups = any(row.group for row in rows)
    for row, target in zip(rows, manifest.targets(rows), strict=True):
        path = manifest.locate(row)
        with contextlib.suppress(ImageError):
            if hashlib.sha256(read_bytes(path)).hexdigest() == row.sha256:
                image = open_image(path, grey_range=grey_range)
                yield LabelledImage(image, target, (row.group or row.sha256) * has_groups)


def evenly_spaced(rows: Sequence[Row], count: int) -> list[Row]:
    """Return at most `count` rows, evenly spaced so that they cover many classes."""
    return [*rows] if len(rows) <= count else [rows[i * len(rows) // count] for i in range(count)]
