"""The images of a split as batches for the part that trains.

This is the only place that knows whether a batch holds pixels or the output of a frozen prefix;
the loop sees inputs and labels. Everything random depends on (seed, epoch, image) alone.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitft import console
from vitft.config import Config
from vitft.data.folder import File
from vitft.data.loading import decoded, stacked
from vitft.data.split import Manifest, Row
from vitft.errors import DataError, ImageError
from vitft.extract import Extractor, View, crops, plain
from vitft.features import Cut, run_prefix
from vitft.loop import Batch
from vitft.team import Team
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
    extractor: Extractor | None
    """Of the frozen prefix; it has already seen the plain view of every image."""
    device: torch.device
    team: Team = field(default_factory=Team)
    """The processes that share each batch."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """A common name for the digests of near copies; what it lacks has none."""

    @property
    def caches(self) -> bool:
        """Whether training inputs are kept: always pooled features, tokens only if they recur."""
        return self.cut.pooled or (
            self.cut.prefix is not None and self.config.train.augment == "none"
        )

    @property
    def train_views(self) -> list[View]:
        """What is kept of each training image: a crop per epoch, or the plain view and K crops."""
        spec = self.config.train
        plain_view = [] if spec.augment != "none" else [plain(self.transform)]
        count = spec.views if plain_view else self.config.optim.epochs
        return [*plain_view, *crops(self.transform, self.crop, count, spec.seed)]

    def labels(self, rows: Sequence[Row]) -> Tensor:
        """Class indices (n,)."""
        return torch.tensor([row.label for row in rows], device=self.device)

    def alike(self, rows: Sequence[Row]) -> Tensor:
        """The same number for copies of one picture, (n,)."""
        numbers: dict[str, int] = {}
        names = (self.groups.get(row.sha256, row.sha256) for row in rows)
        return torch.tensor([numbers.setdefault(name, len(numbers)) for name in names])

    @property
    def once(self) -> list[Row]:
        """One row for each different picture."""
        return list({row.sha256: row for row in self.manifest.rows}.values())

    def cached(self, rows: Sequence[Row], view: View | None = None) -> Tensor:
        """The stored output of the prefix, float32 on the CPU: (n, D) or (n, N, D)."""
        assert self.extractor is not None
        return self.extractor.rows([row.sha256 for row in rows], view or plain(self.transform))

    def compute_plain(self) -> None:
        """Fill the cache with the plain view of every image."""
        assert self.extractor is not None
        files = [File(row.path, row.label) for row in self.manifest.rows]
        with console.Progress("images to features", len(files)) as progress:
            self.extractor.compute(
                str(self.manifest.root), files, plain(self.transform), progress=progress.advance
            )

    def compute_views(self) -> None:
        """Fill the cache with the augmented views of the training images."""
        views = [view for view in self.train_views if view.crop is not None]
        if self.extractor is None or not self.caches or not views:
            return
        files = [File(row.path, row.label) for row in self.manifest.train]
        with console.Progress("augmented views", len(files) * len(views)) as progress:
            for view in views:
                try:
                    self.extractor.compute(
                        str(self.manifest.root), files, view, progress=progress.advance
                    )
                except ImageError as error:
                    raise gone(error) from error

    @property
    def crop(self) -> CropTransform:
        """The random training view."""
        spec = self.config.train
        return CropTransform(
            image_size=self.transform.image_size,
            scale=(spec.crop_scale, 1.0),
            interpolation=self.transform.interpolation,
            rand=spec.augment == "rand",
        )

    def pixels(
        self, rows: Sequence[Row], size: int, *, key: str | None = None
    ) -> Generator[tuple[Sequence[Row], Tensor], None, None]:
        """Normalised pixels (B, 3, S, S) of `rows` in order, `size` at a time, with their rows.

        `key` draws the random training view of each image; None gives the plain view.
        """
        crop = self.crop

        def view(index: int, image: Image.Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
            if key is None:
                return self.transform.pixels(image)
            return crop.pixels(image, key=f"{key}/{rows[index].path}")

        paths = (self.manifest.locate(row) for row in rows)
        images = decoded(
            paths,
            view,
            max_pixels=self.config.data.max_pixels,
            workers=torch.get_num_threads(),
        )
        with contextlib.closing(images):
            for stack in stacked(images, size):
                if stack.failed:
                    raise gone(stack.failed[0][1])
                chunk = [rows[number] for number in stack.numbers]
                pixels = torch.from_numpy(stack.pixels).to(self.device)
                yield chunk, self.transform.normalise(pixels)

    def validation(self) -> Callable[[], Iterator[Batch]]:
        """The plain view of this process's share of the validation images."""
        rows = self.team.share(self.manifest.val)
        if self.extractor is not None:
            return lambda: self.remembered(rows, torch.arange(len(rows)), EVAL_BATCH * 8)
        return lambda: (
            Batch(pixels, self.labels(chunk)) for chunk, pixels in self.pixels(rows, EVAL_BATCH)
        )

    def training(self) -> Callable[[int, int], Iterator[Batch]]:
        """Shuffled batches of an epoch from a step within it on, computed once or afresh."""
        rows, size = self.manifest.train, self.config.optim.batch_size
        if self.caches:
            views = self.train_views  # in turn, one an epoch
            return lambda epoch, done: self.remembered(
                rows,
                self.order(epoch)[done * size :],
                size,
                views[epoch % len(views)],
                team=self.team,
            )
        spec = self.config.train
        key = None if spec.augment == "none" else str(spec.seed)

        def fresh(epoch: int, done: int) -> Iterator[Batch]:
            whole = pieces(self.order(epoch)[done * size :], size)
            own = [piece[self.team.piece(len(piece))] for piece in whole]
            shuffled = [rows[i] for piece in own for i in piece.tolist()]
            drawn = None if key is None else f"{key}/{epoch}"
            stacks = self.pixels(shuffled, max(map(len, own), default=1), key=drawn)
            with contextlib.closing(stacks):
                for piece, mine in zip(whole, own, strict=True):
                    # The last piece may be smaller, and in a team even empty.
                    chunk, pixels = next(stacks) if len(mine) else ([], self.no_pixels())
                    yield Batch(self.fresh_inputs(pixels), self.labels(chunk), len(piece))

        return fresh

    def remembered(
        self,
        rows: Sequence[Row],
        order: Tensor,
        size: int,
        view: View | None = None,
        *,
        team: Team | None = None,
    ) -> Iterator[Batch]:
        """Batches of stored inputs, read as they are needed; of a team's, this one's pieces."""
        for whole in pieces(order, size):
            own = whole[team.piece(len(whole))] if team else whole
            chunk = [rows[i] for i in own.tolist()]
            yield Batch(self.cached(chunk, view).to(self.device), self.labels(chunk), len(whole))

    def no_pixels(self) -> Tensor:
        """A batch without images."""
        channels = len(self.transform.mean)
        return torch.empty((0, channels, *self.transform.image_size), device=self.device)

    def fresh_inputs(self, pixels: Tensor) -> Tensor:
        """What the suffix reads, computed now: the prefix's output, or the pixels themselves."""
        if self.extractor is None:
            return pixels
        # A clone leaves inference mode, so that autograd may keep it.
        return run_prefix(self.extractor.prefix, pixels).float().clone()

    def order(self, epoch: int) -> Tensor:
        """A permutation of the training images for this epoch."""
        random = np.random.default_rng([self.config.train.seed, epoch])
        return torch.from_numpy(random.permutation(len(self.manifest.train)))


def pieces(order: Tensor, size: int) -> tuple[Tensor, ...]:
    """Cut a permutation into batches; nothing into none."""
    return order.split(size) if len(order) else ()


def gone(error: ImageError) -> DataError:
    """The error of a file that was an image when the run began."""
    return DataError(
        f"{error.path} was deleted or replaced during the run ({error.reason})",
        fix="put the file back, or start again without it",
    )
