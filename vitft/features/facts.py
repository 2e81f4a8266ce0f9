"""Facts of inspected files as fixed-size rows of a cache.

A row holds width, height and remarks as JSON, padded with blanks. Its key is made of the file's
digest and its suffix, because a remark may say that the suffix is wrong.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from vitft.data.folder import File
from vitft.data.inspection import InspectedFile
from vitft.features.cache import key_of

FACTS_BYTES = 160

FactsRow = np.ndarray[Any, np.dtype[np.uint8]]


def facts_key(path: str, sha256: str) -> bytes:
    """Return the cache key of a file's facts."""
    return key_of(sha256, Path(path).suffix.lower())


def encode_facts(file: InspectedFile) -> FactsRow | None:
    """Return the facts as a row (FACTS_BYTES,), or None if they are too long for one."""
    text = json.dumps([file.width, file.height, file.odd]).encode()
    if len(text) > FACTS_BYTES:
        return None
    return np.frombuffer(text.ljust(FACTS_BYTES), dtype=np.uint8)


def decode_facts(
    row: FactsRow, file: File, sha256: str, *, max_pixels: int
) -> InspectedFile | None:
    """Return the facts in a row, or None if the image has more pixels than allowed."""
    width, height, odd = json.loads(row[:FACTS_BYTES].tobytes())
    if width * height > max_pixels:
        return None
    return InspectedFile(file.path, file.label, file.part, sha256, width, height, tuple(odd))
