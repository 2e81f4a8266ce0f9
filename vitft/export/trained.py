"""What an export starts from: a run's model in float32 on the CPU, its card, its images.

What is published is the card without the places on the machine that it was made on.
"""

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

NOISE = 8
"""How many images of noise stand in for validation images that are gone."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A run's model and everything that describes it."""

    run: Path
    """The run's folder; of a bare checkpoint, the folder that it lies in."""
    state: Mapping[str, Tensor]
    """Its tensors in float32, under timm's names."""
    card: Card

    @cached_property
    def model(self) -> Model:
        """A module from normalised pixels (B, channels, S, S) to logits, in eval mode."""
        return build_model(dict(self.state), self.card.architecture)


def load_trained(run: str | None) -> Trained:
    """The model of a run; by default of the latest one.

    Raises:
        RunError: There is none, it is damaged, or it has no classes.
    """
    source = find_model(run)
    state, card = load_checkpoint(source)
    if not card.classes:
        raise RunError(
            "the checkpoint holds a backbone without classes",
            fix="fine-tune it first: vitft finetune --data DIR --weights FILE",
        )
    return Trained(source.parent, {n: t.float() for n, t in state.items()}, public(card))


def public(card: Card) -> Card:
    """The card without the folder in which the pretrained weights lay."""
    source = card.weights.get("source", "")
    if not os.path.isabs(source):  # noqa: PTH117 - it may name a repository
        return card
    return replace(card, weights={**card.weights, "source": Path(source).name})


@dataclass(frozen=True, slots=True)
class Sample:
    """One image to compare on."""

    image: Image.Image
    label: int
    """Index of its class; -1 where it is noise."""


def samples(trained: Trained, count: int) -> Iterator[Sample]:
    """Validation images that are still what the run saw, spread over all of them; else noise."""
    found = islice(validation(trained.run, count), count)
    first = next(found, None)
    if first is None:
        yield from noise(trained.card)
        return
    yield first
    yield from found


def validation(run: Path, count: int) -> Iterator[Sample]:
    """About `count` validation images; none, if the data moved or there is no run around them."""
    try:
        data = Path(read_toml(run / "config.toml")["data"]["path"]).expanduser()
        manifest = Manifest.read(RunDir(run).split, data)
    except (VitftError, KeyError):
        return
    for row in spread(manifest.val, count):
        path = manifest.locate(row)
        if not is_unchanged(path, row.sha256):
            continue
        try:
            yield Sample(open_image(path), row.label)
        except ImageError:
            continue


def spread(rows: Sequence[Row], count: int) -> list[Row]:
    """At most `count` of the rows at even distances, so that every class is among them."""
    if len(rows) <= count:
        return [*rows]
    return [rows[i * len(rows) // count] for i in range(count)]


def is_unchanged(path: str, sha256: str) -> bool:
    """Whether the image is still the one that the run saw."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest() == sha256
    except ImageError:
        return False


def noise(card: Card) -> Iterator[Sample]:
    """Images of noise a little larger than the model's view, of several shapes."""
    random = np.random.default_rng(0)
    height, width = card.transform.image_size
    for i in range(NOISE):
        pixels = random.integers(0, 256, (height + 3 * i, width + 20, 3), dtype=np.uint8)
        yield Sample(Image.fromarray(pixels), -1)
