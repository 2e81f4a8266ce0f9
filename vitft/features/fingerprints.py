"""Facts (size and remarks) and perceptual fingerprints of images, cached as fixed-size rows.

A row of facts contains the width, the height and the remarks as JSON, padded with spaces. Its key
depends on the digest and the suffix of the file, because one of the remarks reports a wrong suffix.
A second pass over the same files reads their bytes but decodes nothing. This module does not import
torch.
"""

import contextlib
import functools
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from vitft.data.duplicates import (
    FINGERPRINT_BYTES,
    IndexPair,
    copies_among,
    fingerprint_of,
    group_names,
    near_pairs,
)
from vitft.data.image_table import Images, Row
from vitft.data.images import GreyRange
from vitft.data.inspection import OpenedImage, collect, in_order, inspect_file
from vitft.features.cache import Store, default_folder, key_of
from vitft.system.cores import usable_cores
from vitft.system.errors import ImageError, ResourceError, RunError
from vitft.system.structure import AtLeastOne, parse_json, structured

log = logging.getLogger(__name__)

FACTS_BYTES = 160
FactsRow = np.ndarray[Any, np.dtype[np.uint8]]


def facts_key(path: str, sha256: str) -> bytes:
    """Return the cache key of a file's facts."""
    return key_of(sha256, Path(path).suffix.lower())


def encode_facts(file: Row) -> FactsRow | None:
    """Return the facts as a row (FACTS_BYTES,), or None if they do not fit."""
    text = json.dumps([file.width, file.height, file.odd]).encode()
    if len(text) > FACTS_BYTES:
        return None
    return np.frombuffer(text.ljust(FACTS_BYTES), dtype=np.uint8)


def decode_facts(row: FactsRow, opened: OpenedImage) -> Row | None:
    """Return the facts in a row, or None if they are damaged or the image has too many pixels."""
    try:
        width, height, odd = structured(
            parse_json(row[:FACTS_BYTES].tobytes()), tuple[AtLeastOne, AtLeastOne, tuple[str, ...]]
        )
    except ValueError:
        return None
    if width * height > opened.max_pixels:
        return None
    return opened.file._replace(sha256=opened.sha256, width=width, height=height, odd=odd)


class Fingerprints:
    """Fingerprints of the images in a pass; workers call `inspect`, and their collector `add`.

    `cache` is a folder, empty for the default one, or `none`.
    """

    def __init__(self, cache: str, grey_range: GreyRange = ()) -> None:
        self.grey_range = grey_range
        self.by_digest: dict[str, FactsRow] = {}  # fingerprints by file digest
        self.store: Store | None = None  # None without a cache or a usable default folder
        if cache == "none":
            return
        space = {"vitft": "2", "what": "sketches of images"}  # version, incremented if rows change
        if grey_range:
            space["grey_range"] = str(grey_range)
        try:
            folder = Path(cache).expanduser() if cache else default_folder()
            self.store = Store(folder, space, (FACTS_BYTES + FINGERPRINT_BYTES,), "uint8")
        except (RunError, ResourceError) as error:
            if cache:
                raise
            log.warning(f"fingerprints are not cached: {error.problem}")

    def inspect(self, opened: OpenedImage) -> tuple[Row, FactsRow]:
        """Return the facts and fingerprint of an image, decoding it only if they are not cached."""
        if self.store is not None:
            known = self.store.get(facts_key(opened.file.path, opened.sha256))
            if known is not None and (facts := decode_facts(known, opened)) is not None:
                return facts, np.array(known[FACTS_BYTES:])
        facts = opened.facts()
        if opened.jpeg is None:  # otherwise, simplejpeg has decoded it strictly
            facts = facts._replace(odd=(*facts.odd, *_hidden_damage(opened.data)))
        return facts, fingerprint_of(opened.image)

    def add(self, file: Row, fingerprint: FactsRow) -> None:
        """Add a fingerprint to `by_digest` and, if missing, to the cache."""
        self.by_digest.setdefault(file.sha256, fingerprint)
        key, facts = facts_key(file.path, file.sha256), encode_facts(file)
        if self.store is not None and facts is not None and self.store.get(key) is None:
            self.store.add({key: np.concatenate([facts, fingerprint])})

    def merge(self, files: Sequence[Row], shards: Sequence[Mapping[str, FactsRow]]) -> None:
        """Add the fingerprints from all shards of a folder, in the order of its readable files."""
        found = {digest: row for shard in shards for digest, row in shard.items()}
        self.by_digest = {file.sha256: found[file.sha256] for file in files}

    def flush(self) -> None:
        """Write pending rows to the cache."""
        if self.store is not None:
            self.store.flush()

    def table(self, digests: Sequence[str]) -> FactsRow:
        """Return the fingerprints (n, FINGERPRINT_BYTES) of the images with the given digests."""
        if not digests:
            return np.empty((0, FINGERPRINT_BYTES), np.uint8)
        return np.stack([self.by_digest[digest] for digest in digests])

    def duplicate_groups(self, similar: Sequence[IndexPair] = ()) -> dict[str, str]:
        """Map digests of near-duplicates to groups; also compare `similar` pairs of indices."""
        digests = list(self.by_digest)
        table = self.table(digests)
        pairs = {*near_pairs(table), *copies_among(table, similar)}
        return group_names(digests, sorted(pairs))


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

    def added(result: tuple[Row, FactsRow] | ImageError) -> Row | ImageError:
        if isinstance(result, ImageError):
            return result
        fingerprints.add(*result)
        return result[0]

    with contextlib.closing(in_order(inspect, folder.rows, workers=usable_cores())) as results:
        inspected = collect(folder, map(added, results), allow_bad=allow_bad, progress=progress)
    fingerprints.flush()
    return inspected


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
