"""One pass over the images: read, hash, decode, view and run through the prefix, each file once.

Workers take whole batches, and what came out is kept on disk.

A second pass over the same images reads their bytes to know that they are the same, and computes
nothing. What the numbers are used for is told in `feed` and `probe`.
"""

import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitft.config.run import Config
from vitft.data.folder import Checked, CheckedFile, File, Folder, judged
from vitft.data.images import decode, read_bytes
from vitft.data.jpeg import fast_view
from vitft.data.loading import in_order
from vitft.data.transforms import CropTransform, EvalTransform
from vitft.features.cache import Store, default_folder, key_of, open_store
from vitft.features.cut import Cut, Prefix, run_prefix
from vitft.system.errors import DataError, ImageError, ResourceError, RunError

log = logging.getLogger(__name__)

VERSION = "1"
"""Part of every key: raised when the same settings begin to give other numbers."""
BATCH = {"cpu": 16, "cuda": 256, "mps": 32}
"""Images per forward pass; on a CPU one thread gains nothing from more (docs/experiments.md)."""
WIDE, WIDE_BATCH = 768, 8
"""From this width on half as many fill a CPU's caches."""
FACTS_BYTES = 160
IN_MEMORY_BYTES = 2**31

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class View:
    """How an image is seen: the plain view, or a random crop that its own bytes determine."""

    name: str
    transform: EvalTransform
    crop: CropTransform | None = None

    def pixels(self, image: Any, sha256: str) -> Pixels:  # noqa: ANN401 - a PIL image
        """What the model is shown: uint8 (S, S, 3)."""
        if self.crop is None:
            return self.transform.pixels(image)
        return self.crop.pixels(image, key=f"{self.name}/{sha256}")

    @property
    def settings(self) -> str:
        """Everything that decides the pixels, as text."""
        crop = None if self.crop is None else str(self.crop)
        return json.dumps([self.transform.to_json(), crop])


def plain(transform: EvalTransform) -> View:
    """The view that validation and predict use."""
    return View("plain", transform)


def crops(transform: EvalTransform, crop: CropTransform, count: int, seed: int) -> list[View]:
    """`count` augmented views: random resized crop and flip, fixed by seed, view and image."""
    return [View(f"crop {seed} {k}", transform, crop) for k in range(count)]


@dataclass(slots=True)
class Looked:
    """One file on its way through a worker."""

    file: File
    found: CheckedFile | ImageError
    pixels: Pixels | None = None
    """Missing if the row was in the cache or the file is no image."""
    row: Any = None
    """What the prefix made of it, as stored."""


class Extractor:
    """The frozen prefix at work, with its cache.

    Args:
        prefix: What is computed; a copy in `precision` is made of it.
        folder: Of the cache; None keeps it in a temporary folder for this process.
        precision: `fp32` also decodes and resizes exactly as documented; `bf16` takes `fastview`.
        exact: Decode and resize as documented in every precision.
        max_pixels: Larger images are errors.
        workers: Threads, each with one core; default: as many as torch would use.
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
        self.workers = workers or torch.get_num_threads()
        self.max_pixels = max_pixels
        self.precision = precision
        self.is_exact = exact or precision == "fp32"
        self.space = {
            "vitft": VERSION,
            "prefix": prefix.digest(),
            "cut": "pooled" if prefix.pooled else f"after block {prefix.stop}",
            "precision": precision,
            "decoding": "exact" if self.is_exact else "fast",
            "with": versions("torch", "pillow", "simplejpeg"),
            "device": self.device.type,
        }
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="vitft-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.folder = folder
        facts = {"vitft": VERSION, "what": "facts of images"}
        self.facts = open_store(folder, facts, (FACTS_BYTES,), "uint8")
        self.stores: dict[str, Store] = {}
        self.computed = 0
        """Rows computed, not found, since the extractor was made."""

    def store(self, view: View) -> Store:
        """The rows of one view's settings."""
        if view.settings not in self.stores:
            space = {**self.space, "view": view.settings}
            dtype = "uint16" if self.precision == "bf16" else "float32"
            self.stores[view.settings] = open_store(self.folder, space, self.prefix.shape, dtype)
        return self.stores[view.settings]

    def examine(
        self, folder: Folder, view: View, *, allow_bad: bool, progress: Callable[[int], None]
    ) -> Checked:
        """Check every file of a folder and compute its row on the way, decoding it once.

        Raises:
            DataError: Too many files are unreadable, as `check_images` has it.
        """
        root = os.fspath(folder.root)
        good: list[CheckedFile] = []
        bad: list[tuple[str, str]] = []
        for looked in self.looked_at(root, folder.files, view, progress):
            if isinstance(looked.found, ImageError):
                bad.append((looked.found.path, looked.found.reason))
            else:
                good.append(looked.found)
        return judged(folder, good, bad, allow_bad=allow_bad)

    def compute(
        self, root: str, files: Sequence[File], view: View, *, progress: Callable[[int], None]
    ) -> None:
        """Make sure that the row of every file is there.

        Raises:
            ImageError: A file is no image any more.
        """
        for looked in self.looked_at(root, files, view, progress):
            if isinstance(looked.found, ImageError):
                raise looked.found

    def looked_at(
        self, root: str, files: Sequence[File], view: View, progress: Callable[[int], None]
    ) -> Iterator[Looked]:
        """Every file in order, its row kept; workers decode and, on a CPU, compute as well."""
        store, on_cpu = self.store(view), self.device.type == "cpu"
        size = batch_size(self.device.type, self.prefix.shape[-1])
        chunks = (files[i : i + size] for i in range(0, len(files), size))

        def work(chunk: Sequence[File]) -> list[Looked]:
            torch.set_num_threads(1)  # of this thread: one core decodes and computes
            batch = [self.look(root, file, view, store) for file in chunk]
            if on_cpu:
                self.forward(batch, view)
            return batch

        before = torch.get_num_threads()
        try:
            for batch in in_order(work, chunks, workers=self.workers, ahead=2 * self.workers):
                if not on_cpu:
                    self.forward(batch, view)
                for looked in batch:
                    self.keep(looked, view, store)
                    yield looked
                progress(len(batch))
        finally:
            torch.set_num_threads(before)
            store.flush()
            self.facts.flush()

    def look(self, root: str, file: File, view: View, store: Store) -> Looked:
        """Read and hash one file, and decode it unless everything about it is known."""
        try:
            data = read_bytes(f"{root}/{file.path}", max_pixels=self.max_pixels)
            sha256 = hashlib.sha256(data).hexdigest()
            facts = self.known(file, sha256)
            if facts is not None and store.get(key_of(sha256, view.name)) is not None:
                return Looked(file, facts)
            quick = self.quick_view(data, view)
            if quick is not None and named_like_jpeg(file.path):
                pixels, size = quick
                return Looked(
                    file, CheckedFile(file.path, file.label, file.part, sha256, *size), pixels
                )
            picture = decode(data, file.path, max_pixels=self.max_pixels)
        except ImageError as error:
            return Looked(file, ImageError(file.path, error.reason))
        found = CheckedFile(
            file.path, file.label, file.part, sha256, *picture.image.size, picture.odd
        )
        pixels = quick[0] if quick is not None else view.pixels(picture.image, sha256)
        return Looked(file, found, pixels)

    def quick_view(self, data: bytes, view: View) -> tuple[Pixels, Size] | None:
        """The plain view of a JPEG the fast way; None takes the documented one."""
        if self.is_exact or view.crop is not None:
            return None
        return fast_view(data, view.transform, max_pixels=self.max_pixels)

    def forward(self, batch: Iterable[Looked], view: View) -> None:
        """Run the prefix over those of a batch that have pixels."""
        missing = [looked for looked in batch if looked.pixels is not None]
        if not missing:
            return
        pixels = torch.from_numpy(np.stack([m.pixels for m in missing if m.pixels is not None]))
        outputs = run_prefix(self.prefix, view.transform.normalise(pixels.to(self.device))).cpu()
        bits = outputs.view(torch.uint16) if self.precision == "bf16" else outputs
        for looked, row in zip(missing, bits.numpy(), strict=True):
            looked.row, looked.pixels = row, None

    def keep(self, looked: Looked, view: View, store: Store) -> None:
        """Put what was computed into the cache."""
        if looked.row is None or isinstance(looked.found, ImageError):
            return
        self.computed += 1
        found = looked.found
        store.add(key_of(found.sha256, view.name), looked.row)
        text = json.dumps([found.width, found.height, found.odd]).encode()
        if len(text) <= FACTS_BYTES:
            row = np.frombuffer(text.ljust(FACTS_BYTES), dtype=np.uint8)
            self.facts.add(facts_key(found.path, found.sha256), row)

    def known(self, file: File, sha256: str) -> CheckedFile | None:
        """What an earlier pass found out about an image with these bytes and this suffix."""
        row = self.facts.get(facts_key(file.path, sha256))
        if row is None:
            return None
        width, height, odd = json.loads(row.tobytes())
        if width * height > self.max_pixels:
            return None
        return CheckedFile(file.path, file.label, file.part, sha256, width, height, tuple(odd))

    def rows(self, digests: Sequence[str], view: View) -> Tensor:
        """The stored rows of images, in float32 on the CPU: (n, D) or (n, N, D).

        Beyond 2 GB the result lies in a file that is mapped, not in memory.

        Raises:
            DataError: A row is not there: its image changed, or the cache was damaged, meanwhile.
        """
        store, shape = self.store(view), (len(digests), *self.prefix.shape)
        if 4 * np.prod(shape, dtype=np.int64) <= IN_MEMORY_BYTES:
            table: Any = np.empty(shape, np.float32)
        else:
            file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 - lives with the map
            table = np.memmap(file, np.float32, "w+", shape=shape)
        for i, digest in enumerate(digests):
            row = store.get(key_of(digest, view.name))
            if row is None:
                raise DataError(
                    f"the features of an image (sha256 {digest[:12]}...) are gone",
                    fix="an image or the cache changed during the run: start it again",
                )
            table[i] = as_float(row)
        return torch.from_numpy(table)


def batch_size(device: str, width: int) -> int:
    """Images per forward pass of a model whose tokens have `width` numbers."""
    return WIDE_BATCH if device == "cpu" and width >= WIDE else BATCH[device]


def named_like_jpeg(path: str) -> bool:
    """Whether the name promises what the bytes are; if not, a remark has to be made."""
    return path.lower().endswith((".jpg", ".jpeg"))


def versions(*names: str) -> str:
    """Of the libraries that decide the pixels and the last bits."""
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def as_float(row: Any) -> Any:  # noqa: ANN401 - numpy arrays of the stored type
    """A stored row as float32; bf16 is the upper half of a float32's bits."""
    if row.dtype == np.uint16:
        return (row.astype(np.uint32) << 16).view(np.float32)
    return row


def facts_key(path: str, sha256: str) -> bytes:
    """Facts depend on the bytes and, for the remark on a wrong one, on the suffix."""
    return key_of(sha256, Path(path).suffix.lower())


def gone(error: ImageError) -> DataError:
    """The error of a file that was an image when the run began."""
    return DataError(
        f"{error.path} was deleted or replaced during the run ({error.reason})",
        fix="put the file back, or start again without it",
    )


def make_extractor(
    cut: Cut, config: Config, transform: EvalTransform, precision: str
) -> Extractor | None:
    """The frozen prefix at work with its cache; None if nothing is frozen."""
    if cut.prefix is None:
        return None
    named = config.train.cache
    make = functools.partial(
        Extractor,
        cut.prefix,
        precision=precision,
        max_pixels=config.data.max_pixels,
        exact=config.train.exact_pixels,
    )
    if named == "none":
        return make(folder=None)
    try:
        extractor = make(folder=Path(named).expanduser() if named else default_folder())
        extractor.store(plain(transform))  # here and now, not after an hour
        return extractor
    except (RunError, ResourceError) as error:
        if named:
            raise
        log.warning(f"features are not kept: {error.problem}")
        return make(folder=None)
