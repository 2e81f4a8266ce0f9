"""Feature extraction: a model is cut, and its frozen prefix runs once per image and view.

`finetune` (including its dry run), `check`, `label` and `study` begin here. The output of the
prefix is cached: a second pass over the same images only reads and hashes their bytes.

On a CPU, each worker processes whole batches: it reads, hashes and decodes the files and runs the
prefix. With a GPU, workers decode small groups of files, which are collected into batches in memory
that is copied without waiting; a batch is computed while the next one is decoded and the previous
one is written. What is lost is the time to decode the first batch and to compute the last one, so
batches are small in a short pass.
"""

import contextlib
import copy
import functools
import itertools
import logging
import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from vitft.config.run import Config
from vitft.config.sections import TrainSpec
from vitft.data.image_table import Images, Row
from vitft.data.images import (
    OpenedImage,
    Pixels,
    collect,
    in_chunks,
    in_order,
    inspect_file,
    inspect_folder,
    overlapped,
)
from vitft.data.transforms import EvalTransform, View, eval_view
from vitft.features.cache import CachedRows, JoinedStore, Store, default_folder, key_of
from vitft.features.cut import Cut, Prefix, cut_model, run_prefix
from vitft.features.fingerprints import Fingerprint, Fingerprints, fingerprint_folder
from vitft.features.logistic import LARGE_VALUES
from vitft.models.pretrained.load import LoadReport, load_initial_model
from vitft.models.timm_model import Model
from vitft.models.trainable import add_adapters, freeze_model
from vitft.system import console
from vitft.system.cores import usable_cores
from vitft.system.device import BatchLimit, pick_device, pick_precision, start_reading, to_device
from vitft.system.errors import DataError, DivergedError, ImageError, ResourceError, RunError
from vitft.system.imports import version
from vitft.system.text import count

log = logging.getLogger(__name__)

_LARGEST_FEATURE = 1e15  # magnitude above which sums of squares of features may overflow in float32
_FEATURES_VERSION = "2"  # incremented when the computation of features changes
_BATCH_IMAGES = {"cpu": 16, "cuda": 256, "mps": 32}
"""Number of images per forward pass, by device type; on a single CPU thread, larger batches do not
help (benchmarks/notebook/speed.md)."""
# For a GPU: fewest images per batch, fewest larger batches, most files per chunk that a worker
# decodes at a time, and fewest chunks for each worker
_SMALLEST_BATCH, _BATCHES, _LARGEST_CHUNK, _CHUNKS = 16, 16, 16, 32
_FEWEST_COMPUTED = 4
"""Number of images to which smaller batches are filled up. In float32 on a CPU, their features
would differ in the last bits from those in larger batches (benchmarks/notebook/speed.md)."""
_IN_MEMORY_BYTES = 2**31
_AnyStore = Store | JoinedStore


@dataclass(slots=True)
class _ExtractedImage:
    """An image file and what has been computed from it so far."""

    found: Row | ImageError
    fingerprint: Fingerprint | None = None
    pixels: Pixels | None = None  # input to the prefix; None if the output is known
    row: Any = None  # output of the prefix, as stored in the cache


class Extractor:
    """A frozen prefix, converted to `precision`, with a cache of its outputs.

    The cache is in `folder`, or in a temporary folder of this process. With `fp32` or if `exact` is
    set, views are `EvalTransform.pixels`; otherwise, the faster and slightly less exact
    `fast_pixels` where possible. `workers` is the number of threads, each on one core (default:
    `usable_cores`).
    """

    def __init__(
        self,
        prefix: Prefix,
        *,
        folder: Path | None,
        precision: str,
        max_pixels: int,
        exact: bool = False,
        workers: int | None = None,
    ) -> None:
        self.device = next(prefix.parameters()).device
        self.prefix = prefix.in_precision(precision)
        self.limit = BatchLimit(batch_size(self.device.type, prefix.leading))
        self.workers = workers or usable_cores()
        self.max_pixels = max_pixels
        self.precision = precision
        self.is_exact = exact or precision == "fp32"
        libraries = ("torch", "pillow", "simplejpeg", *prefix.model.libraries)
        self.space = {
            "vitft": _FEATURES_VERSION,
            "prefix": prefix.digest(),
            "cut": "pooled" if prefix.pooled else f"after block {prefix.stop}",
            "precision": precision,
            "decoding": "exact" if self.is_exact else "fast",
            "with": " ".join(f"{name} {version(name)}" for name in libraries),
            "device": self.device.type,
        }
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="vitft-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.folder = folder
        self.stores: dict[str, _AnyStore] = {}
        self.computed = 0  # number of rows not found in the cache

    def store(self, view: View) -> _AnyStore:
        """Return the store for the rows of a view; features of earlier blocks are in another."""
        if view.settings not in self.stores:
            space, shape = {**self.space, "view": view.settings}, self.prefix.shape
            dtype = "uint16" if self.precision == "bf16" else "float32"
            leading, more = self.prefix.leading, shape[-1] - self.prefix.leading
            last = Store(self.folder, space, (leading,) if more else shape, dtype)
            self.stores[view.settings] = last
            if more:
                space["cut"] = f"{more} values of the blocks before the last"
                rest = Store(self.folder, space, (more,), dtype)
                self.stores[view.settings] = JoinedStore(last, rest)
        return self.stores[view.settings]

    def of_last_block(self) -> Self:
        """Return an extractor for the last block's features, in place of this one."""
        found = copy.copy(self)
        self.prefix.model.read_last_blocks(1)
        found.prefix = Prefix(self.prefix.model, self.prefix.stop, autocast=self.prefix.autocast)
        found.stores = {
            settings: store.leading if isinstance(store, JoinedStore) else store
            for settings, store in self.stores.items()
        }
        return found

    def compute(
        self,
        root: str,
        files: Sequence[Row],
        view: View,
        *,
        progress: Callable[[int], None],
    ) -> None:
        """Compute and cache the features of all files; raise an ImageError if one is unreadable."""
        for image in self.extract(root, files, view):
            if isinstance(image.found, ImageError):
                raise image.found
            progress(1)

    def extract(
        self,
        root: str,
        files: Sequence[Row],
        view: View,
        fingerprints: Fingerprints | None = None,
    ) -> Iterator[_ExtractedImage]:
        """Yield one result per file, in order; at the end, the features of all files are cached.

        For an unreadable file, the result's `found` is an `ImageError`; otherwise, it has a size
        and remarks if `fingerprints` are given. The features of identical files are computed once.
        Each batch is cached as a whole, so a pass repeated after an interruption computes the same
        batches.

        Raises:
            DivergedError: The features are not finite or are too large to compute with.
            RunError, ResourceError: The cache cannot be written.
        """
        store, owners = self.store(view), dict[bytes, object]()

        def is_first(key: bytes) -> bool:  # of the threads that call it with this key
            token = object()
            return owners.setdefault(key, token) is token  # atomic

        def load(opened: OpenedImage) -> _ExtractedImage:  # decoded only if something is missing
            result = _ExtractedImage(opened.file._replace(sha256=opened.sha256))
            if fingerprints is not None:
                result.found, result.fingerprint = fingerprints.inspect(opened)
            key = key_of(opened.sha256, view.name)
            if store.get(key) is None and is_first(key):
                result.pixels = (
                    view.pixels(opened.image, opened.sha256)
                    if opened.jpeg is None
                    else view.transform.fast_pixels(opened.jpeg)
                )
            return result

        inspect = functools.partial(
            inspect_file,
            root,
            function=load,
            max_pixels=self.max_pixels,
            grey_range=view.transform.grey_range,
            fast=not self.is_exact and view.crop is None and view.transform.is_fast,
        )

        def decode(chunk: Sequence[Row]) -> list[_ExtractedImage]:
            torch.set_num_threads(1)  # in this thread: one core decodes and computes
            found = map(inspect, chunk)
            return [_ExtractedImage(i) if isinstance(i, ImageError) else i for i in found]

        before = torch.get_num_threads()
        try:
            save = functools.partial(self.save, view=view, fingerprints=fingerprints)
            with contextlib.closing(self.batches(files, decode, view, save)) as batches:
                for batch in batches:
                    yield from batch
        finally:
            torch.set_num_threads(before)
            store.flush()
            if fingerprints is not None:
                fingerprints.flush()

    def batches(
        self,
        files: Sequence[Row],
        decode: Callable[[Sequence[Row]], list[_ExtractedImage]],
        view: View,
        save: Callable[[list[_ExtractedImage]], list[_ExtractedImage]],
    ) -> Generator[list[_ExtractedImage], None, None]:
        """Yield the images of files in order, in batches that have been computed and saved.

        The sizes depend only on the number of files, so a repeated pass computes the same batches.
        """
        size, workers = self.limit.images, self.workers
        if self.device.type == "cpu":
            computed = in_order(
                lambda chunk: self.start(decode(chunk), view)(),
                in_chunks(files, size),
                workers=workers,
                ahead=2 * workers,
            )
            with contextlib.closing(computed):
                yield from map(save, computed)
            return

        def start(images: list[_ExtractedImage]) -> Callable[[], list[_ExtractedImage]]:
            finish = self.start(images, view)
            return lambda: save(finish())

        most = _SMALLEST_BATCH
        while most * 2 <= len(files) // _BATCHES:
            most *= 2
        size = min(most, size)
        each = max(1, min(_LARGEST_CHUNK, len(files) // (_CHUNKS * max(1, workers))))
        chunks, ahead = in_chunks(files, each), 2 * (workers + size // each)
        with contextlib.closing(in_order(decode, chunks, workers=workers, ahead=ahead)) as decoded:
            images = itertools.chain.from_iterable(decoded)
            yield from overlapped(in_chunks(images, size), start)

    def start(
        self, images: list[_ExtractedImage], view: View
    ) -> Callable[[], list[_ExtractedImage]]:
        """Start the prefix on images with pixels; return a function that waits for their output."""
        missing = [(image, image.pixels) for image in images if image.pixels is not None]
        if not missing:
            return lambda: images
        size, is_gpu = max(_FEWEST_COMPUTED, len(missing)), self.device.type == "cuda"
        shape = size, *missing[0][1].shape
        pixels = torch.empty(shape, dtype=torch.uint8, pin_memory=is_gpu)  # copied without waiting
        np.stack([own for _, own in missing], out=pixels[: len(missing)].numpy())
        pixels[len(missing) :] = pixels[0]
        waiting = [image for image, _ in missing]
        for image in waiting:
            image.pixels = None

        def compute(part: slice) -> Tensor:
            inputs = view.transform.normalise(to_device(pixels[part], self.device))
            return run_prefix(self.prefix, inputs)

        outputs = self.limit.join(compute, size)[: len(missing)]
        are_usable = (outputs.abs() < _LARGEST_FEATURE).all()  # false for NaN too
        read = start_reading([outputs, are_usable])

        def finish() -> list[_ExtractedImage]:
            found, usable = read()
            if not bool(usable):
                raise DivergedError(
                    "the features computed with these weights are infinite, NaN or above "
                    f"{_LARGEST_FEATURE:.0e}",
                    fix="use other weights. These are damaged or come from a run that diverged",
                )
            bits = found.view(torch.uint16) if self.precision == "bf16" else found
            for image, row in zip(waiting, bits.numpy(), strict=True):
                image.row = row
            return images

        return finish

    def save(
        self, batch: list[_ExtractedImage], view: View, fingerprints: Fingerprints | None
    ) -> list[_ExtractedImage]:
        """Add the newly computed values of a batch to the caches, and return the batch."""
        rows: dict[bytes, CachedRows] = {}
        for image in batch:
            if isinstance(image.found, ImageError):
                continue
            if image.row is not None:
                rows[key_of(image.found.sha256, view.name)] = image.row
            if fingerprints is not None and image.fingerprint is not None:
                fingerprints.add(image.found, image.fingerprint)
        self.computed += len(rows)
        self.store(view).add(rows)
        return batch

    def refresh(self) -> None:
        """Find the rows that other processes have cached since the stores were opened."""
        for store in self.stores.values():
            store.find_new_shards()

    def rows(self, digests: Sequence[str], view: View) -> Tensor:
        """Return the cached rows of images as float32 on the CPU: (n, D) or (n, N, D)."""
        store, shape = self.store(view), (len(digests), *self.prefix.shape)
        if 4 * np.prod(shape, dtype=np.int64) <= _IN_MEMORY_BYTES:
            table: Any = np.empty(shape, np.float32)
        else:  # mapped to a temporary file, of which the map keeps a descriptor
            with tempfile.TemporaryFile(dir=self.folder) as file:
                table = np.memmap(file, np.float32, "w+", shape=shape)
        for i, digest in enumerate(digests):
            row = store.get(key_of(digest, view.name))
            if row is None:
                raise DataError(
                    f"the cached features of an image (sha256 {digest[:12]}...) are missing: the "
                    "image or the cache changed during the run",
                    fix="run the command again",
                )
            if row.dtype == np.uint16:  # bf16: upper half of the bits of a float32
                row = (row.astype(np.uint32) << 16).view(np.float32)
            table[i] = row
        return torch.from_numpy(table)


def batch_size(device: str, width: int) -> int:
    """Return the number of images per forward pass; 8 of a wide model already fill CPU caches."""
    return 8 if device == "cpu" and width >= 768 else _BATCH_IMAGES[device]


# a model cut at the freeze boundary, and the pass over its images ---------------------------------

_HEAD_BLOCKS = 6  # maximum number of blocks that a head fitted by L-BFGS reads by default
_MAX_HEAD_DIMENSIONS = 3_100
"""Maximum number of feature dimensions that a head fitted by L-BFGS reads by default. The time to
fit the head grows with the cube of this number if there are more images than dimensions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenPipeline:
    """A model on its device, frozen and cut at the freeze boundary of a stage."""

    model: Model
    transform: EvalTransform
    trained: tuple[str, ...]  # names of the trainable parameters
    cut: Cut
    device: torch.device
    precision: str
    config: Config

    def open_extractor(self) -> Extractor | None:
        """Return a caching extractor for the frozen layers, or None if nothing is frozen."""
        if self.cut.prefix is None:
            return None
        spec, most = self.config.train, self.config.data.max_pixels
        limits: Any = {"max_pixels": most, "exact": spec.exact_pixels}
        make = functools.partial(Extractor, self.cut.prefix, precision=self.precision, **limits)
        if spec.cache == "none":
            return make(folder=None)
        try:
            folder = Path(spec.cache).expanduser() if spec.cache else default_folder()
            extractor = make(folder=folder)
            extractor.store(eval_view(self.transform))  # fail early
            return extractor
        except (RunError, ResourceError) as error:
            if spec.cache:
                raise
            log.warning(f"features are not cached: {error.problem}")
            return make(folder=None)


def load_pipeline(
    folder: Images, stage: str, config: Config, *, announce: bool = True
) -> tuple[FrozenPipeline, LoadReport]:
    """Load the weights of a run and cut the model at the freeze boundary of a stage.

    If `announce` is set, the model is logged.
    """
    pick_device(config.train.device)  # fail early
    is_kept = stage != "head"
    model, report = load_initial_model(config, folder, keep_head=is_kept, announce=announce)
    return build_pipeline(model, report.transform, stage, config), report


def read_several_blocks(pipeline: FrozenPipeline, *, images: int) -> FrozenPipeline:
    """Return the pipeline with a head that may read several blocks, if the model supports it."""
    model = pipeline.model
    blocks = blocks_to_read(model, pipeline.config.train, images=images)
    if blocks == 1:
        return pipeline
    model.read_last_blocks(blocks)
    trained = freeze_model(model, "head")
    log.debug(
        f"features:   {model.feature_size:,} dimensions from the last {count(blocks, 'block')}, "
        "and cross-validation decides whether the head uses all of them"
    )
    return replace(pipeline, trained=tuple(trained), cut=cut_model(model, "head"))


def blocks_to_read(model: Model, spec: TrainSpec, *, images: int) -> int:
    """Return how many of the last blocks a run's head may read if it is fitted by L-BFGS."""
    if spec.head_blocks > 1:
        model.require_vit(f"train.head_blocks={spec.head_blocks}")
    if spec.head_blocks or not model.attends or not model.config.supports_read_blocks:
        return spec.head_blocks or 1
    config = model.config
    fast = 1 + (_MAX_HEAD_DIMENSIONS - config.width) // (config.read_of_earlier * config.width)
    blocks = max(1, min(_HEAD_BLOCKS, config.depth, fast))
    dimensions = replace(config, read_blocks=blocks).feature_size
    return 1 if images * (1 + spec.views) * dimensions > LARGE_VALUES else blocks


def build_pipeline(
    model: Model, transform: EvalTransform, stage: str, config: Config
) -> FrozenPipeline:
    """Freeze a loaded model for a stage, move it to a device and cut it.

    Raises:
        UsageError: The model does not support the stage or activation checkpointing.
    """
    spec, device = config.train, pick_device(config.train.device)
    model.set_checkpointing(spec.checkpointing)
    if spec.checkpointing and stage.startswith("blocks:"):
        model.require_vit(f"train.checkpointing=true with --train {stage}")
    if stage == "lora":
        add_adapters(model, spec)
    trained = freeze_model(model, stage)
    return FrozenPipeline(
        model=model,
        transform=transform,
        trained=tuple(trained),
        cut=cut_model(model.to(device), stage),
        device=device,
        precision=pick_precision(spec.precision, device),
        config=config,
    )


def inspect_dataset(
    folder: Images,
    *,
    max_pixels: int,
    allow_bad: bool,
    extractor: Extractor | None = None,
    view: View | None = None,
    fingerprints: Fingerprints | None = None,
    label: str = "extracting features",
) -> Images:
    """Inspect every image in a folder once, and compute features and fingerprints where given.

    See `Extractor.extract` for errors. `label` is shown while features are extracted.
    """
    label = "checking images" if extractor is None else label
    with console.Progress(label, len(folder.rows)) as progress:
        inspect = functools.partial(inspect_folder, max_pixels=max_pixels, workers=usable_cores())
        if fingerprints is not None:
            inspect = functools.partial(
                fingerprint_folder, fingerprints=fingerprints, max_pixels=max_pixels
            )
        if extractor is None or view is None:
            return inspect(folder, allow_bad=allow_bad, progress=progress.advance)
        before, root = extractor.computed, os.fspath(folder.root)
        known = fingerprints or Fingerprints(str(extractor.folder), only_facts=True)
        images = extractor.extract(root, folder.rows, view, known)
        found = (image.found for image in images)
        inspected = collect(folder, found, allow_bad=allow_bad, progress=progress.advance)
        if computed := extractor.computed - before:
            progress.skip(len(folder.rows) - computed)
        else:
            progress.label = "checking images"  # all features were in the cache
        return inspected


def inspect_with(
    pipeline: FrozenPipeline,
    folder: Images,
    **options: Any,  # noqa: ANN401 - those of inspect_dataset
) -> tuple[Images, Callable[[Sequence[str]], Tensor]]:
    """Inspect every image, and compute its feature in the same pass, with a model without a head.

    Return the images, and a function that returns their features (n, D), given their digests.
    """
    extractor, view = pipeline.open_extractor(), eval_view(pipeline.transform)
    assert extractor is not None, "a model cut before its head has frozen layers"
    options |= {"extractor": extractor, "view": view, "max_pixels": extractor.max_pixels}
    inspected = inspect_dataset(folder, **options)
    log_cached_features(inspected, extractor.computed)
    return inspected, functools.partial(extractor.rows, view=view)


def log_cached_features(inspected: Images, computed: int) -> None:
    """Log how many features were read from the cache, given the number computed."""
    images = len({file.sha256 for file in inspected.rows})
    if (cached := images - computed) > 0:  # copies may be computed by several processes
        log.debug(f"features from the cache: {cached:,} of {count(images, 'image')}")


def check_disk_space(extractor: Extractor, view: View, images: int) -> None:
    """Log the disk space that the tokens need; raise a ResourceError if there is too little."""
    shape = extractor.prefix.shape
    if len(shape) == 1:  # pooled features are small; tokens are about as large as a photo
        return
    store = extractor.store(view)
    assert isinstance(store, Store)
    each, here = math.prod(shape) * store.dtype.itemsize, min(images, len(store.places))
    words = f"{images * each / 1e6:,.0f} MB"
    found = f", already cached: {count(here, 'image')}" if here else ""
    log.info(f"caching the tokens of the frozen blocks in {extractor.folder} takes {words}{found}")
    free = shutil.disk_usage(extractor.folder).free
    if (images - here) * each > free:
        raise ResourceError(
            f"caching the tokens of the frozen blocks takes {words}, but {extractor.folder} has "
            f"only {free / 1e6:,.0f} MB of free space",
            fix="choose a cache folder with more space (--cache DIR), or use --train head "
            "(caches one feature vector per image) or --train all (caches nothing)",
        )
