"""The steps of a run before anything is fitted, in order, and the inputs to each stage.

Weights may be downloaded and caches filled, but nothing else is written. `--dry-run` stops
before any image is opened.
"""

import hashlib
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from vitft.config.run import Config, read_run_config, to_toml
from vitft.config.sections import DataSpec, layers_text
from vitft.data.arrays import data_path
from vitft.data.duplicates import MAX_SEARCHED, KnownImages
from vitft.data.fixes import apply_fixes
from vitft.data.image_table import Images, Row
from vitft.data.images import describe_counts, log_inspection, measure_grey_range, merge_inspections
from vitft.data.parts import Part
from vitft.data.places import place_of, short_name
from vitft.data.scan import assign_parts, scan
from vitft.data.split import (
    check_folder_classes,
    draw,
    first_part,
    joined_groups,
    joined_note,
    log_dates,
    log_split,
    run_manifest,
    split,
)
from vitft.data.table import base_folder, is_table
from vitft.data.transforms import View, eval_view
from vitft.features.cache import default_folder, key_of, prune
from vitft.features.cut import cut_model
from vitft.features.extract import (
    Extractor,
    FrozenPipeline,
    build_pipeline,
    check_disk_space,
    inspect_dataset,
    load_pipeline,
    log_cached_features,
    read_several_blocks,
)
from vitft.features.fingerprints import Fingerprints, fingerprint_folder
from vitft.messages.results import already_trained, known_images_note
from vitft.metrics.classification import are_right, fraction_right
from vitft.metrics.results import BudgetResults
from vitft.models.ancestry import WeightsImages, images_of_start, run_of_weights
from vitft.models.card import Provenance
from vitft.models.pretrained.catalog import canonical_name
from vitft.models.pretrained.load import LoadReport
from vitft.models.timm_model import Model
from vitft.models.trainable import add_adapters, freeze_model
from vitft.predict.embeddings import load_features
from vitft.system import console
from vitft.system.cores import usable_cores
from vitft.system.device import describe_device
from vitft.system.errors import DataError, RunError, UsageError
from vitft.system.rundir import read_run_json, run_path
from vitft.system.text import count, labelled, listing, percent, shell_quote
from vitft.training.batches import Dataset, StageInputs, counted_places, epoch_size, training_views
from vitft.training.checks import log_data
from vitft.training.loop import batch_slices, with_step_defaults
from vitft.training.runtime import ProcessGroup, Runtime

log = logging.getLogger(__name__)

WEIGHTS_FILE = "weights.json"  # origin of the weights of a run that has not finished

_UNIT = 16
"""Number of consecutive files assigned to the same process. It is a multiple of the batch sizes on
CPUs, so the batches, which can affect the last bits of features, do not depend on the number of
processes.
"""
_MESSAGE_BYTES = 2**26
"""Approximate maximum size in bytes of a message that sends feature rows to other processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a run is fitted from: settings, a pretrained model, and images, read and split."""

    config: Config  # with defaults resolved
    pipeline: FrozenPipeline  # the model, cut at the freeze boundary of the first stage
    report: LoadReport  # where its weights come from
    inputs: StageInputs  # to the first stage
    budget: BudgetResults | None = None  # with other starts that a run with a budget has tried


def list_images(
    config: Config, runtime: Runtime, folder: Images | None = None
) -> tuple[Images, Config]:
    """List the images and their labels; return them, and the settings with absolute paths.

    `folder` has the images if they have been listed before, as the settings request.
    """
    spec = config.data
    place, path = place_of(spec.path), data_path(spec.path, spec.root)
    path = path if place else path.resolve()
    located = replace(
        spec,
        path=place.text if place else str(path),
        root=str(base_folder(path, spec.root).resolve())
        if spec.root and is_table(path)
        else spec.root,
        classes=str(Path(spec.classes).expanduser().resolve()) if spec.classes else "",
        like=str(run_path(spec.like).resolve()) if spec.like else "",  # `latest` may change
    )
    if folder is None:
        folder = assign_parts(scan(path, located), located.val_from)
    elif not place:
        folder = replace(folder, root=folder.root.resolve(), table=folder.table and path)
    located = replace(located, group=located.group or folder.grouped)  # for `evaluate`
    if folder.table and folder.root != base_folder(folder.table, located.root):
        located = replace(located, root=str(folder.root))  # where the paths in split.csv begin
    folder, located = apply_fixes(folder, located)
    if runtime.resumed and runtime.group.is_main:  # a new run has logged this before
        log_data(folder, short_name(spec.path))
    needs_one_class = {
        f"--budget {config.train.budget}": config.train.budget,
        "optim.class_weights=true": config.optim.class_weights,
        "train.sampling=balanced": config.train.sampling == "balanced",
        f"data.fixes={spec.fixes}": spec.fixes,
    }
    for setting, is_set in needs_one_class.items():
        if is_set:
            folder.outputs.require_one_class(setting)
    return folder, replace(config, data=located)


def load_model(
    folder: Images, config: Config, runtime: Runtime, *, opens_images: bool = True
) -> tuple[FrozenPipeline, LoadReport, Config]:
    """Load the weights onto the device, and cut the model where the first stage begins to train.

    The settings are returned with defaults that depend on the model. A resumed run must find the
    weights that it began with. If `opens_images`, the model's transform scales images of more than
    8 bits by the range of their values.
    """
    group, stage = runtime.group, config.train.stages[0]
    pipeline, report = _load_weights(folder, config, runtime)
    most = ""
    may_read_more = not (folder.labels or config.weights.keep_head)
    if config.optim.solver == "lbfgs" and may_read_more:
        several = read_several_blocks(pipeline, images=len(folder.rows))
        most = "up to " * (several is not pipeline)  # cross-validation will choose the blocks
        pipeline = several
    model, precision = pipeline.model, pipeline.precision
    images = len(_expected_training_labels(folder, config.data))  # checks the dates of a table
    if config.optim.solver != "lbfgs":
        optim = with_step_defaults(config.optim, config.train.layers, model, images)
        config = replace(config, optim=optim)
    if config.train.shard:
        model.require_vit("train.shard")
        if precision == "fp16" or config.train.compile:
            other = "train.precision=fp16" if precision == "fp16" else "train.compile=true"
            raise UsageError(
                f"train.shard cannot be combined with {other}",
                fix="remove train.shard, or use weights without the timm: prefix, a precision of "
                "bf16 or fp32, and train.compile=false",
            )
        if group.size == 1:
            log.info("train.shard has no effect with a single process: start several with torchrun")
    trained = _count_parameters(model, pipeline.trained)
    total = sum(p.numel() for p in model.parameters())
    layers = "a classifier" if stage == "head" else layers_text(stage)
    device = describe_device(pipeline.device)
    log.info(labelled("Training", f"{layers} on {device} in {precision}"))
    log.debug(labelled("Trained", f"{most}{trained:,} of {total:,} parameters"))
    if opens_images:
        grey_range = measure_grey_range(
            folder,
            max_pixels=config.data.max_pixels,
            workers=usable_cores(),
            own=group.shard(folder.rows, _UNIT),
            gather=lambda own: [item for items in group.gather(own) for item in items],
        )
        transform = replace(pipeline.transform, grey_range=grey_range)
        pipeline = replace(pipeline, transform=transform)
    return pipeline, report, config


def _load_weights(
    folder: Images, config: Config, runtime: Runtime
) -> tuple[FrozenPipeline, LoadReport]:
    """Load the weights of a run; a resumed run must find those that it began with."""
    recorded: Provenance = {}
    if runtime.resumed:
        recorded = read_run_json(runtime.resumed.resume / WEIGHTS_FILE, Provenance) or recorded
    typed = config.weights.name
    name, commit = canonical_name(typed), recorded.get("revision", "")
    if name.startswith("hf:") and commit:
        weights = replace(config.weights, name=f"{name.partition('@')[0]}@{commit}")
        config = replace(config, weights=weights)
    pipeline, report = load_pipeline(folder, config.train.stages[0], config)
    before, now = recorded.get("sha256", ""), report.provenance.get("sha256", "")
    if before and now != before:
        raise RunError(
            f"the weights {typed} have changed since the start of the run (sha256 was "
            f"{before[:12]} and is now {now[:12]})",
            fix="restore the original weights, or start a new run",
        )
    if recorded:
        provenance: Provenance = {**report.provenance, "name": recorded.get("name", typed)}
        report = replace(report, provenance=provenance)
    return pipeline, report


def extract_features(
    pipeline: FrozenPipeline, folder: Images, config: Config, runtime: Runtime
) -> tuple[Images, Extractor | None, Fingerprints | None]:
    """Read every image once, and cache the features of the frozen layers, if any are frozen.

    Fingerprints, which show near-duplicates, are computed in the same pass. Every process reads its
    own shard of the files, and has all features afterwards. Processes do not ask each other for
    each image: copies in several shards are computed several times.
    """
    group, view = runtime.group, eval_view(pipeline.transform)
    extractor = pipeline.open_extractor()
    if extractor is not None:
        check_disk_space(extractor, view, len(folder.rows))
    fingerprints = None
    needed = config.data.group_duplicates or config.data.like
    if needed or len(folder.rows) <= MAX_SEARCHED:
        fingerprints = Fingerprints(config.train.cache, pipeline.transform.grey_range)
    else:
        log.info("near-duplicates are not searched among so many images. vitft check finds them")
    own = inspect_dataset(
        replace(folder, rows=group.shard(folder.rows, _UNIT), bad=()),
        max_pixels=config.data.max_pixels,
        allow_bad=True,  # all processes together are checked below
        extractor=extractor,
        view=view,
        fingerprints=fingerprints,
    )
    images = merge_inspections(folder, group.gather(own), allow_bad=config.data.allow_bad)
    if fingerprints is not None:
        fingerprints.merge(images.rows, group.gather(fingerprints.by_digest))
    if extractor is not None:
        _share_rows(extractor, [file.sha256 for file in images.rows], view, group)
        log_cached_features(images, sum(group.gather(extractor.computed)))
    log_inspection(images)
    bad, good = len(images.bad), len(images.rows)
    different = len({file.sha256 for file in images.rows})
    if bad or different < good:
        once = ". Copies count once in the results" * (different < good)
        log.info(labelled("Images", f"{describe_counts(bad, good, different=different)}{once}"))
    return images, extractor, fingerprints


def split_images(
    images: Images,
    listed: Sequence[Row],
    fingerprints: Fingerprints | None,
    pipeline: FrozenPipeline,
    config: Config,
    runtime: Runtime,
) -> Dataset:
    """Split the readable images into training, validation and test sets, and log the split.

    Some of the `listed` images may be unreadable.
    """
    group, spec = runtime.group, config.data
    former = None
    if spec.split == "time":  # the dates of a table, or else those that were read from the images
        given = {row.path: row.time for row in listed}
        dates = [given[row.path] or row.time for row in images.rows]
        mixed = (r.path for r in images.rows if images.in_utc and r.time and not given[r.path])
        if path := next(mixed, ""):
            raise DataError(
                f"the date of {path} and other dates differ in having a time zone: its cell is "
                "empty, and its EXIF data has the time of the camera",
                fix=f"fill in the column {images.dates}, or write all dates without a time zone",
            )
        images = images.with_column("time", dates)
    copies = group.main_only(fingerprints.duplicate_groups) if fingerprints is not None else {}
    duplicates = copies if spec.group_duplicates else {}
    if duplicates:
        _log_duplicates(images, duplicates)
    groups = joined_groups(images, duplicates)
    if note := joined_note(images, groups, duplicates):
        log.warning(note)
    if fingerprints is not None and spec.like:
        former = group.main_only(lambda: _former_split(spec, images, fingerprints))
        if not {"val", "test"} & {*former.values()}:
            raise DataError(
                f"none of the images in {images.source} was held out by {spec.like}",
                fix="use data that contains the validation images of that run, or remove --like",
            )
    manifest = split(images, spec, groups=groups, former=former, listed=listed)
    if duplicates:
        kept = [groups.get(row.sha256, "") for row in manifest.rows]
        manifest = manifest.with_column("kept_together", kept)
    log_split(manifest)
    if spec.split == "time":
        log_dates(manifest)
    if config.train.sampling == "balanced":
        log.info(_describe_epoch([row.label for row in manifest.train], manifest.classes))
    counted, left_out = counted_places(manifest, copies)
    groups = joined_groups(manifest, copies)
    return Dataset(
        manifest=manifest,
        transform=pipeline.transform,
        max_pixels=spec.max_pixels,
        device=pipeline.device,
        group=group,
        copies=copies,
        counted=counted,
        left_out=left_out,
        groups=groups,
        training_groups=_training_groups(manifest, groups, copies),
        own_split=images.layout == "split",
        seen=_known_to_weights(config, manifest),
    )


def _log_duplicates(images: Images, duplicates: Mapping[str, str]) -> None:
    """Log the number of near-duplicates that the split keeps together."""
    known = [(duplicates.get(row.sha256, ""), row.split) for row in images.rows]
    sides = {one for one in known if one[0]}
    together = ". Each group is kept on one side of the split"
    together *= len(sides) == len({name for name, _ in sides})  # test images are never moved
    log.info(f"near-duplicates: {count(len(duplicates), 'image')}{together}")


def _known_to_weights(config: Config, manifest: Images) -> WeightsImages:
    """Return the images that trained the initial weights or the teacher, and warn of them."""
    weights, teacher = images_of_start(asdict(config), manifest.outputs.classes)
    held_out = manifest.where(manifest.column("split") != "train").rows
    for kind, name, seen in (
        ("weights", config.weights.name, weights),
        ("teacher", config.train.teacher, teacher),
    ):
        images, number = seen.count(manifest.rows), seen.count(held_out)
        model = f"the {kind} {name}"
        if number or (images and kind == "weights"):  # a teacher usually has seen training images
            run = shell_quote(str(run_of_weights(name)))
            log.warning(already_trained(model, images or 0, number or 0, run))
        elif images is None:
            log.warning(known_images_note(model, None, len(manifest.rows)))
    return weights | teacher


def _former_split(
    spec: DataSpec, inspected: Images, fingerprints: Fingerprints
) -> Mapping[str, Part]:
    """Map digests to their subsets in the run `spec.like`, and log how many are held out again."""
    like = spec.like
    manifest = run_manifest(run_path(like))
    assert manifest is not None, "checked before"
    fixes = read_run_config(run_path(like)).get("data", {}).get("fixes", "")
    if fixes and not spec.fixes:
        log.warning(
            f"{like} was trained with the fixes of {fixes}, which this run does not apply. To "
            "apply them, add --fixes to a command with the same folder"
        )
    rows = sorted(manifest.rows, key=lambda row: row.split != "train")  # held-out rows override
    parts: dict[str, Part] = {row.sha256: row.split for row in rows}
    # Images held out before that the new data lacks: read from their folder, if it is still there
    out = [row for row in manifest.rows if parts[row.sha256] != "train"]
    gone = [row for row in out if row.sha256 not in fingerprints.by_digest]
    fingerprint_folder(replace(manifest, rows=gone), fingerprints, max_pixels=spec.max_pixels)
    lost = {row.path: row.sha256 for row in out if row.sha256 not in fingerprints.by_digest}
    seen = list({row.sha256 for row in out if row.sha256 in fingerprints.by_digest})
    known = KnownImages(fingerprints.table(seen))
    copies: dict[str, Part] = {}  # of held-out images, with the originals' part
    for file in inspected.rows:
        if parts.get(file.sha256, "train") != "train":
            continue
        near = {parts[seen[i]] for i in known.copies_of(fingerprints.by_digest[file.sha256])}
        if file.path in lost and file.sha256 not in parts:
            near.add(parts[lost[file.path]])
        if near:
            copies[file.sha256] = "test" if "test" in near else "val"
    digests = {row.sha256 for row in out}
    again = len(digests & {file.sha256 for file in inspected.rows})
    also = f", and {count(len(copies), 'copy', 'copies')} of held-out images" if copies else ""
    log.info(
        f"held out again: {again:,} of {count(len(digests), 'image')} held out by {like}{also}"
    )
    groups: dict[str, Part] = {row.group: row.split for row in rows if row.group}
    parts |= copies
    former: dict[str, Part] = {}
    for row in inspected.rows:
        known_as = parts.get(row.sha256, ""), groups.get(row.group, "")
        former[row.sha256] = first_part((*known_as, former.get(row.sha256, "")))
    return former


def _training_groups(
    manifest: Images, groups: Mapping[str, str], duplicates: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the groups by digest of the training images, divided where a class has only one."""
    if groups is duplicates or manifest.labels:
        return groups
    names: dict[int, set[str]] = {}
    for row in manifest.train:
        names.setdefault(row.label, set()).add(groups.get(row.sha256, row.sha256))
    held_out = {row.label for row in manifest.val}
    alone = {label for label, found in names.items() if len(found) == 1} & held_out
    divided = {row.sha256 for row in manifest.train if row.label in alone}
    if len(divided) > len(alone):
        log.info(
            "the head may generalise less well than it could: all training images of a class are "
            "in one group, or in groups joined by copies, which the choice of the penalty has to "
            f"divide ({listing([manifest.classes[label] for label in sorted(alone)])})"
        )
    rest = {digest: name for digest, name in groups.items() if digest not in divided}
    return rest | {digest: name for digest, name in duplicates.items() if digest in divided}


def first_inputs(
    data: Dataset, pipeline: FrozenPipeline, features: Extractor | None, config: Config
) -> StageInputs:
    """Return the inputs to the first stage, given an extractor that has cached the features."""
    inputs = StageInputs(data=data, cut=pipeline.cut, extractor=features)
    inputs = _with_stage_data(inputs, config, config.train.stages[0])
    data.group.barrier()
    if not config.train.cache:
        prune(default_folder(), idle_s=3600)
    return inputs


def next_inputs(
    model: Model, inputs: StageInputs, config: Config, stage: str, *, trial: str = ""
) -> StageInputs:
    """Unfreeze the parameters that a stage trains, and cache and return the inputs to it.

    The `inputs` are those to another stage. `trial` labels the progress of a trial.
    """
    data = inputs.data
    pipeline = build_pipeline(model, data.transform, stage, config)
    extractor = pipeline.open_extractor()
    if extractor is not None:
        rows, view = data.manifest.rows, eval_view(data.transform)
        if not trial:
            check_disk_space(extractor, view, len(rows))
        compute_views(extractor, data, rows, [view], trial or "extracting features")
    inputs = replace(inputs, cut=pipeline.cut, extractor=extractor)
    return _with_stage_data(inputs, config, stage)


def _with_stage_data(inputs: StageInputs, config: Config, stage: str) -> StageInputs:
    """Load images or cache features of augmented views if needed, and return the updated inputs."""
    data, train = inputs.data, config.train
    in_memory = inputs.extractor is None and train.augment in ("none", "shift")
    if in_memory and inputs.images is None:
        inputs = replace(inputs, images=data.load_images())
    views = [v for v in training_views(data.transform, train, config.optim) if v.crop is not None]
    reads_views = config.solvable or not config.solves(stage)
    if inputs.extractor is not None and views and reads_views and inputs.caches_views(train):
        what = "extracting features of augmented images"
        compute_views(inputs.extractor, data, data.manifest.train, views, what)
    return inputs


def compute_views(
    extractor: Extractor, data: Dataset, rows: Sequence[Row], views: Sequence[View], what: str
) -> None:
    """Compute and cache the features of the given views; `what` labels the progress bar."""
    group, root = data.group, str(data.manifest.root)
    files = group.shard(rows, _UNIT)
    before, total = extractor.computed, len(files) * len(views)
    with console.Progress(what, total) as progress:
        for view in views:
            extractor.compute(root, files, view, progress=progress.advance)
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
    keys = {key_of(digest, view.name) for digest in digests}
    missing = sorted(set[bytes]().union(*group.gather({key for key in keys if key not in store})))
    size = max(1, _MESSAGE_BYTES // (4 * math.prod(extractor.prefix.shape)))
    for start in range(0, len(missing), size):
        own = {key: store.get(key) for key in missing[start : start + size] if key in store}
        for rows in group.gather(own):
            store.add({k: row for k, row in rows.items() if row is not None and k not in store})
    store.flush()


# distillation: the probabilities of a trained teacher as soft targets of a student ----------------

_TEMPERATURE = 2.0  # divides the teacher's logits (benchmarks/notebook/fine_tuning.md)


def with_soft_targets(data: Dataset, config: Config) -> Dataset:
    """Return the data with the teacher's probabilities for all training images.

    The target of an image is (1 - w) * its label + w * softmax(z / T), where z are the logits of
    the teacher for the whole, unaugmented image, and w is `train.teacher_weight`. The logits of the
    student are not divided by T, because a temperature is fitted to the finished student. The
    features of the teacher are cached. Each process computes its shard.

    Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network",
    https://arxiv.org/abs/1503.02531.
    """
    name, rows = config.train.teacher, data.manifest.train
    pipeline, classes = load_features(name, None, config)
    extractor = pipeline.open_extractor()
    assert extractor is not None, "a model cut before its head has frozen layers"
    own = replace(data, transform=pipeline.transform)
    views = [eval_view(own.transform)]
    compute_views(extractor, own, rows, views, "extracting features of the teacher")
    logits = StageInputs(data=own, cut=pipeline.cut, extractor=extractor).logits(rows)
    logits = logits[:, [classes.index(one) for one in data.manifest.outputs.classes]]
    if data.group.is_main:
        same = percent(fraction_right(are_right(logits, data.labels(rows).cpu())))
        folder = run_of_weights(name)
        log.info(labelled("Teacher", f"{folder}, right about {same} of the training images"))
    soft = (logits / _TEMPERATURE).softmax(dim=1).numpy()
    by_digest = {row.sha256: one for row, one in zip(rows, soft, strict=True)}
    return replace(data, soft=by_digest, soft_weight=config.train.teacher_weight)


def dry_run(
    config: Config, folder: Images, out: Path, *, data: str, show: Callable[[str], object]
) -> None:
    """Show the settings of a run as TOML, then log what it would do, without opening any image.

    The settings include resolved defaults; `data` is the data path as the user specified it. If the
    run would raise an error, this raises the same one, and nothing is shown.
    """
    runtime = Runtime()
    folder, config = list_images(config, runtime, folder)
    pipeline, _, config = load_model(folder, config, runtime, opens_images=False)
    model = pipeline.model
    labels = _expected_training_labels(folder, config.data)
    by_dates = config.data.split == "time" and not _has_dates(folder, config.data)
    test = sum(file.split == "test" for file in folder.rows)
    parts = (
        f"the latest {config.data.val_rate:.0%} are held out, once the dates are read"
        if by_dates
        else f"about {len(labels):,} for training and {len(folder.rows) - len(labels) - test:,} "
        "for validation"
    )
    plan = [
        f"{count(len(folder.rows), 'image')} {folder.outputs.scope}, not opened yet: {parts}"
        f"{f', and {test:,} for the final test' * (test > 0)}",
        *folder.notes,
    ]
    spec = config.optim
    if config.train.sampling == "balanced":
        plan.append(_describe_epoch(labels, folder.classes))
    for stage in config.train.stages:
        if stage == "lora":
            add_adapters(model, config.train)
        trained = _count_parameters(model, freeze_model(model, stage))
        solver = "fitted by L-BFGS without a training loop"
        if not config.solves(stage):
            images = epoch_size(labels, config.train)
            steps = batch_slices(images, spec.images_per_step, cut_model(model, stage).suffix)
            solver = (
                f"{spec.solver} with learning rate {spec.lr:.3g}: {count(spec.epochs, 'epoch')}, "
                f"{count(len(steps), 'step')} per epoch, "
                f"{count(spec.images_per_step, 'image')} per step"
            )
        plan.append(f"--train {stage}: {trained:,} trainable parameters, {solver}")
    show(to_toml(replace(config, data=replace(config.data, path=data))))
    for text in filter(None, (*folder.warnings, check_folder_classes(folder))):
        log.warning(text)
    for text in plan:
        log.info(text)
    log.info(f"dry run: nothing was trained. The run would be written to {out}")


def _has_dates(folder: Images, spec: DataSpec) -> bool:
    """Return whether a table has all dates of a split by time that does not depend on a run."""
    return not spec.like and all(file.time for file in folder.rows)


def _expected_training_labels(folder: Images, spec: DataSpec) -> list[int]:
    """Return the expected training labels, assuming that all files are readable and distinct."""
    if folder.layout == "split":
        return [file.label for file in folder.rows if file.split == "train"]
    if spec.split == "time" and _has_dates(folder, spec):
        keys = [hashlib.sha256(os.fsencode(file.path)).digest() for file in folder.rows]
        return [file.label for file in split(folder.with_column("sha256", keys), spec).train]
    counts = Counter(file.label for file in folder.rows if file.split != "test")
    every = range(len(folder.classes))
    drawn = draw([counts[i] for i in every], spec.val_rate, spec.seed, at_least=1)
    return [i for i in every for _ in range(counts[i] - len(drawn[i]))]


def _count_parameters(model: Model, names: Sequence[str]) -> int:
    """Return the total number of values in the parameters with the given names."""
    return sum(p.numel() for name, p in model.named_parameters() if name in names)


def _describe_epoch(labels: Sequence[int], classes: Sequence[str]) -> str:
    """Return a sentence describing a balanced epoch."""
    counts = Counter(labels)
    each = len(labels) // len(counts)
    rarest, largest = min(counts, key=lambda c: counts[c]), max(counts, key=lambda c: counts[c])
    text = (
        f"balanced sampling: each epoch uses {count(each, 'image')} from each of {len(counts)} "
        f"classes, {each * len(counts):,} in total"
    )
    if counts[rarest] == counts[largest]:
        return f"{text}. The classes have equal sizes, so every image is used once"
    return (
        f"{text}. On average, an image of {classes[rarest]} is used {each / counts[rarest]:.1f} "
        f"times and an image of {classes[largest]} {each / counts[largest]:.1f} times"
    )
