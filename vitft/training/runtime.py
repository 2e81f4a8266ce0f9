"""What surrounds a run: its processes, signals and time limit, trackers, and its caller's state."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from vitft.config.run import Config
from vitft.system.device import caller_state_preserved
from vitft.system.rundir import RunDir, locked
from vitft.system.signals import Stopper
from vitft.training.distributed import ProcessGroup, process_group
from vitft.training.trackers import Trackers, short_timeouts


@dataclass(slots=True, kw_only=True)
class Runtime:
    """Processes, signals, time and trackers of a run; by default, of a run of one process."""

    group: ProcessGroup = field(default_factory=ProcessGroup)
    stopper: Stopper = field(default_factory=Stopper)
    trackers: Trackers = field(default_factory=Trackers)
    resumed: RunDir | None = None  # the run directory to continue; None for a new run
    started: float = field(default_factory=time.monotonic)
    """Value of `time.monotonic()` at the start of the run; in a resumed run with a time budget, the
    time used earlier is subtracted."""
    seconds_per_image: float | None = None
    """Time to read an image and extract its features; None if most features were cached."""
    status: str = "failed"  # how the run has ended, as in environment.json
    exit_code: int = 0

    def used_s(self) -> float:
        """Return the time in seconds that the run has used, the same in all processes."""
        return self.group.broadcast(time.monotonic() - self.started)

    @classmethod
    @contextlib.contextmanager
    def enter(
        cls, config: Config, out: Path, *, resume: bool, max_seconds: float
    ) -> Iterator["Runtime"]:
        """Join the other processes, watch signals and the time, lock a resumed run, connect.

        On exit, random number generators, thread counts and signal handlers are as before.
        """
        started = time.monotonic()
        with contextlib.ExitStack() as stack:
            stack.enter_context(caller_state_preserved(gpu=config.train.device != "cpu"))
            stopper = stack.enter_context(Stopper(max_seconds))
            group = stack.enter_context(process_group(config.train.timeout, config.train.device))
            stopper.all_reduce_max = group.all_reduce_max
            resumed = RunDir(out, writes=group.is_main) if resume else None
            if resumed is not None and group.is_main:
                stack.enter_context(locked(resumed))
            names = config.train.trackers if group.is_main else ()
            if "mlflow" in names:
                stack.enter_context(short_timeouts())
            trackers = Trackers(names, resume=resume)
            stack.callback(trackers.finish, "failed", {})
            yield cls(
                group=group, stopper=stopper, trackers=trackers, resumed=resumed, started=started
            )
            group.barrier()
