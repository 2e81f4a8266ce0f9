"""Fine-tuning run: setup, training stages, evaluation and the files of the run directory."""

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from vitft.config.run import Config, flat_settings, to_toml
from vitft.data.split import write_class_indices
from vitft.metrics.results import RunResults, StartTrials
from vitft.metrics.summary import Results
from vitft.models.lora import merge_adapters
from vitft.report.notebook import result_card
from vitft.system import console
from vitft.system.device import (
    caller_state_preserved,
    describe_device,
    peak_memory,
    vector_instructions,
)
from vitft.system.errors import ResourceError, RunError, Stopped
from vitft.system.malloc import freed_memory_kept
from vitft.system.rundir import (
    RunDir,
    create_run,
    damaged_file,
    environment,
    has_settings,
    locked,
    other_arithmetic,
    point_latest,
    processes_of,
    read_environment,
    resume_command,
)
from vitft.system.signals import Stopper
from vitft.system.text import count
from vitft.training.best import BestWeights
from vitft.training.budget import choose_layers, record_start_trials, resume_budget
from vitft.training.distributed import process_group
from vitft.training.finish import (
    evaluate_run,
    model_card,
    write_calibrated,
    write_lora_adapter,
    write_model,
)
from vitft.training.head_stage import representative_scores, solve_head_stage
from vitft.training.reference import audit_run, log_audit, write_reference
from vitft.training.setup import Start, extract_and_split, load_data_and_model, next_inputs
from vitft.training.stages import RunContext, StepStage
from vitft.training.start_trials import try_other_starts
from vitft.training.state import (
    WEIGHTS_FILE,
    State,
    check_same_images,
    list_states,
    newest_state,
    read_budget,
    recorded_weights,
    remove_states,
    remove_temporary_files,
    write_for_resume,
)
from vitft.training.thumbnails import write_thumbnails
from vitft.training.trackers import connect_trackers, short_timeouts

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result:
    """Outcome of a run: directory, metrics and exit status."""

    run: Path
    figures: RunResults
    """Contents of eval.json; empty if the run was stopped before the end of its first epoch."""
    status: str = "finished"
    """Exit status as in environment.json: finished, interrupted, terminated or out of time."""
    exit_code: int = 0
    everything_s: float | None = None
    """Estimated time in seconds to train all weights on this machine; None if unknown."""

    @property
    def results(self) -> Results:
        """The numbers of the run: `headline` is the one to quote; empty if nothing was measured."""
        return replace(Results.of(self.figures or None), name=self.run.name)

    @property
    def interrupted(self) -> bool:
        """Whether the run stopped before training was complete."""
        return self.status != "finished"

    def __repr__(self) -> str:
        one = self.results.headline
        value = f"{one.measure.replace(' ', '_')}={one.value}" if one else "accuracy=None"
        return f"Result(run='{self.run}', status={self.status!r}, {value})"

    def _repr_html_(self) -> str | None:
        try:
            return result_card(self.run)
        except RunError:  # deleted or damaged since
            return None


def run_finetuning(
    config: Config, *, out: Path, resume: bool = False, max_seconds: float = 0.0
) -> Result:
    """Fine-tune pretrained weights on labelled images and write the run directory `out`.

    On a signal (Ctrl-C, SIGTERM, SIGUSR1, SIGHUP) or at the time limit, the training state and any
    best weights are saved, so that the run can be resumed. Random number generators, thread counts
    and signal handlers are restored at the end, but malloc settings are not (see `system.malloc`).

    Args:
        config: The settings; for a resumed run, those in its directory.
        out: The run directory to create or resume.
        resume: Whether to continue a run that was stopped or killed.
        max_seconds: Time limit in seconds; 0 for no limit.

    Raises:
        DataError: The data folder or its classes cannot be used, or too many images are unreadable.
        WeightsError: The weights cannot be found, read or adapted.
        UsageError: The device, a tracker or a combination of settings cannot be used.
        RunError: `out` or the cache cannot be written, or `out` cannot be resumed.
        LockedError: Another process is writing to `out`.
        DivergedError: The loss or the features are not finite.
        ResourceError: Memory or disk space ran out, or a process was lost.
    """
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        # Signals and the time limit, other processes, trackers
        stack.enter_context(caller_state_preserved(gpu=config.train.device != "cpu"))
        stopper = stack.enter_context(Stopper(max_seconds))
        group = stack.enter_context(process_group(config.train.timeout, config.train.device))
        stopper.all_reduce_max = group.all_reduce_max
        if resume and group.is_main:
            stack.enter_context(locked(RunDir(out)))
        names = config.train.trackers if group.is_main else ()
        if "mlflow" in names:
            stack.enter_context(short_timeouts())
        trackers = connect_trackers(names, resume=resume)
        stack.callback(trackers.finish, "failed", {})

        # Images and weights, then features and the split
        recorded = recorded_weights(RunDir(out).resume) if resume else None
        setup = load_data_and_model(config, group, recorded, resume=resume)
        start, trials = extract_and_split(setup, group), StartTrials()
        if not resume:  # otherwise, config.toml contains the size that was chosen
            start, trials = try_other_starts(start, started=started)
        setup = start.setup

        # The run directory, to which the model is fitted, evaluated and written
        run = stack.enter_context(_open_run(out, start, resume=resume))
        if resume and not list_states(run.resume):
            kept = " from the beginning"
            if read_budget(run.resume) is not None:
                kept = ", but finished trials are not repeated"
            log.info(f"no training state was saved: training starts again{kept}")
        trackers.start(run, flat_settings(setup.config), resume=resume)
        context = RunContext(
            run=run,
            config=setup.config,
            best=BestWeights(setup.pipeline.model, selects=not setup.config.train.budget),
            precision=setup.pipeline.precision,
            stopper=stopper,
            trackers=trackers,
            inputs=start.inputs,
            started=started,
        )
        record_start_trials(context, trials)
        whole_on_cpu = setup.pipeline.device.type == "cpu" and not setup.config.train.shard
        with freed_memory_kept(when=whole_on_cpu):
            result = fit_and_write(context, start)
        trackers.finish(result.status, result.figures)
        group.barrier()
    return result


@contextlib.contextmanager
def _open_run(out: Path, start: Start, *, resume: bool) -> Iterator[RunDir]:
    """Create the run directory with its first files, or check that it can be resumed."""
    manifest, group = start.inputs.data.manifest, start.inputs.data.group
    if resume:
        run = RunDir(out, writes=group.is_main)
        check_same_images(run, manifest)
        yield run
        return
    path = group.broadcast(create_run(out).path if group.is_main else out)
    run = RunDir(path, writes=group.is_main)
    with locked(run) if group.is_main else contextlib.nullcontext():
        try:
            if group.is_main:
                run.write("config.toml", to_toml(start.setup.config))
                manifest.write(run.split)
                write_class_indices(run.class_indices, manifest.outputs)
                write_for_resume(run, WEIGHTS_FILE, start.setup.report.provenance)
            yield run
        except ResourceError as error:
            if has_settings(path):
                again = f"continue with `{resume_command(path)}`"
                fix = error.fix.replace("run the command again", again)
                raise ResourceError(error.problem, fix=fix) from error
            (path / "config.toml").unlink(missing_ok=True)  # the command can be repeated
            raise


def fit_and_write(context: RunContext, start: Start) -> Result:
    """Train, evaluate and write the results; a stopped run writes its results so far."""
    run, best, held = context.run, context.best, context.stopper.deferred_locally
    config, model, data = context.config, context.best.model, context.inputs.data
    resume_budget(context)
    saved = _load_saved(context)
    _write_environment(context, "running", resumed=saved is not None)
    status, exit_code, is_evaluated = "failed", 1, False
    results = best.results
    try:
        try:
            train_stages(context, saved)
        finally:  # the best weights are saved first, however training ended
            card = model_card(model, start.setup.report, data.manifest)
            with held():
                best.restore()
                adapter = merge_adapters(model) if best.epochs else {}
                if best.epochs:
                    write_model(run, model, card)
                    run.write_json(run.eval.name, best.results)
                results = {**best.results, "budget": b} if (b := context.budget) else best.results
        # The metrics are those of the answers that `vitft predict` will give
        with console.quiet_step("evaluating the model"):
            final = evaluate_run(
                context.inputs,
                model,
                context.precision,
                results,
                scored=representative_scores(context, start.inputs),
                started=context.started,
            )
        with held():
            write_calibrated(run, model, card, final)
            results = final.results
        write_lora_adapter(run, adapter, model, context.config.train, card)
        is_evaluated = True

        # Label errors, duplicates and unlike images; then thumbnails
        write_data_reports(context, start, complete=True)
        if data.group.is_main:
            write_thumbnails(
                run,
                data.manifest,
                model,
                data.transform,
                max_pixels=data.max_pixels,
                precision=context.precision,
            )
            point_latest(run)
            with held():  # the status comes first: without states, the run cannot be resumed
                _write_environment(context, "finished")
                remove_states(run.resume)
        status, exit_code = "finished", 0
    except KeyboardInterrupt as stop:
        exit_code = stop.exit_code if isinstance(stop, Stopped) else 130
        status = {0: "out of time", 130: "interrupted"}.get(exit_code, "terminated")
    finally:
        if status != "finished":
            _write_environment(context, status)
    if not is_evaluated:
        write_data_reports(context, start, complete=False)
    return Result(
        run=run.path,
        figures=results,
        status=status,
        exit_code=exit_code,
        everything_s=start.full_training_s if config.solvable and not config.train.budget else None,
    )


def _load_saved(context: RunContext) -> State | None:
    """Load the best weights of the newest saved state, and return the state for its stage."""
    group = context.inputs.data.group
    if group.is_main:
        remove_temporary_files(context.run.path)
    else:
        group.barrier()  # wait until damaged states have been renamed
    found = newest_state(context.run.resume)
    if found is None:
        context.run.cut_log(0)
    else:
        facts = found[0].facts
        if facts["stage"] >= len(context.config.train.stages):
            raise damaged_file(context.run.resume, "its newest state has an unknown stage")
        context.best.load(facts["best"], found[1], str(facts.get("best_file", "")))
        epochs = context.config.optim.epochs
        log.info(
            f"resuming after {count(facts['step'], 'step')}, in epoch "
            f"{min(facts['epochs'] + 1, epochs)} of {epochs}"
        )
    if group.is_main:
        group.barrier()
    return found[0] if found else None


def train_stages(context: RunContext, saved: State | None) -> None:
    """Train the stages in order, starting at the saved state if there is one."""
    best, number = context.best, 0
    first = saved.facts["stage"] if saved else 0
    while number < len(context.config.train.stages):  # `choose_layers` may add a stage
        config, stage = context.config, context.config.train.stages[number]
        if number:
            if number > first:  # otherwise the stage loads the saved weights
                best.restore()
            context.inputs = next_inputs(
                best.model, context.inputs, config, stage, precision=context.precision
            )
            if number > first:
                best.weights, best.file = best.copy_weights(), ""  # this stage trains more tensors
        if number >= first and config.solves(stage):
            several = context.inputs.data.group.size > 1
            with context.stopper.deferred_to_next(when=several):  # no process waits for another
                solved = solve_head_stage(context)
            if config.train.budget:
                choose_layers(context, solved)
        elif number >= first:
            StepStage(context, number).run(saved if number == first else None)
        number += 1


def write_data_reports(context: RunContext, start: Start, *, complete: bool) -> None:
    """Write audit.json and the reference distribution of the features.

    Nothing is written if no epoch has ended. If `complete` is false, the run must end soon, so the
    reference is written only if features are cached.
    """
    data, config = start.inputs.data, context.config
    if context.best.epochs and data.group.is_main:
        with console.quiet_step("searching for duplicates and label errors"):
            audit = audit_run(
                start.inputs,
                start.inspection.inspected,
                context.scored,
                seed=config.train.seed,
                cache=config.train.cache,
                find_copies=not config.data.group_duplicates,
            )
        if complete or context.inputs.cut.pooled:
            audit["out_of_distribution"] = write_reference(
                context.run,
                context.inputs,
                context.best.model,
                frozen={*config.train.stages} <= {"head", "pre_logits"},
                seed=config.train.seed,
            )
        context.run.write_json("audit.json", audit)
        log_audit(audit, context.run, config.data, is_several=bool(data.manifest.labels))


def _write_environment(context: RunContext, status: str, *, resumed: bool = True) -> None:
    """Write environment.json; other arithmetic than before a run was `resumed` is logged, too."""
    device, group = context.inputs.data.device, context.inputs.data.group
    found = environment(
        status,
        describe_device(device),
        context.precision,
        processes=group.size,
        instructions=vector_instructions(device),
    )
    before = read_environment(context.run.path / "environment.json") if resumed else None
    if earlier := other_arithmetic(before, found):
        found["earlier"] = earlier
    if earlier and status == "running":
        train = context.config.train
        draws = train.mixup or train.cutmix or train.drop_path  # random numbers for each process
        others = draws and any(processes_of(text) != group.size for text in earlier)
        difference = "the random numbers of mixup, CutMix or drop path" if others else "rounding"
        log.info(
            f"earlier steps were computed on {' and on '.join(earlier)}, so the results will "
            f"differ in {difference} from those of a run that was not stopped"
        )
    if status != "running":
        found["ended"] = datetime.now().astimezone().isoformat(timespec="seconds")
        found["peak_memory_mib"] = peaks = peak_memory(device)
        if peaks:
            words = ", ".join(f"{mib:,} MiB {kind}" for kind, mib in peaks.items())
            log.debug(f"peak memory: {words}")
    context.run.write_json("environment.json", found)
