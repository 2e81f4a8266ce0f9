"""Setup of a run: data, model, features and split, then the inputs to each stage.

Weights may be downloaded and caches filled, but nothing else is written. `--dry-run` stops
before any image is opened.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitft.config.defaults import FINE_TUNING
from vitft.config.run import Config, to_toml
from vitft.config.schema import require
from vitft.config.sections import DataSpec, layers_text
from vitft.data.arrays import data_path
from vitft.data.fixes import apply_fixes
from vitft.data.folder import File, Folder, assign_parts
from vitft.data.grey_range import measure_grey_range
from vitft.data.inspection import (
    InspectedFolder,
    describe_counts,
    log_inspection,
    merge_inspections,
)
from vitft.data.remote.places import place_of, short_name
from vitft.data.scan import scan
from vitft.data.split import (
    Manifest,
    Row,
    check_folder_classes,
    draw,
    joined_groups,
    joined_note,
    split,
)
from vitft.data.split_chart import log_split
from vitft.data.table import base_folder, is_table
from vitft.data.transforms import View, eval_view
from vitft.data.weights_images import images_of_weights, run_of_weights
from vitft.features.cache import default_folder, key_of, prune
from vitft.features.cut import cut_model
from vitft.features.extract import Extractor, vanished_error
from vitft.features.fingerprints import Fingerprints
from vitft.features.pipeline import (
    FrozenPipeline,
    build_pipeline,
    check_disk_space,
    inspect_dataset,
    load_pipeline,
    log_cached_features,
    read_several_blocks,
)
from vitft.messages.training import already_trained
from vitft.models.card import Provenance
from vitft.models.freeze import freeze_model
from vitft.models.lora import add_adapters
from vitft.models.pretrained.report import LoadReport
from vitft.models.timm_model import Model
from vitft.system import console
from vitft.system.cores import usable_cores
from vitft.system.device import describe_device
from vitft.system.errors import ImageError
from vitft.system.rundir import run_path
from vitft.system.text import count, labelled, shell_quote
from vitft.training.batches import (
    Dataset,
    StageInputs,
    caches_views,
    describe_epoch,
    fold_groups,
    images_per_epoch,
    training_views,
)
from vitft.training.checks import check_matches, former_split, log_data
from vitft.training.distributed import ProcessGroup, check_sharding
from vitft.training.loop import batch_slices, with_step_defaults
from vitft.training.state import at_recorded_commit, checked_report

log = logging.getLogger(__name__)


# passes over the image files of a run, divided among its processes --------------------------------

_UNIT = 16
"""Number of consecutive files assigned to the same process. It is a multiple of the batch sizes on
CPUs, so the batches, which can affect the last bits of features, do not depend on the number of
processes.
"""
_MESSAGE_BYTES = 2**26
"""Approximate maximum size in bytes of a message that sends feature rows to other processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inspection:
    """Results of the inspection of all files by the processes of a run."""

    inspected: InspectedFolder
    duplicates: Mapping[str, str]  # names of the groups of near-duplicates, by digest, if wanted
    fingerprints: Fingerprints | None  # fingerprints of the readable images, if they were computed
    computed: int  # number of images whose features were computed, summed over all processes


def inspect_shards(
    folder: Folder,
    group: ProcessGroup,
    *,
    data: DataSpec,
    view: View,
    extractor: Extractor | None,
    fingerprints: Fingerprints | None,
) -> _Inspection:
    """Inspect all files, and cache features and fingerprints if requested."""
    own = inspect_dataset(
        replace(folder, files=tuple(group.shard(folder.files, _UNIT)), bad=()),
        max_pixels=data.max_pixels,
        allow_bad=True,  # all processes together are checked below
        extractor=extractor,
        view=view,
        fingerprints=fingerprints,
        claim=group.claims(),
    )
    own = replace(own, folder=replace(folder, files=()))
    shards = group.gather(own)
    inspected = merge_inspections(folder, shards, allow_bad=data.allow_bad)
    duplicates: Mapping[str, str] = {}
    if fingerprints is not None:
        fingerprints.merge(inspected.good, group.gather(fingerprints.by_digest))
        if data.group_duplicates:
            duplicates = group.main_only(fingerprints.duplicate_groups)
    computed = 0
    if extractor is not None:
        _share_rows(extractor, [file.sha256 for file in inspected.good], view, group)
        computed = sum(group.gather(extractor.computed))
        log_cached_features(inspected, computed)
    return _Inspection(
        inspected=inspected, duplicates=duplicates, fingerprints=fingerprints, computed=computed
    )


def compute_views(
    extractor: Extractor,
    manifest: Manifest,
    rows: Sequence[Row],
    views: Sequence[View],
    what: str,
    group: ProcessGroup,
) -> None:
    """Compute and cache the features of the given views; `what` labels the progress bar."""
    files = group.shard([File(row.path, row.label) for row in rows], _UNIT)
    before, total = extractor.computed, len(files) * len(views)
    with console.Progress(what, total) as progress:
        for view in views:
            try:
                extractor.compute(
                    str(manifest.root), files, view, claim=group.claims(), progress=progress.advance
                )
            except ImageError as error:
                raise vanished_error(error) from error
        if computed := extractor.computed - before:
            progress.skip(total - computed)
        else:
            progress.label = "reading cached features"
    for view in views:
        _share_rows(extractor, [row.sha256 for row in rows], view, group)


def _share_rows(
    extractor: Extractor, digests: Sequence[str], view: View, group: ProcessGroup
) -> None:
    """Make the cached rows of images available to every process."""
    if group.size == 1:
        return
    group.barrier()  # all rows have been written; those in a common folder need not be sent
    extractor.refresh()
    store = extractor.store(view)
    keys = list(dict.fromkeys(key_of(digest, view.name) for digest in digests))
    known = np.array([key in store for key in keys], dtype=bool)
    if not group.all_reduce_max(int(not known.all())):
        return
    table = np.stack(group.gather(known))  # (ranks, n)
    senders = np.where(table.all(axis=0) | ~table.any(axis=0), -1, table.argmax(axis=0))
    size = max(1, _MESSAGE_BYTES // (4 * int(np.prod(extractor.prefix.shape))))
    for rank in range(group.size):
        sent = np.flatnonzero(senders == rank).tolist()
        for start in range(0, len(sent), size):
            chosen = [keys[i] for i in sent[start : start + size]]
            rows = group.broadcast([store.get(key) for key in chosen], source=rank)
            pairs = zip(chosen, rows, strict=True)
            store.add({k: row for k, row in pairs if row is not None and k not in store})
    store.flush()


# setup of a run: data, model, features and split, then the inputs to each stage -------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings, data and model of a run before any image is opened."""

    config: Config  # the configuration, with defaults resolved
    folder: Folder
    pipeline: FrozenPipeline  # model cut at the freeze boundary of the first stage
    report: LoadReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """State of a run before its first stage, with the images checked and split."""

    setup: Setup
    inspection: _Inspection
    inputs: StageInputs  # inputs to the first stage
    extraction_s: float  # seconds spent on checking images and extracting features

    @property
    def full_training_s(self) -> float | None:
        """Estimated time in seconds to fine-tune all weights; None if it cannot be estimated."""
        computed, manifest = self.inspection.computed, self.inputs.data.manifest
        if self.inputs.extractor is None or computed < len(manifest.rows) / 2:
            return None  # too few forward passes were timed
        epochs = FINE_TUNING["optim"]["epochs"]
        passes = epochs * (3 * len(manifest.train) + len(manifest.val))  # training: three per image
        return passes * self.extraction_s / computed


def load_data_and_model(
    config: Config, group: ProcessGroup, recorded: Provenance | None = None, *, resume: bool = False
) -> Setup:
    """List the images, load the weights onto the device and cut the model for the first stage.

    `recorded` is the origin of the weights that a resumed run began with.
    """
    spec = config.data
    place, path = place_of(spec.path), data_path(spec.path, spec.root).resolve()
    located = replace(
        spec,
        path=place.text if place else str(path),
        root=str(base_folder(path, spec.root).resolve())
        if spec.root and is_table(path)
        else spec.root,
        classes=str(Path(spec.classes).expanduser().resolve()) if spec.classes else "",
        like=str(run_path(spec.like).resolve()) if spec.like else "",  # `latest` may change
    )
    folder = assign_parts(scan(data_path(located.path, located.root), located), located.val_from)
    if folder.table and folder.root != base_folder(folder.table, located.root):
        located = replace(located, root=str(folder.root))  # where the paths in split.csv begin
    folder, data_spec = apply_fixes(folder, located)
    if resume and group.is_main:  # a new run has logged this before torch was imported
        log_data(folder, short_name(config.data.path))
    needs_one_class = {
        f"--budget {config.train.budget}": bool(config.train.budget),
        "optim.class_weights=true": config.optim.class_weights,
        "train.sampling=balanced": config.train.sampling == "balanced",
        f"data.fixes={config.data.fixes}": bool(config.data.fixes),
    }
    for setting, is_set in needs_one_class.items():
        require(
            not (folder.labels and is_set),
            f"{setting} cannot be used for multi-label classification",
            fix="remove it, or use data.labels=one if each image has exactly one class",
        )
    config = replace(config, data=data_spec)
    recorded = recorded or {}
    pipeline, report = load_pipeline(
        folder,
        config.train.stages[0],
        weights=at_recorded_commit(config.weights, recorded),
        model=config.model,
        train=config.train,
        max_pixels=config.data.max_pixels,
        local_rank=group.local_rank,
    )
    report = checked_report(report, config.weights.name, recorded)
    most = ""
    if config.optim.solver == "lbfgs" and not folder.labels:
        several = read_several_blocks(pipeline, config.train, images=len(folder.files))
        most = "up to " * (several is not pipeline)  # cross-validation will choose the blocks
        pipeline = several
    model, precision = pipeline.model, pipeline.precision
    if config.optim.solver != "lbfgs":
        images = len(_expected_training_labels(folder, config.data))
        optim = with_step_defaults(config.optim, config.train.layers, model, images)
        config = replace(config, optim=optim)
    if config.train.shard:
        check_sharding(model, group, precision=precision, compiled=config.train.compile)
    trained = _count_parameters(model, pipeline.trained)
    total = sum(p.numel() for p in model.parameters())
    stage = config.train.stages[0]
    layers = "a classifier" if stage == "head" else layers_text(stage)
    device = describe_device(pipeline.device)
    log.info(labelled("Training", f"{layers} on {device} in {precision}"))
    log.debug(labelled("Trained", f"{most}{trained:,} of {total:,} parameters"))
    return Setup(config=config, folder=folder, pipeline=pipeline, report=report)


def _count_parameters(model: Model, names: Sequence[str]) -> int:
    """Return the total number of values in the parameters with the given names."""
    chosen = set(names)
    return sum(p.numel() for name, p in model.named_parameters() if name in chosen)


def extract_and_split(setup: Setup, group: ProcessGroup) -> Start:
    """Read all images once, extract features if part of the model is frozen, and split the data."""
    grey_range = measure_grey_range(
        setup.folder,
        max_pixels=setup.config.data.max_pixels,
        workers=usable_cores(),
        own=group.shard(setup.folder.files, _UNIT),
        gather=lambda own: [item for items in group.gather(own) for item in items],
    )
    transform = replace(setup.report.transform, grey_range=grey_range)
    setup = replace(
        setup,
        report=replace(setup.report, transform=transform),
        pipeline=replace(setup.pipeline, transform=transform),
    )
    config, view = setup.config, eval_view(transform)
    extractor = setup.pipeline.open_extractor(config.train, max_pixels=config.data.max_pixels)
    if extractor is not None:
        check_disk_space(extractor, view, len(setup.folder.files))
    fingerprints = None
    if config.data.group_duplicates or config.data.like:
        fingerprints = Fingerprints(config.train.cache, grey_range)
    started = time.monotonic()
    found = inspect_shards(
        setup.folder,
        group,
        data=config.data,
        view=view,
        extractor=extractor,
        fingerprints=fingerprints,
    )
    extraction_s = time.monotonic() - started
    log_inspection(found.inspected)
    bad, good = len(found.inspected.bad), len(found.inspected.good)
    different = len({file.sha256 for file in found.inspected.good})
    if bad or different < good:
        once = "; copies count once in the accuracy" * (different < good)
        log.info(labelled("Images", f"{describe_counts(bad, good, different=different)}{once}"))
    if config.data.group_duplicates:
        copies = count(len(found.duplicates), "image")
        log.info(f"near-duplicates: {copies}; each group is kept on one side of the split")
    data = _split_images(setup, found, group)
    inputs = StageInputs(data=data, cut=setup.pipeline.cut, extractor=extractor)
    inputs = with_stage_data(inputs, config, config.train.stages[0])
    group.barrier()
    if not config.train.cache and extractor is not None:
        prune(default_folder(), idle_s=3600)
    return Start(setup=setup, inspection=found, inputs=inputs, extraction_s=extraction_s)


def _split_images(setup: Setup, found: _Inspection, group: ProcessGroup) -> Dataset:
    """Split the readable images into training, validation and test sets, and log the split."""
    config, inspected, duplicates = setup.config, found.inspected, found.duplicates
    groups, former = joined_groups(inspected.good, duplicates), None
    if note := joined_note(inspected.good, groups, duplicates):
        log.warning(note)
    if config.data.like and (fingerprints := found.fingerprints) is not None:
        like, max_pixels = config.data.like, config.data.max_pixels
        former = group.main_only(
            lambda: former_split(
                like,
                inspected,
                fingerprints,
                max_pixels=max_pixels,
                applies_fixes=bool(config.data.fixes),
            )
        )
        check_matches(like, former, inspected)
    manifest = split(inspected, config.data, groups=groups, former=former)
    log_split(manifest)
    if config.train.sampling == "balanced":
        log.info(describe_epoch([row.label for row in manifest.train], manifest.classes))
    weights = config.weights.name  # of a run, perhaps
    known = images_of_weights(weights)
    train, val = (
        sum(row.sha256 in known for row in rows) for rows in (manifest.train, manifest.val)
    )
    if train + val:
        run = shell_quote(str(run_of_weights(weights)))
        log.warning(already_trained(weights, train + val, val, run))
    return Dataset(
        manifest=manifest,
        transform=setup.report.transform,
        max_pixels=config.data.max_pixels,
        device=setup.pipeline.device,
        group=group,
        duplicates=duplicates,
        groups=fold_groups(manifest, groups, duplicates),
        own_split=inspected.folder.layout == "split",
        known_to_weights=train + val,
    )


def with_stage_data(inputs: StageInputs, config: Config, stage: str) -> StageInputs:
    """Load images or cache features of augmented views if needed, and return the updated inputs."""
    data, train = inputs.data, config.train
    in_memory = inputs.extractor is None and train.augment in ("none", "shift")
    if in_memory and inputs.images is None:
        inputs = replace(inputs, images=data.load_images())
    views = [v for v in training_views(data.transform, train, config.optim) if v.crop is not None]
    reads_views = config.solvable or not config.solves(stage)
    if inputs.extractor is not None and views and reads_views and caches_views(inputs.cut, train):
        manifest, what = data.manifest, "extracting features of augmented images"
        compute_views(inputs.extractor, manifest, manifest.train, views, what, data.group)
    return inputs


def next_inputs(
    model: Model, inputs: StageInputs, config: Config, stage: str, *, precision: str
) -> StageInputs:
    """Unfreeze the parameters that the next stage trains, and return the inputs to that stage."""
    log.info(f"next stage: --train {stage}, starting from the weights of the previous stage")
    data, train = inputs.data, config.train
    pipeline = build_pipeline(
        model, data.transform, stage, train, device=data.device, precision=precision
    )
    extractor = pipeline.open_extractor(train, max_pixels=data.max_pixels)
    if extractor is not None:
        rows, view = data.manifest.rows, eval_view(data.transform)
        check_disk_space(extractor, view, len(rows))
        what = "extracting features"
        compute_views(extractor, data.manifest, rows, [view], what, data.group)
    inputs = replace(inputs, cut=pipeline.cut, extractor=extractor)
    return with_stage_data(inputs, config, stage)


def dry_run(config: Config, out: Path, *, data: str, show: Callable[[str], object]) -> None:
    """Show the settings of a run as TOML, then log what it would do, without opening any image.

    The settings include resolved defaults; `data` is the data path as the user specified it. If the
    run would raise an error, this raises the same one, and nothing is shown.
    """
    setup = load_data_and_model(config, ProcessGroup())
    config, folder, model = setup.config, setup.folder, setup.pipeline.model
    labels = _expected_training_labels(folder, config.data)
    test = sum(file.part == "test" for file in folder.files)
    what = f"in {len(folder.classes)} classes"
    if folder.labels:
        what = f"with {count(len(folder.labels), 'label')}"
    split = (
        f"{count(len(folder.files), 'image')} {what}, not opened yet: "
        f"about {len(labels):,} for training and {len(folder.files) - len(labels) - test:,} for "
        f"validation{f', and {test:,} for the final test' * (test > 0)}"
    )
    plan = split, *folder.notes
    if config.train.sampling == "balanced":
        plan += (describe_epoch(labels, folder.classes),)
    spec = config.optim
    for stage in config.train.stages:
        if stage == "lora":
            add_adapters(model, config.train)
        trained = _count_parameters(model, freeze_model(model, stage))
        solver = "fitted by L-BFGS without a training loop"
        if not config.solves(stage):
            images = images_per_epoch(labels, balanced=config.train.sampling == "balanced")
            steps = batch_slices(images, spec.images_per_step, cut_model(model, stage).suffix)
            solver = (
                f"{spec.solver} with learning rate {spec.lr:.3g}: {count(spec.epochs, 'epoch')}, "
                f"{count(len(steps), 'step')} per epoch, "
                f"{count(spec.images_per_step, 'image')} per step"
            )
        plan += (f"--train {stage}: {trained:,} trainable parameters, {solver}",)
    show(to_toml(replace(config, data=replace(config.data, path=data))))
    for text in filter(None, (*folder.warnings, check_folder_classes(folder))):
        log.warning(text)
    for text in plan:
        log.info(text)
    log.info(f"dry run: nothing was trained; the run would be written to {out}")


def _expected_training_labels(folder: Folder, spec: DataSpec) -> list[int]:
    """Return the expected training labels, assuming that all files are readable and distinct."""
    if folder.layout == "split":
        return [file.label for file in folder.files if file.part == "train"]
    counts = Counter(file.label for file in folder.files if file.part != "test")
    every = range(len(folder.classes))
    drawn = draw([counts[i] for i in every], spec.val_rate, spec.seed, at_least=1)
    return [i for i in every for _ in range(counts[i] - len(drawn[i]))]
