"""The sketches of a folder's images: each file read and checked once, what was seen kept by digest.

A second look at the same files reads their bytes and decodes nothing.
"""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from vitft.data.fingerprint import SKETCH_BYTES, sketch_of
from vitft.data.folder import Checked, CheckedFile, File, Folder, judged
from vitft.data.images import decode, read_bytes
from vitft.data.loading import in_order
from vitft.features.cache import Store, default_folder, key_of, open_store
from vitft.system.errors import ImageError, ResourceError, RunError

log = logging.getLogger(__name__)

VERSION = "1"
"""Part of the key: raised when the same picture begins to give another sketch."""
FACTS_BYTES = 160
"""Beside each sketch lie width, height and remarks as JSON, filled up with blanks."""

CORRUPT, DAMAGED = "Corrupt JPEG data: ", "damaged inside: part of the picture may be wrong"

Row = np.ndarray[Any, np.dtype[np.uint8]]
Seen = tuple[CheckedFile, Row] | ImageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketched:
    """A checked folder and the sketch of each of its pictures."""

    checked: Checked
    sketches: dict[str, Row]
    """By the sha256 of the file."""


def sketched(
    folder: Folder,
    *,
    cache: str,
    max_pixels: int,
    workers: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Sketched:
    """Read, hash and decode every file of a folder; however many are bad, the others are told.

    Args:
        folder: What `scan` found.
        cache: Folder of kept rows; empty for the usual one, `none` to keep nothing.
        max_pixels: Larger images are bad.
        workers: Threads.
        progress: Called with the number of files that were done since the last call.
    """
    store = sketch_store(cache)
    root = os.fspath(folder.root)
    good: list[CheckedFile] = []
    bad: list[tuple[str, str]] = []
    sketches: dict[str, Row] = {}
    results = in_order(
        lambda file: look(root, file, store, max_pixels), folder.files, workers=workers
    )
    with contextlib.closing(results):
        for seen in results:
            if isinstance(seen, ImageError):
                bad.append((seen.path, seen.reason))
            else:
                file, sketch = seen
                good.append(file)
                sketches.setdefault(file.sha256, sketch)
                keep(store, file, sketch)
            progress(1)
    if store is not None:
        store.flush()
    return Sketched(checked=judged(folder, good, bad, allow_bad=True), sketches=sketches)


def sketch_store(cache: str) -> Store | None:
    """Where sketches are kept; None if nowhere, which is said if it was not asked for."""
    if cache == "none":
        return None
    space = {"vitft": VERSION, "what": "sketches of images"}
    try:
        folder = Path(cache).expanduser() if cache else default_folder()
        return open_store(folder, space, (FACTS_BYTES + SKETCH_BYTES,), "uint8")
    except (RunError, ResourceError) as error:
        if cache:
            raise
        log.warning(f"sketches are not kept: {error.problem}")
        return None


def look(root: str, file: File, store: Store | None, max_pixels: int) -> Seen:
    """One file and its sketch, from the cache if its bytes were seen before."""
    try:
        data = read_bytes(f"{root}/{file.path}", max_pixels=max_pixels)
        sha256 = hashlib.sha256(data).hexdigest()
        known = None if store is None else store.get(row_key(file.path, sha256))
        if known is not None:
            width, height, odd = json.loads(known[:FACTS_BYTES].tobytes())
            if width * height <= max_pixels:
                seen = CheckedFile(
                    file.path, file.label, file.part, sha256, width, height, tuple(odd)
                )
                return seen, np.array(known[FACTS_BYTES:])
        picture = decode(data, file.path, max_pixels=max_pixels)
    except ImageError as error:
        return ImageError(file.path, error.reason)  # a fresh one: tracebacks keep the bytes alive
    odd = (*picture.odd, *hidden_damage(data))
    seen = CheckedFile(file.path, file.label, file.part, sha256, *picture.image.size, odd)
    return seen, sketch_of(picture.image)


def hidden_damage(data: bytes) -> tuple[str, ...]:
    """What the decoder stumbled over in a JPEG that Pillow shows without a word.

    Of 2,000 real photos none is concerned; of files with a stretch of zeros inside every one.
    """
    if not data.startswith(b"\xff\xd8\xff"):
        return ()
    try:
        simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, strict=True)
    except ValueError as error:
        _, is_damage, what = str(error).partition(CORRUPT)
        return (f"{DAMAGED} ({what[:60]})",) if is_damage and "ICC" not in what else ()
    return ()


def keep(store: Store | None, file: CheckedFile, sketch: Row) -> None:
    """Put a sketch into the cache unless it lies there."""
    key = row_key(file.path, file.sha256)
    text = json.dumps([file.width, file.height, file.odd]).encode()
    if store is not None and len(text) <= FACTS_BYTES and store.get(key) is None:
        facts = np.frombuffer(text.ljust(FACTS_BYTES), dtype=np.uint8)
        store.add(key, np.concatenate([facts, sketch]))


def row_key(path: str, sha256: str) -> bytes:
    """Remarks depend on the bytes and, for one on a wrong name, on the suffix."""
    return key_of(sha256, Path(path).suffix.lower())


def table_of(sketches: dict[str, Row], digests: Sequence[str]) -> Row:
    """The sketches of some pictures, (n, SKETCH_BYTES)."""
    if not digests:
        return np.empty((0, SKETCH_BYTES), np.uint8)
    return np.stack([sketches[digest] for digest in digests])


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
