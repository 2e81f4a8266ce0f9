"""Training and validation batches of a stage, from cached features, memory or files.

The training loop receives only inputs and labels. A random view depends only on the seed, the
epoch, the image and how often the image has already been used in the epoch.
"""

import contextlib
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitft.config.sections import OptimSpec, TrainSpec
from vitft.data.augment import draw_shifts, shift_and_flip
from vitft.data.image_table import Images, Row, distinct_places, distinct_rows, pack
from vitft.data.images import decode_images, stack_batches
from vitft.data.transforms import CropTransform, EvalTransform, View, crop_views, eval_view
from vitft.features.cut import Cut, run_prefix
from vitft.features.extract import Extractor
from vitft.features.label_errors import number_names
from vitft.messages.results import ONLY_COPIES
from vitft.metrics.intervals import Floats, Groups, number_groups
from vitft.metrics.results import OnKnownImages
from vitft.models.ancestry import WeightsImages
from vitft.models.timm_model import Model
from vitft.system import console
from vitft.system.cores import usable_cores
from vitft.system.device import BatchLimit, to_device
from vitft.training.loop import Batch, batch_slices, predict_logits
from vitft.training.runtime import ProcessGroup

log = logging.getLogger(__name__)

# images of a run, and the inputs to its trained layers --------------------------------------------

_EVAL_BATCH = 32  # images per evaluation batch; eight times as many if cached or in memory

_ImageBatches = Generator[tuple[Sequence[Row], Tensor], None, None]
"""(rows, views): uint8, (B, H, W, C)."""
_StoredImages = Callable[[Sequence[Row], Sequence[int]], _ImageBatches]
"""Function that yields the stored views of rows in order, in batches of the given sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Training, validation and test images of a run; the same for all stages."""

    manifest: Images
    transform: EvalTransform
    max_pixels: int  # maximum number of pixels in an image; larger images raise an error
    device: torch.device
    group: ProcessGroup  # process group across which each batch is divided
    copies: Mapping[str, str]  # names of the groups of near-duplicates, by digest
    counted: NDArray[np.int64]  # places of the validation images that count (`counted_places`)
    left_out: int | None  # number of copies of training images that do not; None if all are such
    groups: Mapping[str, str]  # by digest, with copies joined; folds do not divide them
    training_groups: Mapping[str, str]
    """The same for folds of the training images alone, in which a class may have one group."""
    own_split: bool = False  # whether the data, and not vitft, names the validation images
    seen: WeightsImages = field(default_factory=WeightsImages)  # that trained the initial weights
    soft: Mapping[str, Floats] = field(default_factory=dict)
    """A teacher's class probabilities (C,) for the training images, by digest, if it has one."""
    soft_weight: float = 0.0  # in the targets, beside the labels

    @property
    def distinct(self) -> Sequence[Row]:
        """One row for each distinct file of the training and validation images."""
        return distinct_rows(self.manifest.where(self.manifest.column("split") != "test").rows)

    @property
    def validated(self) -> Sequence[Row]:
        """The validation images that count."""
        return self.manifest.where(self.manifest.column("split") == "val").where(self.counted).rows

    def known_to_weights(self, rows: Sequence[Row]) -> OnKnownImages:
        """Return how many distinct images are known from training, unless it is 0."""
        number = self.seen.count(distinct_rows(rows))
        if self.left_out is None and rows[0].split == "val":
            number = len(rows)
        return {} if number == 0 else {"known_to_weights": number}

    def labels(self, rows: Sequence[Row]) -> Tensor:
        """Return the targets on the device: class indices (n,), or 0 and 1 in float32 (n, C)."""
        kind = torch.float32 if self.manifest.labels else torch.long
        return to_device(torch.as_tensor(self.manifest.targets(rows), dtype=kind), self.device)

    def targets(self, rows: Sequence[Row]) -> Tensor:
        """Return what training images are fitted to, on the device.

        With a teacher, these are class probabilities (n, C) of the image, whatever its view: the
        labels mixed with the probabilities of the teacher. Otherwise, they are the labels.
        """
        labels, classes = self.labels(rows), len(self.manifest.outputs.classes)
        if not self.soft:
            return labels
        found = np.array([self.soft[row.sha256] for row in rows]).reshape(len(rows), classes)
        soft = to_device(torch.from_numpy(found).float(), self.device)
        return F.one_hot(labels, classes).float().lerp(soft, self.soft_weight)

    def group_ids(self, rows: Sequence[Row]) -> Tensor:
        """Return the group numbers (n,) of `rows`; the images of a group share a number."""
        return number_names(self.groups.get(row.sha256, row.sha256) for row in rows)

    def training_group_ids(self) -> Tensor:
        """Return the group numbers (n,) of the training images, to divide these into folds."""
        known = self.training_groups
        return number_names(known.get(row.sha256, row.sha256) for row in self.manifest.train)

    def units(self, rows: Sequence[Row]) -> Groups | None:
        """Return the numbers (n,) of the groups that intervals count instead of `rows`, or None."""
        return number_groups([row.unit for row in rows], (row.sha256 for row in rows))

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
            workers=usable_cores(),
            digests=[row.sha256 for row in rows],
        )
        with contextlib.closing(images):
            for numbers, pixels, failed in stack_batches(images, size):
                if failed:
                    raise failed[0][1]
                chunk = [rows[number] for number in numbers]
                yield chunk, to_device(torch.from_numpy(pixels), self.device)

    def load_images(self) -> _StoredImages | None:
        """Decode all images, once, onto the device; None if they would take too much memory."""
        rows, size = self.manifest.rows, self.transform.image_size
        channels = self.transform.channels
        if max(size) > 64 or len(rows) * size[0] * size[1] * channels > 2**30:
            return None
        table = torch.empty((len(rows), *size, channels), dtype=torch.uint8, device=self.device)
        own, group = self.decode(self.group.shard(rows), _EVAL_BATCH * 8), self.group
        with console.Progress("loading images", len(rows)) as progress, contextlib.closing(own):
            for chunk in table.split(_EVAL_BATCH * 8 * group.size):
                is_idle = not group.shard(range(len(chunk)))  # the last batch may be empty
                pixels = chunk[:0] if is_idle else next(own)[1][..., :channels]
                chunk.copy_(group.all_gather(pixels, len(chunk)))
                progress.advance(len(chunk))
        positions = {row.path: i for i, row in enumerate(rows)}

        def batches(chosen: Sequence[Row], sizes: Sequence[int]) -> _ImageBatches:
            for start, size in zip(itertools.accumulate(sizes, initial=0), sizes, strict=False):
                chunk = chosen[start : start + size]
                places = torch.tensor([positions[row.path] for row in chunk])
                yield chunk, table[to_device(places, table.device)]

        return batches


def counted_places(
    manifest: Images, copies: Mapping[str, str]
) -> tuple[NDArray[np.int64], int | None]:
    """Return the places of the validation images that count, and how many do not, as copies.

    Copies count once, and copies of training images do not count. The number is None if all are
    such, so that they count.
    """
    new, places = are_new(manifest.val, manifest.train, copies), distinct_places(manifest.val)
    if is_known := len(new) > 0 and not new.any():
        log.warning(ONLY_COPIES)
    kept = places if is_known else places[new[places]]
    rows = manifest.where(manifest.column("split") == "val").where(kept).rows
    counted = kept[are_first(rows, copies)]
    return counted, None if is_known else len(places) - len(counted)


def are_first(rows: Sequence[Row], copies: Mapping[str, str]) -> NDArray[np.bool_]:
    """Return which images (n,) are the first of their copies, given groups of near-duplicates."""
    found = np.zeros(len(rows), np.bool_)
    found[np.unique(_contents(rows, copies), return_index=True)[1]] = True
    return found


def are_new(
    rows: Sequence[Row], others: Sequence[Row], copies: Mapping[str, str]
) -> NDArray[np.bool_]:
    """Return which images (n,) are not copies of others, given groups of near-duplicates."""
    return ~np.isin(_contents(rows, copies), _contents(others, copies))


def _contents(rows: Sequence[Row], copies: Mapping[str, str]) -> NDArray[np.bytes_]:
    """Return what copies have in common (n,): the digest of one of them."""
    table = pack(rows)
    digests: NDArray[np.bytes_] = table.columns["sha256"][table.places].view("S32").ravel()
    if copies:
        # Arrays of bytes drop zeros at the end
        known = {bytes.fromhex(one).rstrip(b"\0"): bytes.fromhex(copies[one]) for one in copies}
        digests = np.array([known.get(one, one) for one in digests.tolist()], "S32")
    return digests


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInputs:
    """Inputs to one stage: cached outputs of the frozen prefix, images in memory, or files."""

    data: Dataset
    cut: Cut  # model cut at the freeze boundary of the stage
    extractor: Extractor | None  # of the frozen prefix; None if nothing is frozen
    images: _StoredImages | None = None  # None if not needed or too large
    limit: BatchLimit = field(default_factory=lambda: BatchLimit(8 * _EVAL_BATCH))
    """Images evaluated at a time."""

    def last_features(self, rows: Sequence[Row]) -> Tensor:
        """Return the cached pooled features (n, D) of the last block."""
        assert self.extractor is not None
        return self.features(rows)[:, : self.extractor.prefix.leading]

    def features(self, rows: Sequence[Row], view: View | None = None) -> Tensor:
        """Return cached outputs of the frozen prefix, (n, D) or (n, N, D), float32 on the CPU."""
        assert self.extractor is not None
        return self.extractor.rows(
            [row.sha256 for row in rows], view or eval_view(self.data.transform)
        )

    def prefix_outputs(self, pixels: Tensor) -> Tensor:
        """Return the float32 inputs to the trained layers, on the device, for normalised pixels."""
        extractor = self.extractor
        assert extractor is not None
        found = extractor.limit.join(
            lambda part: run_prefix(extractor.prefix, pixels[part]).float(), len(pixels)
        )
        return found.clone()  # autograd rejects inference tensors

    def caches_views(self, train: TrainSpec) -> bool:
        """Return whether training inputs are cached: pooled features, or tokens not augmented."""
        return self.cut.pooled or (self.cut.prefix is not None and train.augment == "none")

    @torch.no_grad()
    def inputs_to_head(self, model: Model, rows: Sequence[Row], view: View | None = None) -> Tensor:
        """Return the inputs to the head (n, D) of a model, in float32 on the CPU."""
        x: Tensor = model.pre_logits.cpu()(self.features(rows, view))
        model.pre_logits.to(self.data.device)
        return x

    def evaluation_batches(self, rows: Sequence[Row]) -> Iterator[Tensor]:
        """Return an iterator over batches of inputs for `rows`, in order, unaugmented."""
        data, size = self.data, _EVAL_BATCH * 8
        if self.extractor is not None:
            chunks = (rows[i : i + size] for i in range(0, len(rows), size))
            return (to_device(self.features(chunk), data.device) for chunk in chunks)
        if self.images is not None:
            views = self.images(rows, [size] * -(-len(rows) // size))
        else:
            views = data.decode(rows, _EVAL_BATCH)
        return (data.transform.normalise(pixels) for _, pixels in views)

    def logits(self, rows: Sequence[Row], *, precision: str = "fp32") -> Tensor:
        """Return the logits (n, C) of images, in the order of `rows`."""
        data, pooled = self.data, self.cut.pooled
        unit = _EVAL_BATCH * 8 if pooled else 1  # if pooled: same batches as with one process
        own = self.evaluation_batches(data.group.shard(rows, unit))
        suffix, device = self.cut.suffix, data.device
        logits = predict_logits(suffix, own, device=device, precision=precision, limit=self.limit)
        return data.group.all_gather(logits, len(rows), unit)


# selection and order of the training images in an epoch -------------------------------------------

_Order = np.ndarray[Any, np.dtype[np.int64]]


def epoch_size(labels: Sequence[int], train: TrainSpec) -> int:
    """Return the number of images in an epoch: all, or as many of each class as that allows."""
    total, is_balanced = len(labels), train.sampling == "balanced"
    return total - total % len({*labels}) if is_balanced and total else total


def epoch_order(rows: Sequence[Row], train: TrainSpec, epoch: int) -> _Order:
    """Return the indices into `rows` of an epoch's images, in the order in which they are used."""
    random = np.random.default_rng([train.seed, epoch])
    if train.sampling != "balanced":
        return random.permutation(len(rows))
    # The images of a class are drawn from a permutation that is reshuffled whenever it is used up.
    # Each epoch continues where the previous one ended, so over a run, the use counts of any two
    # images of a class differ by at most one.
    known = np.array([row.label for row in rows])
    classes = np.unique(known).tolist()
    each = len(rows) // len(classes)
    drawn = []
    for label in classes:
        own = np.flatnonzero(known == label)
        places = np.arange(epoch * each, (epoch + 1) * each)
        piles = np.unique(places // len(own))
        seeds = ([train.seed, label, pile, 1] for pile in piles)
        dealt = np.concatenate([np.random.default_rng(seed).permutation(own) for seed in seeds])
        drawn.append(dealt[places - piles[0] * len(own)])
    return random.permutation(np.concatenate(drawn))


# training and validation batches of a stage, from cached features, memory or files ----------------

_EpochBatches = Callable[[int, int], Iterator[Batch]]  # (epoch, first step) -> batches


def _training_crop(transform: EvalTransform, train: TrainSpec) -> CropTransform:
    """Return the random resized crop used in training."""
    return CropTransform(
        image_size=transform.image_size,
        scale=(train.crop_scale, 1.0),
        flip=train.flip,
        interpolation=transform.interpolation,
        rand=train.augment == "rand",
    )


def training_views(transform: EvalTransform, train: TrainSpec, optim: OptimSpec) -> list[View]:
    """Return the views to cache for each training image."""
    crop = _training_crop(transform, train)
    if train.augment != "none":  # a random crop per epoch
        return crop_views(transform, crop, optim.epochs, train.seed)
    return [eval_view(transform), *crop_views(transform, crop, train.views, train.seed)]


def training_batches(train: TrainSpec, optim: OptimSpec, inputs: StageInputs) -> _EpochBatches:
    """Return a function that yields the batches of an epoch, beginning at one of its steps.

    Epochs cycle through the cached views, if there are any; otherwise, each has new views.
    """
    data, rows = inputs.data, inputs.data.manifest.train
    views = []
    if inputs.caches_views(train):
        views = training_views(data.transform, train, optim)

    def batches(epoch: int, done: int) -> Iterator[Batch]:
        order = epoch_order(rows, train, epoch)
        whole = batch_slices(len(order), optim.images_per_step, inputs.cut.suffix)[done:]
        every, sizes = range(len(order)), [part.stop - part.start for part in whole]
        # Places in the order of this process's slice of each batch; the last one may be empty
        own = [every[p][data.group.batch_slice(n)] for p, n in zip(whole, sizes, strict=True)]
        made = _fresh_inputs(inputs, train, epoch, order, own)
        if views:
            view, drawn = views[epoch % len(views)], [rows[i] for i in order.tolist()]
            chunks = (drawn[places.start : places.stop] for places in own)
            made = ((to_device(inputs.features(c, view), data.device), c) for c in chunks)
        for size, (x, chunk) in zip(sizes, made, strict=True):
            yield Batch(x, data.targets(chunk), size)

    return batches


def _fresh_inputs(
    inputs: StageInputs, train: TrainSpec, epoch: int, order: _Order, own: Sequence[range]
) -> Iterator[tuple[Tensor, Sequence[Row]]]:
    """Yield inputs from newly generated views of the images at the places `own` of an order."""
    data, images, transform = inputs.data, inputs.images, inputs.data.transform
    rows, seen = data.manifest.train, defaultdict[int, Iterator[int]](itertools.count)
    repeats = [next(seen[i]) for i in order.tolist()]  # how often an image was used before
    crop = _training_crop(transform, train) if train.augment in ("crop", "rand") else None
    drawn = [rows[i] for i in order.tolist()]
    chosen = [(drawn[i], repeats[i]) for places in own for i in places]
    shuffled = [row for row, _ in chosen]
    if images is not None:
        views = images(shuffled, [len(places) for places in own if places])
    else:
        # Each use of an image in an epoch has its own random view
        keys = [f"{train.seed}/{epoch}/{row.path}" + f"/{n}" * (n > 0) for row, n in chosen]
        views = data.decode(shuffled, len(own[0]) if own else 1, crop=crop, keys=keys)
    padding = train.padding or max(1, min(transform.image_size) // 8)
    moves: Tensor | None = None
    if train.augment == "shift":
        moves = draw_shifts(
            torch.from_numpy(order),
            torch.tensor(repeats),
            count=len(rows),
            seed=train.seed,
            epoch=epoch,
            padding=padding,
            flip=train.flip,
        )
    no_views = torch.empty(
        (0, *transform.image_size, transform.channels), dtype=torch.uint8, device=data.device
    )
    with contextlib.closing(views):
        for places in own:
            chunk, pixels = next(views) if places else ([], no_views)
            if len(pixels) < len(places):  # a last image that joins this batch
                more, last = next(views)
                chunk, pixels = [*chunk, *more], torch.cat([pixels, last])
            if moves is not None:
                mine = moves[:, places.start : places.stop]
                pixels = shift_and_flip(pixels, mine, padding)
            x = transform.normalise(pixels)
            if inputs.extractor is not None:
                x = inputs.prefix_outputs(x)
            yield x, chunk
