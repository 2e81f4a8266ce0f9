"""Inspection of image files: each file is read, hashed and decoded once.

The caller of a pass over a folder provides a function that computes anything else that is needed
from each image, such as features or a fingerprint. The value range of images with more than 8 bits
per channel is measured before that pass. This module does not import torch.
"""

import contextlib
import functools
import hashlib
import io
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import chain, compress, islice
from typing import Any, TypeVar

import numpy as np
import simplejpeg
from PIL import Image, JpegImagePlugin

from vitft.data.image_table import Images, Row, pack
from vitft.data.images import (
    DECODER_ERRORS,
    MAX_PIXELS,
    ORIENTATION,
    TIFF,
    Decoded,
    GreyRange,
    ValueFacts,
    correct_raw_mode,
    decode,
    decoding_remarks,
    is_wide,
    open_image,
    read_bytes,
    silence_pillow,
    value_facts,
)
from vitft.data.remote.copies import copy_member
from vitft.data.signatures import FORMAT_BY_SUFFIX, identify_format
from vitft.data.transforms import EvalTransform
from vitft.system.console import NOTE
from vitft.system.errors import DataError, ImageError
from vitft.system.files import open_regular
from vitft.system.imports import missing_library_command
from vitft.system.text import count, listing

log = logging.getLogger(__name__)


# decoding of many images in threads, with results in input order ----------------------------------

Argument = TypeVar("Argument")
_Mapped = TypeVar("_Mapped")
PATIENCE_S = 30.0  # seconds to wait for a file before logging a message that names it
_STALLED_S = 1.0  # seconds to wait after Ctrl-C for reads that are in progress
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
    """Open each image as upright RGB, and yield the result of `view(index, image)` or the error.

    `paths` may be infinite. `digests` are the SHA-256 of the files, if a change is an error. See
    `in_order` for `workers` and `ahead`.
    """

    def one(numbered: tuple[int, str | os.PathLike[str]]) -> Pixels | ImageError:
        number, path = numbered
        try:
            digest = digests[number] if digests else ""
            image = open_image(path, max_pixels=max_pixels, grey_range=grey_range, sha256=digest)
            return view(number, image)
        except ImageError as error:  # the new one has no traceback, which would keep the bytes
            return ImageError(os.fspath(path), error.reason)

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
    thread does the work. When the generator ends, for whatever reason, no thread keeps running;
    only a read that has stalled for `_STALLED_S` after Ctrl-C is left to its thread.
    """
    if workers <= 0:
        yield from map(function, items)
        return
    limit = max(1, 4 * workers if ahead is None else ahead)
    pending: deque[tuple[Argument, Future[_Mapped]]] = deque()
    pool, is_stalled = ThreadPoolExecutor(workers, thread_name_prefix="vitft-decode"), False

    def take() -> _Mapped:
        item, future = pending[0]  # stays in `pending` meanwhile, for the case of a signal
        waited, step = 0.0, PATIENCE_S
        while wait([future], timeout=step).not_done:  # on a slow disk or lost network share
            waited += step
            step = waited
            first: object = item  # of a batch
            while isinstance(first, Sequence) and not isinstance(first, str) and len(first):
                first = next((part for part in first if not isinstance(part, int)), "")
            if not callable(first):
                log.info(f"still waiting for {getattr(first, 'path', first)} after {waited:.0f} s")
        pending.popleft()
        return future.result()

    try:
        for item in items:
            pending.append((item, pool.submit(function, item)))
            if len(pending) >= limit or pending[0][1].done():
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

    `start` is called in the calling thread, e.g. to queue work on a GPU, and returns a function
    that waits for the result. At most `ahead` items are unfinished when the next one is taken.
    """
    return in_order(lambda finish: finish(), map(start, items), workers=1, ahead=ahead + 1)


_Batch = tuple[list[int], Pixels, list[tuple[int, ImageError]]]
"""Indices of images, their pixels (B, H, W, 3), and indices and errors of files that failed."""


def stack_batches(results: Iterable[Pixels | ImageError], size: int) -> Iterator[_Batch]:
    """Group the results of `decode_images` into batches of `size` images; the last may be smaller.

    An error is in the batch of the next readable image; the last batch may contain only errors.
    """
    rows: list[tuple[int, Pixels]] = []
    failed: list[tuple[int, ImageError]] = []

    def batch() -> _Batch:
        pixels = np.stack([row for _, row in rows]) if rows else np.empty((0, 0, 0, 3), np.uint8)
        return [number for number, _ in rows], pixels, failed

    for number, result in enumerate(results):
        if isinstance(result, ImageError):
            failed.append((number, result))
            continue
        rows.append((number, result))
        if len(rows) == size:
            yield batch()
            rows, failed = [], []
    if rows or failed:
        yield batch()


# fast decoding of ordinary JPEGs, used to compute features in reduced precision -------------------


def _decode_upright(data: bytes, *, max_pixels: int) -> Pixels | None:
    """Return the RGB pixels (H, W, 3) of an ordinary undamaged JPEG, or None for other data."""
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        place = data.find(b"Exif\0\0")
        odd = place > 65536 or b"tiff:Orientation" in data or colours != "YCbCr"  # left to Pillow
        if odd or height * width > max_pixels or max(height, width) > 20 * min(height, width):
            return None
        if place >= 0:
            with JpegImagePlugin.JpegImageFile(io.BytesIO(data)) as image:
                if image.getexif().get(ORIENTATION, 1) != 1:
                    return None
        return simplejpeg.decode_jpeg(data, strict=True)
    except DECODER_ERRORS:
        return None


def fast_view(
    data: bytes, transform: EvalTransform, *, max_pixels: int
) -> tuple[Pixels, tuple[int, int]] | None:
    """Return the view (H, W, 3) of an ordinary JPEG, and its width and height, or None."""
    image = _decode_upright(data, max_pixels=max_pixels) if can_resize(transform) else None
    return None if image is None else (resized(image, transform), (image.shape[1], image.shape[0]))


def can_resize(transform: EvalTransform) -> bool:
    """Return whether `resized` can apply the transform."""
    return transform.interpolation in ("bilinear", "bicubic") and transform.channels == 3


def resized(image: Pixels, transform: EvalTransform) -> Pixels:
    """Resize an image (h, w, 3) with torch's kernel, and crop or pad it to the view (H, W, 3)."""
    import torch  # not needed for decoding alone

    planes = torch.from_numpy(image).permute(2, 0, 1)[None]  # channels last is fastest
    wide, tall = transform.resized(image.shape[1], image.shape[0])
    planes = torch.nn.functional.interpolate(
        planes, (tall, wide), mode=transform.interpolation, antialias=True
    )
    return transform.framed(planes[0].permute(1, 2, 0).numpy())


# inspection of image files: each file is read, hashed and decoded once ----------------------------

_Inspected = TypeVar("_Inspected")


class OpenedImage:
    """An image file's bytes, decoded at most once (if `fast`, with simplejpeg where possible)."""

    def __init__(
        self, file: Row, data: bytes, *, max_pixels: int, fast: bool, grey_range: GreyRange = ()
    ) -> None:
        self.file, self.data = file, data
        self.max_pixels, self.grey_range, self.fast = max_pixels, grey_range, fast
        self.sha256 = hashlib.sha256(data).hexdigest()

    @functools.cached_property
    def jpeg(self) -> Pixels | None:
        """Pixels (H, W, 3) of an undamaged upright JPEG, or None if Pillow must decode the file."""
        return _decode_upright(self.data, max_pixels=self.max_pixels) if self.fast else None

    @functools.cached_property
    def decoded(self) -> Decoded:
        """Image as decoded by Pillow, with remarks; raise an ImageError if that is impossible."""
        return decode(
            self.data, self.file.path, max_pixels=self.max_pixels, grey_range=self.grey_range
        )

    @property
    def image(self) -> Image.Image:
        return self.decoded.image if self.jpeg is None else Image.fromarray(self.jpeg)

    def facts(self) -> Row:
        if self.jpeg is None:
            (width, height), odd = self.decoded.image.size, self.decoded.odd
        else:
            height, width = self.jpeg.shape[:2]
            odd = ()
            # Damaged metadata are not a remark: the pixels were decoded without an error
            with (
                contextlib.suppress(*DECODER_ERRORS),
                JpegImagePlugin.JpegImageFile(io.BytesIO(self.data)) as image,
            ):
                odd = tuple(decoding_remarks("JPEG", image, self.file.path))
        return self.file._replace(sha256=self.sha256, width=width, height=height, odd=odd)


def inspect_file(
    root: str,
    file: Row,
    function: Callable[[OpenedImage], _Inspected],
    *,
    max_pixels: int = MAX_PIXELS,
    grey_range: GreyRange = (),
    fast: bool = False,
) -> _Inspected | ImageError:
    """Return the result of `function` for a file, or the error with the path relative to `root`."""
    try:
        data = read_bytes(f"{root}/{file.path}", max_pixels=max_pixels)
        return function(
            OpenedImage(file, data, max_pixels=max_pixels, grey_range=grey_range, fast=fast)
        )
    except ImageError as error:  # the new one has no traceback, which would keep the bytes
        return ImageError(file.path, error.reason)


def inspect_folder(
    folder: Images,
    *,
    max_pixels: int = MAX_PIXELS,
    workers: int = 2,
    allow_bad: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Images:
    """Read and fully decode every file of a folder once, in `workers` threads (see `collect`)."""
    root = os.fspath(folder.root)
    results = in_order(
        lambda file: inspect_file(root, file, OpenedImage.facts, max_pixels=max_pixels),
        folder.rows,
        workers=workers,
    )
    with contextlib.closing(results):
        return collect(folder, results, allow_bad=allow_bad, progress=progress)


def collect(
    images: Images,
    results: Iterable[Row | ImageError],
    *,
    allow_bad: bool,
    progress: Callable[[int], None] = lambda _: None,
) -> Images:
    """Return the readable images, given the results of a pass; call `progress(1)` after each.

    Raises:
        DataError: Over ten files and a tenth of all are unreadable, unless `allow_bad` is set.
    """
    bad = [*images.bad]

    def readable() -> Iterator[Row]:
        for result in results:
            if isinstance(result, ImageError):
                bad.append((result.path, result.reason))
            else:
                yield result
            progress(1)

    rows = pack(readable())
    bad.sort()
    total = len(rows) + len(bad)
    if not allow_bad and len(bad) > max(10, total / 10):
        examples = "; ".join(f"{path}: {reason}" for path, reason in bad[:3])
        fix = "repair or remove them, or ignore them with --set data.allow_bad=true"
        commands = (f"run {c}" for _, why in bad if (c := missing_library_command(why)))
        ways = (why.partition("): ")[2] for _, why in bad if "unsupported" in why)
        fix = ", or ".join([*islice(chain(commands, filter(None, ways)), 1), fix])
        problem = f"{len(bad):,} of {total:,} files in {images.source} are unreadable ({examples})"
        raise DataError(problem, fix=fix)
    return replace(images, rows=rows, bad=tuple(bad))


def merge_inspections(images: Images, shards: Iterable[Images], *, allow_bad: bool) -> Images:
    """Merge the inspections of shards of the images, each in their order (see `collect`)."""
    bad, first = dict[str, str](), dict[str, tuple[Row, Iterator[Row]]]()

    def take(rows: Iterator[Row]) -> None:
        for row in islice(rows, 1):
            first[row.path] = row, rows

    for shard in shards:
        bad |= shard.bad
        take(iter(shard.rows))

    def merged() -> Iterator[Row | ImageError]:
        for path in (row.path for row in images.rows):
            if path in bad:
                yield ImageError(path, bad[path])
            else:
                row, rest = first.pop(path)
                take(rest)
                yield row

    return collect(images, merged(), allow_bad=allow_bad)


def describe_counts(bad: int, good: int, *, different: int) -> str:
    """Return e.g. `5 readable images (6 files, 1 unreadable; 4 different, 1 identical copy)`."""
    parts = [f"{count(good + bad, 'file')}, {bad:,} unreadable"] * (bad > 0)
    copies = count(good - different, "identical copy", "identical copies")
    parts += [f"{different:,} different, {copies}"] * (different < good)
    more = f" ({'; '.join(parts)})" if parts else ""
    return f"{count(good, 'readable image')}{more}"


def log_inspection(inspected: Images) -> None:
    """Log notes, unreadable files and remarks; without `-v`, at most three lines."""
    bad = [f"skipped {path}: {reason}" for path, reason in inspected.bad[:10]]
    if len(inspected.bad) > 10:
        bad.append(f"skipped {count(len(inspected.bad) - 10, 'more unreadable file')}")
    warnings = (*inspected.warnings, *bad)
    for text in warnings:
        log.warning(text)
    remarks = Counter(remark for row in inspected.rows for remark in row.odd)
    odd = (f"{kind}: {count(number, 'image')}" for kind, number in sorted(remarks.items()))
    harmless = [text for text in inspected.notes if "no action is needed" in text]
    notes = [text for text in (*inspected.notes, *odd) if text not in harmless]
    notes.sort(key=lambda text: "--" not in text)
    for text in harmless:
        log.debug(text)
    for number, text in enumerate(notes, start=len(warnings)):
        log.log(logging.INFO if number < 3 else NOTE, text)


# value range of a dataset's images with more than 8 bits per channel ------------------------------
#
# The range is stored in the model's transform. Without it, 12-bit values in 16-bit files would use
# only 16 of 256 levels.

_MOST_MEASURED = 1000  # maximum number of images whose values are read


def measure_grey_range(
    folder: Images,
    *,
    max_pixels: int,
    workers: int = 2,
    own: Sequence[Row] | None = None,
    gather: Callable[[list[Any]], list[Any]] = list,
) -> GreyRange:
    """Return the value range of the training images with more than 8 bits per channel, and log it.

    The range is empty if there are no such images, if all their values are equal, or if their
    values have different types, which is reported in a warning. Only files with a PNG or TIFF
    suffix are opened. If several processes measure a folder together, each opens only the files in
    `own`, and `gather` joins the lists of all processes.
    """
    root = str(folder.root)
    paths = [
        f"{root}/{file.path}"
        for file in (folder.rows if own is None else own)
        if file.split in ("train", "")
        and FORMAT_BY_SUFFIX.get(f".{file.path.rpartition('.')[2].lower()}") in ("PNG", "TIFF")
    ]
    own_wide = [*compress(paths, in_order(_has_wide_header, paths, workers=workers))]
    wide = sorted(gather(own_wide))
    some = {*wide[:: -(-len(wide) // _MOST_MEASURED) or 1]}
    found = in_order(
        lambda path: _read_facts(path, max_pixels),
        [path for path in own_wide if path in some],
        workers=workers,
    )
    facts: list[ValueFacts] = gather([one for one in found if one is not None])
    kinds = Counter(one.kind for one in facts)
    if len(kinds) > 1:
        types = listing(
            f"{count(number, 'image')} with {kind} values" for kind, number in kinds.items()
        )
        log.warning(
            f"the images have values of different types ({types}), and each type is scaled by its "
            "own fixed range. Convert all images to one type to scale them by their measured range"
        )
    if len(kinds) != 1:
        return ()
    low, high = min(f.lowest for f in facts), max(f.highest for f in facts)
    inner = min(f.low for f in facts), max(f.high for f in facts)
    clips = ""
    if high - low > 4 * (inner[1] - inner[0]) > 0:  # with tails that are long compared to the rest
        (low, high), clips = inner, ", clipping outliers"
    if not low < high:
        return ()
    log.info(
        f"{count(len(wide), 'image')} with more than 8 bits per channel: values from {low:,.6g} to "
        f"{high:,.6g} (the range of the dataset) are scaled to 8 bits{clips}"
    )
    return low, high


def _has_wide_header(source: str | bytes) -> bool:
    """Return whether a header declares more than 8 bits per channel; False if it is damaged."""
    silence_pillow()
    try:
        data = source if isinstance(source, bytes) else copy_member(source, most=32)
        if data is not None and isinstance(source, str) and identify_format(data) == "TIFF":
            data = copy_member(source)  # its header may be anywhere
        opened = None if data is None else io.BytesIO(data)
        with opened or open(source, "rb", opener=open_regular) as file:
            head = file.read(32)
            kind = identify_format(head)
            if kind != "TIFF":
                return kind == "PNG" and head[24] == 16  # bit depth
            file.seek(0)
            with TIFF(file) as image:
                return is_wide(image) or correct_raw_mode(image)
    except (*DECODER_ERRORS, ImageError):
        return False


def _read_facts(source: str | bytes, max_pixels: int) -> ValueFacts | None:
    """Return statistics of a file's values, or None if it is unreadable or has 8 bits."""
    found: list[ValueFacts | None] = []

    def collect(image: Image.Image, lower: Image.Image | None) -> Image.Image:
        if lower is not None or is_wide(image):
            found.append(value_facts(image, lower))
        return Image.new("RGB", (1, 1))

    with contextlib.suppress(ImageError):
        data = source if isinstance(source, bytes) else read_bytes(source, max_pixels=max_pixels)
        decode(data, "", max_pixels=max_pixels, convert=collect)
        return found[0] if found else None
    return None


def is_dark(data: bytes) -> bool:
    """Return whether an image has 16-bit values of which at most 14 bits are used."""
    facts = _read_facts(data, MAX_PIXELS) if _has_wide_header(data) else None
    return facts is not None and facts.kind == "16-bit" and facts.highest < 2**14
