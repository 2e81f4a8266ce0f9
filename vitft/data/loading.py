"""Decoding of many images in threads, with results in input order.

Threads are sufficient because Pillow and hashlib release the GIL. Only a few images are in memory
at a time.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from vitft.data.grey_levels import GreyRange
from vitft.data.images import MAX_PIXELS, open_image
from vitft.system.errors import ImageError

log = logging.getLogger(__name__)

Argument = TypeVar("Argument")
_Mapped = TypeVar("_Mapped")
PATIENCE_S = 30.0
"""Seconds to wait for a file before logging a message that names it."""
_STALLED_S = 1.0
"""Seconds to wait after Ctrl-C for reads that are in progress."""
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def decode_images(
    paths: Iterable[str | os.PathLike[str]],
    view: Callable[[int, Image.Image], Pixels],
    *,
    workers: int = 2,
    max_pixels: int = MAX_PIXELS,
    grey_range: GreyRange = (),
    ahead: int | None = None,
    digests: Sequence[str] = (),
) -> Generator[Pixels | ImageError, None, None]:
    """Open each image as upright RGB, and yield the result of `view(index, image)`.

    There is one result per path, in order: an array, or the error if the file is unreadable.
    `paths` may be infinite. `digests` are the SHA-256 of the files, if a change is an error. See
    `in_order` for `workers` and `ahead`.
    """

    def one(numbered: tuple[int, str | os.PathLike[str]]) -> Pixels | ImageError:
        number, path = numbered
        try:
            digest = digests[number] if digests else ""
            image = open_image(path, max_pixels=max_pixels, grey_range=grey_range, sha256=digest)
            return view(number, image)
        except ImageError as error:
            reason = error.reason
        return ImageError(os.fspath(path), reason)  # new: the old traceback would keep the bytes

    return in_order(one, enumerate(paths), workers=workers, ahead=ahead)


def in_order(
    function: Callable[[Argument], _Mapped],
    items: Iterable[Argument],
    *,
    workers: int,
    ahead: int | None = None,
) -> Generator[_Mapped, None, None]:
    """Map a function over items in threads, yielding the results in order.

    At most `ahead` items are in progress, by default four per worker. With no workers, the calling
    thread does the work. When the generator ends, for whatever reason (exhaustion, closing, an
    exception, Ctrl-C), pending work is cancelled and no thread keeps running; only a read that has
    stalled for `_STALLED_S` after Ctrl-C is left to its thread.
    """
    if workers <= 0:
        yield from map(function, items)
        return
    limit = max(1, 4 * workers if ahead is None else ahead)
    pending: deque[tuple[Argument, Future[_Mapped]]] = deque()
    pool, is_stalled = ThreadPoolExecutor(workers, thread_name_prefix="vitft-decode"), False

    def take() -> _Mapped:
        result = _wait_for(*pending[0])  # stays in `pending` meanwhile, for the case of a signal
        pending.popleft()
        return result

    try:
        for item in items:
            pending.append((item, pool.submit(function, item)))
            if len(pending) >= limit:
                yield take()
        while pending:
            yield take()
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        running = [future for _, future in pending if future.running()]
        is_stalled = True  # if another signal arrives meanwhile
        is_stalled = bool(wait(running, timeout=_STALLED_S).not_done)
        raise
    finally:
        pool.shutdown(wait=not is_stalled, cancel_futures=True)


def in_chunks(items: Iterable[Argument], size: int) -> Iterator[list[Argument]]:
    """Divide items into consecutive lists of `size`; the last may be shorter."""
    rest = iter(items)
    return iter(lambda: list(islice(rest, size)), [])


def overlapped(
    items: Iterable[Argument], start: Callable[[Argument], Callable[[], _Mapped]], *, ahead: int = 2
) -> Generator[_Mapped, None, None]:
    """Start work on each item, and finish it in another thread while later items are started.

    `start` is called in the calling thread, e.g. to queue work on a GPU. It returns a function that
    waits for the work and returns the result. These functions are called in a single thread, one
    after another, and their results are yielded in order. At most `ahead` items are unfinished when
    the next one is taken. When the generator ends, for whatever reason, the thread has ended.
    """
    pending: deque[Future[_Mapped]] = deque()
    pool = ThreadPoolExecutor(1, thread_name_prefix="vitft-finish")
    try:
        for item in items:
            pending.append(pool.submit(start(item)))
            while len(pending) > ahead or (pending and pending[0].done()):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _wait_for(item: object, future: Future[_Mapped]) -> _Mapped:
    """Return the result for an item, logging messages during a long wait.

    The first message is logged after `PATIENCE_S`, and another each time the waiting time doubles.
    Without these messages, the program would appear to hang on a slow disk or lost network share.
    """
    waited, step = 0.0, PATIENCE_S
    while True:
        try:
            return future.result(timeout=step)
        except TimeoutError:
            if future.done():  # raised by the function, or finished just now
                return future.result()
            waited += step
            step = waited
            log.info(f"still waiting for {_first_path(item)} after {waited:.0f} s")


def _first_path(item: object) -> str:
    """Return the path of an item, or of the first item in a batch."""
    while isinstance(item, Sequence) and not isinstance(item, str) and len(item):
        item = next((part for part in item if not isinstance(part, int)), "")  # skips the index
    return str(getattr(item, "path", "") or item)


class _ImageBatch(NamedTuple):
    """A batch of equally sized views, and the errors for unreadable files."""

    indices: tuple[int, ...]
    """Image index of each row of `pixels` (B, H, W, 3)."""
    pixels: Pixels
    failed: tuple[tuple[int, ImageError], ...]
    """Image indices and errors of the files found unreadable since the previous batch."""


def stack_batches(results: Iterable[Pixels | ImageError], size: int) -> Iterator[_ImageBatch]:
    """Group the results of `decode_images` into batches of `size` images; the last may be smaller.

    An error is included in the batch that contains the next readable image. The last batch may
    contain only errors.
    """
    indices: list[int] = []
    rows: list[Pixels] = []
    failed: list[tuple[int, ImageError]] = []
    for number, result in enumerate(results):
        if isinstance(result, ImageError):
            failed.append((number, result))
            continue
        indices.append(number)
        rows.append(result)
        if len(rows) == size:
            yield _ImageBatch(tuple(indices), np.stack(rows), tuple(failed))
            indices, rows, failed = [], [], []
    if rows or failed:
        pixels = np.stack(rows) if rows else np.empty((0, 0, 0, 3), np.uint8)
        yield _ImageBatch(tuple(indices), pixels, tuple(failed))
