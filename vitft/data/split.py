"""Split of a dataset into training and validation images, recorded in a manifest.

Of the n images of each class, `int(n * val_rate)` are held out for validation. Except in the
reference split, at least one image of each class with two or more images is held out, and identical
images are kept on the same side of the split. `data.draw` chooses the images. This module does not
read images.
"""

import hashlib
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, cast, get_args

from vitft.config.run import read_run_config
from vitft.config.sections import DataSpec
from vitft.data.chosen import CHOSEN
from vitft.data.draw import (
    FormerSplit,
    draw_groups,
    draw_paths,
    keep_groups_together,
    ordered_groups,
)
from vitft.data.folder import Folder, class_table
from vitft.data.inspection import InspectedFile, InspectedFolder
from vitft.data.label_sets import label_names, split_labels
from vitft.data.membership import membership
from vitft.data.remote.places import INDEX, place_of
from vitft.data.stratify import draw_by_labels
from vitft.data.table import TableReader, base_folder, encode_table
from vitft.metrics.intervals import Flags
from vitft.system.errors import DataError, RunError
from vitft.system.files import write_atomically
from vitft.system.near_paths import misspelt_name
from vitft.system.run_content import damaged_file
from vitft.system.rundir import RunDir
from vitft.system.text import count, listing

SplitName = Literal["train", "val", "test"]
MANIFEST_COLUMNS = ("path", "label", "split", "sha256")
_MIN_SPELT = 4
"""Number of characters up to which a name is not taken for a misspelt one, as `car` for `cat`."""
GROUP_COLUMN = "group"
"""Last column of the table, written only if any image has a group."""
_SETS_COLUMNS = ("path", "labels", "split", "sha256")
"""Columns of `split.csv` for multi-label data."""


@dataclass(frozen=True, slots=True)
class Row:
    """One image of a run."""

    path: str
    """Path relative to the data folder, with slashes."""
    label: int
    """Class index, or index of the image's label set."""
    split: SplitName
    sha256: str
    """Hexadecimal SHA-256 digest of the file's bytes."""
    group: str = ""
    """Name of the user's group (patient, video, ...); empty if there is none."""


def distinct_rows(rows: Sequence[Row]) -> list[Row]:
    """Return one row for each distinct file, so that copies count once.

    Of copies with different labels, the content decides which one counts: if it were always the
    first, a model that answers nothing else would be right.
    """
    copies: dict[str, dict[int, Row]] = {}
    for row in rows:
        copies.setdefault(row.sha256, {})[row.label] = row
    found = ((zlib.crc32(digest.encode()), [*same.values()]) for digest, same in copies.items())
    return [same[number % len(same)] for number, same in found]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The readable images of a run and their split."""

    root: Path
    classes: tuple[str, ...]
    """Class names, or label sets as text (see `data.label_sets`)."""
    rows: tuple[Row, ...]
    """Rows sorted by class, then by path as a string."""
    labels: tuple[str, ...] = ()
    """Labels of multi-label data; empty if each image has exactly one class."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the model's outputs: the classes or, for multi-label data, the labels."""
        return self.labels or self.classes

    def names(self, row: Row) -> tuple[str, ...]:
        """Return the class of an image or, for multi-label data, its labels."""
        text = self.classes[row.label]
        return split_labels(text) if self.labels else (text,)

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

    def targets(self, rows: Sequence[Row]) -> Sequence[int] | Flags:
        """Return class indices (n,) or, for multi-label data, flags (n, C).

        Each flag indicates whether an image has a label.
        """
        index = [row.label for row in rows]
        return membership(self.classes, self.labels)[index] if self.labels else index

    def locate(self, row: Row) -> str:
        """Return the path for opening the image of a row."""
        return f"{os.fspath(self.root)}/{row.path}"

    def to_csv(self) -> bytes:
        """Return the table as CSV, with class names or label sets as labels."""
        columns: Sequence[str] = _SETS_COLUMNS if self.labels else MANIFEST_COLUMNS
        if any(row.group for row in self.rows):
            columns = (*columns, GROUP_COLUMN)
        rows = (
            (row.path, self.classes[row.label], row.split, row.sha256, row.group)[: len(columns)]
            for row in self.rows
        )
        return encode_table(columns, rows)

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
        header = tuple(next(lines, ()))
        known = [MANIFEST_COLUMNS, _SETS_COLUMNS]
        if header not in (*known, *((*columns, GROUP_COLUMN) for columns in known)):
            raise table.error(f"the header must be {','.join(MANIFEST_COLUMNS)}")
        found: dict[str, list[str]] = {}
        for cells in lines:
            if problem := _row_problem(cells, found, len(header)):
                raise table.error(problem)
            found[cells[0]] = cells
        classes = sorted({cells[1] for cells in found.values()})
        index = {name: number for number, name in enumerate(classes)}
        rows = (
            Row(name, index[label], cast("SplitName", part), sha256, *group)
            for name, label, part, sha256, *group in found.values()
        )
        labels = label_names(classes) if header[1] == "labels" else ()
        return cls(root, tuple(classes), tuple(rows), labels)


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
    data = str(section["path"])
    place = place_of(data)
    folder = Path(os.path.expanduser(data))  # noqa: PTH111 - never raises
    folder = place.folder / INDEX if place else folder
    return Manifest.read(path, base_folder(folder, str(section["root"])))


def _row_problem(cells: Sequence[str], seen: Container[str], columns: int) -> str:
    """Return the problem with a row, or an empty string if there is none."""
    if len(cells) != columns:
        return f"found {count(len(cells), 'cell')} instead of {columns}"
    name, _, part, sha256 = cells[: len(MANIFEST_COLUMNS)]
    if not name or name.startswith("/") or ".." in name.split("/"):
        return f"the path {name!r} does not point inside the data folder"
    if name in seen:
        return f"{name!r} is listed twice"
    if part not in get_args(SplitName):
        return f"split is {part!r}, but must be 'train', 'val' or 'test'"
    return "" if re.fullmatch("[0-9a-f]{64}", sha256) else f"{sha256[:70]!r} is not a sha256 digest"


def split(
    checked: InspectedFolder,
    spec: DataSpec,
    *,
    groups: Mapping[str, str] | None = None,
    former: FormerSplit | None = None,
) -> Manifest:
    """Assign every readable image to training, validation or the final test.

    Images in a test subset are always used for the final test. A folder with train and val subsets
    keeps this split. Otherwise, validation images are chosen by content or at random, at least one
    from every class with two or more readable images.

    All images of a group are on the same side of the split. Whole groups are drawn if `spec.split`
    is `content` or the user has defined groups; otherwise, a group of near-duplicates is moved to
    the side of its first image. The reference split draws from all files, as the reference script
    does, and drops the unreadable files afterwards.

    Args:
        checked: The inspected images.
        spec: Settings of the split.
        groups: Names of groups by digest, as returned by `joined_groups`; without it, only
            identical files are grouped.
        former: Split of an earlier run. Its held-out images are held out again, and its training
            images are used for training again unless a class would then have no validation images.

    Raises:
        DataError: A class has no training images, or fewer than two classes have validation images.
            For the reference split, validation images of a single class are enough.
    """
    folder, groups = checked.folder, groups or {}
    assert folder.reference == (spec.split == "reference"), (
        "the folder was scanned for a different kind of split"
    )
    files: Sequence[InspectedFile] = checked.good
    if former is not None:
        files = former.assign(files, groups, divided=folder.layout == "split")
    undecided = [file for file in files if file.part != "test"]
    if folder.layout == "split":
        held_back = {file.path for file in files if file.part == "val"}
    elif folder.reference:
        held_back = draw_paths(folder.files, spec, at_least=0)
    else:
        members = ordered_groups(undecided, groups, spec)
        if folder.labels:
            held_back = draw_by_labels(folder, members, spec)
        elif spec.split == "content" or any(file.group for file in undecided):
            held_back = keep_groups_together(members, draw_groups(members, spec))
        else:
            held_back = keep_groups_together(members, draw_paths(undecided, spec, at_least=1))
    sides: Iterator[SplitName] = (
        "test" if file.part == "test" else "val" if file.path in held_back else "train"
        for file in files
    )
    rows = tuple(
        Row(file.path, file.label, side, file.sha256, file.group)
        for file, side in zip(files, sides, strict=True)
    )
    manifest = Manifest(folder.root, folder.classes, rows, folder.labels)
    have = Counter[tuple[str, str]](
        (name, row.split) for row in manifest.rows for name in manifest.names(row)
    )
    if lacking := _lacking_classes(have, checked.folder):
        unread = ""
        if checked.folder.layout == "classes" and any(file.group for file in checked.good):
            unread = "; all images of a group must be on the same side of the split"
        if checked.bad:
            examples = "; ".join(f"{path}: {reason}" for path, reason in checked.bad[:2])
            unread += f"; {count(len(checked.bad), 'file')} could not be read ({examples})"
        raise _lacking_images(lacking, checked.folder, unread)
    if not manifest.val:
        raise DataError(
            "the reference split leaves no images for validation",
            fix="increase data.val_rate, add images, or use the default split",
        )
    return manifest


def check_folder_classes(folder: Folder) -> str:
    """Raise a DataError if a class has too few files, before any file is read.

    Returns:
        A note on classes of which no image can be held out, or an empty string.
    """
    names = [split_labels(text) if folder.labels else (text,) for text in folder.classes]
    have, first = Counter[tuple[str, str]](), dict[str, str]()
    for file in folder.files:
        for name in names[file.label]:  # of two groups of images, one can be held out
            unit = file.group or file.path
            part = file.part or ("train" if first.setdefault(name, unit) == unit else "val")
            have[name, part] += 1
    if lacking := _lacking_classes(have, folder):
        raise _lacking_images(lacking, folder)
    return trained_only_note(have, folder.outputs)


def _lacking_classes(have: Mapping[tuple[str, str], int], folder: Folder) -> list[str]:
    """Return the classes without enough images, each with its numbers of images.

    If the split is drawn here, a class may have a training image only, but two other classes then
    need validation images.
    """
    numbers = {name: (have[name, "train"], have[name, "val"]) for name in folder.outputs}
    if folder.layout == "split":
        return [
            f"{name} ({train:,} for training, {val:,} for validation)"
            for name, (train, val) in numbers.items()
            if not (train and val)
        ]
    measured = sum(val > 0 for _, val in numbers.values())
    enough = folder.reference or measured >= min(2, len(numbers))
    return [f"{n} ({t + v:,})" for n, (t, v) in numbers.items() if not (t and (v or enough))]


def trained_only_note(have: Mapping[tuple[str, str], int], names: Sequence[str]) -> str:
    """Return a note on the classes without validation images, or an empty string."""
    only = [name for name in names if not have[name, "val"]]
    if not only:
        return ""
    note = f"trained on but not validated, so the recall is unknown: {listing(only)}"
    others = [name for name in names if name not in only]
    found = ((n, misspelt_name(n.strip(), others)) for n in only if len(n) > _MIN_SPELT)
    if near := [(name, other) for name, other in found if other]:
        note += f". If {listing(f'{a!r} means {b!r}' for a, b in near)}, use {class_table(near)}"
    return note


def _lacking_images(names: Sequence[str], folder: Folder, unread: str = "") -> DataError:
    """Return the error for classes without enough images for training and validation."""
    fix = "provide a readable image of every class, and 2 (in 2 groups) of at least 2 classes"
    column = folder.split_column
    where = f" in the column {column}" if column else ""
    if folder.layout == "split":
        fix = f"give every class a training and a validation image{where}, or remove these classes"
    if column == CHOSEN:
        fix = f"give every class a training and a validation image{where}: answer more "
        fix += (
            "pictures under Measure accuracy in `vitft label`, or leave out --set data.split_column"
        )
    elif column:
        fix += "; --set data.split_column=none ignores the column"
    return DataError(
        f"too few readable images for training and validation in {len(names)} of "
        f"{len(folder.outputs)} classes: {listing(names)}{unread}",
        fix=fix,
    )


def leaks(manifest: Manifest) -> tuple[list[list[str]], list[list[str]]]:
    """Return the paths of each group of identical files that spans several subsets or labels.

    The first list has the groups in more than one subset, e.g. training and validation, and the
    second one those with different labels.
    """
    by_digest: dict[str, list[Row]] = {}
    for row in manifest.rows:
        by_digest.setdefault(row.sha256, []).append(row)
    groups = by_digest.values()
    across = [[row.path for row in g] for g in groups if len({row.split for row in g}) > 1]
    return across, [[row.path for row in g] for g in groups if len({row.label for row in g}) > 1]


def write_class_indices(path: Path, classes: Sequence[str]) -> None:
    """Write class_indices.json as the reference script does: {"0": "daisy", ...}, indent 4."""
    write_atomically(path, json.dumps(dict(enumerate(classes)), indent=4))
