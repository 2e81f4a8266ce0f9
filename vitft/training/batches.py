"""Training and validation batches of a stage, from cached features, memory or files.

The training loop receives only inputs and labels. A random view depends only on the seed, the
epoch, the image and how often the image has already been used in the epoch.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from vitft.config.sections import OptimSpec, TrainSpec
from vitft.data.augment import Shifts, default_padding, draw_shifts, shift_and_flip
from vitft.data.sampling import images_per_epoch, repeat_counts, sample_order
from vitft.data.split import Row
from vitft.data.transforms import CropTransform, EvalTransform, View, crop_views, eval_view
from vitft.features.cut import Cut, run_prefix
from vitft.features.extract import Extractor
from vitft.system.transfer import to_device
from vitft.training.dataset import EVAL_BATCH, Dataset, StageInputs
from vitft.training.loop import Batch
from vitft.training.optim import batch_slices

_EpochBatches = Callable[[int, int], Iterator[Batch]]
"""Function of (epoch, step) that iterates over the batches of an epoch, starting at that step."""


def caches_views(cut: Cut, train: TrainSpec) -> bool:
    """Return whether training inputs are cached.

    Pooled features are always cached; tokens are cached only without augmentation.
    """
    return cut.pooled or (cut.prefix is not None and train.augment == "none")


def training_crop(transform: EvalTransform, train: TrainSpec) -> CropTransform:
    """Return the random resized crop used in training."""
    return CropTransform(
        image_size=transform.image_size,
        scale=(train.crop_scale, 1.0),
        flip=train.flip,
        interpolation=transform.interpolation,
        rand=train.augment == "rand",
    )


def training_views(transform: EvalTransform, train: TrainSpec, optim: OptimSpec) -> list[View]:
    """Return the views to cache for each training image.

    If `train.augment` is `none`, these are the unaugmented view and `train.views` random crops;
    otherwise, they are one random crop per epoch.
    """
    crop = training_crop(transform, train)
    if train.augment != "none":
        return crop_views(transform, crop, optim.epochs, train.seed)
    return [eval_view(transform), *crop_views(transform, crop, train.views, train.seed)]


def epoch_size(rows: Sequence[Row], train: TrainSpec) -> int:
    """Return the number of images in an epoch."""
    labels = [row.label for row in rows]
    return images_per_epoch(labels, balanced=train.sampling == "balanced")


def epoch_order(rows: Sequence[Row], train: TrainSpec, epoch: int) -> Tensor:
    """Return the indices into `rows` of the images used in an epoch, in order of use.

    Without balanced sampling, these are all indices in random order. With balanced sampling, every
    class occurs equally often, and an index may occur more than once.
    """
    labels = [row.label for row in rows]
    order = sample_order(labels, train.seed, epoch, balanced=train.sampling == "balanced")
    return torch.from_numpy(order)


def evaluation_batches(inputs: StageInputs, rows: Sequence[Row]) -> Iterator[Batch]:
    """Return an iterator over unaugmented batches of the images in `rows`, in order."""
    data, size = inputs.data, EVAL_BATCH * 8
    if inputs.extractor is not None:
        chunks = [rows[i : i + size] for i in range(0, len(rows), size)]
        features = ((chunk, to_device(inputs.features(chunk), data.device)) for chunk in chunks)
        return (Batch(found, data.labels(chunk)) for chunk, found in features)
    if inputs.images is not None:
        views = inputs.images.batches(rows, [size] * -(-len(rows) // size))
    else:
        views = data.decode(rows, EVAL_BATCH)
    return (Batch(data.transform.normalise(pixels), data.labels(chunk)) for chunk, pixels in views)


def training_batches(train: TrainSpec, optim: OptimSpec, inputs: StageInputs) -> _EpochBatches:
    """Return a function that yields training batches.

    If several views of each image are cached, the epochs cycle through the views.
    """
    size, data = optim.images_per_step, inputs.data
    if not caches_views(inputs.cut, train):
        return _fresh_training_batches(inputs, train, size)
    rows, views = data.manifest.train, training_views(data.transform, train, optim)

    def batches(epoch: int, done: int) -> Iterator[Batch]:
        order, view = epoch_order(rows, train, epoch), views[epoch % len(views)]
        for part in batch_slices(len(order), size, inputs.cut.suffix)[done:]:
            whole = order[part]
            chunk = [rows[i] for i in whole[data.group.batch_slice(len(whole))].tolist()]
            features = to_device(inputs.features(chunk, view), data.device)
            yield Batch(features, data.labels(chunk), len(whole))

    return batches


def _fresh_training_batches(inputs: StageInputs, train: TrainSpec, size: int) -> _EpochBatches:
    """Return a function that yields training batches, with newly generated views in each epoch."""
    data, images = inputs.data, inputs.images
    rows, transform, group = data.manifest.train, data.transform, data.group
    crop = training_crop(transform, train) if train.augment in ("crop", "rand") else None
    no_views = torch.empty(
        (0, *transform.image_size, transform.channels), dtype=torch.uint8, device=data.device
    )

    def batches(epoch: int, done: int) -> Iterator[Batch]:
        order = epoch_order(rows, train, epoch)
        repeats = repeat_counts(order.numpy())
        every = torch.arange(len(order))
        whole = [every[part] for part in batch_slices(len(order), size, inputs.cut.suffix)[done:]]
        own = [part[group.batch_slice(len(part))] for part in whole]
        chosen = [(rows[order[i]], repeats[i]) for part in own for i in part.tolist()]
        shuffled = [row for row, _ in chosen]
        if images is not None:
            views = images.batches(shuffled, [len(part) for part in own if len(part)])
        else:
            keys = [view_key(f"{train.seed}/{epoch}", *each) for each in chosen] if crop else []
            views = data.decode(shuffled, len(own[0]) if own else 1, crop=crop, keys=keys)
        shift = _shift_augmentation(data, train, epoch, order, repeats)
        with contextlib.closing(views):
            for part, mine in zip(whole, own, strict=True):
                # This rank's slice of the last batch may be shorter or even empty.
                chunk, pixels = next(views) if len(mine) else ([], no_views)
                if len(pixels) < len(mine):  # a last image that joins this batch
                    more, last = next(views)
                    chunk, pixels = [*chunk, *more], torch.cat([pixels, last])
                x = transform.normalise(shift(pixels, mine))
                if inputs.extractor is not None:
                    x = _prefix_outputs(inputs.extractor, x)
                yield Batch(x, data.labels(chunk), len(part))

    return batches


def _prefix_outputs(extractor: Extractor, pixels: Tensor) -> Tensor:
    """Return the float32 inputs to the trained layers, on the device, for normalised pixels."""
    found = extractor.limit.join(
        lambda part: run_prefix(extractor.prefix, pixels[part]).float(), len(pixels)
    )
    return found.clone()  # autograd rejects inference tensors


def _shift_augmentation(
    data: Dataset, train: TrainSpec, epoch: int, order: Tensor, repeats: Sequence[int]
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function that shifts and flips views (B, H, W, channels).

    The second argument of the function contains the positions (B,) of the views in `order`. The
    views are returned unchanged unless `train.augment` is `shift`.
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
    """Return the seed key of a random view; each use of an image in an epoch has its own key."""
    return f"{key}/{row.path}/{repeat}" if repeat else f"{key}/{row.path}"
