"""Decodes many images in threads and hands the results out in order.

Threads are enough: Pillow and hashlib let go of the interpreter while they work. Memory holds a
few images however many there are. What an image becomes is the caller's function.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from vitft.data.images import MAX_PIXELS, open_image
from vitft.system.errors import ImageError

T = TypeVar("T")
R = TypeVar("R")
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def decoded(
    paths: Iterable[str | os.PathLike[str]],
    view: Callable[[int, Image.Image], Pixels],
    *,
    workers: int = 2,
    max_pixels: int = MAX_PIXELS,
    ahead: int | None = None,
) -> Generator[Pixels | ImageError, None, None]:
    """Open each image and apply `view` to its running number and its upright RGB picture.

    One result per path, in the order of the paths: an array, or the error of a file that is no
    image. Another file's picture never takes its place.

    Args:
        paths: May be endless; read only as far as the look-ahead.
        view: Called in the worker threads.
        workers: Threads; 0 decodes in the caller's own thread.
        max_pixels: Larger images are errors.
        ahead: How many images may be under way or waiting; by default four per thread.
    """

    def one(numbered: tuple[int, str | os.PathLike[str]]) -> Pixels | ImageError:
        number, path = numbered
        try:
            return view(number, open_image(path, max_pixels=max_pixels))
        except ImageError as error:
            reason = error.reason
        return ImageError(
            os.fspath(path), reason
        )  # a fresh one: tracebacks keep the file's bytes alive

    return in_order(one, enumerate(paths), workers=workers, ahead=ahead)


def in_order(
    function: Callable[[T], R], items: Iterable[T], *, workers: int, ahead: int | None = None
) -> Generator[R, None, None]:
    """`map` in threads: results in the order of the items, at most `ahead` items under way.

    However the generator ends (its end, `close`, an exception, Ctrl-C), what has not begun is
    cancelled and no thread is left.
    """
    if workers <= 0:
        yield from map(function, items)
        return
    limit = max(1, 4 * workers if ahead is None else ahead)
    pending: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="vitft-decode")
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) >= limit:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class Stack(NamedTuple):
    """A batch of equally large views, and the files among them that had none."""

    numbers: tuple[int, ...]
    """Running number of each row of `pixels`."""
    pixels: Pixels
    """(B, S, S, 3)"""
    failed: tuple[tuple[int, ImageError], ...]
    """Running numbers and errors of the unreadable files between the rows."""


def stacked(results: Iterable[Pixels | ImageError], size: int) -> Iterator[Stack]:
    """Group what `decoded` yields into batches of `size` images; the last one may be smaller.

    Errors travel with the batch that they fell into. A last stack without rows only carries
    errors.
    """
    numbers: list[int] = []
    rows: list[Pixels] = []
    failed: list[tuple[int, ImageError]] = []
    for number, result in enumerate(results):
        if isinstance(result, ImageError):
            failed.append((number, result))
            continue
        numbers.append(number)
        rows.append(result)
        if len(rows) == size:
            yield Stack(tuple(numbers), np.stack(rows), tuple(failed))
            numbers, rows, failed = [], [], []
    if rows or failed:
        pixels = np.stack(rows) if rows else np.empty((0, 0, 0, 3), np.uint8)
        yield Stack(tuple(numbers), pixels, tuple(failed))
