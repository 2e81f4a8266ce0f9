"""Recognition of images that a run has already used for training or validation.

An identical image is recognised by its digest, and a near-duplicate by its fingerprint, even if it
was mirrored or rotated but has the same label. If the fingerprint of a training image is not known,
an image with the same path is assumed to be the same image. Does not import torch.
"""

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from vitft.config.run import Config, checked_run_config
from vitft.data.arrays import data_path
from vitft.data.class_changes import change_classes
from vitft.data.duplicates import KnownImages, fingerprint_of, turned
from vitft.data.fixes import open_table, read_decisions
from vitft.data.image_table import Images, Row
from vitft.data.images import GreyRange, decode, read_bytes
from vitft.data.table import base_folder, is_table
from vitft.features.fingerprints import Fingerprints, fingerprint_folder
from vitft.system import console
from vitft.system.errors import DataError, ImageError, RunError
from vitft.system.rundir import RunDir

log = logging.getLogger(__name__)


_TRAINED_NOTE = "training image of this model"
_COPY_NOTE = "copy of a training image of this model"
PATH_NOTE = "same path as a training image of this model"
"""Note on an image that has the path of a training image with an unknown fingerprint."""
_GROUP_NOTE = "same group as training images of this model"
"""Note on a new image of a group (patient, video, camera) that was used for training."""
LEFT_OUT = {
    "trained": (_TRAINED_NOTE, "used to train the model"),
    "trained_copies": (_COPY_NOTE, "nearly identical to training images"),
    "trained_paths": (
        PATH_NOTE,
        "same paths as training images, and the contents could not be compared",
    ),
    "trained_groups": (_GROUP_NOTE, "in the same groups as training images"),
}
"""Notes on images that are left out, by their number in eval.json, and what they have in common."""
_MAX_COMPARED = 50_000
"""Maximum number of images of a run for which fingerprints are compared, to limit time and memory.
If a run has more images, no near-duplicates are recognised."""


class RunImages:
    """The training and validation images of a run, by their digests."""

    def __init__(self, folder: Path, manifest: Images, grey_range: GreyRange) -> None:
        rows = (*manifest.val, *manifest.train)  # training rows take precedence
        config = checked_run_config(folder) if os.path.lexists(folder / "config.toml") else None
        found = _read_fingerprints(config, manifest, rows, grey_range)
        self.splits = {row.sha256: row.split for row in rows}
        self.labels = {  # none of multi-label data
            (row.sha256, manifest.classes[row.label]) for row in rows if not manifest.labels
        }
        self.groups = {row.sha256: row.group for row in rows if row.group}
        self.group_by = config.data.group_by if config else ""
        self.train_groups = {row.group for row in manifest.train if row.group}
        self.unread = {row.path for row in manifest.train if row.sha256 not in found.by_digest}
        self.known_digests = [digest for digest in self.splits if digest in found.by_digest]
        self.known = KnownImages(found.table(self.known_digests))
        self.grey_range = grey_range

    @classmethod
    def read(cls, folder: Path, split: str, grey_range: GreyRange = ()) -> Self | None:
        """Read the images of a run directory, or return None if split.csv does not exist.

        `split` is the digest of the manifest with which the model was trained. Without the grey
        range of its transform, copies of images with more than 8 bits may not be recognised.

        Raises:
            RunError: The file split.csv belongs to another model, or a file is damaged.
        """
        path = RunDir(folder).split
        if not os.path.lexists(path):
            return None
        manifest = Images.from_csv(path, folder)
        if hashlib.sha256(path.read_bytes()).hexdigest() != split:
            raise RunError(
                f"{path} is not the split with which the model was trained",
                fix="restore the original file, or evaluate a copy of the model in another folder",
            )
        return cls(folder, manifest, grey_range)

    def has_other_label(self, sha256: str, label: str) -> bool:
        """Return whether a training image, given its digest, was trained with a different label."""
        is_trained = self.splits.get(sha256) == "train"
        return is_trained and bool(self.labels) and (sha256, label) not in self.labels

    def group_of(self, path: str, sha256: str) -> str:
        """Return an image's group in the run, or the one that `data.group_by` finds in its path."""
        match = re.search(self.group_by, path) if self.group_by else None
        return self.groups.get(sha256, "") or ((match[1] or "") if match else "")

    def recognise(self, path: str, content: bytes, label: str, group: str) -> tuple[str, str]:
        """Return the split of the run that has an image, and the note on it if it is left out.

        The split is `train`, `val` or "". `group` is the name of the image's group, or "".

        Raises:
            ImageError: The bytes must be decoded for a comparison, but are not a complete image in
                a supported format.
        """
        exact = self.splits.get(hashlib.sha256(content).hexdigest(), "")
        if exact:
            return exact, _TRAINED_NOTE if exact == "train" else ""
        near: set[str] = set()
        if self.known_digests:
            image = decode(content, path, grey_range=self.grey_range).image
            for turn, fingerprint in enumerate(turned(fingerprint_of(image))):
                for i in self.known.copies_of(fingerprint):
                    digest = self.known_digests[i]
                    # an arrow to the left does not copy one to the right
                    if turn == 0 or not self.labels or (digest, label) in self.labels:
                        near.add(self.splits[digest])
        if "train" in near:
            return "train", _COPY_NOTE
        if path in self.unread:
            return "train", PATH_NOTE
        if group in self.train_groups:
            return "train", _GROUP_NOTE
        return "val" if near else "", ""


def _read_fingerprints(
    config: Config | None, manifest: Images, rows: tuple[Row, ...], grey_range: GreyRange
) -> Fingerprints:
    """Return the fingerprints of the run's images, up to `_MAX_COMPARED`, that are still there."""
    if config is None:
        return Fingerprints("none")
    if len(rows) > _MAX_COMPARED:
        log.warning(
            f"near-duplicates of training images are not recognised: the run has {len(rows):,} "
            f"images, more than {_MAX_COMPARED:,}"
        )
        return Fingerprints("none")
    root = base_folder(data_path(config.data.path, config.data.root), config.data.root)
    images = Images(
        root=root,
        classes=manifest.classes,
        rows=rows,
    )
    found = Fingerprints(config.train.cache, grey_range)
    with console.Progress("reading the run's images", len(rows)) as progress:
        fingerprint_folder(
            images, found, max_pixels=config.data.max_pixels, progress=progress.advance
        )
    return found


# labels of images for evaluation, changed as the run changed those of its own images --------------

_MAX_COMPARED_FILES = 20
"""Maximum number of files that are read to find out whether data is that of a run."""


def as_in_run(data: Images, folder: Path, known: Sequence[str]) -> Images:
    """Return the data with the class changes and the fixes of the run in `folder`, if any.

    `known` lists the classes of the model. Multi-label data is returned unchanged, and so is all
    data if the folder contains no config.toml.

    Raises:
        RunError: The file config.toml or split.csv of the run is damaged.
        DataError: A table is invalid, or the fixes leave out all images.
    """
    if data.labels or not (folder / "config.toml").is_file():
        return data
    config = checked_run_config(folder)
    changed_classes = Path(config.data.classes)
    if not {*data.classes} <= {*known} and changed_classes.is_file():
        changed = change_classes(data, changed_classes, evaluated=True)
        if changed.classes != data.classes:
            log.info(f"applied the class changes of the run: {changed.notes[-1]}")
            data = changed
    if not config.data.fixes or not _is_own_data(data, config, folder):
        return data
    classes = tuple(dict.fromkeys([*known, *data.classes]))
    try:
        table, _ = open_table(Path(config.data.fixes), config.data.fixes_digest)
        found = read_decisions(table, data, classes)
    except DataError as error:
        log.warning(f"the fixes of the run are not applied: {error.problem}")
        return data
    left = {name for name in found.names if name is not None}
    if not left:
        raise DataError(
            f"the fixes of the run leave out all images in {data.source}",
            fix="evaluate other images",
        )
    log.info(f"applied the fixes of the run ({config.data.fixes}): {found.summary}")
    return replace(data.relabelled(found.names, {*data.classes} & {*known} | left), bad=found.bad)


def _is_own_data(data: Images, config: Config, folder: Path) -> bool:
    """Return whether most of the data are images of the run under the same paths.

    The run's data may have been moved or copied, so a sample of the files is compared. Another
    table than that of the run states labels of its own.
    """
    split = RunDir(folder).split
    if not os.path.lexists(split):
        return False
    table = data_path(data.source) if isinstance(data.source, str) else data.source
    if is_table(table) and table.resolve() != data_path(config.data.path).resolve():
        return False
    digests = {row.path: row.sha256 for row in Images.from_csv(split, folder).rows}
    sample = data.rows[:: max(1, len(data.rows) // _MAX_COMPARED_FILES)]
    same = 0
    for row in sample:
        with contextlib.suppress(ImageError):
            content = read_bytes(data.locate(row)) if row.path in digests else b""
            same += hashlib.sha256(content).hexdigest() == digests.get(row.path)
    return same > len(sample) / 2
