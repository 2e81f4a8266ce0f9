"""Number of CPU cores that a process may use."""

import os


def node_cores() -> int:
    """Return the number of CPU cores that the processes of a run may use on this machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local_processes() -> int:
    """Return the number of processes that torchrun has started on this machine, or 1."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def usable_cores() -> int:
    """Return the number of CPU cores for this process.

    Under torchrun, the processes on a machine divide its cores evenly.
    """
    return max(1, node_cores() // local_processes())
