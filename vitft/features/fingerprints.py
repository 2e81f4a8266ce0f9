"""Facts (size, remarks and date) and perceptual fingerprints of images, cached as fixed-size rows.

A row starts with the width, the height, the remarks and the date as JSON, padded with spaces. Its
key depends on the digest and the suffix of the file: one of the remarks reports a wrong suffix.
A second pass over the same files reads their bytes but decodes nothing. This module does not import
torch.
"""

import contextlib
import functools
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from vitft.data.duplicates import (
    FINGERPRINT_BYTES,
    fingerprint_of,
    group_names,
    near_pairs,
)
from vitft.data.image_table import Images, Row
from vitft.data.images import GreyRange, OpenedImage, collect, in_order, inspect_file
from vitft.features.cache import Store, default_folder, key_of
from vitft.system.cores import usable_cores
from vitft.system.errors import ImageError, ResourceError, RunError
from vitft.system.structure import AtLeastOne, parse_json, structured

log = logging.getLogger(__name__)

_FACTS_BYTES = 160
Fingerprint = np.ndarray[Any, np.dtype[np.uint8]]


class Fingerprints:
    """Fingerprints of the images in a pass; workers call `inspect`, and their collector `add`.

    `cache` is a folder, empty for the default one, or `none`. With `only_facts`, the fingerprints
    are empty: the pass needs only the facts.
    """

    def __init__(self, cache: str, grey_range: GreyRange = (), *, only_facts: bool = False) -> None:
        self.grey_range, self.only_facts = grey_range, only_facts
        self.by_digest: dict[str, Fingerprint] = {}  # fingerprints by file digest
        self.store: Store | None = None  # None without a cache or a usable default folder
        if cache == "none":
            return
        # Versions are incremented if rows change
        space, size = {"vitft": "4", "what": "sketches of images"}, FINGERPRINT_BYTES
        if only_facts:
            space, size = {"vitft": "2", "what": "facts of images"}, 0
        elif grey_range:
            space["grey_range"] = str(grey_range)
        try:
            folder = Path(cache).expanduser() if cache else default_folder()
            self.store = Store(folder, space, (_FACTS_BYTES + size,), "uint8")
        except (RunError, ResourceError) as error:
            if cache:
                raise
            log.warning(f"fingerprints are not cached: {error.problem}")

    def inspect(self, opened: OpenedImage) -> tuple[Row, Fingerprint]:
        """Return the facts and fingerprint of an image, decoding it only if they are not cached."""
        file = opened.file._replace(sha256=opened.sha256)
        known = None if self.store is None else self.store.get(_key_of(file))
        if known is not None:
            with contextlib.suppress(ValueError):  # damaged
                width, height, odd, time = structured(
                    parse_json(known[:_FACTS_BYTES].tobytes()),
                    tuple[AtLeastOne, AtLeastOne, tuple[str, ...], datetime | None],
                )
                if width * height <= opened.max_pixels:
                    found = file._replace(width=width, height=height, odd=odd, time=time)
                    return found, np.array(known[_FACTS_BYTES:])
        found = opened.facts()
        if self.only_facts:
            return found, np.empty(0, np.uint8)
        if opened.jpeg is None:  # otherwise, simplejpeg has decoded it strictly
            found = found._replace(odd=(*found.odd, *_hidden_damage(opened.data)))
        return found, fingerprint_of(opened.image)

    def add(self, file: Row, fingerprint: Fingerprint) -> None:
        """Add a fingerprint to `by_digest` and, if missing, to the cache."""
        if not self.only_facts:
            self.by_digest.setdefault(file.sha256, fingerprint)
        key, time = _key_of(file), file.time and file.time.isoformat()
        facts = json.dumps([file.width, file.height, file.odd, time]).encode()
        fits = len(facts) <= _FACTS_BYTES
        if self.store is not None and fits and self.store.get(key) is None:
            padded = np.frombuffer(facts.ljust(_FACTS_BYTES), dtype=np.uint8)
            self.store.add({key: np.concatenate([padded, fingerprint])})

    def merge(self, files: Sequence[Row], shards: Sequence[Mapping[str, Fingerprint]]) -> None:
        """Add the fingerprints from all shards of a folder, in the order of its readable files."""
        found = {digest: row for shard in shards for digest, row in shard.items()}
        self.by_digest = {file.sha256: found[file.sha256] for file in files}

    def flush(self) -> None:
        """Write pending rows to the cache."""
        if self.store is not None:
            self.store.flush()

    def table(self, digests: Sequence[str]) -> Fingerprint:
        """Return the fingerprints (n, FINGERPRINT_BYTES) of the images with the given digests."""
        if not digests:
            return np.empty((0, FINGERPRINT_BYTES), np.uint8)
        return np.stack([self.by_digest[digest] for digest in digests])

    def duplicate_groups(self) -> dict[str, str]:
        """Map the digests of near-duplicates to groups."""
        digests = list(self.by_digest)
        return group_names(digests, near_pairs(self.table(digests)))


def fingerprint_folder(
    folder: Images,
    fingerprints: Fingerprints,
    *,
    max_pixels: int,
    allow_bad: bool = True,
    progress: Callable[[int], None] = lambda _: None,
) -> Images:
    """Inspect every file in a folder and add its fingerprint to `fingerprints`."""
    inspect = functools.partial(
        inspect_file,
        os.fspath(folder.root),
        function=fingerprints.inspect,
        max_pixels=max_pixels,
        grey_range=fingerprints.grey_range,
    )

    def added(result: tuple[Row, Fingerprint] | ImageError) -> Row | ImageError:
        if isinstance(result, ImageError):
            return result
        fingerprints.add(*result)
        return result[0]

    with contextlib.closing(in_order(inspect, folder.rows, workers=usable_cores())) as results:
        inspected = collect(folder, map(added, results), allow_bad=allow_bad, progress=progress)
    fingerprints.flush()
    return inspected


def _key_of(file: Row) -> bytes:
    return key_of(file.sha256, Path(file.path).suffix.lower())


def _hidden_damage(data: bytes) -> tuple[str, ...]:
    """Return a remark if a JPEG has corrupt data that Pillow decodes without an error."""
    if not data.startswith(b"\xff\xd8\xff"):
        return ()
    try:
        simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, strict=True)
    except ValueError as error:
        _, is_damage, what = str(error).partition("Corrupt JPEG data: ")
        if is_damage and "ICC" not in what:
            return (f"damaged JPEG data: part of the image may be wrong ({what[:60]})",)
    return ()
