"""The images of a split as batches for the part that trains.

This is the only place that knows whether a batch holds pixels or the output of a frozen prefix;
the loop sees inputs and labels. Everything random depends on (seed, epoch, image) alone.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitft import console
from vitft.config import Config
from vitft.data.loading import decoded, stacked
from vitft.data.split import Manifest, Row
from vitft.errors import DataError, ImageError
from vitft.features import Cut, run_once, run_prefix
from vitft.loop import Batch
from vitft.transforms import CropTransform, EvalTransform

EVAL_BATCH = 32
"""Images per batch where nothing is learnt from them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """A manifest, how its images are viewed, and where the model is cut."""

    config: Config
    manifest: Manifest
    transform: EvalTransform
    cut: Cut
    device: torch.device
    precision: str
    """In which the prefix runs over training images."""

    @property
    def caches(self) -> bool:
        """Whether the training inputs never change: a frozen prefix, and no augmentation."""
        return self.cut.prefix is not None and self.config.train.augment == "none"

    def labels(self, rows: Sequence[Row]) -> Tensor:
        """Class indices (n,)."""
        return torch.tensor([row.label for row in rows], device=self.device)

    def pixels(
        self, rows: Sequence[Row], size: int, *, key: str | None = None
    ) -> Iterator[tuple[Sequence[Row], Tensor]]:
        """Normalised pixels (B, 3, S, S) of `rows` in order, `size` at a time, with their rows.

        `key` draws the random training view of each image; None gives the plain view.
        """
        crop = CropTransform(
            image_size=self.transform.image_size, interpolation=self.transform.interpolation
        )

        def view(index: int, image: Image.Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
            if key is None:
                return self.transform.pixels(image)
            return crop.pixels(image, key=f"{key}/{rows[index].path}")

        paths = (self.manifest.locate(row) for row in rows)
        images = decoded(paths, view, max_pixels=self.config.data.max_pixels)
        with contextlib.closing(images):
            for stack in stacked(images, size):
                if stack.failed:
                    raise gone(stack.failed[0][1])
                chunk = [rows[number] for number in stack.numbers]
                pixels = torch.from_numpy(stack.pixels).to(self.device)
                yield chunk, self.transform.normalise(pixels)

    def cached(self, rows: Sequence[Row], *, precision: str, label: str) -> Tensor:
        """The prefix's output for the plain view of every image: (n, D) or (n, N, D)."""
        assert self.cut.prefix is not None
        with console.Progress(label, len(rows)) as progress:

            def counted() -> Iterator[Tensor]:
                for chunk, pixels in self.pixels(rows, EVAL_BATCH):
                    yield pixels
                    progress.advance(len(chunk))

            return run_once(self.cut.prefix, counted(), precision=precision)

    def validation(self) -> Callable[[], Iterator[Batch]]:
        """The plain view of the validation images, in float32 as predict and exports compute it."""
        rows = self.manifest.val
        if self.cut.prefix is not None:
            inputs = self.cached(rows, precision="fp32", label="validation features")
            whole = Batch(inputs, self.labels(rows))
            return lambda: iter([whole])
        return lambda: (
            Batch(pixels, self.labels(chunk)) for chunk, pixels in self.pixels(rows, EVAL_BATCH)
        )

    def training(self) -> Callable[[int], Iterator[Batch]]:
        """Shuffled batches of an epoch, of inputs computed once or afresh."""
        rows, size = self.manifest.train, self.config.optim.batch_size
        seed, crops = self.config.train.seed, self.config.train.augment == "crop"
        if self.caches:
            inputs = self.cached(rows, precision=self.precision, label="training features")
            labels = self.labels(rows)

            def remembered(epoch: int) -> Iterator[Batch]:
                for chosen in self.order(epoch).to(self.device).split(size):
                    yield Batch(inputs[chosen], labels[chosen])

            return remembered

        def fresh(epoch: int) -> Iterator[Batch]:
            shuffled = [rows[i] for i in self.order(epoch).tolist()]
            key = f"{seed}/{epoch}" if crops else None
            for chunk, pixels in self.pixels(shuffled, size, key=key):
                yield Batch(self.fresh_inputs(pixels), self.labels(chunk))

        return fresh

    def fresh_inputs(self, pixels: Tensor) -> Tensor:
        """What the suffix reads, computed now: the prefix's output, or the pixels themselves."""
        if self.cut.prefix is None:
            return pixels
        # A clone leaves inference mode, so that autograd may keep it.
        return run_prefix(self.cut.prefix, pixels, precision=self.precision).clone()

    def order(self, epoch: int) -> Tensor:
        """A permutation of the training images for this epoch."""
        random = np.random.default_rng([self.config.train.seed, epoch])
        return torch.from_numpy(random.permutation(len(self.manifest.train)))


def gone(error: ImageError) -> DataError:
    """The error of a file that was an image when the run began."""
    return DataError(
        f"{error.path} was deleted or replaced during the run ({error.reason})",
        fix="put the file back, or start again without it",
    )
