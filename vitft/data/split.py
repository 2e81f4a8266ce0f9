"""Split of a dataset into training and validation images, recorded in a manifest.

Of the n images of each class, `int(n * val_rate)` are held out for validation. Except in the
reference split, at least one image of each class with two or more images is held out, and identical
images are kept on the same side of the split. No images are read.
"""

import hashlib
import json
import os
import random
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

import numpy as np

from vitft.config.run import read_run_config
from vitft.config.sections import DataSpec
from vitft.data.duplicates import group_names
from vitft.data.folder import File, Folder, class_table
from vitft.data.inspection import InspectedFile, InspectedFolder
from vitft.data.label_sets import label_names, split_labels
from vitft.data.parts import CHOSEN, Part
from vitft.data.remote.places import INDEX, place_of
from vitft.data.table import TableReader, base_folder, encode_table
from vitft.metrics.intervals import Flags
from vitft.system.errors import DataError, RunError
from vitft.system.files import write_atomically
from vitft.system.rundir import RunDir, damaged_file
from vitft.system.suggest import misspelt_name
from vitft.system.text import count, listing

# choice of the validation images: by content, at random, or as in the reference script ------------


def draw(
    counts: Sequence[int], val_rate: float, seed: int, *, at_least: int = 0
) -> list[list[int]]:
    """Draw the validation images, and return their indices in each class's sorted list of files.

    Of the n files of each class (`counts`), `int(n * val_rate)` are drawn, but at least `at_least`
    unless that would be all.
    """
    stream = random.Random(seed)
    return [
        stream.sample(range(n), max(int(n * val_rate), min(at_least, max(0, n - 1))))
        for n in counts
    ]


def _draw_paths(
    files: Sequence[File] | Sequence[InspectedFile], spec: DataSpec, *, at_least: int
) -> set[str]:
    """Draw individual files of each class for validation (see `draw`), and return their paths."""
    by_class: dict[int, list[str]] = {}
    for file in files:
        by_class.setdefault(file.label, []).append(file.path)
    paths = [by_class[label] for label in sorted(by_class)]
    drawn = draw(list(map(len, paths)), spec.val_rate, spec.seed, at_least=at_least)
    return {own[i] for own, picks in zip(paths, drawn, strict=True) for i in picks}


def joined_groups(
    files: Sequence[InspectedFile], duplicates: Mapping[str, str]
) -> Mapping[str, str]:
    """Map digests to groups that must not be divided: the user's groups and duplicates.

    Groups that share an image are joined. `duplicates` maps digests to groups of near-duplicates.
    The result may omit digests without a group.
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


def joined_note(
    files: Sequence[InspectedFile], groups: Mapping[str, str], duplicates: Mapping[str, str]
) -> str:
    """Return a note if copies join groups of the user, if any; `groups` as from `joined_groups`."""
    drawn = [file for file in files if file.group and not file.part]
    own = {file.group for file in drawn}
    left = {groups.get(file.sha256, file.sha256) for file in drawn}
    if len(left) >= len(own):
        return ""
    copies = "identical images or near-duplicates" if duplicates else "identical images"
    return (
        f"{copies} in different groups merge the {count(len(own), 'group')} into {len(left):,}, "
        "because no image may be in both training and validation. vitft check lists the copies. "
        "Drop them to keep the groups apart"
    )


def _ordered_groups(
    files: Sequence[InspectedFile], groups: Mapping[str, str], spec: DataSpec
) -> list[list[InspectedFile]]:
    """Return the files of each group; identical files are always in one group.

    If `spec.split` is `content`, groups are ordered by a hash of the seed and one name per group,
    so that the size of a group does not affect its position.
    """
    members: dict[str, list[InspectedFile]] = {}
    for file in files:
        members.setdefault(groups.get(file.sha256, file.sha256), []).append(file)
    if spec.split != "content":
        return list(members.values())

    def place(group: Sequence[InspectedFile]) -> bytes:
        names = {_hash_of(f"group {f.group}").hex() if f.group else f.sha256 for f in group}
        return _hash_of(f"{spec.seed} {min(names)}")

    return sorted(members.values(), key=place)


def _hash_of(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def draw_groups(members: Sequence[Sequence[InspectedFile]], spec: DataSpec) -> set[str]:
    """Draw whole groups for validation, and return the paths of their images.

    The groups are considered in the given order, which is shuffled with the seed if `spec.split` is
    `random`. A group is drawn if this brings the numbers of validation images closer to their
    targets, summed over the classes: `spec.val_rate` of the images of a class, but at least one, or
    none if all are in one group. Groups already assigned to `val` or `train` remain there.
    """
    counts, alone = Counter(file.label for group in members for file in group), _undivided(members)
    lacking = {n: max(1, int(i * spec.val_rate)) * (n not in alone) for n, i in counts.items()}
    order = list(members)
    if spec.split == "random":
        random.Random(spec.seed).shuffle(order)
    order.sort(key=lambda group: group[0].part != "val")
    drawn: set[str] = set()
    for group in order:
        own = Counter(file.label for file in group)
        change = sum(abs(lacking[label] - n) - abs(lacking[label]) for label, n in own.items())
        is_free = group[0].part != "train" and not alone & own.keys()
        if group[0].part == "val" or (change < 0 and is_free):
            drawn.update(file.path for file in group)
            for label, n in own.items():
                lacking[label] -= n
    return drawn


def _undivided(members: Sequence[Sequence[InspectedFile]]) -> Set[int]:
    """Return the classes whose images are all in one group, which is never drawn."""
    found = Counter(label for group in members for label in {file.label for file in group})
    return {label for label, groups in found.items() if groups == 1}


def _keep_groups_together(members: Sequence[Sequence[InspectedFile]], drawn: Set[str]) -> set[str]:
    """Move each group to the side of its first image, and return the validation paths.

    A group with all images of a class is used for training. If all images of a class are then on
    one side, the first group that the side can spare is moved to the other.
    """
    alone = _undivided(members)
    side = [  # True: validation
        group[0].path in drawn
        and (group[0].part == "val" or not any(file.label in alone for file in group))
        for group in members
    ]
    sided = list(zip(members, side, strict=True))
    have = Counter((file.label, is_val) for group, is_val in sided for file in group)
    labels = {file.label for group in members for file in group}
    for label, wanted in sorted((label, wanted) for label in labels for wanted in (True, False)):
        for i, group in enumerate(members) if not have[label, wanted] else ():
            counts = Counter(file.label for file in group)
            spared = all(have[other, not wanted] > n for other, n in counts.items())
            is_free = side[i] != wanted and group[0].part != "val"
            if label in counts and is_free and spared:
                side[i] = wanted
                have.update({(other, wanted): n for other, n in counts.items()})
                have.subtract({(other, not wanted): n for other, n in counts.items()})
                break
    return {f.path for group, is_val in zip(members, side, strict=True) if is_val for f in group}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerSplit:
    """Subsets to which an earlier run assigned its images and groups (see `training.like`)."""

    parts: Mapping[str, Part]
    """Mapping from digests to `train`, `val` or `test`. Near-duplicates of held-out images are
    mapped to the same subset as those images."""
    groups: Mapping[str, Part]
    """Mapping from the names of the user's groups to `train`, `val` or `test`."""

    def part_of(self, group: Sequence[InspectedFile]) -> Part:
        """Return the subset of a group, held out if one of its images was; empty if all are new."""
        found = {self.parts.get(file.sha256, "") for file in group}
        found |= {self.groups.get(file.group, "") for file in group if file.group}
        order: tuple[Part, ...] = ("test", "val", "train")
        return next((part for part in order if part in found), "")

    def assign(
        self, files: Sequence[InspectedFile], groups: Mapping[str, str], *, divided: bool
    ) -> list[InspectedFile]:
        """Return the files, assigned to the same subsets as in the earlier run.

        If the data is already `divided` into subsets, only training images that were held out are
        reassigned.
        """
        members: dict[str, list[InspectedFile]] = {}
        for file in files:
            if file.part != "test":
                members.setdefault(groups.get(file.sha256, file.sha256), []).append(file)
        parts = {f.path: self.part_of(group) for group in members.values() for f in group}
        assigned = []
        for file in files:
            part = parts.get(file.path, "")
            moves = part in ("val", "test") and file.part == "train" if divided else part
            assigned.append(replace(file, part=part) if moves else file)
        return assigned


# membership of labels in label sets, as an array --------------------------------------------------


def membership(sets: Sequence[str], labels: Sequence[str]) -> Flags:
    """Return whether each set contains each label, as an array (sets, labels)."""
    index = {name: number for number, name in enumerate(labels)}
    found = np.zeros((len(sets), len(labels)), dtype=bool)
    for row, text in enumerate(sets):
        found[row, [index[label] for label in split_labels(text)]] = True
    return found


# iterative stratification: division of multi-label data into subsets, label by label --------------

_Counts = np.ndarray[Any, np.dtype[np.int64]]


def stratify(
    counts: _Counts,
    sizes: _Counts,
    fractions: Sequence[float],
    *,
    seed: int | None,
    at_least: int = 0,
    fixed: _Counts | None = None,
) -> _Counts:
    """Return the index of the subset to which each unit is assigned: (U,).

    The rarest label is divided first: each of its units is assigned to the subset that lacks the
    most images with this label. Units without labels are assigned last.

    Args:
        counts: Number of images with each label in each unit, (U, C).
        sizes: Number of images in each unit, (U,).
        fractions: Target fraction of the images in each subset; the fractions sum to 1.
        seed: Seed for shuffling the units; None to keep the given order.
        at_least: Target minimum number of images with each label in each subset.
        fixed: Index of the subset of each unit that is already assigned, -1 for all others, (U,).
    """
    share = np.asarray(fractions)
    totals = counts.sum(axis=0)
    lacking = share[:, None] * totals  # (P, C)
    lacking = np.maximum(lacking, np.minimum(at_least, totals / len(share)))
    lacking_images = share * sizes.sum()  # (P,)
    part, order = np.full(len(counts), -1), np.arange(len(counts))
    if seed is not None:
        order = np.random.default_rng(seed).permutation(order)
    remaining = totals.astype(np.float64)

    def assign(unit: int, wanted: Any) -> None:  # noqa: ANN401 - an array (P,)
        best = np.flatnonzero(np.isclose(wanted, wanted.max()))
        place(unit, int(best[np.argmax(lacking_images[best])]))

    def place(unit: int, chosen: int) -> None:
        part[unit] = chosen
        lacking[chosen] -= counts[unit]
        lacking_images[chosen] -= sizes[unit]
        np.subtract(remaining, counts[unit], out=remaining)

    for unit, chosen in enumerate(() if fixed is None else fixed.tolist()):
        if chosen >= 0:
            place(unit, chosen)
    while (remaining > 0).any():
        label = int(np.argmin(np.where(remaining > 0, remaining, np.inf)))
        own = order[(part[order] < 0) & (counts[order, label] > 0)]
        for unit in own[np.argsort(-counts[own, label], kind="stable")]:
            assign(int(unit), lacking[:, label])
    for unit in order[part[order] < 0]:
        assign(int(unit), lacking_images)
    return part


# split of a dataset into training and validation images, recorded in a manifest -------------------

SplitName = Literal["train", "val", "test"]
MANIFEST_COLUMNS = ("path", "label", "split", "sha256")
_MIN_SPELT = 4
"""Number of characters up to which a name is not taken for a misspelt one, as `car` for `cat`."""
GROUP_COLUMN = "group"  # last column of the table, written only if any image has a group
_SETS_COLUMNS = ("path", "labels", "split", "sha256")  # columns of `split.csv` for multi-label data


@dataclass(frozen=True, slots=True)
class Row:
    """One image of a run."""

    path: str  # path relative to the data folder, with slashes
    label: int  # class index, or index of the image's label set
    split: SplitName
    sha256: str  # hexadecimal SHA-256 digest of the file's bytes
    group: str = ""  # name of the user's group (patient, video, ...); empty if there is none


def distinct_rows(rows: Sequence[Row]) -> list[Row]:
    """Return one row for each distinct file, so that copies count once.

    Of copies with different labels, the content decides which one counts. If the first always
    counted, a model that always predicts the first label would be right.
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
    classes: tuple[str, ...]  # class names, or label sets as text (see `data.label_sets`)
    rows: tuple[Row, ...]  # rows sorted by class, then by path as a string
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
        return tuple(row for row in self.rows if row.split == "test")

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 digest of the table as written to `split.csv`."""
        return hashlib.sha256(self.to_csv()).hexdigest()

    def targets(self, rows: Sequence[Row]) -> Sequence[int] | Flags:
        """Return class indices (n,) or, for multi-label data, flags (n, C) for the labels."""
        index = [row.label for row in rows]
        return membership(self.classes, self.labels)[index] if self.labels else index

    def locate(self, row: Row) -> str:
        return f"{os.fspath(self.root)}/{row.path}"

    def to_csv(self) -> bytes:
        columns: Sequence[str] = _SETS_COLUMNS if self.labels else MANIFEST_COLUMNS
        if any(row.group for row in self.rows):
            columns = (*columns, GROUP_COLUMN)
        rows = (
            (row.path, self.classes[row.label], row.split, row.sha256, row.group)[: len(columns)]
            for row in self.rows
        )
        return encode_table(columns, rows)

    def write(self, path: Path) -> None:
        write_atomically(path, self.to_csv())

    @classmethod
    def read(cls, path: Path, root: Path) -> Self:
        """Read a table written by `write`; a RunError names an invalid line."""
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
            if len(cells) != len(header):
                raise table.error(f"found {count(len(cells), 'cell')} instead of {len(header)}")
            name, _, part, sha256 = cells[: len(MANIFEST_COLUMNS)]
            if not name or name.startswith("/") or ".." in name.split("/"):
                raise table.error(f"the path {name!r} does not point inside the data folder")
            if name in found:
                raise table.error(f"{name!r} is listed twice")
            if part not in get_args(SplitName):
                raise table.error(f"split is {part!r}, but must be 'train', 'val' or 'test'")
            if not re.fullmatch("[0-9a-f]{64}", sha256):
                raise table.error(f"{sha256[:70]!r} is not a sha256 digest")
            found[name] = cells
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

    The root is the data folder in config.toml, or the base folder of the table. A damaged file is a
    RunError.
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


def split(
    checked: InspectedFolder,
    spec: DataSpec,
    *,
    groups: Mapping[str, str] | None = None,
    former: FormerSplit | None = None,
) -> Manifest:
    """Assign every readable image to training, validation or the final test.

    A folder with its own subsets keeps them. Otherwise, validation images are chosen by content or
    at random, at least one from every class with two or more readable images. All images of a group
    are on the same side: whole groups are drawn if `spec.split` is `content` or the user has
    defined groups; otherwise, a group of near-duplicates is moved to the side of its first image.
    The reference split draws from all files, as the reference script does, and drops the unreadable
    files afterwards.

    `groups` comes from `joined_groups`. Images of `former` stay where they were, unless a class
    would then have no validation images.

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
        held_back = _draw_paths(folder.files, spec, at_least=0)
    else:
        members = _ordered_groups(undecided, groups, spec)
        if folder.labels:
            has = membership(folder.classes, folder.labels).astype(np.int64)
            assigned = {"val": 0, "train": 1}
            subset = stratify(
                np.stack([has[[file.label for file in unit]].sum(axis=0) for unit in members]),
                np.array([len(unit) for unit in members]),
                (spec.val_rate, 1 - spec.val_rate),
                seed=None if spec.split == "content" else spec.seed,
                at_least=1,
                fixed=np.array([assigned.get(unit[0].part, -1) for unit in members]),
            )
            drawn = zip(members, subset, strict=True)
            held_back = {file.path for unit, own in drawn if own == 0 for file in unit}
        elif spec.split == "content" or any(file.group for file in undecided):
            held_back = _keep_groups_together(members, draw_groups(members, spec))
        else:
            held_back = _keep_groups_together(members, _draw_paths(undecided, spec, at_least=1))
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
            unread = " (all images of a group must be on the same side of the split)"
        if checked.bad:
            examples = "; ".join(f"{path}: {reason}" for path, reason in checked.bad[:2])
            unread += f", {count(len(checked.bad), 'file')} could not be read ({examples})"
        raise _lacking_images(lacking, checked.folder, unread)
    if not manifest.val:
        fix = "increase data.val_rate, add images, or use the default split"
        raise DataError("the reference split leaves no images for validation", fix=fix)
    return manifest


def check_folder_classes(folder: Folder) -> str:
    """Raise a DataError if a class has too few files, before any file is read.

    Return a note on classes of which no image can be held out, or an empty string.
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
    """Return the classes without enough images, each with its numbers of images."""
    numbers = {name: (have[name, "train"], have[name, "val"]) for name in folder.outputs}
    if folder.layout == "split":
        return [
            f"{name} ({train:,} for training, {val:,} for validation)"
            for name, (train, val) in numbers.items()
            if not (train and val)
        ]
    # A class may have training images only, if two other classes have validation images
    measured = sum(val > 0 for _, val in numbers.values())
    enough = folder.reference or measured >= min(2, len(numbers))
    return [f"{n} ({t + v:,})" for n, (t, v) in numbers.items() if not (t and (v or enough))]


def trained_only_note(have: Mapping[tuple[str, str], int], names: Sequence[str]) -> str:
    """Return a note on the classes without validation images, or an empty string."""
    only = [name for name in names if not have[name, "val"]]
    if not only:
        return ""
    note = f"in training but not in validation, so the recall is unknown: {listing(only)}"
    others = [name for name in names if name not in only]
    found = ((n, misspelt_name(n.strip(), others)) for n in only if len(n) > _MIN_SPELT)
    if near := [(name, other) for name, other in found if other]:
        note += f". If {listing(f'{a!r} means {b!r}' for a, b in near)}, use {class_table(near)}"
    return note


def _lacking_images(names: Sequence[str], folder: Folder, unread: str = "") -> DataError:
    fix = "provide readable images: 1 of every class, and 2 (in 2 groups) of at least 2 classes"
    column = folder.split_column
    where = f" in the column {column}" if column else ""
    if folder.layout == "split":
        fix = f"give every class a training and a validation image{where}, or remove these classes"
    if column == CHOSEN:
        fix = f"give every class a training and a validation image{where}: answer more "
        fix += (
            "randomly drawn pictures (key m) in `vitft label`, or leave out --set data.split_column"
        )
    elif column:
        fix += ". --set data.split_column=none ignores the column"
    return DataError(
        f"too few readable images for training and validation in {len(names)} of "
        f"{len(folder.outputs)} classes: {listing(names)}{unread}",
        fix=fix,
    )


def leaks(manifest: Manifest) -> tuple[list[list[str]], list[list[str]]]:
    """Return the paths of identical files in several subsets, and of those with several labels."""
    by_digest: dict[str, list[Row]] = {}
    for row in manifest.rows:
        by_digest.setdefault(row.sha256, []).append(row)
    groups = by_digest.values()
    across = [[row.path for row in g] for g in groups if len({row.split for row in g}) > 1]
    return across, [[row.path for row in g] for g in groups if len({row.label for row in g}) > 1]


def write_class_indices(path: Path, classes: Sequence[str]) -> None:
    """Write class_indices.json as the reference script does: {"0": "daisy", ...}, indent 4."""
    write_atomically(path, json.dumps(dict(enumerate(classes)), indent=4))
