"""Images of a run, and the inputs to its trained layers."""

import contextlib
import logging
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitft.data.augment import fits
from vitft.data.loading import decode_images, stack_batches
from vitft.data.split import Manifest, Row, distinct_rows
from vitft.data.transforms import CropTransform, EvalTransform, View, eval_view
from vitft.features.cut import Cut
from vitft.features.extract import Extractor, vanished_error
from vitft.features.label_errors import number_groups
from vitft.messages.training import divided_groups
from vitft.metrics.intervals import Groups
from vitft.system import console
from vitft.system.batch_limit import BatchLimit
from vitft.system.transfer import to_device
from vitft.training.distributed import ProcessGroup

log = logging.getLogger(__name__)

EVAL_BATCH = 32
"""Number of images per evaluation batch; batches of cached features and of images in memory are
eight times as large."""

_ImageBatches = Generator[tuple[Sequence[Row], Tensor], None, None]
"""Generator of (rows, views) batches; the views are uint8 of shape (B, H, W, channels)."""


@dataclass(frozen=True, slots=True)
class _ImageTable:
    """Unaugmented views of all images, decoded once and kept on the device."""

    positions: Mapping[str, int]
    """Mapping from each path to its row of `pixels`."""
    pixels: Tensor
    """Views of all images, uint8 of shape (n, H, W, channels)."""

    def batches(self, rows: Sequence[Row], sizes: Sequence[int]) -> _ImageBatches:
        """Yield the views of `rows` in order, in batches of the given sizes."""
        for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
            chunk = rows[start : start + size]
            positions = [self.positions[row.path] for row in chunk]
            yield chunk, self.pixels[to_device(torch.tensor(positions), self.pixels.device)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Training, validation and test images of a run; the same for all stages."""

    manifest: Manifest
    transform: EvalTransform
    max_pixels: int
    """Maximum number of pixels in an image; larger images raise an error."""
    device: torch.device
    group: ProcessGroup
    """Process group across which each batch is divided."""
    duplicates: Mapping[str, str]
    """Mapping from the digest of each image with near-duplicates to the name of its group."""
    groups: Mapping[str, str]
    """Mapping from digests to the names of groups that cross-validation keeps together (see
    `fold_groups`); images without a group may be missing.
    """
    own_split: bool = False
    """Whether the data, and not vitft, names the validation images."""
    known_to_weights: int = 0
    """Number of training and validation images on which the pretrained weights were trained."""

    @property
    def distinct(self) -> list[Row]:
        """One row for each distinct file of the training and validation images."""
        return distinct_rows([row for row in self.manifest.rows if row.split != "test"])

    def labels(self, rows: Sequence[Row]) -> Tensor:
        """Return the targets of `rows` on the device: class indices (n,), or labels (n, C).

        For multi-label data, the targets are 0 or 1 for each label, in float32.
        """
        kind = torch.float32 if self.manifest.labels else torch.long
        return to_device(torch.as_tensor(self.manifest.targets(rows), dtype=kind), self.device)

    def group_ids(self, rows: Sequence[Row]) -> Tensor:
        """Return the group numbers (n,) of `rows`; the images of a group share a number."""
        return number_groups(self.groups.get(row.sha256, row.sha256) for row in rows)

    def user_groups(self, rows: Sequence[Row]) -> Groups | None:
        """Return the numbers (n,) of the user's groups of `rows`, or None if there are none.

        They are the units of intervals and tests; an image without a group is one by itself.
        """
        if not any(row.group for row in self.manifest.rows):
            return None
        return number_groups(row.group or f"image {row.sha256}" for row in rows).numpy()

    def decode(
        self,
        rows: Sequence[Row],
        size: int,
        *,
        crop: CropTransform | None = None,
        keys: Sequence[str] = (),
    ) -> _ImageBatches:
        """Decode the files of `rows` in threads and yield their views in order, `size` at a time.

        If `crop` is given, the views are random crops, seeded by `keys` (one key per row);
        otherwise, they are not augmented.

        Raises:
            DataError: A file has been deleted or replaced since the start of the run.
        """

        def view(index: int, image: Image.Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
            if crop is None:
                return self.transform.pixels(image)
            return crop.pixels(image, key=keys[index])

        images = decode_images(
            (self.manifest.locate(row) for row in rows),
            view,
            max_pixels=self.max_pixels,
            grey_range=self.transform.grey_range,
            workers=torch.get_num_threads(),
            digests=[row.sha256 for row in rows],
        )
        with contextlib.closing(images):
            for stack in stack_batches(images, size):
                if stack.failed:
                    raise vanished_error(stack.failed[0][1])
                chunk = [rows[number] for number in stack.indices]
                yield chunk, to_device(torch.from_numpy(stack.pixels), self.device)

    def load_images(self) -> _ImageTable | None:
        """Return a table of all decoded images, or None if they would use too much memory.

        Each process decodes its shard of the files, and all processes receive the whole table.

        Raises:
            DataError: A file has been deleted or replaced since the start of the run.
        """
        rows, size = self.manifest.rows, self.transform.image_size
        channels = self.transform.channels
        if not fits(len(rows), size, channels):
            return None
        table = torch.empty((len(rows), *size, channels), dtype=torch.uint8, device=self.device)
        own, group = self.decode(self.group.shard(rows), EVAL_BATCH * 8), self.group
        with console.Progress("loading images", len(rows)) as progress, contextlib.closing(own):
            for chunk in table.split(EVAL_BATCH * 8 * group.size):
                is_idle = not group.shard(range(len(chunk)))  # the last batch may be empty
                pixels = chunk[:0] if is_idle else next(own)[1][..., :channels]
                chunk.copy_(group.all_gather(pixels, len(chunk)))
                progress.advance(len(chunk))
        return _ImageTable({row.path: i for i, row in enumerate(rows)}, table)


def fold_groups(
    manifest: Manifest, groups: Mapping[str, str], duplicates: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the groups (by digest) that cross-validation keeps together.

    These are `groups`, with one exception: cross-validation needs at least two groups per class. If
    all training images of a class are in one group, only near-duplicates among them (`duplicates`)
    are kept together, and a message is logged. For multi-label data, there is no exception.
    """
    if groups is duplicates or manifest.labels:
        return groups
    names: dict[int, set[str]] = {}
    for row in manifest.train:
        names.setdefault(row.label, set()).add(groups.get(row.sha256, row.sha256))
    held_out = {row.label for row in manifest.val}
    alone = {label for label, found in names.items() if len(found) == 1} & held_out
    divided = {row.sha256 for row in manifest.train if row.label in alone}
    if len(divided) > len(alone):
        log.info(divided_groups([manifest.classes[label] for label in sorted(alone)]))
    rest = {digest: name for digest, name in groups.items() if digest not in divided}
    return rest | {digest: name for digest, name in duplicates.items() if digest in divided}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInputs:
    """Inputs to one stage: cached outputs of the frozen prefix, images in memory, or files."""

    data: Dataset
    cut: Cut
    """Model cut at the freeze boundary of the stage."""
    extractor: Extractor | None
    """Feature extractor that runs the frozen prefix; None if nothing is frozen."""
    images: _ImageTable | None = None
    """Decoded images; None if they are not needed or too large to keep in memory."""
    limit: BatchLimit = field(default_factory=lambda: BatchLimit(8 * EVAL_BATCH))
    """Number of images evaluated at a time."""

    def last_features(self, rows: Sequence[Row]) -> Tensor:
        """Return the cached pooled features (n, D) of the last block."""
        assert self.extractor is not None
        return self.features(rows)[:, : self.extractor.prefix.leading]

    def features(self, rows: Sequence[Row], view: View | None = None) -> Tensor:
        """Return the cached outputs of the frozen prefix in float32 on the CPU.

        They are pooled features (n, D) or tokens (n, N, D).
        """
        assert self.extractor is not None
        return self.extractor.rows(
            [row.sha256 for row in rows], view or eval_view(self.data.transform)
        )
