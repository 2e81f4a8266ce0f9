"""A fine-tuning run: load data, build the model, extract features, split, fit, evaluate, write."""

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from vitft.config.run import Config, flat_settings, to_toml
from vitft.data.split import write_class_indices
from vitft.metrics.results import RunResults
from vitft.models.checkpoint import Card
from vitft.models.lora import merge_adapters
from vitft.system.device import describe_device, peak_memory
from vitft.system.errors import Stopped
from vitft.system.malloc import freed_memory_kept
from vitft.system.rundir import RunDir, create_run, environment, locked, point_latest
from vitft.system.signals import Stopper
from vitft.system.text import count
from vitft.training.audit import audit_run, log_audit, write_reference
from vitft.training.best import BestWeights
from vitft.training.dataset import StageInputs
from vitft.training.distributed import ProcessGroup, process_group
from vitft.training.finish import (
    calibrate,
    final_logits,
    model_card,
    write_calibrated,
    write_lora_adapter,
    write_model,
)
from vitft.training.random_state import preserved_random_state
from vitft.training.solve import ScoredImages
from vitft.training.stages import RunContext, StepStage, solve_head_stage
from vitft.training.start import Start, begin, next_inputs
from vitft.training.state import (
    State,
    check_same_images,
    newest_state,
    remove_states,
    remove_temporary_files,
)
from vitft.training.thumbnails import write_thumbnails
from vitft.training.trackers import connect_trackers, short_timeouts

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


@dataclass(slots=True)
class StageProgress:
    """How far the stages of a run have come."""

    inputs: StageInputs
    """What the current stage reads."""
    scored: ScoredImages | None = None
    """Features and held-out logits of all images, once a head was solved."""


def run_finetuning(
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
        stopper.all_reduce_max = group.all_reduce_max
        if resume and group.is_main:
            stack.enter_context(locked(RunDir(out)))
        names = config.train.trackers if group.is_main else ()
        if "mlflow" in names:
            stack.enter_context(short_timeouts())
        trackers = connect_trackers(names, resume=resume)
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
    run, best, held = context.run, context.best, context.stopper.deferred_locally
    data, config = start.inputs.data, start.config
    card = model_card(start.model, start.report, data.manifest)
    saved = load_saved(context, data.group)
    device = (describe_device(data.device), context.precision)
    run.write_json("environment.json", environment("running", *device))
    status, exit_code = "failed", 1
    progress, is_evaluated = StageProgress(start.inputs), False
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
        everything_s=start.full_training_s if config.solvable else None,
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
    context: RunContext, config: Config, progress: StageProgress, saved: State | None
) -> None:
    """Train one stage after the other, from the saved state on, and update `progress`."""
    first = saved.facts["stage"] if saved else 0
    for number, stage in enumerate(config.train.stages):
        if number:
            if number > first:  # else the saved weights are loaded by the stage
                context.best.restore()
            progress.inputs = next_inputs(
                context.best.model, progress.inputs, config, stage, precision=context.precision
            )
            if number > first:
                context.best.include_new_weights()
        if number < first:
            continue
        if config.solves(stage):
            progress.scored = solve_head_stage(context, config, progress.inputs)
        else:
            trainer = StepStage(context, config, progress.inputs, number)
            trainer.run(saved if number == first else None)


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
        config = start.config
        audit = audit_run(
            start.inputs,
            start.inspected,
            scored,
            seed=config.train.seed,
            cache=config.train.cache,
            find_copies=not config.data.group_duplicates,
        )
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
        with context.stopper.deferred_locally():
            run.write_json("environment.json", ended)
            remove_states(run.resume)


def memory_use(device: torch.device) -> dict[str, dict[str, int]]:
    """Log and return the peak memory of the run."""
    peaks = peak_memory(device)
    words = [f"{mib:,} MiB {kind}" for kind, mib in peaks.items()]
    if words:
        log.info(f"peak memory: {', '.join(words)}")
    return {"peak_memory_mib": peaks}
