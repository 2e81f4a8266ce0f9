"""Batches of a stage for training and validation, from cached features, memory or files.

The training loop sees only inputs and labels. What is random depends on (seed, epoch, image) alone.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from vitft.config.sections import TrainSpec
from vitft.data.augment import Shifts, default_padding, draw_shifts, shift_and_flip
from vitft.data.sampling import images_per_epoch, repeat_counts, sample_order
from vitft.data.split import Row
from vitft.data.transforms import View
from vitft.features.cut import run_prefix
from vitft.training.dataset import Dataset, StageInputs
from vitft.training.distributed import ProcessGroup
from vitft.training.gradients import Batch
from vitft.training.pixels import EVAL_BATCH, ImageFiles
from vitft.training.views import training_crop

EpochBatches = Callable[[int, int], Iterator[Batch]]
"""Returns the batches of an epoch from a given step of it on."""


def epoch_size(rows: Sequence[Row], train: TrainSpec) -> int:
    """Return the number of images of an epoch."""
    labels = [row.label for row in rows]
    return images_per_epoch(labels, balanced=train.sampling == "balanced")


def epoch_order(rows: Sequence[Row], train: TrainSpec, epoch: int) -> Tensor:
    """Return the positions of an epoch's images in the order of their use.

    These are all rows shuffled or, with balanced sampling, the same number of each class.
    """
    labels = [row.label for row in rows]
    order = sample_order(labels, train.seed, epoch, balanced=train.sampling == "balanced")
    return torch.from_numpy(order)


def split_order(order: Tensor, size: int) -> tuple[Tensor, ...]:
    """Cut an order into batches; an empty order has none."""
    return order.split(size) if len(order) else ()


def image_reader(data: Dataset) -> ImageFiles:
    """Return the reader of the image files of a dataset."""
    return ImageFiles(
        manifest=data.manifest,
        transform=data.transform,
        max_pixels=data.max_pixels,
        device=data.device,
    )


def validation_batches(inputs: StageInputs) -> Iterator[Batch]:
    """Give this rank's shard of the validation images, in their plain view."""
    data = inputs.data
    rows = data.group.shard(data.manifest.val)
    if inputs.extractor is not None:
        return feature_batches(inputs, rows, torch.arange(len(rows)), EVAL_BATCH * 8)
    if inputs.images is not None:
        size = EVAL_BATCH * 8
        views = inputs.images.batches(rows, [size] * -(-len(rows) // size))
    else:
        views = image_reader(data).batches(rows, EVAL_BATCH)
    return (Batch(data.transform.normalise(pixels), data.labels(chunk)) for chunk, pixels in views)


def feature_batches(
    inputs: StageInputs,
    rows: Sequence[Row],
    order: Tensor,
    size: int,
    view: View | None = None,
    *,
    group: ProcessGroup | None = None,
) -> Iterator[Batch]:
    """Read cached features batch by batch.

    Args:
        inputs: Where they are cached.
        rows: The images.
        order: Positions in `rows`, in the order of their use.
        size: Images of a whole batch.
        view: The view; default: the plain one.
        group: The processes that share each batch; default: this process has all of it.
    """
    for whole in split_order(order, size):
        own = whole[group.batch_slice(len(whole))] if group else whole
        chunk = [rows[i] for i in own.tolist()]
        features = inputs.features(chunk, view).to(inputs.data.device)
        yield Batch(features, inputs.data.labels(chunk), len(whole))


def cached_training_batches(
    inputs: StageInputs, train: TrainSpec, batch_size: int, views: Sequence[View]
) -> EpochBatches:
    """Return training batches from cached features; the views take repeat_counts by epoch."""
    rows, group = inputs.data.manifest.train, inputs.data.group

    def batches(epoch: int, done: int) -> Iterator[Batch]:
        order = epoch_order(rows, train, epoch)[done * batch_size :]
        view = views[epoch % len(views)]
        return feature_batches(inputs, rows, order, batch_size, view, group=group)

    return batches


def fresh_training_batches(inputs: StageInputs, train: TrainSpec, batch_size: int) -> EpochBatches:
    """Return training batches whose views are drawn anew in each epoch."""
    data, images = inputs.data, inputs.images
    rows, transform, group = data.manifest.train, data.transform, data.group
    crop = training_crop(transform, train) if train.augment in ("crop", "rand") else None
    no_views = torch.empty(
        (0, *transform.image_size, transform.channels), dtype=torch.uint8, device=data.device
    )

    def batches(epoch: int, done: int) -> Iterator[Batch]:
        order = epoch_order(rows, train, epoch)
        repeats = repeat_counts(order.numpy())
        whole = split_order(torch.arange(len(order))[done * batch_size :], batch_size)
        own = [part[group.batch_slice(len(part))] for part in whole]
        chosen = [(rows[order[i]], repeats[i]) for part in own for i in part.tolist()]
        shuffled = [row for row, _ in chosen]
        if images is not None:
            views = images.batches(shuffled, [len(part) for part in own if len(part)])
        else:
            keys = [view_key(f"{train.seed}/{epoch}", *each) for each in chosen] if crop else []
            size = max(map(len, own), default=1)
            views = image_reader(data).batches(shuffled, size, crop=crop, keys=keys)
        shift = shift_augmentation(data, train, epoch, order, repeats)
        with contextlib.closing(views):
            for part, mine in zip(whole, own, strict=True):
                # This rank's slice of the last batch may be shorter, and even empty.
                chunk, pixels = next(views) if len(mine) else ([], no_views)
                shifted = transform.normalise(shift(pixels, mine))
                yield Batch(stage_inputs(inputs, shifted), data.labels(chunk), len(part))

    return batches


def stage_inputs(inputs: StageInputs, pixels: Tensor) -> Tensor:
    """Return what the trained part reads: the prefix's output, or the pixels themselves."""
    if inputs.extractor is None:
        return pixels
    # A clone leaves inference mode, so that autograd may keep it.
    return run_prefix(inputs.extractor.prefix, pixels).float().clone()


def shift_augmentation(
    data: Dataset, train: TrainSpec, epoch: int, order: Tensor, repeats: Sequence[int]
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function that shifts and flips views (B, S, S, 3) at positions (B,) of `order`.

    It changes nothing unless `train.augment` is `shift`.
    """
    if train.augment != "shift":
        return lambda views, _: views
    padding = default_padding(train.padding, data.transform.image_size)
    moves = draw_shifts(
        order,
        torch.tensor(repeats),
        count=len(data.manifest.train),
        seed=train.seed,
        epoch=epoch,
        padding=padding,
        flip=train.flip,
    )
    return lambda views, at: shift_and_flip(views, Shifts(*(move[at] for move in moves)), padding)


def view_key(key: str, row: Row, repeat: int) -> str:
    """Return the key from which a random view is drawn; it differs for each use of an image."""
    return f"{key}/{row.path}/{repeat}" if repeat else f"{key}/{row.path}"
