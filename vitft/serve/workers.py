"""Work in threads, as many jobs at once as there are threads.

Unlike `concurrent.futures`, jobs wait on the side of asyncio, where one that nobody waits for any
more vanishes together with its data, and the threads do not keep a stopped program alive.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Crew:
    """Threads that take jobs from coroutines of one event loop."""

    def __init__(self, size: int, name: str) -> None:
        self.free = asyncio.Semaphore(size)
        self.jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.threads = [
            threading.Thread(target=self.work, name=f"{name}-{i}", daemon=True) for i in range(size)
        ]
        for thread in self.threads:
            thread.start()

    def work(self) -> None:
        """What each thread does until it is told to go home."""
        while job := self.jobs.get():
            job()
            del job  # it holds an image; the next one may be long in coming

    def close(self) -> None:
        """Let the threads end when they have done what they are at."""
        for _ in self.threads:
            self.jobs.put(None)

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """The result of a call in one of the threads; its exception is raised here.

        A cancelled call that has begun keeps its thread, and so its place, to its end.
        """
        await self.free.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def finish(result: T | None, error: Exception | None) -> None:
            self.free.release()
            if answer.done():  # cancelled
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]  # no error, so it is a T

        def job() -> None:
            result, failed = None, None
            try:
                result = function(*arguments)
            except Exception as error:  # raised again by whoever waits
                failed = error
            try:
                loop.call_soon_threadsafe(finish, result, failed)
            except RuntimeError:  # the server has stopped meanwhile
                return
            finally:
                del result, failed  # else the error's traceback holds this frame, and it the error

        self.jobs.put(job)
        return await answer
