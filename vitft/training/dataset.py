"""The images of a run after the split, and what the trained part reads of them."""

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
from vitft.data.transforms import CropTransform, EvalTransform, View, eval_view
from vitft.features.cut import Cut
from vitft.features.extract import Extractor, vanished_error
from vitft.features.label_errors import number_groups
from vitft.system import console
from vitft.training.distributed import ProcessGroup

EVAL_BATCH = 32
"""Images per batch of an evaluation; eight times as many where nothing is decoded."""

ImageBatches = Generator[tuple[Sequence[Row], Tensor], None, None]
"""Rows and their views as bytes, (B, S, S, channels)."""


@dataclass(frozen=True, slots=True)
class ImageTable:
    """The plain views of all images, decoded once and kept on the device."""

    positions: Mapping[str, int]
    """Row of `pixels` by path."""
    pixels: Tensor
    """(n, S, S, channels), bytes."""

    def batches(self, rows: Sequence[Row], sizes: Sequence[int]) -> ImageBatches:
        """Yield the views of `rows` in order, in batches of the given sizes."""
        for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
            chunk = rows[start : start + size]
            positions = [self.positions[row.path] for row in chunk]
            yield chunk, self.pixels[torch.tensor(positions, device=self.pixels.device)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Training and validation images of a run; the same in all its stages."""

    manifest: Manifest
    transform: EvalTransform
    max_pixels: int
    """Larger images are errors."""
    device: torch.device
    group: ProcessGroup
    """The processes that share each batch."""
    duplicates: Mapping[str, str]
    """Name of the group of near copies by digest; images without near copies are missing."""

    @property
    def distinct(self) -> list[Row]:
        """One row for each distinct file content."""
        return list({row.sha256: row for row in self.manifest.rows}.values())

    def labels(self, rows: Sequence[Row]) -> Tensor:
        """Return class indices (n,) on the device."""
        return torch.tensor([row.label for row in rows], dtype=torch.long, device=self.device)

    def group_ids(self, rows: Sequence[Row]) -> Tensor:
        """Return a number for each row (n,) that copies of one picture share."""
        return number_groups(self.duplicates.get(row.sha256, row.sha256) for row in rows)

    def decode(
        self,
        rows: Sequence[Row],
        size: int,
        *,
        crop: CropTransform | None = None,
        keys: Sequence[str] = (),
    ) -> ImageBatches:
        """Decode the files of `rows` in threads and yield them in order, `size` at a time.

        With `crop` the views are random, drawn from the key of each row; otherwise plain.

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

    def load_images(self) -> ImageTable | None:
        """Decode all images into a table; None if they take too much memory."""
        rows, size, channels = (
            self.manifest.rows,
            self.transform.image_size,
            self.transform.channels,
        )
        if not fits(len(rows), size, channels):
            return None
        table = torch.empty((len(rows), *size, channels), dtype=torch.uint8, device=self.device)
        done = 0
        with console.Progress("images to memory", len(rows)) as progress:
            for chunk, pixels in self.decode(rows, EVAL_BATCH * 8):
                table[done : done + len(chunk)] = pixels[..., :channels]
                done += len(chunk)
                progress.advance(len(chunk))
        return ImageTable({row.path: i for i, row in enumerate(rows)}, table)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInputs:
    """What one stage reads: cached outputs of the frozen prefix, images in memory, or files."""

    data: Dataset
    cut: Cut
    """The model, cut at the freeze boundary of the stage."""
    extractor: Extractor | None
    """Runs the frozen prefix; None if nothing is frozen."""
    images: ImageTable | None = None
    """The decoded images, if they are small enough to be kept in memory."""

    def features(self, rows: Sequence[Row], view: View | None = None) -> Tensor:
        """Return the cached outputs of the prefix, float32 on the CPU: (n, D) or (n, N, D)."""
        assert self.extractor is not None
        return self.extractor.rows(
            [row.sha256 for row in rows], view or eval_view(self.data.transform)
        )
