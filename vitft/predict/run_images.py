"""Images to evaluate that a run has already used, and the labels that the run gave such images.

An identical image is recognised by its digest, and a near-duplicate by its fingerprint, even if it
was mirrored or rotated but has the same label. If the fingerprint of a training image is not known,
an image with the same path is assumed to be the same image. Does not import torch.
"""

import contextlib
import hashlib
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from vitft.config.run import checked_run_config
from vitft.data.arrays import data_path
from vitft.data.duplicates import KnownImages, fingerprint_of, turned
from vitft.data.fixes import read_decisions
from vitft.data.image_table import Images, Row
from vitft.data.images import GreyRange, decode, read_bytes
from vitft.data.scan import change_classes
from vitft.data.table import base_folder, is_table
from vitft.features.fingerprints import Fingerprints, fingerprint_folder
from vitft.models.ancestry import WeightsImages, images_of_start
from vitft.models.card import sha256_of
from vitft.system import console
from vitft.system.errors import DataError, ImageError, RunError
from vitft.system.rundir import RunDir
from vitft.system.text import count

log = logging.getLogger(__name__)

_TRAINED_NOTE = "training image of this model"
_COPY_NOTE = "copy of a training image of this model"
_PATH_NOTE = "same path as a training image of this model"  # whose fingerprint is not known
_GROUP_NOTE = "same group as training images of this model"  # e.g. the same patient or video
LEFT_OUT = {
    "trained": (_TRAINED_NOTE, "used to train the model"),
    "trained_copies": (_COPY_NOTE, "nearly identical to training images"),
    "trained_paths": (_PATH_NOTE, "same paths as training images, contents not compared"),
    "trained_groups": (_GROUP_NOTE, "in the same groups as training images"),
}
"""Notes on images that are left out, by their number in eval.json, and what they have in common."""
_MAX_COMPARED = 50_000  # maximum number of images of a run whose near-duplicates are recognised
_MAX_COMPARED_FILES = 20  # files that are read to find out whether data is that of a run


def group_column(folder: Path) -> str:
    """Return the column of groups that the run in this folder was given, or ""."""
    return checked_run_config(folder).data.group if (folder / "config.toml").exists() else ""


class RunImages:
    """The settings and images of a run, as far as its folder has them.

    `split` is the digest of the manifest with which the model was trained.
    """

    def __init__(self, folder: Path, split: str) -> None:
        path = RunDir(folder).split
        has_settings = os.path.lexists(folder / "config.toml")
        self.config = checked_run_config(folder) if has_settings else None
        self.manifest = Images.from_csv(path, folder) if os.path.lexists(path) else None
        self.rows: Sequence[Row] = ()
        if self.manifest is not None:
            if sha256_of(path) != split:
                raise RunError(
                    f"{path} is not the split with which the model was trained",
                    fix="restore the original file, or evaluate a copy of the model in another "
                    "folder",
                )
            self.rows = (*self.manifest.val, *self.manifest.train)  # training rows take precedence
        self.seen = WeightsImages()  # that trained the initial weights or the teacher
        sources = list[Images]()
        if self.manifest is not None:
            sources.append(replace(self.manifest, rows=self.rows))
        if self.config is not None:
            data = self.config.data
            root = base_folder(data_path(data.path, data.root), data.root)
            classes = self.manifest.outputs.classes if self.manifest else ()
            weights, teacher = images_of_start(asdict(self.config), classes, later=(str(folder),))
            self.seen = weights | teacher
            sources = [*(replace(own, root=root) for own in sources), *self.seen.manifests]
        self.sources: Sequence[Images] = sources  # the training images, and validation images
        self.splits = {row.sha256: row.split for row in self.rows}
        self.splits |= dict.fromkeys(self.seen.digests, "train")
        self.labels: dict[str, set[str]] = {}  # by digest; none of multi-label data
        for images in sources:
            for row in () if images.labels else images.rows:
                self.labels.setdefault(row.sha256, set()).add(images.classes[row.label])
        self.groups = {row.sha256: row.group for row in self.rows if row.group}
        self.units = {row.sha256: row.kept_together for row in self.rows if row.kept_together}
        self.train_groups = {row.group for row in self.rows if row.group and row.split == "train"}
        self.unread = {row.path for row in self.rows if row.split == "train"}
        self.fingerprinted: list[str] = []  # digests of images with a known fingerprint

    def read_fingerprints(self, grey_range: GreyRange) -> None:
        """Read the fingerprints of the images that are still there, up to `_MAX_COMPARED`.

        Without the grey range of the model, copies of images with more than 8 bits may not be
        recognised.
        """
        self.grey_range, config = grey_range, self.config
        total, read = sum(len(images.rows) for images in self.sources), set[str]()
        why = "the run has no config.toml, which names their folder"
        if total > _MAX_COMPARED:
            why = f"the run has {total:,} images, more than {_MAX_COMPARED:,}"
        elif config is not None:
            found, why = Fingerprints(config.train.cache, grey_range), ""
            with console.Progress("reading the run's images", total) as progress:
                for images in self.sources:
                    fingerprint_folder(
                        images, found, max_pixels=config.data.max_pixels, progress=progress.advance
                    )
            read = {*found.by_digest}
            self.fingerprinted = [digest for digest in self.splits if digest in read]
            self.known = KnownImages(found.table(self.fingerprinted))
            self.unread -= {row.path for row in self.rows if row.sha256 in read}
        for images in self.sources:
            rows = images.where(images.column("split") == "train").rows
            if lost := {row.path for row in rows if row.sha256 not in read}:
                log.warning(
                    f"near-duplicates of {count(len(lost), 'training image')} are not recognised: "
                    f"{why or f'their files in {images.root} are missing or have changed'}"
                )

    def has_other_label(self, sha256: str, label: str) -> bool:
        """Return whether a training image, given its digest, was trained with a different label."""
        is_trained = self.splits.get(sha256) == "train"
        return is_trained and label not in self.labels.get(sha256, {label})

    def group_of(self, path: str, sha256: str) -> str:
        """Return an image's group in the run, or the one that `data.group_by` finds in its path."""
        if self.config is None or self.manifest is None:
            return ""
        find, known = self.config.data.group_in, self.groups.get(sha256, "")
        parts = path.split("/")  # the path may begin with folders that those of the run do not have
        ends = [find("/".join(parts[i:])) for i in range(len(parts))]
        return known or next((end for end in ends if end in self.train_groups), ends[0])

    def recognise(
        self, path: str, content: bytes, sha256: str, label: str, group: str
    ) -> tuple[str, str]:
        """Return the split of the run that has an image, and the note on it if it is left out.

        The split is `train`, `val` or "". `group` is the name of the image's group as the run
        defines groups, or "". Bytes that must be decoded may raise an ImageError.
        """
        exact = self.splits.get(sha256, "")
        if exact == "train":
            return exact, _TRAINED_NOTE
        near: set[str] = set()
        if self.fingerprinted:
            image = decode(content, path, grey_range=self.grey_range).image
            for turn, fingerprint in enumerate(turned(fingerprint_of(image))):
                for i in self.known.copies_of(fingerprint):
                    digest = self.fingerprinted[i]
                    # an arrow to the left does not copy one to the right
                    if turn == 0 or label in self.labels.get(digest, {label}):
                        near.add(self.splits[digest])
        if "train" in near:
            return "train", _COPY_NOTE
        if exact:
            return exact, ""
        if path in self.unread:
            return "train", _PATH_NOTE
        if group in self.train_groups:
            return "train", _GROUP_NOTE
        return "val" if near else "", ""

    def relabel(self, data: Images, known: Sequence[str]) -> Images:
        """Return labelled data with the class changes and the fixes of the run, if there are any.

        `known` lists the classes of the model. Multi-label data is returned unchanged.
        """
        if data.labels or self.config is None:
            return data
        spec, is_known = self.config.data, {*data.classes} <= {*known}
        if Path(spec.classes).is_file() and not data.reclassed:  # else, by a table of its own
            changed = change_classes(data, Path(spec.classes), evaluated=True)
            before, after = (
                {(r.path, d.classes[r.label]) for r in d.rows} for d in (data, changed)
            )
            if before != after and (not is_known or self.has_data(data)):
                log.info(f"applied the class changes of the run: {changed.notes[-1]}")
                data = changed
            elif before != after:
                log.warning(
                    f"the labels in {data.source} are classes of the model, but {spec.classes} "
                    "gave some of these names to other images. If your labels are older than that "
                    "table, change them as it does"
                )
        if not spec.fixes or not self.has_data(data):
            return data
        every = tuple(dict.fromkeys([*known, *data.classes]))
        try:
            found = read_decisions(spec, data, every)
        except DataError as error:
            log.warning(f"the fixes of the run are not applied: {error.problem}")
            return data
        left = {name for name in found.names if name is not None}
        log.info(f"applied the fixes of the run ({spec.fixes}): {found.summary}")
        classes = {*data.classes} & {*known} | left
        return replace(data.relabelled(found.names, classes), bad=found.bad)

    def has_data(self, data: Images) -> bool:
        """Return whether most of the data are images of the run under the same paths.

        The run's data may have been moved or copied, so a sample of the files is compared. Another
        table than that of the run states labels of its own.
        """
        if self.config is None or self.manifest is None:
            return False
        table = data_path(data.source) if isinstance(data.source, str) else data.source
        if is_table(table) and table.resolve() != data_path(self.config.data.path).resolve():
            return False
        digests = {row.path: row.sha256 for row in self.manifest.rows}
        sample, same = data.rows[:: max(1, len(data.rows) // _MAX_COMPARED_FILES)], 0
        for row in sample:
            with contextlib.suppress(ImageError):
                content = read_bytes(data.locate(row)) if row.path in digests else b""
                same += hashlib.sha256(content).hexdigest() == digests.get(row.path)
        return same > len(sample) / 2
