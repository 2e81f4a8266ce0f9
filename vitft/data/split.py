"""Split of a data set into training and validation images, recorded in a manifest.

The images are split as in the reference script: `int(n * val_rate)` of the n sorted files of each
class are drawn for validation with a private random generator. The others are used for training, in
sorted order. In addition, the random split draws at least one image from each class with two or
more images, and keeps identical images on the same side. This module does not read images.

Source: WZMIAOMIAO/deep-learning-for-image-processing,
pytorch_classification/vision_transformer/utils.py, `read_split_data` since commit 9508fd2.
"""

import hashlib
import json
import logging
import os
import random
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Self, cast, get_args

from vitft.config.run import read_run_config
from vitft.config.sections import DataSpec
from vitft.data.duplicates import group_names
from vitft.data.folder import Folder
from vitft.data.inspection import InspectedFile, InspectedFolder
from vitft.data.table import TableReader, base_folder, encode_table
from vitft.system.console import visible
from vitft.system.errors import DataError, RunError
from vitft.system.files import write_atomically
from vitft.system.run_content import damaged_file
from vitft.system.rundir import RunDir
from vitft.system.text import count, listing

log = logging.getLogger(__name__)

SplitName = Literal["train", "val", "test"]
MANIFEST_COLUMNS = ("path", "label", "split", "sha256")


@dataclass(frozen=True, slots=True)
class Row:
    """One image of a run."""

    path: str
    """Path relative to the data folder, with slashes."""
    label: int
    """Class index."""
    split: SplitName
    sha256: str
    """Hexadecimal SHA-256 digest of the file's bytes."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The readable images of a run and their split."""

    root: Path
    classes: tuple[str, ...]
    rows: tuple[Row, ...]
    """Rows sorted by class, then by path as a string."""

    @property
    def train(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.split == "train")

    @property
    def val(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.split == "val")

    @property
    def test(self) -> tuple[Row, ...]:
        """Images that are evaluated once, at the end of the run."""
        return tuple(row for row in self.rows if row.split == "test")

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 digest of the table as written to `split.csv`."""
        return hashlib.sha256(self.to_csv()).hexdigest()

    def locate(self, row: Row) -> str:
        """Return the path for opening the image of a row."""
        return f"{os.fspath(self.root)}/{row.path}"

    def to_csv(self) -> bytes:
        """Return the table as CSV, with class names as labels."""
        rows = ((row.path, self.classes[row.label], row.split, row.sha256) for row in self.rows)
        return encode_table(MANIFEST_COLUMNS, rows)

    def write(self, path: Path) -> None:
        """Write the table atomically."""
        write_atomically(path, self.to_csv())

    @classmethod
    def read(cls, path: Path, root: Path) -> Self:
        """Read a table written by `write`.

        Raises:
            RunError: The file cannot be read, or a line is invalid; the message names the line.
        """
        table = TableReader(
            path,
            error=RunError,
            missing="use the split.csv of a run directory",
            fix="restore the file written by vitft",
        )
        lines = iter(table)
        if tuple(next(lines, ())) != MANIFEST_COLUMNS:
            raise table.error(f"the header must be {','.join(MANIFEST_COLUMNS)}")
        found: dict[str, list[str]] = {}
        for cells in lines:
            if problem := row_problem(cells, found):
                raise table.error(problem)
            found[cells[0]] = cells
        classes = sorted({label for _, label, _, _ in found.values()})
        index = {name: number for number, name in enumerate(classes)}
        rows = (
            Row(name, index[label], cast("SplitName", part), sha256)
            for name, label, part, sha256 in found.values()
        )
        return cls(root, tuple(classes), tuple(rows))


def run_manifest(run: Path) -> Manifest | None:
    """Return the split of a run, or None if the run has no config.toml or no split.csv.

    The manifest's root is the data folder given in config.toml, or the base folder of the table.

    Raises:
        RunError: config.toml or split.csv is damaged.
    """
    path = RunDir(run).split
    if not os.path.lexists(run / "config.toml") or not os.path.lexists(path):
        return None
    section: Mapping[str, object] = {"root": "", **read_run_config(run).get("data", {})}
    for key in ("path", "root"):
        if not isinstance(section.get(key), str):
            raise damaged_file(run / "config.toml", f"data.{key} is not text")
    folder = Path(os.path.expanduser(str(section["path"])))  # noqa: PTH111 - never raises
    return Manifest.read(path, base_folder(folder, str(section["root"])))


def row_problem(cells: Sequence[str], seen: Container[str]) -> str:
    """Return the problem with a row, or an empty string if there is none."""
    if len(cells) != len(MANIFEST_COLUMNS):
        return f"{count(len(cells), 'cell')} instead of {len(MANIFEST_COLUMNS)}"
    name, _, part, sha256 = cells
    if not name or name.startswith("/") or ".." in name.split("/"):
        return f"the path {name!r} does not point inside the data folder"
    if name in seen:
        return f"{name!r} is listed twice"
    if part not in get_args(SplitName):
        return f"split is {part!r}, but must be 'train', 'val' or 'test'"
    return "" if re.fullmatch("[0-9a-f]{64}", sha256) else f"{sha256[:70]!r} is not a sha256 digest"


def split(
    checked: InspectedFolder, spec: DataSpec, *, groups: Mapping[str, str] | None = None
) -> Manifest:
    """Assign every readable image to training, validation or the final test.

    Images in a test part are always used for the final test. A folder with train and val parts
    keeps these parts.

    The random split draws at least one validation image from every class with two or more readable
    images. It then moves each group of near-duplicates to the side of its first image. If the user
    has defined groups, whole groups are drawn instead. The reference split draws from all files, as
    the reference script does, and drops the unreadable files afterwards.

    `groups` maps digests to group names, as returned by `joined_groups`; without it, only identical
    files are grouped.

    Raises:
        DataError: A class has no training images or no validation images. For the reference split,
            validation images of a single class are enough.
    """
    folder = checked.folder
    assert folder.reference == (spec.split == "reference"), "scanned for a different kind of split"
    if folder.layout == "split":
        held_back = {file.path for file in checked.good if file.part == "val"}
    else:
        good = [file for file in checked.good if file.part != "test"]
        files = folder.files if folder.reference else good
        by_class: list[list[str]] = [[] for _ in folder.classes]
        for file in files:
            by_class[file.label].append(file.path)
        at_least = 0 if folder.reference else 1
        drawn = draw(list(map(len, by_class)), spec.val_rate, spec.seed, at_least=at_least)
        held_back = {paths[i] for paths, picks in zip(by_class, drawn, strict=True) for i in picks}
        if any(file.group for file in good):
            held_back = draw_groups(good, groups or {}, spec)
        if not folder.reference:
            held_back = keep_groups_together(good, held_back, groups or {})
    rows = tuple(Row(f.path, f.label, split_of(f, held_back), f.sha256) for f in checked.good)
    manifest = Manifest(folder.root, folder.classes, rows)
    check_split_classes(manifest, checked)
    return manifest


def split_of(file: InspectedFile, held_back: Set[str]) -> SplitName:
    """Return the split of an image, given the paths of the validation images."""
    if file.part == "test":
        return "test"
    return "val" if file.path in held_back else "train"


def draw(
    counts: Sequence[int], val_rate: float, seed: int, *, at_least: int = 0
) -> list[list[int]]:
    """Draw the validation images, and return their indices in the sorted list of each class.

    Args:
        counts: Number of files of each class.
        val_rate: Fraction of each class to draw; the number of images is rounded down.
        seed: Seed of the random generator.
        at_least: Minimum number of images to draw from each class, leaving at least one.
    """
    stream = random.Random(seed)
    return [
        stream.sample(range(n), max(int(n * val_rate), min(at_least, max(0, n - 1))))
        for n in counts
    ]


def joined_groups(
    files: Sequence[InspectedFile], duplicates: Mapping[str, str]
) -> Mapping[str, str]:
    """Map digests to groups that must not be divided: the user's groups and duplicates.

    Groups that share an image are joined. `duplicates` maps digests to groups of near-duplicates
    and is returned unchanged if the user has not defined groups. Digests without a group may be
    missing.
    """
    if not any(file.group for file in files):
        return duplicates
    digests = list(dict.fromkeys(file.sha256 for file in files))
    place = {digest: i for i, digest in enumerate(digests)}
    first: dict[tuple[str, str], int] = {}
    keys = [(("user", file.group), file.sha256) for file in files if file.group]
    keys += [(("copies", name), digest) for digest, name in duplicates.items() if digest in place]
    pairs = [(first.setdefault(key, place[digest]), place[digest]) for key, digest in keys]
    return group_names(digests, pairs)


def draw_groups(
    files: Sequence[InspectedFile], groups: Mapping[str, str], spec: DataSpec
) -> set[str]:
    """Draw whole groups for validation, and return the paths of their images.

    The groups are shuffled with the seed of the split and considered one by one. A group is drawn
    if this brings the numbers of validation images closer to their targets, summed over the
    classes. The target of a class is `spec.val_rate` of its images, rounded down, but at least one.
    """
    members: dict[str, list[InspectedFile]] = {}
    for file in files:
        members.setdefault(groups.get(file.sha256, file.sha256), []).append(file)
    counts = Counter(file.label for file in files)
    lacking = {label: max(1, int(n * spec.val_rate)) for label, n in counts.items()}
    order = list(members.values())
    random.Random(spec.seed).shuffle(order)
    drawn: set[str] = set()
    for group in order:
        own = Counter(file.label for file in group)
        change = sum(abs(lacking[label] - n) - abs(lacking[label]) for label, n in own.items())
        if change < 0:
            drawn.update(file.path for file in group)
            for label, n in own.items():
                lacking[label] -= n
    return drawn


def keep_groups_together(
    files: Sequence[InspectedFile], drawn: Set[str], groups: Mapping[str, str]
) -> set[str]:
    """Move each group to the side of its first image, and return the validation paths.

    A group is thus assigned to validation with the same probability as a single image. If all
    images of a class are then on one side, the first suitable group with an image of that class is
    moved to the other side. A group is suitable if the side that it leaves keeps at least one image
    of each class in the group.
    """
    members: dict[str, list[InspectedFile]] = {}
    for file in files:
        members.setdefault(groups.get(file.sha256, file.sha256), []).append(file)
    side = {name: group[0].path in drawn for name, group in members.items()}  # True: validation
    have = Counter((f.label, side[name]) for name, group in members.items() for f in group)
    for lacking in sorted({(file.label, wanted) for file in files for wanted in (True, False)}):
        for name, group in members.items() if not have[lacking] else ():
            label, wanted = lacking
            counts = Counter(file.label for file in group)
            spared = all(have[other, not wanted] > n for other, n in counts.items())
            if label in counts and side[name] != wanted and spared:
                side[name] = wanted
                have.update({(other, wanted): n for other, n in counts.items()})
                have.subtract({(other, not wanted): n for other, n in counts.items()})
                break
    return {f.path for name, group in members.items() if side[name] for f in group}


def check_split_classes(manifest: Manifest, checked: InspectedFolder) -> None:
    """Raise a DataError if there are too few images for training or validation."""
    have = Counter((row.label, row.split) for row in manifest.rows)
    drawn_here = checked.folder.layout == "classes"
    lacking: list[str] = []
    for label, name in enumerate(manifest.classes):
        train, val = have[label, "train"], have[label, "val"]
        if not train or not (val or checked.folder.reference):
            lacking.append(f"{name} ({train + val})" if drawn_here else f"{name} ({train} + {val})")
    if lacking:
        unread = ""
        if drawn_here and any(file.group for file in checked.good):
            unread = "; all images of a group must be on the same side"
        if checked.bad:
            examples = "; ".join(f"{path}: {reason}" for path, reason in checked.bad[:2])
            unread += f"; {count(len(checked.bad), 'file')} could not be read ({examples})"
        raise lacking_images(lacking, len(manifest.classes), unread)
    if not manifest.val:
        raise DataError(
            "the reference split leaves no images for validation",
            fix="increase data.val_rate, add images, or use the default split",
        )


def check_folder_classes(folder: Folder) -> None:
    """Raise a DataError if a class has too few files, before any file is read."""
    have = Counter((file.label, file.part) for file in folder.files)
    lacking: list[str] = []
    for label, name in enumerate(folder.classes):
        train, val = have[label, "train"] + have[label, ""], have[label, "val"]
        if folder.layout == "classes":
            if train + val < (1 if folder.reference else 2):
                lacking.append(f"{name} ({train + val})")
        elif not train or not (val or folder.reference):
            lacking.append(f"{name} ({train} + {val})")
    if lacking:
        raise lacking_images(lacking, len(folder.classes))


def lacking_images(names: Sequence[str], classes: int, unread: str = "") -> DataError:
    """Return the error for classes without enough images for training and validation."""
    return DataError(
        f"too few readable images for training and validation in {len(names)} of {classes} "
        f"classes: {listing(names)}{unread}",
        fix="provide at least 2 readable images per class (in at least 2 groups), or remove the "
        "classes with fewer",
    )


class Leaks(NamedTuple):
    """Groups of identical files in more than one split or with different labels."""

    across: tuple[tuple[str, ...], ...]
    """Paths in each group that spans more than one split, e.g. training and validation."""
    labels: tuple[tuple[str, ...], ...]
    """Paths in each group that has more than one label."""


def leaks(manifest: Manifest) -> Leaks:
    """Return the groups of identical files in more than one split or with different labels."""
    by_digest: dict[str, list[Row]] = {}
    for row in manifest.rows:
        by_digest.setdefault(row.sha256, []).append(row)
    across = (rows for rows in by_digest.values() if len({row.split for row in rows}) > 1)
    labels = (rows for rows in by_digest.values() if len({row.label for row in rows}) > 1)
    paths = [tuple(tuple(row.path for row in rows) for rows in kind) for kind in (across, labels)]
    return Leaks(*paths)


def log_split(manifest: Manifest) -> None:
    """Log a chart of the number of images per class, and warn about the groups found by `leaks`."""
    counts = {name: [0, 0] for name in manifest.classes}
    for row in (*manifest.train, *manifest.val):
        counts[manifest.classes[row.label]][row.split == "val"] += 1
    widest = max(len(visible(name)) for name in counts)
    largest = max(map(sum, counts.values()))
    images = len(manifest.train) + len(manifest.val)
    title = f"{count(images, 'image')} in {len(manifest.classes)} classes"
    log.info(f"{title} (█ training, ░ validation)")
    for name, (train, val) in counts.items():
        bar = "█" * round(40 * train / largest) + "░" * round(40 * val / largest)
        log.info(f"  {visible(name):<{widest}}  {bar} {train} + {val}")
    if manifest.test:
        log.info(f"test images, evaluated once after training: {len(manifest.test):,}")
    found = leaks(manifest)
    across = "in both training and validation"
    if manifest.test:
        across = "in more than one of training, validation and test"
    kinds = {across: found.across, "with different labels": found.labels}
    for kind, groups in kinds.items():
        if groups:
            example = " and ".join(groups[0][:2])
            log.warning(f"identical files {kind}: {count(len(groups), 'group')}, e.g. {example}")


def write_class_indices(path: Path, classes: Sequence[str]) -> None:
    """Write class_indices.json as the reference script does: {"0": "daisy", ...}, indent 4."""
    write_atomically(path, json.dumps(dict(enumerate(classes)), indent=4))
