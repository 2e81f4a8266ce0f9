"""What an export starts from: a run's model in float32 on the CPU, its card and its images.

The published card contains no paths of the machine that it was made on.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from vitft.config.run import read_toml
from vitft.data.images import open_image, read_bytes
from vitft.data.split import Manifest, Row
from vitft.models.checkpoint import Card, build_model, load_checkpoint
from vitft.models.find import find_model
from vitft.models.timm_model import Model
from vitft.system.errors import ImageError, RunError, VitftError
from vitft.system.rundir import RunDir


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run's model and its description."""

    run: Path
    """The run folder; for a single checkpoint, the folder that contains it."""
    state: Mapping[str, Tensor]
    """Tensors in float32, under timm's names."""
    card: Card

    @cached_property
    def model(self) -> Model:
        """A module from normalised pixels (B, channels, S, S) to logits, in eval mode."""
        return build_model(dict(self.state), self.card.architecture)


def load_trained(run: str | None) -> TrainedRun:
    """Load the model of a run; by default of the latest one.

    Raises:
        RunError: The run does not exist, is damaged, or has no classes.
    """
    source = find_model(run)
    state, card = load_checkpoint(source)
    if not card.classes:
        raise RunError(
            "the checkpoint holds a backbone without classes",
            fix="fine-tune it first: vitft finetune --data DIR --weights FILE",
        )
    return TrainedRun(source.parent, {n: t.float() for n, t in state.items()}, without_paths(card))


def without_paths(card: Card) -> Card:
    """Return the card without the folder in which the pretrained weights were."""
    source = card.weights.get("source", "")
    if not os.path.isabs(source):  # noqa: PTH117 - it may name a repository
        return card
    return replace(card, weights={**card.weights, "source": Path(source).name})


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """One image to compare predictions on."""

    image: Image.Image
    label: int
    """Index of its class; -1 for noise."""


def comparison_images(trained: TrainedRun, count: int) -> Iterator[LabelledImage]:
    """Yield validation images that have not changed since the run; without any, noise."""
    found = islice(unchanged_images(trained.run, count), count)
    first = next(found, None)
    if first is None:
        yield from noise_images(trained.card)
        return
    yield first
    yield from found


def unchanged_images(run: Path, count: int) -> Iterator[LabelledImage]:
    """Yield about `count` validation images, evenly spaced; none if data or run folder is gone."""
    try:
        data = Path(read_toml(run / "config.toml")["data"]["path"]).expanduser()
        manifest = Manifest.read(RunDir(run).split, data)
    except (VitftError, KeyError):
        return
    for row in evenly_spaced(manifest.val, count):
        path = manifest.locate(row)
        with contextlib.suppress(ImageError):
            if hashlib.sha256(read_bytes(path)).hexdigest() == row.sha256:
                yield LabelledImage(open_image(path), row.label)


def evenly_spaced(rows: Sequence[Row], count: int) -> list[Row]:
    """Return at most `count` rows at even distances, so that every class is represented."""
    return [*rows] if len(rows) <= count else [rows[i * len(rows) // count] for i in range(count)]


def noise_images(card: Card) -> Iterator[LabelledImage]:
    """Yield 8 images of noise slightly larger than the model's input, of several shapes."""
    random = np.random.default_rng(0)
    height, width = card.transform.image_size
    for i in range(8):
        pixels = random.integers(0, 256, (height + 3 * i, width + 20, 3), dtype=np.uint8)
        yield LabelledImage(Image.fromarray(pixels), -1)
