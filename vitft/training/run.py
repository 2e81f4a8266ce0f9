"""A fine-tuning run: load data, build the model, extract features, split, fit, evaluate, write."""

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitft.config.defaults import FINE_TUNING
from vitft.config.run import Config, flat_settings, to_toml
from vitft.data.folder import Folder
from vitft.data.inspection import InspectedFolder
from vitft.data.sampling import say_epoch
from vitft.data.split import split, write_class_indices
from vitft.data.summary import log_inspection, log_split
from vitft.features.cache import default_folder, prune
from vitft.features.extract import Extractor
from vitft.features.fingerprints import Fingerprints
from vitft.features.pipeline import build_pipeline, check_disk_space, inspect_images
from vitft.features.views import View, eval_view
from vitft.metrics.results import RunResults
from vitft.models.checkpoint import Card
from vitft.models.lora import merge_adapters
from vitft.models.pretrained import LoadReport
from vitft.models.timm_model import Model
from vitft.system import console
from vitft.system.device import describe_device, peak_memory
from vitft.system.errors import Stopped
from vitft.system.malloc import freed_memory_kept
from vitft.system.rundir import (
    PeakMemory,
    RunDir,
    create_run,
    environment,
    locked,
    point_latest,
)
from vitft.system.signals import Stopper
from vitft.system.text import count
from vitft.training.audit import audit_run, log_audit, write_reference
from vitft.training.batches import image_files
from vitft.training.best import BestWeights
from vitft.training.dataset import Dataset, StageInputs
from vitft.training.distributed import ProcessGroup, process_group
from vitft.training.finish import (
    calibrate,
    final_logits,
    model_card,
    write_calibrated,
    write_lora_adapter,
    write_model,
)
from vitft.training.pixels import load_images
from vitft.training.random_state import preserved_random_state
from vitft.training.setup import Setup, prepare
from vitft.training.solve import ScoredImages
from vitft.training.stages import RunContext, StepStage, solve_head_stage
from vitft.training.state import (
    State,
    check_same_images,
    newest_state,
    remove_states,
    remove_temporary_files,
)
from vitft.training.thumbnails import write_thumbnails
from vitft.training.tracker_clients import short_timeouts
from vitft.training.trackers import connect_trackers
from vitft.training.views import caches_views, compute_views, training_views

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result:
    """Outcome of a run: directory, metrics and exit status."""

    run: Path
    figures: RunResults
    """Contents of eval.json; empty if the run was stopped before its first epoch ended."""
    status: str = "finished"
    """As in environment.json: finished, interrupted, terminated or out of time."""
    exit_code: int = 0
    everything_s: float | None = None
    """Estimated seconds of training all weights from this head on this machine, if known."""

    @property
    def interrupted(self) -> bool:
        """Whether the run ended before its training did."""
        return self.status != "finished"

    def __repr__(self) -> str:
        top1 = self.figures.get("top1")
        return f"Result(run='{self.run}', status={self.status!r}, top1={top1})"


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


@dataclass(slots=True)
class Progress:
    """How far the stages of a run have come."""

    inputs: StageInputs
    """What the current stage reads."""
    scored: ScoredImages | None = None
    """Features and held-out logits of all images, once a head was solved."""


def finetune(
    config: Config, *, out: Path, resume: bool = False, max_seconds: float = 0.0
) -> Result:
    """Fine-tune pretrained weights on a folder of images and write the run directory `out`.

    A signal (Ctrl-C, SIGTERM, SIGUSR1, SIGHUP) or the end of the time saves the best weights and
    the training state; `resume` continues from there. Random number generators, thread counts and
    signal handlers are restored at the end (see `system.malloc` for the one thing that is not).

    Args:
        config: The settings; for a resumed run, its own.
        out: The run directory: new, or the one to resume.
        resume: Continue a run that was stopped or killed.
        max_seconds: Stop after this time; 0 means no limit.

    Raises:
        DataError: The folder, its classes or too many of its images cannot be used.
        WeightsError: The weights cannot be found, read or adapted.
        RunError: `out` cannot be written or resumed.
        LockedError: Another process writes to `out`.
        DivergedError: The loss is not finite.
    """
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(caller_state_preserved(config.train.device))
        stopper = stack.enter_context(Stopper(max_seconds))
        group = stack.enter_context(process_group(config.train.timeout))
        stopper.agree = group.all_reduce_max
        if resume and group.is_main:
            stack.enter_context(locked(RunDir(out)))
        stack.enter_context(short_timeouts())
        trackers = connect_trackers(config.train.trackers if group.is_main else (), resume=resume)
        stack.callback(trackers.finish, "failed", {})
        start = begin(config, group)
        run = stack.enter_context(open_run(out, start, resume=resume))
        trackers.start(run, flat_settings(start.config), resume=resume)
        context = RunContext(
            run=run,
            best=BestWeights(start.model),
            precision=start.precision,
            stopper=stopper,
            trackers=trackers,
        )
        on_cpu = start.inputs.data.device.type == "cpu" and not start.config.train.shard
        with freed_memory_kept(when=on_cpu):
            result = fit_and_write(context, start, started)
        trackers.finish(result.status, result.figures)
        group.barrier()
    return result


@contextlib.contextmanager
def caller_state_preserved(device: str) -> Iterator[None]:
    """Restore the random number generators and the number of threads on exit.

    Args:
        device: `train.device`; with `cpu` the generators of GPUs are left alone.
    """
    threads = torch.get_num_threads()
    with preserved_random_state(gpu=device != "cpu"):
        try:
            yield
        finally:
            torch.set_num_threads(threads)


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
    inspected = inspect_images(
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
        log.info(say_epoch([row.label for row in manifest.train], manifest.classes))
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
        inputs = replace(inputs, images=load_images(image_files(data)))
    views = [v for v in training_views(data.transform, train, config.optim) if v.crop is not None]
    reads_views = config.solvable or not config.solves(stage)
    if inputs.extractor is not None and views and reads_views and caches_views(inputs.cut, train):
        manifest = data.manifest
        compute_views(inputs.extractor, manifest, manifest.train, views, "augmented views")
    return inputs


@contextlib.contextmanager
def open_run(out: Path, start: Start, *, resume: bool) -> Iterator[RunDir]:
    """Create the run directory with its first files, or check that `out` can be resumed."""
    data = start.inputs.data
    manifest, group = data.manifest, data.group
    if resume:
        run = RunDir(out, writes=group.is_main)
        check_same_images(run, manifest)
        yield run
        return
    path = group.broadcast(create_run(out).path if group.is_main else out)
    run = RunDir(path, writes=group.is_main)
    with locked(run) if group.is_main else contextlib.nullcontext():
        if group.is_main:
            run.write_text("config.toml", to_toml(start.config))
            manifest.write(run.split)
            write_class_indices(run.class_indices, manifest.classes)
        yield run


def fit_and_write(context: RunContext, start: Start, started: float) -> Result:
    """Train, evaluate and write; a run that is stopped writes what there is."""
    run, best, held = context.run, context.best, context.stopper.held
    data, config = start.inputs.data, start.config
    card = model_card(start.model, start.report, data.manifest)
    saved = load_saved(context, data.group)
    device = (describe_device(data.device), context.precision)
    run.write_json("environment.json", environment("running", *device))
    status, exit_code = "failed", 1
    progress, is_evaluated = Progress(start.inputs), False
    results = best.results
    try:
        try:
            train_stages(context, config, progress, saved)
        finally:  # however training ended, the best weights are saved before anything else
            with held():
                best.restore()
                adapter = merge_adapters(best.model) if best.epochs else {}
                results = write_best(run, best, card)
        final = final_logits(progress.inputs, best.model, context.precision)
        seconds = round(time.monotonic() - started, 1)
        calibrated = calibrate(final, card.classes, results, seconds=seconds)
        with held():
            results = write_calibrated(run, best.model, card, calibrated)
        write_lora_adapter(run, adapter, best.model, config.train, card)
        is_evaluated = True
        write_data_reports(context, start, progress.scored)
        write_last_files(context, start, device)
        status, exit_code = "finished", 0
    except KeyboardInterrupt as stop:
        exit_code = stop.exit_code if isinstance(stop, Stopped) else 130
        status = {0: "out of time", 130: "interrupted"}.get(exit_code, "terminated")
    finally:
        if status != "finished":
            memory = memory_use(data.device)
            run.write_json("environment.json", {**environment(status, *device), **memory})
    if not is_evaluated:
        write_data_reports(context, start, progress.scored)
    return Result(
        run=run.path,
        figures=results,
        status=status,
        exit_code=exit_code,
        everything_s=full_training_s(start) if config.solvable else None,
    )


def load_saved(context: RunContext, group: ProcessGroup) -> State | None:
    """Load the state in which an earlier process of this run stopped, if there is one."""
    if not group.is_main:
        group.barrier()  # until damaged states have been renamed
        return load_newest(context)
    remove_temporary_files(context.run.path)
    found = load_newest(context)
    group.barrier()
    return found


def load_newest(context: RunContext) -> State | None:
    """Load the newest state of the run: the best weights here, the rest by its stage."""
    found = newest_state(context.run.resume)
    if found is None:
        context.run.cut_log(0)
        return None
    state, weights = found
    facts = state.facts
    context.best.load(facts["best"], weights, str(facts.get("best_file", "")))
    log.info(f"resuming after step {facts['step']}, {count(facts['epochs'], 'epoch')} done")
    return state


def train_stages(
    context: RunContext, config: Config, progress: Progress, saved: State | None
) -> None:
    """Train one stage after the other, from the saved state on, and update `progress`."""
    first = saved.facts["stage"] if saved else 0
    for number, stage in enumerate(config.train.stages):
        if number:
            if number > first:  # else the saved weights are loaded by the stage
                context.best.restore()
            progress.inputs = next_inputs(context, config, progress.inputs, stage)
            if number > first:
                context.best.include_new_weights()
        if number < first:
            continue
        if config.solves(stage):
            progress.scored = solve_head_stage(context, config, progress.inputs)
        else:
            trainer = StepStage(context, config, progress.inputs, number)
            trainer.run(saved if number == first else None)


def next_inputs(
    context: RunContext, config: Config, inputs: StageInputs, stage: str
) -> StageInputs:
    """Unfreeze what the next stage trains, and prepare what it reads."""
    data = inputs.data
    pipeline = build_pipeline(
        context.best.model,
        data.transform,
        stage,
        config.train,
        device=data.device,
        precision=context.precision,
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


def write_best(run: RunDir, best: BestWeights, card: Card) -> RunResults:
    """Write the best weights and their results, if an epoch has ended; return the results."""
    if best.epochs:
        write_model(run, best.model, card)
        run.write_json(run.eval.name, best.results)
    return best.results


def write_data_reports(context: RunContext, start: Start, scored: ScoredImages | None) -> None:
    """Write audit.json and the reference of the training features."""
    data = start.inputs.data
    if context.best.epochs and data.group.is_main:
        audit = audit_run(start.inputs, start.config, start.inspected, scored)
        context.run.write_json("audit.json", audit)
        log_audit(audit, data, context.run)
        write_reference(start.inputs, context.run)


def write_last_files(context: RunContext, start: Start, device: tuple[str, str]) -> None:
    """Write thumbnails, then environment.json, which marks the run as finished."""
    run, data = context.run, start.inputs.data
    if data.group.is_main:
        write_thumbnails(
            run,
            data.manifest,
            start.model,
            data.transform,
            max_pixels=data.max_pixels,
            precision=context.precision,
        )
        point_latest(run)
        ended = {**environment("finished", *device), **memory_use(data.device)}
        with context.stopper.held():
            run.write_json("environment.json", ended)
            remove_states(run.resume)


def memory_use(device: torch.device) -> PeakMemory:
    """Log and return the peak memory of the run."""
    peaks = peak_memory(device)
    words = [f"{mib:,} MiB {kind}" for kind, mib in peaks.items()]
    if words:
        log.info(f"peak memory: {', '.join(words)}")
    return {"peak_memory_mib": peaks}


def full_training_s(start: Start) -> float | None:
    """Estimate the seconds of fine-tuning all weights; a step costs about three forward passes.

    None if most features were cached, so that no forward passes were timed.
    """
    extractor, manifest = start.inputs.extractor, start.inputs.data.manifest
    if extractor is None or extractor.computed < len(manifest.rows) / 2:
        return None
    epochs = FINE_TUNING["optim"]["epochs"]
    passes = epochs * (3 * len(manifest.train) + len(manifest.val))
    return passes * start.extraction_s / extractor.computed
