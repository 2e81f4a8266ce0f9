"""Perceptual fingerprints of a folder's images, cached by content digest.

A second pass over the same files reads their bytes and decodes nothing. Does not import torch.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import simplejpeg

from vitft.data.duplicates import group_names, near_pairs
from vitft.data.fingerprint import FINGERPRINT_BYTES, fingerprint_of
from vitft.data.folder import Folder
from vitft.data.inspection import (
    InspectedFile,
    InspectedFolder,
    OpenedImage,
    collect,
    inspect_files,
)
from vitft.features.cache import Store, default_folder, open_store
from vitft.features.facts import FACTS_BYTES, FactsRow, decode_facts, encode_facts, facts_key
from vitft.system.errors import ImageError, ResourceError, RunError

log = logging.getLogger(__name__)

FINGERPRINT_VERSION = "1"
"""Part of the key: raised when the same image begins to give another fingerprint."""
CORRUPT, DAMAGED = "Corrupt JPEG data: ", "damaged inside: part of the picture may be wrong"


class Fingerprints:
    """Fingerprints of the images that a pass over a folder inspects.

    `inspect` is called in the workers, `add` in order in the thread that consumes their results.

    Args:
        cache: Folder of cached rows; empty for the default one, `none` to keep nothing.
    """

    def __init__(self, cache: str) -> None:
        self.store = fingerprint_store(cache)
        self.by_digest: dict[str, FactsRow] = {}
        """Fingerprints (FINGERPRINT_BYTES,) by the digest of the file."""

    def inspect(self, opened: OpenedImage) -> tuple[InspectedFile, FactsRow]:
        """Return facts and fingerprint of an image, decoding it only if they are not cached.

        Raises:
            ImageError: The bytes are not a complete image of a supported format.
        """
        if self.store is not None:
            known = self.store.get(facts_key(opened.file.path, opened.sha256))
            if known is not None:
                facts = decode_facts(
                    known, opened.file, opened.sha256, max_pixels=opened.max_pixels
                )
                if facts is not None:
                    return facts, np.array(known[FACTS_BYTES:])
        facts = opened.facts()
        if opened.jpeg is None:  # else it has been decoded strictly already
            facts = replace(facts, odd=(*facts.odd, *hidden_damage(opened.data)))
        return facts, fingerprint_of(opened.image)

    def add(self, file: InspectedFile, fingerprint: FactsRow) -> None:
        """Keep a fingerprint, also in the cache unless it is there."""
        self.by_digest.setdefault(file.sha256, fingerprint)
        key, facts = facts_key(file.path, file.sha256), encode_facts(file)
        if self.store is not None and facts is not None and self.store.get(key) is None:
            self.store.add(key, np.concatenate([facts, fingerprint]))

    def flush(self) -> None:
        """Write what is not in the cache yet."""
        if self.store is not None:
            self.store.flush()

    def table(self, digests: Sequence[str]) -> FactsRow:
        """Return the fingerprints of some images, (n, FINGERPRINT_BYTES)."""
        if not digests:
            return np.empty((0, FINGERPRINT_BYTES), np.uint8)
        return np.stack([self.by_digest[digest] for digest in digests])

    def duplicate_groups(self) -> dict[str, str]:
        """Return the group name of every digest whose image is a near-duplicate of another."""
        digests = list(self.by_digest)
        return group_names(digests, near_pairs(self.table(digests)))


def fingerprint_folder(
    folder: Folder,
    fingerprints: Fingerprints,
    *,
    max_pixels: int,
    allow_bad: bool = True,
    progress: Callable[[int], None] = lambda _: None,
) -> InspectedFolder:
    """Inspect every file of a folder and add its fingerprint.

    Args:
        folder: As returned by `scan`.
        fingerprints: Added to.
        max_pixels: Larger images are unreadable.
        allow_bad: Accept any number of unreadable files.
        progress: Called with the number of files done since the last call.

    Raises:
        DataError: Too many files are unreadable, see `inspection.inspect_folder`.
    """
    results = inspect_files(
        os.fspath(folder.root),
        folder.files,
        fingerprints.inspect,
        max_pixels=max_pixels,
        workers=usable_cores(),
    )

    def added(result: tuple[InspectedFile, FactsRow] | ImageError) -> InspectedFile | ImageError:
        if isinstance(result, ImageError):
            return result
        fingerprints.add(*result)
        return result[0]

    with contextlib.closing(results):
        inspected = collect(folder, map(added, results), allow_bad=allow_bad, progress=progress)
    fingerprints.flush()
    return inspected


def fingerprint_store(cache: str) -> Store | None:
    """Return the store of fingerprints; None, with a warning, if the default one is unusable."""
    if cache == "none":
        return None
    space = {"vitft": FINGERPRINT_VERSION, "what": "sketches of images"}
    try:
        folder = Path(cache).expanduser() if cache else default_folder()
        return open_store(folder, space, (FACTS_BYTES + FINGERPRINT_BYTES,), "uint8")
    except (RunError, ResourceError) as error:
        if cache:
            raise
        log.warning(f"fingerprints are not cached: {error.problem}")
        return None


def hidden_damage(data: bytes) -> tuple[str, ...]:
    """Return a remark on corrupt data inside a JPEG that Pillow decodes without an error.

    Of 2,000 real photos none is affected; of files with a stretch of zeros inside every one is.
    """
    if not data.startswith(b"\xff\xd8\xff"):
        return ()
    try:
        simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, strict=True)
    except ValueError as error:
        _, is_damage, what = str(error).partition(CORRUPT)
        return (f"{DAMAGED} ({what[:60]})",) if is_damage and "ICC" not in what else ()
    return ()


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
