"""Batches for a GPU: their sizes, and their collection in memory that is copied without waiting.

The GPU is busy all the time if batches are decoded at least as fast as they are computed, and the
decoders are busy all the time otherwise. What is lost is the time to decode the first batch and to
compute the last one, so batches are small in a short pass.
"""

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from vitft.data.inspection import Pixels, in_chunks, in_order, overlapped

_SMALLEST_BATCH = 16
_BATCHES = 16  # in a pass at least, unless they would be smaller
LARGEST_CHUNK, CHUNKS = 16, 32
"""Maximum number of files that a worker decodes at a time, and minimum number of such chunks for
each worker in a pass."""

_Item = TypeVar("_Item")


class _HasPixels(Protocol):
    """Protocol of images whose `pixels` are None if there is nothing to compute."""

    pixels: Pixels | None


Image = TypeVar("Image", bound=_HasPixels)


@dataclass(slots=True)
class PixelBatch(Generic[Image]):
    """Images, and the pixels of those for which something is to be computed."""

    images: list[Image] = field(default_factory=list)
    missing: list[Image] = field(default_factory=list)  # the images with pixels
    pixels: Tensor | None = None
    """Pixels (B, H, W, channels) of `missing`, in pinned memory for a CUDA GPU; None if it is
    empty."""


def computed_batches(
    files: Sequence[_Item],
    decode: Callable[[Sequence[_Item]], list[Image]],
    start: Callable[[PixelBatch[Image]], Callable[[], None]],
    save: Callable[[Sequence[Image]], None],
    *,
    size: int,
    workers: int,
    device: torch.device,
) -> Generator[list[Image], None, None]:
    """Yield the images of files in order, in batches of up to `size` that are computed and saved.

    Args:
        files: Files of the images.
        decode: Function that opens a few files; called in `workers`.
        start: Function that starts to compute a batch on `device`, and returns a function that
            waits for it. On a CPU, both are called in workers; otherwise, in one thread each.
        save: Function that writes a batch to the cache.
        size: Maximum number of images per batch.
        workers: Number of workers.
        device: Device that computes.
    """
    if device.type == "cpu":

        def work(chunk: Sequence[_Item]) -> list[Image]:
            images = decode(chunk)
            for batch in _pixel_batches(images, len(images), device):
                start(batch)()
            return images

        with contextlib.closing(
            in_order(work, in_chunks(files, size), workers=workers, ahead=2 * workers)
        ) as results:
            for images in results:
                save(images)
                yield images
        return

    def start_and_save(batch: PixelBatch[Image]) -> Callable[[], list[Image]]:
        finish = start(batch)

        def finish_and_save() -> list[Image]:
            finish()
            save(batch.images)
            return batch.images

        return finish_and_save

    # Sizes that depend only on the arguments, so a repeated pass computes the same batches
    batch_size = _SMALLEST_BATCH
    while batch_size * 2 <= len(files) // _BATCHES:
        batch_size *= 2
    size = min(batch_size, size)
    each = max(1, min(LARGEST_CHUNK, len(files) // (CHUNKS * max(1, workers))))
    ahead = 2 * (workers + size // each)
    with contextlib.closing(
        in_order(decode, in_chunks(files, each), workers=workers, ahead=ahead)
    ) as chunks:
        batches = _pixel_batches(itertools.chain.from_iterable(chunks), size, device)
        yield from overlapped(batches, start_and_save)


def _pixel_batches(
    images: Iterable[Image], size: int, device: torch.device
) -> Iterator[PixelBatch[Image]]:
    """Yield batches of `size` images, with the pixels copied to a tensor as they arrive."""
    batch, buffer = PixelBatch[Image](), torch.empty(0)
    for image in images:
        batch.images.append(image)
        if image.pixels is not None:
            if not batch.missing:
                shape, is_gpu = (size, *image.pixels.shape), device.type == "cuda"
                buffer = torch.empty(shape, dtype=torch.uint8, pin_memory=is_gpu)
            buffer.numpy()[len(batch.missing)] = image.pixels
            batch.missing.append(image)
            image.pixels = None
            batch.pixels = buffer[: len(batch.missing)]
        if len(batch.images) == size:
            yield batch
            batch = PixelBatch[Image]()
    if batch.images:
        yield batch
