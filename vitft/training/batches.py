"""The images of a split as batches for the part that trains.

This is the only place that knows whether a batch holds pixels or the output of a frozen prefix;
the loop sees inputs and labels. Everything random depends on (seed, epoch, image) alone.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitft.config.run import Config
from vitft.data.folder import File
from vitft.data.in_memory import Shifts, default_padding, draw_shifts, fits, shift_and_flip
from vitft.data.loading import decode_images, stack_batches
from vitft.data.sampling import epoch_order, images_per_epoch, repeats
from vitft.data.split import Manifest, Row
from vitft.data.transforms import CropTransform, EvalTransform
from vitft.features.cut import Cut, run_prefix
from vitft.features.extract import Extractor, vanished_error
from vitft.features.views import View, crop_views, eval_view
from vitft.system import console
from vitft.system.errors import ImageError
from vitft.training.distributed import Team
from vitft.training.loop import Batch

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
    small: Mapping[str, int] | None = None
    """The rows of `held` by path; None where images are read from their files."""
    held: Tensor | None = None
    """Plain views (n, S, S, 3) of all images as bytes, on the device."""

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
        plain_view = [] if spec.augment != "none" else [eval_view(self.transform)]
        count = spec.views if plain_view else self.config.optim.epochs
        return [*plain_view, *crop_views(self.transform, self.crop, count, spec.seed)]

    def labels(self, rows: Sequence[Row]) -> Tensor:
        """Class indices (n,)."""
        return torch.tensor([row.label for row in rows], dtype=torch.long, device=self.device)

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
        return self.extractor.rows([row.sha256 for row in rows], view or eval_view(self.transform))

    def compute_plain(self) -> None:
        """Fill the cache with the plain view of every image."""
        assert self.extractor is not None
        files = [File(row.path, row.label) for row in self.manifest.rows]
        with console.Progress("images to features", len(files)) as progress:
            self.extractor.compute(
                str(self.manifest.root), files, eval_view(self.transform), progress=progress.advance
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
                    raise vanished_error(error) from error

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
        self, rows: Sequence[Row], size: int, *, keys: Sequence[str] | None = None
    ) -> Generator[tuple[Sequence[Row], Tensor], None, None]:
        """Normalised pixels (B, 3, S, S) of `rows` in order, `size` at a time, with their rows.

        `keys`, one a row, draw the random training views; None gives the plain ones.
        """
        with contextlib.closing(self.views(rows, size, keys=keys)) as views:
            for chunk, pixels in views:
                yield chunk, self.transform.normalise(pixels)

    def views(
        self, rows: Sequence[Row], size: int, *, keys: Sequence[str] | None = None
    ) -> Generator[tuple[Sequence[Row], Tensor], None, None]:
        """The same as bytes (B, S, S, 3), from the files."""
        crop = self.crop

        def view(index: int, image: Image.Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
            if keys is None:
                return self.transform.pixels(image)
            return crop.pixels(image, key=keys[index])

        paths = (self.manifest.locate(row) for row in rows)
        images = decode_images(
            paths,
            view,
            max_pixels=self.config.data.max_pixels,
            workers=torch.get_num_threads(),
        )
        with contextlib.closing(images):
            for stack in stack_batches(images, size):
                if stack.failed:
                    raise vanished_error(stack.failed[0][1])
                chunk = [rows[number] for number in stack.numbers]
                yield chunk, torch.from_numpy(stack.pixels).to(self.device)

    def in_memory(self) -> "Feed":
        """This feed with all images decoded, if they are small and every epoch needs them."""
        rows, size = self.manifest.rows, self.transform.image_size
        channels = self.transform.channels
        plain_only = self.config.train.augment in ("none", "shift")
        wanted = self.small is None and self.extractor is None and plain_only
        if not wanted or not fits(len(rows), size, channels):
            return self
        table = torch.empty((len(rows), *size, channels), dtype=torch.uint8, device=self.device)
        done = 0
        with console.Progress("images to memory", len(rows)) as progress:
            for chunk, pixels in self.views(rows, EVAL_BATCH * 8):
                table[done : done + len(chunk)] = pixels[..., :channels]
                done += len(chunk)
                progress.advance(len(chunk))
        return replace(self, small={row.path: i for i, row in enumerate(rows)}, held=table)

    def plain_views(self, rows: Sequence[Row]) -> Tensor:
        """The plain views (B, S, S, 3) of images that are held in memory."""
        assert self.small is not None
        assert self.held is not None
        numbers = torch.tensor([self.small[row.path] for row in rows], device=self.held.device)
        return self.held[numbers]

    def validation(self) -> Callable[[], Iterator[Batch]]:
        """The plain view of this process's share of the validation images."""
        rows = self.team.share(self.manifest.val)
        if self.extractor is not None:
            return lambda: self.remembered(rows, torch.arange(len(rows)), EVAL_BATCH * 8)
        if self.small is not None:
            size = EVAL_BATCH * 8
            chunks = [rows[i : i + size] for i in range(0, len(rows), size)]
            return lambda: (
                Batch(self.transform.normalise(self.plain_views(chunk)), self.labels(chunk))
                for chunk in chunks
            )
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
        key = str(spec.seed) if spec.augment in ("crop", "rand") else None

        def fresh(epoch: int, done: int) -> Iterator[Batch]:
            order = self.order(epoch)
            again = repeats(order.numpy())
            whole = pieces(torch.arange(len(order))[done * size :], size)
            own = [piece[self.team.piece(len(piece))] for piece in whole]
            chosen = [(rows[order[i]], again[i]) for piece in own for i in piece.tolist()]
            shuffled = [row for row, _ in chosen]
            drawn = None if key is None else [view_key(f"{key}/{epoch}", *each) for each in chosen]
            if self.small is None:
                stacks = self.views(shuffled, max(map(len, own), default=1), keys=drawn)
            else:
                stacks = self.held_views(shuffled, [len(piece) for piece in own if len(piece)])
            move = self.mover(epoch, order, again)
            with contextlib.closing(stacks):
                for piece, mine in zip(whole, own, strict=True):
                    # The last piece may be smaller, and in a team even empty.
                    chunk, views = next(stacks) if len(mine) else ([], self.no_views())
                    pixels = self.transform.normalise(move(views, mine))
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

    def held_views(
        self, rows: Sequence[Row], sizes: Sequence[int]
    ) -> Generator[tuple[Sequence[Row], Tensor], None, None]:
        """What `views` gives, from memory, so many rows at a time."""
        for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
            chunk = rows[start : start + size]
            yield chunk, self.plain_views(chunk)

    def mover(
        self, epoch: int, order: Tensor, again: Sequence[int]
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Moves views (B, S, S, 3) at places (B,) of an epoch's order, where that is asked."""
        spec = self.config.train
        if spec.augment != "shift":
            return lambda views, _: views
        padding = default_padding(spec.padding, self.transform.image_size)
        moves = draw_shifts(
            order,
            torch.tensor(again),
            count=len(self.manifest.train),
            seed=spec.seed,
            epoch=epoch,
            padding=padding,
            flip=spec.flip,
        )
        return lambda views, at: shift_and_flip(
            views, Shifts(*(move[at] for move in moves)), padding
        )

    def no_views(self) -> Tensor:
        """A batch without images."""
        shape = (0, *self.transform.image_size, self.transform.channels)
        return torch.empty(shape, dtype=torch.uint8, device=self.device)

    def fresh_inputs(self, pixels: Tensor) -> Tensor:
        """What the suffix reads, computed now: the prefix's output, or the pixels themselves."""
        if self.extractor is None:
            return pixels
        # A clone leaves inference mode, so that autograd may keep it.
        return run_prefix(self.extractor.prefix, pixels).float().clone()

    @property
    def epoch_images(self) -> int:
        """Images of an epoch."""
        labels = [row.label for row in self.manifest.train]
        return images_per_epoch(labels, balanced=self.is_balanced)

    @property
    def is_balanced(self) -> bool:
        """Whether each class is drawn equally often."""
        return self.config.train.sampling == "balanced"

    def order(self, epoch: int) -> Tensor:
        """The training images of this epoch: all of them shuffled, or each class equally often."""
        labels = [row.label for row in self.manifest.train]
        seed = self.config.train.seed
        return torch.from_numpy(epoch_order(labels, seed, epoch, balanced=self.is_balanced))


def view_key(key: str, row: Row, turn: int) -> str:
    """What the random view of an image is drawn from; another one each time it is used."""
    return f"{key}/{row.path}/{turn}" if turn else f"{key}/{row.path}"


def pieces(order: Tensor, size: int) -> tuple[Tensor, ...]:
    """Cut an order into batches; nothing into none."""
    return order.split(size) if len(order) else ()
