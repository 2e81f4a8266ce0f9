"""`vitft finetune --dry-run`: everything that is known before the first image is opened.

Settings are resolved, data and weights looked up, the model is built and cut. Weights that are not
on this machine are fetched, as the run would; nothing else is written and nothing is trained.
"""

import logging
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

from vitft.config.run import Config, to_toml
from vitft.data.folder import Folder
from vitft.data.sampling import describe_epoch, images_per_epoch
from vitft.data.split import draw
from vitft.models.freeze import freeze_model
from vitft.models.lora import add_adapters
from vitft.training.distributed import Team
from vitft.training.setup import prepare

log = logging.getLogger(__name__)


def rehearse(config: Config, out: Path, *, named: str) -> str:
    """Say what a run would do; returns its settings, resolved, as TOML.

    Args:
        config: The settings, checked.
        out: Where the run would be written.
        named: What the user calls the data.

    Raises:
        DataError: As the run would.
        WeightsError: As the run would.
        UsageError: As the run would.
    """
    known = prepare(config, Team())
    labels = training_labels(known.folder, known.config)
    held_back = len(known.folder.files) - len(labels)
    log.info(
        f"{len(known.folder.files):,} files in {len(known.folder.classes)} classes, not opened "
        f"yet: about {len(labels):,} train, {held_back:,} validate"
    )
    if known.config.train.sampling == "balanced":
        log.info(describe_epoch(labels, known.folder.classes))
    for stage in known.config.train.stages:
        if stage == "lora":
            add_adapters(known.pipeline.model, known.config.train)
        names = set(freeze_model(known.pipeline.model, stage))
        count = sum(
            p.numel() for name, p in known.pipeline.model.named_parameters() if name in names
        )
        log.info(f"{stage}: {count:,} parameters train, {how(known.config, stage, labels)}")
    log.info(f"it would be written to {out!s}; nothing was trained")
    return to_toml(replace(known.config, data=replace(known.config.data, path=named)))


def how(config: Config, stage: str, labels: list[int]) -> str:
    """The solver of a stage, and its steps."""
    if config.solves(stage):
        return "solved at once by lbfgs"
    spec = config.optim
    count = images_per_epoch(labels, balanced=config.train.sampling == "balanced")
    steps = math.ceil(count / spec.batch_size)
    return (
        f"{spec.solver} at {spec.lr:.3g}: {spec.epochs} epochs of {steps:,} steps of "
        f"{spec.batch_size} images"
    )


def training_labels(folder: Folder, config: Config) -> list[int]:
    """The class of every file that would train if all of them can be read and none is a copy."""
    if folder.layout == "split":
        return [file.label for file in folder.files if file.part != "val"]
    counts = Counter(file.label for file in folder.files)
    spec, every = config.data, range(len(folder.classes))
    drawn = draw([counts[i] for i in every], spec.val_rate, spec.seed, at_least=1)
    return [i for i in every for _ in range(counts[i] - len(drawn[i]))]
