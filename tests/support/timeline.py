"""The queue of a pretend accelerator: when work ends, and copies that have not ended yet.

Work is computed at once, so only its time is simulated: each batch occupies the accelerator after
the work queued before it, and a program that waits sleeps until then. Sleeping uses no CPU time.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor


class Mark(NamedTuple):
    """A moment in the queue: the end of the work queued so far, and the number of copies."""

    time_s: float
    copies: int


@dataclass(slots=True)
class Timeline:
    """Simulated time of an accelerator; without the first two fields, work takes no time."""

    batch_s: float = 0.0
    """Seconds per batch, whatever its size."""
    image_s: float = 0.0
    """Seconds per image."""
    events: list[str] = field(default_factory=list)
    """What happened, in order; other programs may add to it."""
    free_s: float = 0.0
    copies: int = 0
    in_flight: deque[Callable[[], object]] = field(default_factory=deque)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def compute(self, images: int) -> None:
        """Queue a batch of images."""
        with self.lock:
            self.events.append(f"compute {images}")
            begin = max(time.monotonic(), self.free_s)
            self.free_s = begin + self.batch_s + self.image_s * images

    def copy_in(self, source: Tensor) -> None:
        """Queue a copy from pinned memory, which must not change until the copy has ended."""
        before = source.detach().clone()

        def finish() -> None:
            if not torch.equal(source, before):
                raise RuntimeError("pinned memory changed before its copy to the GPU ended")

        self.queue(finish)

    def copy_out(self, target: Tensor, values: Tensor) -> None:
        """Queue a copy to pinned memory, which holds nothing useful until the copy has ended."""
        target.fill_(float("nan") if target.is_floating_point() else 1)
        kept = values.detach().clone()
        self.queue(lambda: target.copy_(kept))

    def queue(self, finish: Callable[[], object]) -> None:
        with self.lock:
            self.in_flight.append(finish)
            self.copies += 1

    def mark(self) -> Mark:
        """Return the present end of the queue."""
        with self.lock:
            return Mark(self.free_s, self.copies)

    def wait(self, mark: Mark | None = None) -> None:
        """Wait until the work before a mark has ended (default: all work)."""
        until = mark or self.mark()
        if (left := until.time_s - time.monotonic()) > 0:
            time.sleep(left)
        with self.lock:
            self.events.append("wait")
            while self.in_flight and self.copies - len(self.in_flight) < until.copies:
                self.in_flight.popleft()()
