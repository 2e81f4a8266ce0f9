"""The picture files of a folder that is to be labelled. Does not import torch."""

import hashlib
import os
from pathlib import Path

from vitft.data.image_table import Images, Row
from vitft.data.mistaken import check_is_folder
from vitft.data.walk import Walk, by_suffix, unused_files, unused_notes
from vitft.system.errors import DataError
from vitft.system.text import count

_MOST_PICTURES = 50_000
"""Maximum number of files that are used; if there are more, a random subset is used."""


def find_pictures(root: Path) -> Images:
    """Return the image files in and below a folder, without opening them.

    Raises:
        DataError: The folder is missing, cannot be read or contains no images.
    """
    check_is_folder(root)
    walk = Walk(os.fspath(root))
    paths = [*walk.images()]
    walk.raise_if_refused()
    if not paths:
        content = by_suffix(unused_files(walk.unused()))
        raise DataError(
            f"no images in {root}{f', which contains {content}' if content else ''}",
            fix="use a folder with .jpg, .png or .webp files",
        )
    notes = unused_notes(walk.unused())
    if len(paths) > _MOST_PICTURES:
        notes.append(f"using {_MOST_PICTURES:,} of {count(len(paths), 'image')}, drawn at random")
        paths.sort(key=lambda path: hashlib.sha256(os.fsencode(path)).digest())  # a random order
        paths = sorted(paths[:_MOST_PICTURES])
    return Images(
        root=root,
        classes=(),
        rows=[Row(path, 0) for path in paths],
        bad=tuple(walk.bad),
        notes=tuple(notes),
    )
