"""Facts about a run as sentences, for the README of an export and for exported pages.

Names of classes, folders and weights can contain any character. Most functions therefore have an
argument `literal`: a function that converts a name to text that is displayed literally.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vitft.config.run import read_run_config
from vitft.data.remote.places import short_name
from vitft.data.split import run_manifest
from vitft.export.trained import TrainedRun, read_head_results
from vitft.metrics.estimate import (
    better_estimate,
    cross_validated_text,
    difference_text,
    tested_text,
)
from vitft.metrics.results import RunResults
from vitft.models.card import Card, Provenance
from vitft.models.licences import obligation
from vitft.models.pretrained.catalog import CatalogEntry, catalog_entries, entries_by_name
from vitft.models.pretrained.locate import RANDOM
from vitft.models.timm_config import TimmConfig
from vitft.system.text import count, interval, percent

Literal = Callable[[str], str]
"""Function that converts a name to text that is displayed literally."""


def results_of(trained: TrainedRun) -> RunResults | None:
    """Return the results of a run, measured with the exported head, or None if it has none.

    Raises:
        RunError: The file eval.json is damaged.
    """
    return read_head_results(trained.run, trained.card)


def data_name(run: Path) -> str:
    """Return the name of the data without its path, or `images` if it is unknown."""
    settings = read_run_config(run) if (run / "config.toml").is_file() else {}
    if name := Path(short_name(str(settings.get("data", {}).get("path", "")))).name:
        return name
    manifest = run_manifest(run)
    return manifest.root.name if manifest and manifest.root.name else "images"


def count_images(run: Path) -> dict[str, Counter[str]]:
    """Count the images of each class in each split, and all images of a split under an empty name.

    All counts are 0 if the split is unknown.
    """
    found = {"train": Counter[str](), "val": Counter[str](), "test": Counter[str]()}
    if (manifest := run_manifest(run)) is None:
        return found
    for row in manifest.rows:
        found[row.split].update(manifest.names(row))
        found[row.split][""] += 1  # no class has an empty name
    return found


def model_sentence(card: Card, literal: Literal) -> str:
    """Return a sentence about the architecture and the origin of a model."""
    shape = card.architecture
    kind = (
        f"timm model {literal(shape.timm)}"
        if isinstance(shape, TimmConfig)
        else f"Vision Transformer with {shape.depth} blocks of width {shape.width} and a patch "
        f"size of {shape.patch_size[0]} pixels"
    )
    origin = Path(card.weights.get("name", "")).name
    if origin == "model":  # the file name model.safetensors conveys no information
        origin = card.weights.get("from", "")
    history = f"fine-tuned from {literal(origin)}" if origin else "fine-tuned"
    if origin == "none" or origin.startswith("random:"):
        history = "trained from random weights"
    return f"{kind}, {history} with vitft {version('vitft')}."


HOW_FITTED: Mapping[str, str] = {
    "crop": "resized and cropped",
    "squash": "resized",
    "pad": "resized and padded",
}


def view_sentence(card: Card) -> str:
    """Return a sentence about the preprocessing of images."""
    transform = card.transform
    return (
        f"Images are {HOW_FITTED[transform.fit]} to "
        f"{transform.image_size[0]} x {transform.image_size[1]} pixels "
        f"({transform.interpolation}, crop {transform.crop:g}) and normalised with mean "
        f"{list(transform.mean)} and std {list(transform.std)}."
    )


def data_sentence(trained: TrainedRun, literal: Literal, results: RunResults | None = None) -> str:
    """Return a sentence about the name and size of the data, given the contents of eval.json."""
    images = count_images(trained.run)
    sizes = {part: images[part][""] for part in ("train", "val", "test")}
    test = results.get("test") if results else None
    left_out = test["left_out"] if test else 0
    counted = f": {count(sizes['train'], 'image')} for training and {sizes['val']} for validation"
    if sizes["test"]:
        counted += f", plus {sizes['test'] - left_out} for testing"
        if left_out:
            verb = "is a copy" if left_out == 1 else "are copies"
            counted += f" ({left_out} more {verb} of the others)"
    name = literal(data_name(trained.run))
    return f"The data is {name}{counted if sizes['train'] else ''}."


def class_figures(trained: TrainedRun, results: RunResults | None) -> list[tuple[str, ...]]:
    """Return a row per class: name, training images, validation images, recall and precision."""
    images = count_images(trained.run)
    figures: Mapping[str, Any] = {} if results is None else results.get("per_class", {})
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


def accuracy_sentence(results: RunResults) -> str:
    """Return sentences about the accuracy on the test and validation images, with intervals."""
    selected = (
        " The epoch was selected on the same images, so the accuracy is slightly optimistic."
        if results.get("selected_on_validation")
        else ""
    )
    tested = f"T{tested_text(test)[1:]}. " if (test := results.get("test")) else ""
    if found := results.get("labels"):
        return (
            f"{tested}Mean average precision {percent(found['map'])} (95% interval "
            f"{interval(found['map_interval'])}; random scores: {percent(found['chance_map'])}) "
            f"and mean F1 over the labels {percent(found['macro_f1'])} (95% interval "
            f"{interval(found['macro_f1_interval'])}) on "
            f"{count(results['images'], 'held-out validation image')}.{selected}"
        )
    crossed = ""
    if more := better_estimate(results):
        text = cross_validated_text(more["top1"], more["top1_interval"], more["images"])
        crossed = f"; {text}"
    return (
        f"{tested}Accuracy {percent(results['top1'])} (95% interval "
        f"{interval(results['top1_interval'])}) on "
        f"{count(results['images'], 'held-out validation image')}{crossed}; "
        f"baseline (largest class): {percent(results.get('majority', 0))}.{selected} "
        f"{difference_text(results)}".rstrip()
    )


def licence_sentence(card: Card, chosen: str, literal: Literal) -> str:
    """Return a sentence about the licences of a model and of its pretrained weights."""
    known = pretrained_licence(card.weights)
    pretrained = f"pretrained weights: {literal(known)}" if known else ""
    if chosen:
        if not pretrained or known.lower() == chosen.lower():
            return f"{literal(chosen)}."
        return f"{literal(chosen)} ({pretrained}). {obligation(known)}".rstrip()
    if not pretrained and is_from_scratch(card.weights):
        return (
            "Not stated; there were no pretrained weights, whose licence could apply. The author "
            "can state one with vitft export --licence NAME."
        )
    if not pretrained:
        return "Not stated; the author can state it with vitft export --licence NAME."
    return f"Same licence as the {pretrained}. {obligation(known)}".rstrip()


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
