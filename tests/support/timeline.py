"""The queue of a pretend accelerator: copies that have not ended yet."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class Timeline:
    """Copies in the order in which they were queued; each ends once something waits for it."""

    copies: int = 0
    in_flight: deque[Callable[[], object]] = field(default_factory=deque)
    lock: threading.RLock = field(default_factory=threading.RLock)

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

    def wait(self, mark: int | None = None) -> None:
        """End the copies before a mark, which is an earlier number of copies (default: all)."""
        with self.lock:
            until = self.copies if mark is None else mark
            while self.in_flight and self.copies - len(self.in_flight) < until:
                self.in_flight.popleft()()
