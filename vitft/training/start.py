"""Data and model of a run before its first stage, and of each stage after it."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from vitft.config.defaults import FINE_TUNING
from vitft.config.run import Config
from vitft.data.folder import Folder
from vitft.data.inspection import InspectedFolder, log_inspection
from vitft.data.sampling import describe_epoch
from vitft.data.split import log_split, split
from vitft.data.transforms import View, eval_view
from vitft.features.cache import default_folder, prune
from vitft.features.extract import Extractor
from vitft.features.fingerprints import Fingerprints
from vitft.features.pipeline import build_pipeline, check_disk_space, inspect_dataset
from vitft.models.pretrained.report import LoadReport
from vitft.models.timm_model import Model
from vitft.system import console
from vitft.system.text import count
from vitft.training.batches import image_reader
from vitft.training.dataset import Dataset, StageInputs
from vitft.training.distributed import ProcessGroup
from vitft.training.pixels import load_images
from vitft.training.setup import Setup, prepare
from vitft.training.views import caches_views, compute_views, training_views

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A run before its first stage: the images checked and split, the model loaded and cut."""

    config: Config
    """With all defaults resolved."""
    model: Model
    report: LoadReport
    inspected: InspectedFolder
    precision: str
    inputs: StageInputs
    """What the first stage reads."""
    extraction_s: float
    """Seconds that checking the images and extracting their features took."""

    @property
    def full_training_s(self) -> float | None:
        """Estimated seconds of fine-tuning all weights; a step costs about three forward passes.

        None if most features were cached, so that no forward passes were timed.
        """
        extractor, manifest = self.inputs.extractor, self.inputs.data.manifest
        if extractor is None or extractor.computed < len(manifest.rows) / 2:
            return None
        epochs = FINE_TUNING["optim"]["epochs"]
        passes = epochs * (3 * len(manifest.train) + len(manifest.val))
        return passes * self.extraction_s / extractor.computed


def begin(config: Config, group: ProcessGroup) -> Start:
    """Do everything that comes before the run directory; only caches are written."""
    setup = prepare(config, group)
    extractor = first_extractor(setup)
    share_extraction(setup.folder, extractor, eval_view(setup.report.transform), group)
    started = time.monotonic()
    inspected, duplicates = inspect_data(setup, extractor)
    extraction_s = time.monotonic() - started
    data = split_images(setup, inspected, duplicates, group)
    inputs = StageInputs(data=data, cut=setup.pipeline.cut, extractor=extractor)
    inputs = with_stage_data(inputs, setup.config, setup.config.train.stages[0])
    group.barrier()
    if not setup.config.train.cache and extractor is not None:
        prune(default_folder(), idle_s=3600)
    return Start(
        config=setup.config,
        model=setup.pipeline.model,
        report=setup.report,
        inspected=inspected,
        precision=setup.pipeline.precision,
        inputs=inputs,
        extraction_s=extraction_s,
    )


def first_extractor(setup: Setup) -> Extractor | None:
    """Return the extractor of the first stage, if the cache has space for its features."""
    config = setup.config
    extractor = setup.pipeline.open_extractor(config.train, max_pixels=config.data.max_pixels)
    if extractor is not None:
        check_disk_space(extractor, eval_view(setup.report.transform), len(setup.folder.files))
    return extractor


def share_extraction(
    folder: Folder, extractor: Extractor | None, view: View, group: ProcessGroup
) -> None:
    """Let each process extract its shard of the features into the common cache.

    Where the processes have no common cache, each computes the rest by itself afterwards.
    """
    if group.size > 1 and extractor is not None:
        files = group.shard(folder.files)
        with console.Progress("images to features, one shard", len(files)) as progress:
            for _ in extractor.extract(str(folder.root), files, view):
                progress.advance()  # unreadable files are reported by `inspect_data`
    group.barrier()


def inspect_data(
    setup: Setup, extractor: Extractor | None
) -> tuple[InspectedFolder, dict[str, str]]:
    """Read every image once, with its features where a part of the model is frozen.

    Returns:
        What was found, and names of groups of near copies by digest if the split keeps them
        together.
    """
    data, cache = setup.config.data, setup.config.train.cache
    fingerprints = Fingerprints(cache) if data.group_duplicates else None
    inspected = inspect_dataset(
        setup.folder,
        max_pixels=data.max_pixels,
        allow_bad=data.allow_bad,
        extractor=extractor,
        view=eval_view(setup.report.transform),
        fingerprints=fingerprints,
    )
    log_inspection(inspected)
    if fingerprints is None:
        return inspected, {}
    duplicates = fingerprints.duplicate_groups()
    copies = count(len(duplicates), "image")
    log.info(f"near-duplicates: {copies}, each group kept on one side of the split")
    return inspected, duplicates


def split_images(
    setup: Setup, inspected: InspectedFolder, duplicates: Mapping[str, str], group: ProcessGroup
) -> Dataset:
    """Split the readable images into training and validation, and log the result."""
    config = setup.config
    manifest = split(inspected, config.data, groups=duplicates)
    log_split(manifest)
    if config.train.sampling == "balanced":
        log.info(describe_epoch([row.label for row in manifest.train], manifest.classes))
    return Dataset(
        manifest=manifest,
        transform=setup.report.transform,
        max_pixels=config.data.max_pixels,
        device=setup.pipeline.device,
        group=group,
        duplicates=duplicates,
    )


def with_stage_data(inputs: StageInputs, config: Config, stage: str) -> StageInputs:
    """Load small images into memory, and cache the features of the training views."""
    data, train = inputs.data, config.train
    in_memory = inputs.extractor is None and train.augment in ("none", "shift")
    if in_memory and inputs.images is None:
        inputs = replace(inputs, images=load_images(image_reader(data)))
    views = [v for v in training_views(data.transform, train, config.optim) if v.crop is not None]
    reads_views = config.solvable or not config.solves(stage)
    if inputs.extractor is not None and views and reads_views and caches_views(inputs.cut, train):
        manifest = data.manifest
        compute_views(inputs.extractor, manifest, manifest.train, views, "augmented views")
    return inputs


def next_inputs(
    model: Model, inputs: StageInputs, config: Config, stage: str, *, precision: str
) -> StageInputs:
    """Unfreeze what the next stage trains, and prepare what it reads."""
    data = inputs.data
    pipeline = build_pipeline(
        model,
        data.transform,
        stage,
        config.train,
        device=data.device,
        precision=precision,
    )
    extractor = pipeline.open_extractor(config.train, max_pixels=data.max_pixels)
    inputs = replace(inputs, cut=pipeline.cut, extractor=extractor)
    if extractor is not None:
        rows, view = data.manifest.rows, eval_view(data.transform)
        check_disk_space(extractor, view, len(rows))
        compute_views(extractor, data.manifest, rows, [view], "images to features")
    inputs = with_stage_data(inputs, config, stage)
    log.info(f"training {stage}, starting from the weights of the stage before")
    return inputs
