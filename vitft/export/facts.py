"""Facts about a run as sentences, for the README of an export and for exported pages.

Names of classes, folders and weights can contain any character. The argument `literal` is therefore
a function that converts a name to text that is displayed literally.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vitft.data.split import run_manifest
from vitft.export.trained import TrainedRun
from vitft.models.card import Provenance, TimmConfig
from vitft.models.pretrained.catalog import (
    RANDOM,
    CatalogEntry,
    catalog_entries,
    entries_by_name,
    obligation,
)
from vitft.report.html import filled
from vitft.system.text import percent


def _count_images(run: Path) -> dict[str, Counter[str]]:
    """Count the images of each class in each split, and all images of a split under ""."""
    found = {"train": Counter[str](), "val": Counter[str](), "test": Counter[str]()}
    if manifest := run_manifest(run):
        for row in manifest.rows:
            found[row.split].update(manifest.names(row))
            found[row.split][""] += 1  # no class has an empty name
    return found


def run_sentences(
    trained: TrainedRun, licence: str, literal: Callable[[str], str]
) -> dict[str, str]:
    """Return sentences about the `model`, `view` (preprocessing), `data` and `licence`."""
    card, found = trained.card, trained.measured
    origin = Path(card.weights.get("name", "")).name
    if origin == "model":  # the file name model.safetensors conveys no information
        origin = card.weights.get("from", "")
    test = found.get("test") if found else None
    known = pretrained_licence(card.weights)
    values = {
        "literal": literal,
        "shape": card.architecture,
        "is_timm": isinstance(card.architecture, TimmConfig),
        "origin": origin,
        "version": version("vitft"),
        "transform": card.transform,
        "data": literal(trained.results.data or "images"),
        "sizes": {part: counts[""] for part, counts in _count_images(trained.run).items()},
        "left_out": test["left_out"] if test else 0,
        "chosen": licence,
        "known": known,
        "obligation": obligation(known) if known else "",
        "from_scratch": is_from_scratch(card.weights),
    }
    topics = ("model", "view", "data", "licence")
    return {about: filled("facts.j2", about=about, **values).rstrip() for about in topics}


def class_figures(trained: TrainedRun) -> list[tuple[str, ...]]:
    """Return a row per class: name, training images, validation images, recall and precision."""
    images = _count_images(trained.run)
    figures: Mapping[str, Any] = trained.measured["per_class"] if trained.measured else {}
    return [
        (
            name,
            str(images["train"][name] or "–"),
            str(images["val"][name] or "–"),
            percent(figures.get(name, {}).get("recall")),
            percent(figures.get(name, {}).get("precision")),
        )
        for name in trained.card.classes
    ]


def catalog_origin(weights: Provenance) -> CatalogEntry | None:
    """Return the catalogue entry of the pretrained weights, found by name or digest, or None."""
    rows = entries_by_name()
    for name in (weights.get("name", ""), weights.get("from", "")):
        if name in rows:
            return rows[name]
    digest = weights.get("sha256", "")
    return next((e for e in catalog_entries() if digest and e.sha256 == digest), None)


def is_from_scratch(weights: Provenance) -> bool:
    """Return whether a model was trained without pretrained weights."""
    name = weights.get("name", "")
    return name == "none" or name.startswith(RANDOM)


def pretrained_licence(weights: Provenance) -> str:
    """Return the licence of the pretrained weights, or an empty string if it is not known."""
    entry = catalog_origin(weights)
    return weights.get("licence", "") or (entry.licence if entry else "")
