"""Public image archives that `vitft data fetch` knows by name.

Sizes and digests are included only if a trustworthy source publishes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """An archive that contains an image folder."""

    name: str  # also used as the folder's name
    url: str
    size: int | None = None  # in bytes; None if unknown
    sha256: str = ""  # digest of the archive; empty if unknown
    what: str = ""
    licence: str = ""


KNOWN_ARCHIVES: Mapping[str, Archive] = {
    "flower_photos": Archive(
        name="flower_photos",
        url="https://storage.googleapis.com/download.tensorflow.org/example_images/flower_photos.tgz",
        # Source of size and sha256: TensorFlow Datasets (tf_flowers, checksums.tsv).
        size=228_813_984,
        sha256="4c54ace7911aaffe13a365c34f650e71dd5bf1be0a58b464e5a7183e3e595d9c",
        what="3,670 photos of five kinds of flower",
        licence="CC BY 2.0 (the photographers are listed in LICENSE.txt)",
    ),
}
