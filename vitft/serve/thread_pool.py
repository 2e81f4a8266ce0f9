"""Bounded thread pool for blocking work.

Unlike in `concurrent.futures`, calls wait as coroutines, so a cancelled one is dropped together
with its data, and daemon threads do not keep a stopped program alive.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

Output = TypeVar("Output")


class BlockingPool:
    """Threads that run functions for the coroutines of one event loop."""

    def __init__(self, size: int, name: str) -> None:
        self.free = asyncio.Semaphore(size)
        self.jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.threads = [
            threading.Thread(target=self.work, name=f"{name}-{i}", daemon=True) for i in range(size)
        ]
        for thread in self.threads:
            thread.start()

    def work(self) -> None:
        """Run jobs until the pool is closed."""
        while job := self.jobs.get():
            job()
            del job  # it holds an image, and the next job may come much later

    def close(self) -> None:
        """Let each thread end after its current job."""
        for _ in self.threads:
            self.jobs.put(None)

    async def run(self, function: Callable[..., Output], *arguments: object) -> Output:
        """Call a function in one of the threads; its exception is raised here.

        A call that has begun keeps its thread to the end, even if it is cancelled.
        """
        await self.free.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Output] = loop.create_future()

        def finish(result: Output | None, error: Exception | None) -> None:
            self.free.release()
            if future.done():  # cancelled
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # no error: it is an Output

        def job() -> None:
            result, failure = None, None
            try:
                result = function(*arguments)
            except Exception as error:  # raised again by the awaiting coroutine
                failure = error
            try:
                loop.call_soon_threadsafe(finish, result, failure)
            except RuntimeError:  # the server has stopped
                return
            finally:
                del result, failure  # the error's traceback refers to this frame: a cycle

        self.jobs.put(job)
        return await future
