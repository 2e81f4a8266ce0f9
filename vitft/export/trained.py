"""A run loaded for export: its model in float32 on the CPU, its card and its images.

Local paths are removed from the card before it is published.
"""

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from vitft.data.image_table import Images
from vitft.data.images import open_image, read_bytes
from vitft.data.split import run_manifest
from vitft.metrics.intervals import Flags, wilson_interval
from vitft.metrics.results import Results, RunResults, read_results
from vitft.models.card import Card
from vitft.models.checkpoint import build_model
from vitft.models.find import find_model
from vitft.models.pretrained.catalog import (
    RANDOM,
    CatalogEntry,
    catalog_entries,
    entries_by_name,
    obligation,
)
from vitft.models.pretrained.weights import load_classifier
from vitft.models.timm_model import Model
from vitft.predict.postprocess import run_results
from vitft.report.html import filled
from vitft.system.errors import ImageError, RunError
from vitft.system.imports import version
from vitft.system.text import percent

_NUM_NOISE_IMAGES = 8  # number of noise images that are compared if there are no validation images


class Sample(NamedTuple):
    """An image for comparing predictions."""

    image: Image.Image
    label: int | Flags
    """Class index, or for multi-label data one flag per label (C,); -1 for noise images."""
    group: str
    """Name of the group, or the digest of an image without one; empty if no image has a group."""


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

    @cached_property
    def manifest(self) -> Images | None:
        """Images of the run with their split; None if the run has none."""
        return run_manifest(self.run)

    @property
    def is_narrow(self) -> bool:
        """Whether the exported head reads fewer blocks than the run's head."""
        return _last_block_accuracy(self.card, self.measured) is not None

    @property
    def last_block_reason(self) -> str:
        """Why an exported head reads fewer blocks than the run's head, and what it costs."""
        head = self.measured.get("head") if self.measured else None
        if not self.measured or not head or head["last_block_top1"] is None:
            return "because timm and transformers cannot load a head on several blocks"
        last, whole = percent(head["last_block_top1"]), percent(self.measured["top1"])
        cost = f"{last}, as with the run's head" if last == whole else f"{last} instead of {whole}"
        return (
            "because timm and transformers cannot load the run's head, which uses the last "
            f"{head['blocks']} blocks (validation accuracy {cost})"
        )

    @property
    def pretrained_entry(self) -> CatalogEntry | None:
        """Catalogue entry of the pretrained weights, found by name or digest.

        The name counts only if vitft has fetched them, and so knows the licence. Anybody may give
        a file such a name.
        """
        rows, weights = entries_by_name(), self.card.weights
        for name in (weights.get("name", ""), weights.get("from", "")):
            if name in rows and "licence" in weights:
                return rows[name]
        digest = weights.get("sha256", "")
        return next((e for e in catalog_entries() if digest and e.sha256 == digest), None)

    @property
    def pretrained_licence(self) -> str:
        """Licence of the pretrained weights; empty if it is not known."""
        entry = self.pretrained_entry
        return self.card.weights.get("licence", "") or (entry.licence if entry else "")

    @property
    def is_from_scratch(self) -> bool:
        """Whether the model was trained without pretrained weights."""
        name = self.card.weights.get("name", "")
        return name == "none" or name.startswith(RANDOM)

    @cached_property
    def num_images(self) -> Mapping[str, Counter[str]]:
        """Numbers of images of each class in each split; that of all images is under ""."""
        found = {"train": Counter[str](), "val": Counter[str](), "test": Counter[str]()}
        if self.manifest is not None:
            for row in self.manifest.rows:
                found[row.split].update(self.manifest.names(row))
                found[row.split][""] += 1  # no class has an empty name
        return found

    def sentences(self, licence: str, literal: Callable[[str], str]) -> dict[str, str]:
        """Return sentences about the `model`, `view` (preprocessing), `data` and `licence`.

        `literal` converts a name to text that is displayed literally.
        """
        origin = Path(self.card.weights.get("name", "")).name
        if origin == "model":  # the file name model.safetensors conveys no information
            origin = self.card.weights.get("from", "")
        values = {
            "literal": literal,
            "shape": self.card.architecture,
            "origin": origin,
            "prompts": self.card.weights.get("prompts", ""),
            "version": version("vitft"),
            "transform": self.card.transform,
            "data": literal(self.results.data or "images"),
            "sizes": {part: counts[""] for part, counts in self.num_images.items()},
            "test": self.measured.get("test") if self.measured else None,
            "chosen": licence,
            "known": self.pretrained_licence,
            "obligation": obligation(self.pretrained_licence) if self.pretrained_licence else "",
            "from_scratch": self.is_from_scratch,
        }
        topics = ("model", "view", "data", "licence")
        return {about: filled("facts.j2", about=about, **values).rstrip() for about in topics}

    def class_figures(self) -> list[tuple[str, ...]]:
        """Return a row per class: name, training images, validation images, recall, precision."""
        figures: Mapping[str, Any] = self.measured["per_class"] if self.measured else {}
        return [
            (
                name,
                str(self.num_images["train"][name] or "–"),
                str(figures.get(name, {}).get("images", self.num_images["val"][name]) or "–"),
                *(percent(figures.get(name, {}).get(key)) for key in ("recall", "precision")),
            )
            for name in self.card.classes
        ]

    def comparison_images(self, count: int) -> Iterator[Sample]:
        """Yield at most `count` unchanged validation images, or noise if there are none."""
        is_empty = True
        for sample in self.unchanged_images(count):
            is_empty = False
            yield sample
        random = np.random.default_rng(0)
        height, width = self.card.transform.image_size
        # Noise images have different heights and are at least as large as the input.
        for i in range(_NUM_NOISE_IMAGES if is_empty else 0):
            pixels = random.integers(0, 256, (height + 3 * i, width + 20, 3), dtype=np.uint8)
            yield Sample(Image.fromarray(pixels), -1, "")

    def num_comparison_images(self, count: int) -> int:
        """Return how many images `comparison_images` yields unless files have changed."""
        manifest = self.manifest
        return _NUM_NOISE_IMAGES if manifest is None else min(count, len(manifest.val))

    def unchanged_images(self, count: int) -> Iterator[Sample]:
        """Sample `count` evenly spaced validation images, and yield those that are unchanged."""
        manifest, grey_range = self.manifest, self.card.transform.grey_range
        if manifest is None:
            return
        total = len(manifest.val)
        number = min(count, total)
        rows = [manifest.val[i * total // number] for i in range(number)]  # covers many classes
        has_groups = any(row.unit for row in rows)
        for row, target in zip(rows, manifest.targets(rows), strict=True):
            path = manifest.locate(row)
            with contextlib.suppress(ImageError):
                if hashlib.sha256(read_bytes(path)).hexdigest() == row.sha256:
                    image = open_image(path, grey_range=grey_range)
                    yield Sample(image, target, (row.unit or row.sha256) * has_groups)

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
    """Return the card with the numbers of a run, as far as they are known of the exported head."""
    # An export that is exported again has no results, and keeps the numbers of its card.
    found = read_results(run / "eval.json")
    results = run_results(run, found, card.run)
    # A head that reads fewer blocks than the run's head was measured on validation images only.
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
