"""Setup of a run before an image is opened: settings, files, device, and the model with its cut.

Weights may be downloaded; nothing else is written. `--dry-run` stops here.
"""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitft.config.defaults import default_lr
from vitft.config.run import Config, to_toml
from vitft.config.sections import DataSpec
from vitft.data.arrays import data_path
from vitft.data.fixes import apply_fixes
from vitft.data.folder import Folder, scan
from vitft.data.sampling import describe_epoch, images_per_epoch
from vitft.data.split import draw
from vitft.features.pipeline import FrozenPipeline, load_pipeline
from vitft.models.freeze import freeze_model
from vitft.models.lora import add_adapters
from vitft.models.pretrained.report import LoadReport
from vitft.models.timm_model import Model
from vitft.system.device import describe_device
from vitft.system.text import count
from vitft.training.distributed import ProcessGroup
from vitft.training.fsdp import check_sharding

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything that is known before an image is opened."""

    config: Config
    """With all defaults resolved."""
    folder: Folder
    pipeline: FrozenPipeline
    """The model, cut for the first stage."""
    report: LoadReport


def prepare(config: Config, group: ProcessGroup) -> Setup:
    """List the images, load the weights, pick the device, and cut the model for the first stage."""
    data = data_path(config.data.path, config.data.root).resolve()
    config = replace(config, data=replace(config.data, path=str(data)))
    folder = scan(data, reference=config.data.split == "reference")
    folder, data_spec = apply_fixes(folder, config.data)
    config = replace(config, data=data_spec)
    pipeline, report = load_pipeline(
        config, folder, config.train.stages[0], local_rank=group.local_rank
    )
    model, precision = pipeline.model, pipeline.precision
    config = with_default_lr(config, model)
    if config.train.shard:
        check_sharding(model, group, precision=precision, compiled=config.train.compile)
    trained, total = count_parameters(model, pipeline.trained), count_parameters(model)
    log.info(
        f"training {config.train.freeze}: {trained:,} of {total:,} parameters, "
        f"on {describe_device(pipeline.device)} in {precision}"
    )
    return Setup(config=config, folder=folder, pipeline=pipeline, report=report)


def with_default_lr(config: Config, model: Model) -> Config:
    """Fill in the learning rate that suits what trains, unless one is given or none is needed."""
    if config.optim.lr is not None or config.optim.solver == "lbfgs":
        return config
    lr = default_lr(config.train.freeze, model.feature_size)
    return replace(config, optim=replace(config.optim, lr=lr))


def count_parameters(model: Model, names: Sequence[str] | None = None) -> int:
    """Return the number of values in the named parameters; default: in all of them."""
    chosen = None if names is None else {*names}
    return sum(p.numel() for n, p in model.named_parameters() if chosen is None or n in chosen)


def dry_run(config: Config, out: Path, *, data: str) -> str:
    """Log what a run would do, without opening an image; return its resolved settings as TOML.

    Args:
        config: The settings, checked.
        out: Where the run would be written.
        data: The data as the user named it.

    Raises:
        DataError: As the run would.
        WeightsError: As the run would.
        UsageError: As the run would.
    """
    setup = prepare(config, ProcessGroup())
    config, folder, model = setup.config, setup.folder, setup.pipeline.model
    labels = expected_training_labels(folder, config.data)
    held_back = len(folder.files) - len(labels)
    log.info(
        f"{len(folder.files):,} files in {len(folder.classes)} classes, not opened yet: about "
        f"{len(labels):,} for training, {held_back:,} for validation"
    )
    if config.train.sampling == "balanced":
        log.info(describe_epoch(labels, folder.classes))
    for stage in config.train.stages:
        if stage == "lora":
            add_adapters(model, config.train)
        trained = count_parameters(model, freeze_model(model, stage))
        log.info(f"{stage}: {trained:,} parameters train, {describe_solver(config, stage, labels)}")
    log.info(f"the run would be written to {out}; nothing was trained")
    return to_toml(replace(config, data=replace(config.data, path=data)))


def describe_solver(config: Config, stage: str, labels: Sequence[int]) -> str:
    """Return the solver of a stage and its steps in words."""
    if config.solves(stage):
        return "solved by lbfgs without a training loop"
    spec = config.optim
    images = images_per_epoch(labels, balanced=config.train.sampling == "balanced")
    steps = math.ceil(images / spec.batch_size)
    return (
        f"{spec.solver} with learning rate {spec.lr:.3g}: {count(spec.epochs, 'epoch')} of "
        f"{count(steps, 'step')} of {count(spec.batch_size, 'image')}"
    )


def expected_training_labels(folder: Folder, spec: DataSpec) -> list[int]:
    """Return the labels that would train if all files are readable and none is a copy."""
    if folder.layout == "split":
        return [file.label for file in folder.files if file.part != "val"]
    counts = Counter(file.label for file in folder.files)
    every = range(len(folder.classes))
    drawn = draw([counts[i] for i in every], spec.val_rate, spec.seed, at_least=1)
    return [i for i in every for _ in range(counts[i] - len(drawn[i]))]
