"""Batches of decode_images images, from files or from a table in memory."""

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitft.data.augment import fits
from vitft.data.loading import decode_images, stack_batches
from vitft.data.split import Manifest, Row
from vitft.data.transforms import CropTransform, EvalTransform
from vitft.features.extract import vanished_error
from vitft.system import console

EVAL_BATCH = 32
"""Images per batch of an evaluation."""

ImageBatches = Generator[tuple[Sequence[Row], Tensor], None, None]
"""Rows and their views as bytes, (B, S, S, 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFiles:
    """The image files of a manifest, decode_images in threads."""

    manifest: Manifest
    transform: EvalTransform
    max_pixels: int
    """Larger images are errors."""
    device: torch.device

    def batches(
        self,
        rows: Sequence[Row],
        size: int,
        *,
        crop: CropTransform | None = None,
        keys: Sequence[str] = (),
    ) -> ImageBatches:
        """Decode `rows` in order, `size` at a time.

        Args:
            rows: The images.
            size: Images per batch.
            crop: Draws a random view; None gives the plain one.
            keys: For each row the key from which `crop` draws.

        Raises:
            DataError: A file was deleted or replaced since the run began.
        """

        def view(index: int, image: Image.Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
            if crop is None:
                return self.transform.pixels(image)
            return crop.pixels(image, key=keys[index])

        images = decode_images(
            (self.manifest.locate(row) for row in rows),
            view,
            max_pixels=self.max_pixels,
            workers=torch.get_num_threads(),
        )
        with contextlib.closing(images):
            for stack in stack_batches(images, size):
                if stack.failed:
                    raise vanished_error(stack.failed[0][1])
                chunk = [rows[number] for number in stack.indices]
                yield chunk, torch.from_numpy(stack.pixels).to(self.device)


@dataclass(frozen=True, slots=True)
class ImageTable:
    """The plain views of all images, decode_images once and kept on the device."""

    positions: Mapping[str, int]
    """Row of `pixels` by path."""
    pixels: Tensor
    """(n, S, S, channels), bytes."""

    def views(self, rows: Sequence[Row]) -> Tensor:
        """Return the views (B, S, S, channels) of some rows."""
        positions = [self.positions[row.path] for row in rows]
        return self.pixels[torch.tensor(positions, device=self.pixels.device)]

    def batches(self, rows: Sequence[Row], sizes: Sequence[int]) -> ImageBatches:
        """Give the views of `rows` in order, in batches of the given sizes."""
        for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
            chunk = rows[start : start + size]
            yield chunk, self.views(chunk)


def load_images(files: ImageFiles) -> ImageTable | None:
    """Decode all images into a table; None if they take too much memory."""
    rows, size, channels = files.manifest.rows, files.transform.image_size, files.transform.channels
    if not fits(len(rows), size, channels):
        return None
    table = torch.empty((len(rows), *size, channels), dtype=torch.uint8, device=files.device)
    done = 0
    with console.Progress("images to memory", len(rows)) as progress:
        for chunk, pixels in files.batches(rows, EVAL_BATCH * 8):
            table[done : done + len(chunk)] = pixels[..., :channels]
            done += len(chunk)
            progress.advance(len(chunk))
    return ImageTable({row.path: i for i, row in enumerate(rows)}, table)
