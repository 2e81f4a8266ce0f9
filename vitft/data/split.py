"""Split of a dataset into training and validation images, recorded in a manifest.

Of the n images of each class, `int(n * val_rate)` are held out for validation. Except in the
reference split, at least one image of each class with two or more images is held out, and identical
images are kept on the same side of the split. No images are read.
"""

import hashlib
import json
import os
import random
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitft.config.run import read_run_config
from vitft.config.sections import DataSpec
from vitft.data.duplicates import group_names
from vitft.data.folder import class_table
from vitft.data.image_table import Images, Row, membership, pack
from vitft.data.label_sets import split_labels
from vitft.data.parts import CHOSEN, Part
from vitft.data.remote.places import INDEX, place_of
from vitft.data.table import base_folder
from vitft.system.errors import DataError
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


def _draw_paths(files: Sequence[Row], spec: DataSpec, *, at_least: int) -> set[str]:
    """Draw individual files of each class for validation (see `draw`), and return their paths."""
    by_class: dict[int, list[str]] = {}
    for file in files:
        by_class.setdefault(file.label, []).append(file.path)
    paths = [by_class[label] for label in sorted(by_class)]
    drawn = draw(list(map(len, paths)), spec.val_rate, spec.seed, at_least=at_least)
    return {own[i] for own, picks in zip(paths, drawn, strict=True) for i in picks}


def joined_groups(files: Sequence[Row], duplicates: Mapping[str, str]) -> Mapping[str, str]:
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
    files: Sequence[Row], groups: Mapping[str, str], duplicates: Mapping[str, str]
) -> str:
    """Return a note if copies join groups of the user, if any; `groups` as from `joined_groups`."""
    drawn = [file for file in files if file.group and not file.split]
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
    files: Sequence[Row], groups: Mapping[str, str], spec: DataSpec
) -> list[list[Row]]:
    """Return the files of each group; identical files are always in one group.

    If `spec.split` is `content`, groups are ordered by a hash of the seed and one name per group,
    so that the size of a group does not affect its position.
    """
    members: dict[str, list[Row]] = {}
    for file in files:
        members.setdefault(groups.get(file.sha256, file.sha256), []).append(file)
    if spec.split != "content":
        return list(members.values())

    def place(group: Sequence[Row]) -> bytes:
        names = {_hash_of(f"group {f.group}").hex() if f.group else f.sha256 for f in group}
        return _hash_of(f"{spec.seed} {min(names)}")

    return sorted(members.values(), key=place)


def _hash_of(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def draw_groups(members: Sequence[Sequence[Row]], spec: DataSpec) -> set[str]:
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
    order.sort(key=lambda group: group[0].split != "val")
    drawn: set[str] = set()
    for group in order:
        own = Counter(file.label for file in group)
        change = sum(abs(lacking[label] - n) - abs(lacking[label]) for label, n in own.items())
        is_free = group[0].split != "train" and not alone & own.keys()
        if group[0].split == "val" or (change < 0 and is_free):
            drawn.update(file.path for file in group)
            for label, n in own.items():
                lacking[label] -= n
    return drawn


def _undivided(members: Sequence[Sequence[Row]]) -> Set[int]:
    """Return the classes whose images are all in one group, which is never drawn."""
    found = Counter(label for group in members for label in {file.label for file in group})
    return {label for label, groups in found.items() if groups == 1}


def _keep_groups_together(members: Sequence[Sequence[Row]], drawn: Set[str]) -> set[str]:
    """Move each group to the side of its first image, and return the validation paths.

    A group with all images of a class is used for training. If all images of a class are then on
    one side, the first group that the side can spare is moved to the other.
    """
    alone = _undivided(members)
    side = [  # True: validation
        group[0].path in drawn
        and (group[0].split == "val" or not any(file.label in alone for file in group))
        for group in members
    ]
    sided = list(zip(members, side, strict=True))
    have = Counter((file.label, is_val) for group, is_val in sided for file in group)
    labels = {file.label for group in members for file in group}
    for label, wanted in sorted((label, wanted) for label in labels for wanted in (True, False)):
        for i, group in enumerate(members) if not have[label, wanted] else ():
            counts = Counter(file.label for file in group)
            spared = all(have[other, not wanted] > n for other, n in counts.items())
            is_free = side[i] != wanted and group[0].split != "val"
            if label in counts and is_free and spared:
                side[i] = wanted
                have.update({(other, wanted): n for other, n in counts.items()})
                have.subtract({(other, not wanted): n for other, n in counts.items()})
                break
    return {f.path for group, is_val in zip(members, side, strict=True) if is_val for f in group}


def first_part(found: Collection[Part]) -> Part:
    """Return the subset of images that were in several: held out if one was, empty for new ones."""
    order: tuple[Part, ...] = ("test", "val", "train")
    return next((part for part in order if part in found), "")


def _as_before(images: Images, groups: Mapping[str, str], former: Mapping[str, Part]) -> list[Row]:
    """Return the rows, assigned to the subsets of an earlier run; whole groups are.

    Of data already divided into subsets, only training images that were held out are reassigned.
    """
    members: dict[str, set[Part]] = {}
    for row in images.rows:
        if row.split != "test":
            found = members.setdefault(groups.get(row.sha256, row.sha256), set())
            found.add(former.get(row.sha256, ""))
    parts = {name: first_part(found) for name, found in members.items()}
    assigned = []
    for row in images.rows:
        part = "" if row.split == "test" else parts[groups.get(row.sha256, row.sha256)]
        if images.layout == "split" and (row.split != "train" or part == "train"):
            part = ""
        assigned.append(row._replace(split=part) if part else row)
    return assigned


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

_MIN_SPELT = 4
"""Number of characters up to which a name is not taken for a misspelt one, as `car` for `cat`."""


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


def run_manifest(run: Path) -> Images | None:
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
    return Images.from_csv(path, base_folder(folder, str(section["root"])))


def split(
    checked: Images,
    spec: DataSpec,
    *,
    groups: Mapping[str, str] | None = None,
    former: Mapping[str, Part] | None = None,
    listed: Sequence[Row] = (),
) -> Images:
    """Assign every readable image to training, validation or the final test.

    A folder with its own subsets keeps them. Otherwise, validation images are chosen by content or
    at random, at least one from every class with two or more readable images. All images of a group
    are on the same side: whole groups are drawn if `spec.split` is `content` or the user has
    defined groups; otherwise, a group of near-duplicates is moved to the side of its first image.
    The reference split draws from all files, as the reference script does, and drops the unreadable
    files afterwards.

    `groups` comes from `joined_groups`. `former` maps digests to their subsets in an earlier run:
    they stay there, unless a class would then have no validation images. `listed` are all files,
    for the reference split, if some are unreadable.

    Raises:
        DataError: A class has no training images, or fewer than two classes have validation images.
            For the reference split, validation images of a single class are enough.
    """
    groups = groups or {}
    assert checked.reference == (spec.split == "reference"), (
        "the folder was scanned for a different kind of split"
    )
    files: Sequence[Row] = checked.rows
    if former is not None:
        files = _as_before(checked, groups, former)
    undecided = [file for file in files if file.split != "test"]
    if checked.layout == "split":
        held_back = {file.path for file in files if file.split == "val"}
    elif checked.reference:
        held_back = _draw_paths(listed or files, spec, at_least=0)
    else:
        members = _ordered_groups(undecided, groups, spec)
        if checked.labels:
            has = membership(checked.classes, checked.labels).astype(np.int64)
            assigned = {"val": 0, "train": 1}
            subset = stratify(
                np.stack([has[[file.label for file in unit]].sum(axis=0) for unit in members]),
                np.array([len(unit) for unit in members]),
                (spec.val_rate, 1 - spec.val_rate),
                seed=None if spec.split == "content" else spec.seed,
                at_least=1,
                fixed=np.array([assigned.get(unit[0].split, -1) for unit in members]),
            )
            drawn = zip(members, subset, strict=True)
            held_back = {file.path for unit, own in drawn if own == 0 for file in unit}
        elif spec.split == "content" or any(file.group for file in undecided):
            held_back = _keep_groups_together(members, draw_groups(members, spec))
        else:
            held_back = _keep_groups_together(members, _draw_paths(undecided, spec, at_least=1))
    rows = (
        row._replace(
            split="test" if row.split == "test" else "val" if row.path in held_back else "train"
        )
        for row in files
    )
    images = replace(checked, rows=pack(rows))
    have = Counter[tuple[str, str]](
        (name, row.split) for row in images.rows for name in images.names(row)
    )
    if lacking := _lacking_classes(have, checked):
        unread = ""
        if checked.layout == "classes" and any(file.group for file in checked.rows):
            unread = " (all images of a group must be on the same side of the split)"
        if checked.bad:
            examples = "; ".join(f"{path}: {reason}" for path, reason in checked.bad[:2])
            unread += f", {count(len(checked.bad), 'file')} could not be read ({examples})"
        raise _lacking_images(lacking, checked, unread)
    if not images.val:
        fix = "increase data.val_rate, add images, or use the default split"
        raise DataError("the reference split leaves no images for validation", fix=fix)
    return images


def check_folder_classes(folder: Images) -> str:
    """Raise a DataError if a class has too few files, before any file is read.

    Return a note on classes of which no image can be held out, or an empty string.
    """
    names = [split_labels(text) if folder.labels else (text,) for text in folder.classes]
    have, first = Counter[tuple[str, str]](), dict[str, str]()
    for file in folder.rows:
        for name in names[file.label]:  # of two groups of images, one can be held out
            unit = file.group or file.path
            part = file.split or ("train" if first.setdefault(name, unit) == unit else "val")
            have[name, part] += 1
    if lacking := _lacking_classes(have, folder):
        raise _lacking_images(lacking, folder)
    return trained_only_note(have, folder.outputs)


def _lacking_classes(have: Mapping[tuple[str, str], int], folder: Images) -> list[str]:
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


def _lacking_images(names: Sequence[str], folder: Images, unread: str = "") -> DataError:
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


def leaks(manifest: Images) -> tuple[list[list[str]], list[list[str]]]:
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
