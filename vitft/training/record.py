"""What a run records about itself: its directory and first files, its status, and its end."""

import contextlib
import json
import logging
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from vitft.config.run import flat_settings, to_toml
from vitft.system.cores import freed_memory_kept
from vitft.system.device import describe_device, peak_memory, vector_instructions
from vitft.system.errors import ResourceError, Stopped
from vitft.system.rundir import (
    RunDir,
    create_run,
    environment,
    has_settings,
    locked,
    other_arithmetic,
    point_latest,
    processes_of,
    read_environment,
    resume_command,
)
from vitft.training.fitted import Fitted
from vitft.training.runtime import Runtime
from vitft.training.setup import Start
from vitft.training.state import (
    BUDGET_FILE,
    WEIGHTS_FILE,
    check_same_images,
    list_states,
    read_budget,
    remove_states,
    untried,
    write_for_resume,
)

log = logging.getLogger(__name__)


@contextlib.contextmanager
def open_run(out: Path, start: Start, runtime: Runtime) -> Iterator[RunDir]:
    """Create the run directory with its first files, or check that it can be resumed.

    In the block, training on a CPU keeps the memory that each step frees.
    """
    config, group, manifest = start.config, runtime.group, start.inputs.data.manifest
    on_cpu = start.pipeline.device.type == "cpu" and not config.train.shard
    if (run := runtime.resumed) is not None:
        check_same_images(run, manifest)
        if not list_states(run.resume):
            kept = " from the beginning"
            if read_budget(run.resume) is not None:
                kept = ", but finished trials are not repeated"
            log.info(f"no training state was saved: training starts again{kept}")
        runtime.trackers.start(run, flat_settings(config), resume=True)
        with freed_memory_kept(when=on_cpu):
            yield run
        return
    run = RunDir(
        group.broadcast(create_run(out).path if group.is_main else out), writes=group.is_main
    )
    with locked(run) if group.is_main else contextlib.nullcontext():
        try:
            if group.is_main:
                run.write("config.toml", to_toml(config))
                manifest.write(run.split)
                names = json.dumps(dict(enumerate(manifest.outputs)), indent=4)  # as the reference
                run.write(run.class_indices.name, names)
                write_for_resume(run, WEIGHTS_FILE, start.report.provenance)
                if start.trials:
                    found = untried(config.train.budget_s, start.trials)
                    write_for_resume(run, BUDGET_FILE, found)
            runtime.trackers.start(run, flat_settings(config), resume=False)
            with freed_memory_kept(when=on_cpu):
                yield run
        except ResourceError as error:
            if has_settings(run.path):
                again = f"continue with `{resume_command(run.path)}`"
                fix = error.fix.replace("run the command again", again)
                raise ResourceError(error.problem, fix=fix) from error
            (run.path / "config.toml").unlink(missing_ok=True)  # the command can be repeated
            raise


@contextlib.contextmanager
def status_recorded(fitted: Fitted) -> Iterator[None]:
    """Write to environment.json and to trackers that the run is running, and then how it ended.

    A signal or the time limit ends the block without an error. At the end of the block the run has
    finished, and cannot be resumed any more.
    """
    run, runtime = fitted.run, fitted.runtime
    _write_environment(fitted, "running")
    runtime.status = "failed"
    try:
        yield
        if runtime.group.is_main:
            point_latest(run)
            with runtime.stopper.deferred_locally():
                _write_environment(fitted, "finished")  # first: the run needs its states no more
                remove_states(run.resume)
        runtime.status = "finished"
    except KeyboardInterrupt as stop:
        runtime.exit_code = stop.exit_code if isinstance(stop, Stopped) else 130
        ways = {0: "out of time", 130: "interrupted"}
        runtime.status = ways.get(runtime.exit_code, "terminated")
    finally:
        if runtime.status != "finished":
            _write_environment(fitted, runtime.status)
    runtime.trackers.finish(runtime.status, fitted.results)


def _write_environment(fitted: Fitted, status: str) -> None:
    """Write environment.json; other arithmetic than before a run was resumed is logged, too."""
    device, group = fitted.inputs.data.device, fitted.runtime.group
    found = environment(
        status,
        describe_device(device),
        fitted.precision,
        processes=group.size,
        instructions=vector_instructions(device),
    )
    is_new = status == "running" and fitted.saved is None
    before = None if is_new else read_environment(fitted.run.path / "environment.json")
    if earlier := other_arithmetic(before, found):
        found["earlier"] = earlier
    if earlier and status == "running":
        train = fitted.config.train
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
    fitted.run.write_json("environment.json", found)
