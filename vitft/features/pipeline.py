"""Frozen pipeline: load and cut a model, and extract features in one cached pass over the images.

Used by `finetune` (including its dry run), `check` and `study`.
"""

import functools
import logging
import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitft.config.sections import ModelSpec, TrainSpec, WeightsSpec
from vitft.data.image_table import Images
from vitft.data.inspection import inspect_folder
from vitft.data.transforms import EvalTransform, View, eval_view
from vitft.features.cache import Store, default_folder
from vitft.features.cut import Cut, cut_model
from vitft.features.extract import Claim, Extractor
from vitft.features.fingerprints import Fingerprints, fingerprint_folder
from vitft.features.logistic import LARGE_VALUES
from vitft.models.pretrained.load import LoadReport, load_initial_model
from vitft.models.timm_model import Model
from vitft.models.trainable import add_adapters, freeze_model
from vitft.system import console
from vitft.system.cores import usable_cores
from vitft.system.device import pick_device, pick_precision
from vitft.system.errors import ResourceError, RunError
from vitft.system.text import count, format_bytes

log = logging.getLogger(__name__)

_HEAD_BLOCKS = 6  # maximum number of blocks that a head fitted by L-BFGS reads by default
_MAX_HEAD_DIMENSIONS = 3_100
"""Maximum number of feature dimensions that a head fitted by L-BFGS reads by default. The time to
fit the head grows with the cube of this number if there are more images than dimensions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenPipeline:
    """A model on its device, frozen and cut at the freeze boundary of a stage."""

    model: Model
    transform: EvalTransform
    trained: tuple[str, ...]  # names of the trainable parameters
    cut: Cut
    device: torch.device
    precision: str

    def open_extractor(self, spec: TrainSpec, *, max_pixels: int) -> Extractor | None:
        """Return a caching extractor for the frozen layers, or None if nothing is frozen."""
        if self.cut.prefix is None:
            return None
        make = functools.partial(
            Extractor,
            self.cut.prefix,
            precision=self.precision,
            max_pixels=max_pixels,
            exact=spec.exact_pixels,
        )
        if spec.cache == "none":
            return make(folder=None)
        try:
            folder = Path(spec.cache).expanduser() if spec.cache else default_folder()
            extractor = make(folder=folder)
            extractor.store(eval_view(self.transform))  # fail early
            return extractor
        except (RunError, ResourceError) as error:
            if spec.cache:
                raise
            log.warning(f"features are not cached: {error.problem}")
            return make(folder=None)


def load_pipeline(
    folder: Images,
    stage: str,
    *,
    weights: WeightsSpec,
    model: ModelSpec,
    train: TrainSpec,
    max_pixels: int,
    announce: bool = True,
) -> tuple[FrozenPipeline, LoadReport]:
    """Load the weights of a run and cut the model at the freeze boundary of a stage.

    If `announce` is set, the model is logged.
    """
    device = pick_device(train.device)
    precision = pick_precision(train.precision, device)
    initial, report = load_initial_model(
        weights,
        model,
        folder,
        max_pixels=max_pixels,
        drop_path=train.drop_path,
        seed=train.seed,
        keep_head=stage != "head",
        announce=announce,
    )
    return build_pipeline(
        initial, report.transform, stage, train, device=device, precision=precision
    ), report


def read_several_blocks(
    pipeline: FrozenPipeline, spec: TrainSpec, *, images: int
) -> FrozenPipeline:
    """Return the pipeline with a head that may read several blocks, if the model supports it."""
    model = pipeline.model
    blocks = blocks_to_read(model, spec, images=images)
    if blocks == 1:
        return pipeline
    model.read_last_blocks(blocks)
    trained = freeze_model(model, "head")
    log.debug(
        f"features:   {model.feature_size:,} dimensions from the last {count(blocks, 'block')}, "
        "and cross-validation decides whether the head uses all of them"
    )
    return replace(pipeline, trained=tuple(trained), cut=cut_model(model, "head"))


def blocks_to_read(model: Model, spec: TrainSpec, *, images: int) -> int:
    """Return how many of the last blocks a run's head may read if it is fitted by L-BFGS."""
    if spec.head_blocks > 1:
        model.require_vit(f"train.head_blocks={spec.head_blocks}")
    if spec.head_blocks or not model.attends or not model.config.supports_read_blocks:
        return spec.head_blocks or 1
    config = model.config
    fast = 1 + (_MAX_HEAD_DIMENSIONS - config.width) // (config.read_of_earlier * config.width)
    blocks = max(1, min(_HEAD_BLOCKS, config.depth, fast))
    dimensions = replace(config, read_blocks=blocks).feature_size
    return 1 if images * (1 + spec.views) * dimensions > LARGE_VALUES else blocks


def build_pipeline(
    model: Model,
    transform: EvalTransform,
    stage: str,
    spec: TrainSpec,
    *,
    device: torch.device,
    precision: str,
) -> FrozenPipeline:
    """Freeze a loaded model for a stage, move it to a device and cut it.

    Raises:
        UsageError: The model does not support the stage or activation checkpointing.
    """
    model.set_checkpointing(spec.checkpointing)
    if spec.checkpointing and stage.startswith("blocks:"):
        model.require_vit(f"train.checkpointing=true with --train {stage}")
    if stage == "lora":
        add_adapters(model, spec)
    trained = freeze_model(model, stage)
    return FrozenPipeline(
        model=model,
        transform=transform,
        trained=tuple(trained),
        cut=cut_model(model.to(device), stage),
        device=device,
        precision=precision,
    )


def inspect_dataset(
    folder: Images,
    *,
    max_pixels: int,
    allow_bad: bool,
    extractor: Extractor | None = None,
    view: View | None = None,
    fingerprints: Fingerprints | None = None,
    claim: Claim | None = None,
    label: str = "extracting features",
) -> Images:
    """Inspect every image in a folder once, and compute features and fingerprints where given.

    See `Extractor.extract` for `claim` and errors. `label` is shown while features are extracted.
    """
    label = "checking images" if extractor is None else label
    with console.Progress(label, len(folder.rows)) as progress:
        before = 0 if extractor is None else extractor.computed
        if extractor is not None and view is not None:
            inspect = functools.partial(
                extractor.inspect, view=view, fingerprints=fingerprints, claim=claim
            )
        elif fingerprints is not None:
            inspect = functools.partial(
                fingerprint_folder, fingerprints=fingerprints, max_pixels=max_pixels
            )
        else:
            inspect = functools.partial(
                inspect_folder, max_pixels=max_pixels, workers=usable_cores()
            )
        inspected = inspect(folder, allow_bad=allow_bad, progress=progress.advance)
        if extractor is not None:
            if computed := extractor.computed - before:
                progress.skip(len(folder.rows) - computed)
            else:
                progress.label = "checking images"  # all features were in the cache
        return inspected


def log_cached_features(inspected: Images, computed: int) -> None:
    """Log how many features were read from the cache, given the number computed."""
    images = len({file.sha256 for file in inspected.rows})
    if cached := images - computed:
        log.debug(f"features from the cache: {cached:,} of {count(images, 'image')}")


def check_disk_space(extractor: Extractor, view: View, images: int) -> None:
    """Log the disk space that the tokens need; raise a ResourceError if there is too little."""
    shape = extractor.prefix.shape
    if len(shape) == 1:  # pooled features are small; tokens are about as large as a photo
        return
    store = extractor.store(view)
    assert isinstance(store, Store)
    each, here = math.prod(shape) * store.dtype.itemsize, min(images, len(store.places))
    sizes = [count(images, "image"), count(math.prod(shape), "value")]
    if len(shape) == 2:  # feature maps of timm models may have more dimensions
        sizes[1:] = [count(shape[0], "token"), count(shape[1], "value")]
    words = " x ".join([*sizes, f"{store.dtype.itemsize} bytes"])
    words = f"{format_bytes(images * each)} ({words})"
    found = f", already cached: {count(here, 'image')}" if here else ""
    log.info(f"caching the tokens of the frozen blocks in {extractor.folder} takes {words}{found}")
    free = shutil.disk_usage(extractor.folder).free
    if (images - here) * each > free:
        raise ResourceError(
            f"caching the tokens of the frozen blocks takes {words}, but {extractor.folder} has "
            f"only {format_bytes(free)} of free space",
            fix="choose a cache folder with more space (--cache DIR), or use --train head "
            "(caches one feature vector per image) or --train all (caches nothing)",
        )
