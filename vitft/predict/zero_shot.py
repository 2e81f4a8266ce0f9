"""A classifier from class names alone: pretrained weights with a head from prompts.

Importing this module does not import torch.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vitft.config.run import Config
from vitft.config.sections import TrainSpec, WeightsSpec
from vitft.data.image_table import Images
from vitft.data.images import check_any_readable
from vitft.models.pretrained.catalog import check_weights_name
from vitft.models.pretrained.text import PROMPTS, check_names, prompt_head
from vitft.system.imports import require_extra
from vitft.system.rundir import MODEL, plan_run
from vitft.system.text import listing

_IMAGES = 200  # number of images that show the usual length of an embedding


def check_zero_shot(weights: str, classes: Sequence[str], prompts: Sequence[str], out: str) -> Path:
    """Check the arguments of `write_zero_shot` before torch is imported; return the new folder."""
    check_names(classes, prompts)
    check_weights_name(weights, allow_pickle=None)
    require_extra("transformers", feature="a head from class names")
    return plan_run(out, "")


def write_zero_shot(
    images: Images,
    *,
    weights: str,
    classes: Sequence[str],
    prompts: Sequence[str] = PROMPTS,
    out: Path,
    train: TrainSpec,
) -> Path:
    """Write a model for the classes to a folder, and return its path. No label is used.

    Some of the images show the length of their embeddings, by which the head is divided. This
    affects the probabilities only (see `PromptHead`).

    Raises:
        DataError: No image is readable.
        WeightsError, UsageError: As for `prompt_head`.
        RunError: The folder cannot be written.
    """
    names = sorted(classes)  # as folders are, so that --keep-head finds the same order
    head = prompt_head(weights, names, prompts)
    from vitft.features.extract import inspect_with, load_pipeline
    from vitft.models.card import Card
    from vitft.models.checkpoint import save_checkpoint

    images, train = replace(images, classes=tuple(names)), replace(train, precision="fp32")
    config = Config(weights=WeightsSpec(name=weights), train=train)
    pipeline, report = load_pipeline(images, "head", config)
    some = replace(images, rows=images.rows[:: -(-len(images.rows) // _IMAGES)])
    found, features = inspect_with(pipeline, some, allow_bad=True)
    check_any_readable(found)
    weight, bias = head.scaled(features([row.sha256 for row in found.rows]))
    card = Card(
        architecture=pipeline.model.config,
        transform=report.transform,
        classes=images.classes,
        weights={**report.provenance, "prompts": listing(prompts, len(prompts))},
        pos_embed=report.positions,
    )
    out.mkdir(parents=True, exist_ok=True)
    state = {**pipeline.model.state_dict(), "head.weight": weight, "head.bias": bias}
    save_checkpoint(out / MODEL, state, card)
    return out / MODEL
