"""What is known of a run before an image is opened: settings, files, the model and where it is cut.

Weights may be fetched; nothing else is written.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitft.config.defaults import default_lr
from vitft.config.run import Config
from vitft.data.arrays import data_path
from vitft.data.fixes import apply_fixes
from vitft.data.folder import Folder, scan
from vitft.features.pipeline import FrozenPipeline, load_pipeline
from vitft.models.pretrained import LoadReport
from vitft.models.timm_model import Model
from vitft.system.device import describe_device
from vitft.training.distributed import Team
from vitft.training.fsdp import check_split

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is known before an image is opened."""

    config: Config
    """With everything filled in that was left open."""
    folder: Folder
    pipeline: FrozenPipeline
    report: LoadReport


def prepare(config: Config, team: Team) -> Prepared:
    """Look data, weights and device up, and cut the model where it trains; nothing is written."""
    place = data_path(config.data.path, config.data.root)
    data = str(place.resolve())  # found again from anywhere
    config = replace(config, data=replace(config.data, path=data))
    folder = scan(Path(data), reference=config.data.split == "reference")
    folder, data_spec = apply_fixes(folder, config.data)
    config = replace(config, data=data_spec)
    pipeline, report = load_pipeline(
        config, folder, config.train.stages[0], local_rank=team.local_rank
    )
    model, precision = pipeline.model, pipeline.precision
    config = with_usual_lr(config, model)
    if config.train.shard:
        check_split(model, team, precision=precision, compiled=config.train.compile)
    say_what_trains(model, pipeline.trained, config, pipeline.device, precision)
    return Prepared(config=config, folder=folder, pipeline=pipeline, report=report)


def with_usual_lr(config: Config, model: Model) -> Config:
    """The settings with the learning rate that suits what trains, where none is named."""
    if config.optim.lr is not None or config.optim.solver == "lbfgs":
        return config
    width = model.feature_size
    lr = default_lr(config.train.freeze, width)
    return replace(config, optim=replace(config.optim, lr=lr))


def say_what_trains(
    model: Model,
    trained: Sequence[str],
    config: Config,
    device: torch.device,
    precision: str,
) -> None:
    """Count the parameters on both sides of the freeze boundary."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    count = sum(sizes[name] for name in trained)
    log.info(
        f"training {config.train.freeze}: {count:,} of {sum(sizes.values()):,} parameters, "
        f"on {describe_device(device)} in {precision}"
    )
