"""Split of a dataset into training and validation images, recorded in a manifest.

Of the n images of each class, `int(n * val_rate)` are held out for validation. Except in the
reference split, at least one image of each class with two or more images is held out, and identical
images are kept on the same side of the split. No images are read.
"""

import hashlib
import logging
import os
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, compress, islice, pairwise, starmap
from pathlib import Path
from typing import Any

import numpy as np

from vitft.config.run import read_run_config
from vitft.config.sections import DataSpec
from vitft.data.arrays import data_path
from vitft.data.duplicates import group_names
from vitft.data.image_table import Images, Row, files_of, membership
from vitft.data.parts import Part
from vitft.data.scan import class_table
from vitft.data.table import base_folder
from vitft.system.console import visible
from vitft.system.errors import DataError
from vitft.system.rundir import RunDir, damaged_file
from vitft.system.suggest import misspelt_name
from vitft.system.text import count, labelled, listing

log = logging.getLogger(__name__)

_Array = np.ndarray[Any, Any]

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


def _draw_each(labels: _Array, spec: DataSpec, *, at_least: int) -> _Array:
    """Return whether each image is drawn for validation (see `draw`), given the classes (n,)."""
    drawn, order = np.zeros(len(labels), dtype=bool), np.argsort(labels, kind="stable")
    counts = np.unique(labels, return_counts=True)[1]
    picks = draw(counts.tolist(), spec.val_rate, spec.seed, at_least=at_least)
    for own, chosen in zip(np.split(order, np.cumsum(counts)[:-1]), picks, strict=True):
        drawn[own[chosen]] = True
    return drawn


def joined_groups(images: Images, duplicates: Mapping[str, str]) -> Mapping[str, str]:
    """Map digests to groups that must not be divided: the user's groups and duplicates.

    Groups that share an image are joined. `duplicates` maps digests to groups of near-duplicates.
    The result may omit digests without a group.
    """
    if not any(images.column("group")):
        return duplicates
    place: dict[str, int] = {}
    first: dict[tuple[str, str], int] = {}
    pairs = []
    for row in images.rows:
        own = place.setdefault(row.sha256, len(place))
        if row.group:
            pairs.append((first.setdefault(("user", row.group), own), own))
    for digest, name in duplicates.items():
        if digest in place:
            own = place[digest]
            pairs.append((first.setdefault(("copies", name), own), own))
    return group_names([*place], pairs)


def joined_note(images: Images, groups: Mapping[str, str], duplicates: Mapping[str, str]) -> str:
    """Return a note if copies join groups of the user, if any; `groups` as from `joined_groups`."""
    drawn = {(row.group, row.sha256) for row in images.rows if row.group and not row.split}
    own, left = {group for group, _ in drawn}, {groups.get(digest, digest) for _, digest in drawn}
    if len(left) >= len(own):
        return ""
    copies = "identical images or near-duplicates" if duplicates else "identical images"
    return (
        f"{copies} in different groups merge the {count(len(own), 'group')} into {len(left):,}, "
        "because no image may be in both training and validation. vitft check lists the copies. "
        "Drop them to keep the groups apart"
    )


def _units(images: Images, groups: Mapping[str, str]) -> _Array:
    """Return the number of the unit of each image: identical files and groups are not divided."""
    digests, inverse = np.unique(images.column("sha256").view("S32"), return_inverse=True)
    known = np.array([bytes.fromhex(digest) for digest in groups], "S32")
    unit, first = np.arange(len(digests)), dict[str, int]()
    places = np.searchsorted(digests, known).tolist()
    for place, digest, name in zip(places, known, groups.values(), strict=True):
        if place < len(digests) and digests[place] == digest:
            unit[place] = first.setdefault(name, place)
    return unit[inverse]


def _in_units(
    images: Images, places: _Array, units: _Array, spec: DataSpec
) -> tuple[_Array, _Array]:
    """Return the places of images in the order of their units, and the size of each unit."""
    # Units are ordered by their first images, latest dates or, by content, a hash of the seed and a
    # name, which does not depend on their size
    _, keys, inverse = np.unique(units[places], return_index=True, return_inverse=True)
    if spec.split == "time":
        keys = np.full(len(keys), np.iinfo(np.int64).min)  # without a date
        np.maximum.at(keys, inverse, images.column("time")[places].astype(np.int64))
    elif spec.split == "content":
        digests, groups = images.column("sha256"), images.column("group")
        ordered = places[np.argsort(inverse, kind="stable")]
        ends = np.cumsum(np.bincount(inverse)).tolist()

        def key(start: int, end: int) -> bytes:
            names = (
                _hash_of(f"group {groups[i]}").hex() if groups[i] else digests.item(i).hex()
                for i in ordered[start:end]
            )
            return _hash_of(f"{spec.seed} {min(names)}")

        keys = np.fromiter(starmap(key, pairwise([0, *ends])), "S32", len(ends))
    rank = np.argsort(np.argsort(keys, kind="stable"))[inverse]
    return places[np.argsort(rank, kind="stable")], np.bincount(rank)


def _hash_of(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _draw_units(
    units: Sequence[Sequence[int]], parts: Sequence[Part], spec: DataSpec
) -> list[bool]:
    """Return whether each unit (classes of its images) brings validation closer to `val_rate`."""
    alone, counts = _undivided(units), Counter(chain.from_iterable(units))
    lacking = {n: max(1, int(i * spec.val_rate)) * (n not in alone) for n, i in counts.items()}
    order, drawn = list(range(len(units))), [False] * len(units)
    if spec.split == "random":
        random.Random(spec.seed).shuffle(order)
    order.sort(key=lambda number: parts[number] != "val")
    for number in order:
        own, part = Counter(units[number]), parts[number]
        change = sum(abs(lacking[label] - n) - abs(lacking[label]) for label, n in own.items())
        if part == "val" or (change < 0 and part != "train" and not alone & own.keys()):
            drawn[number] = True
            for label, n in own.items():
                lacking[label] -= n
    return drawn


def _draw_latest(images: Images, sizes: _Array, parts: _Array, rate: float) -> list[bool]:
    """Return which units are held out: the latest, given the images in the order of their units.

    The dates of the units ascend, and those without a date come first. Units of the same date are
    not divided. Units that are in a part already keep it. If a class would have no training images,
    its earliest unit is not held out.
    """
    undated = images.where(np.isnat(images.column("time"))).rows
    if len(undated) > len(images.rows) / 10:
        raise DataError(
            f"{len(undated):,} of {count(len(images.rows), 'image')} in {images.name} have no "
            f"date, e.g. {undated[0].path}",
            fix=f"fill in the column {images.dates}, or use --split content"
            if images.dates
            else "write the dates in a table and choose their column with "
            "--set data.time=COLUMN, or use --split content",
        )
    first = np.cumsum(sizes) - sizes
    times = np.maximum.reduceat(images.column("time").astype(np.int64), first)
    drawn, free = parts == "val", np.flatnonzero(parts == "")
    due = rate * len(images.rows) - sizes[drawn].sum()
    starts = np.flatnonzero(np.diff(times[free])) + 1  # of each date but the first
    if len(free) < len(parts):
        starts = np.append(starts, len(free))  # the images held out before may be enough
    if not len(starts):
        raise DataError(
            f"all images in {images.name} have the same date, so none of them are later",
            fix="use dates with the time of day, or --split content",
        )
    later = sizes[free].sum() - np.append(0, np.cumsum(sizes[free]))[starts]  # images from each on
    drawn[free[starts[np.abs(later - due).argmin()] :]] = True
    every = map(images.names, images.rows)
    names = [{*chain.from_iterable(islice(every, size))} for size in sizes.tolist()]
    have = set[str]().union(*compress(names, ~drawn))
    for number in np.flatnonzero(drawn & (parts != "val")).tolist():
        if not names[number] <= have:
            drawn[number] = False
            have |= names[number]
    return [*drawn.tolist()]


def _undivided(units: Sequence[Sequence[int]]) -> frozenset[int]:
    """Return the classes whose images are all in one unit, which is never drawn."""
    found = Counter(label for unit in units for label in {*unit})
    return frozenset(label for label, number in found.items() if number == 1)


def _with_both_sides(
    units: Sequence[Sequence[int]], parts: Sequence[Part], drawn: Sequence[bool]
) -> list[bool]:
    """Return which units are used for validation; those that a class lacks are moved to it."""
    alone = _undivided(units)
    side = [  # True: validation
        is_val and (part == "val" or alone.isdisjoint(unit))
        for unit, part, is_val in zip(units, parts, drawn, strict=True)
    ]
    have = Counter((n, is_val) for unit, is_val in zip(units, side, strict=True) for n in unit)
    for label, wanted in ((n, w) for n in sorted({n for n, _ in have}) for w in (False, True)):
        for i, unit in enumerate(units) if not have[label, wanted] else ():
            counts = Counter(unit)
            spared = all(have[other, not wanted] > n for other, n in counts.items())
            if label in counts and side[i] != wanted and parts[i] != "val" and spared:
                side[i] = wanted
                have.update({(other, wanted): n for other, n in counts.items()})
                have.subtract({(other, not wanted): n for other, n in counts.items()})
                break
    return side


def first_part(found: Collection[Part]) -> Part:
    """Return the subset of images that were in several: held out if one was, empty for new ones."""
    order: tuple[Part, ...] = ("test", "val", "train")
    return next((part for part in order if part in found), "")


def _as_before(images: Images, units: _Array, former: Mapping[str, Part]) -> list[Part]:
    """Return the subset of each image in an earlier run, or its own; units are not divided."""
    before: dict[int, Part] = {}
    for row, unit in zip(images.rows, units.tolist(), strict=True):
        if row.split != "test":
            before[unit] = first_part((former.get(row.sha256, ""), before.get(unit, "")))
    parts: list[Part] = []
    for row, unit in zip(images.rows, units.tolist(), strict=True):
        part = "" if row.split == "test" else before[unit]
        if images.layout == "split" and (row.split != "train" or part == "train"):
            part = ""
        parts.append(part or row.split)
    return parts


# iterative stratification: division of multi-label data into subsets, label by label --------------


def stratify(
    counts: _Array,
    sizes: _Array,
    fractions: Sequence[float],
    *,
    seed: int | None,
    at_least: int = 0,
    fixed: _Array | None = None,
) -> _Array:
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
    root = base_folder(data_path(str(section["path"])), str(section["root"]))
    return Images.from_csv(path, root)


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

    `groups` maps digests to groups that must not be divided (see `joined_groups`), and `former` to
    their subsets in an earlier run: they stay there, unless a class would then have no validation
    images. `listed` are all files, for the reference split, if some are unreadable.

    Raises:
        DataError: A class has no training images, or fewer than two classes have validation images.
            For the reference split, validation images of a single class are enough.
    """
    assert checked.reference == (spec.split == "reference"), (
        "the folder was scanned for a different kind of split"
    )
    parts, labels = checked.column("split"), checked.column("label")
    numbers = _units(checked, joined_groups(checked, {}) if groups is None else groups)
    if former is not None:
        parts = np.array(_as_before(checked, numbers, former), dtype=object)
    undecided, is_val = np.flatnonzero(parts != "test"), parts == "val"
    if checked.reference:
        files = listed or checked.rows
        drawn = _draw_each(np.array([file.label for file in files]), spec, at_least=0)
        paths = {file.path for file, is_drawn in zip(files, drawn, strict=True) if is_drawn}
        is_val = np.array([path in paths for path in checked.column("path")], dtype=bool)
    elif checked.layout == "classes" and len(undecided):
        places, sizes = _in_units(checked, undecided, numbers, spec)
        ends, ordered = np.cumsum(sizes).tolist(), labels[places].tolist()
        units = [ordered[start:end] for start, end in pairwise([0, *ends])]
        firsts = places[np.cumsum(sizes) - sizes]
        if spec.split == "time":
            side = _draw_latest(checked.where(places), sizes, parts[firsts], spec.val_rate)
        elif checked.labels:
            has = membership(checked.classes, checked.labels).astype(np.int64)
            subset = stratify(
                np.stack([has[unit].sum(axis=0) for unit in units]),
                sizes,
                (spec.val_rate, 1 - spec.val_rate),
                seed=None if spec.split == "content" else spec.seed,
                at_least=1,
                fixed=np.array([{"val": 0, "train": 1}.get(part, -1) for part in parts[firsts]]),
            )
            side = (subset == 0).tolist()
        else:
            assigned = parts[firsts].tolist()
            if spec.split == "content" or any(checked.column("group")[undecided]):
                side = _draw_units(units, assigned, spec)
            else:
                drawn = np.zeros(len(parts), dtype=bool)
                drawn[undecided] = _draw_each(labels[undecided], spec, at_least=1)
                side = drawn[firsts].tolist()
            side = _with_both_sides(units, assigned, side)
        is_val = np.zeros(len(parts), dtype=bool)
        is_val[places[np.repeat(side, sizes)]] = True
    drawn_parts = np.array(["train", "val"], dtype=object)[is_val.astype(int)]
    images = checked.with_column("split", np.where(parts == "test", parts, drawn_parts))
    _check_enough(_class_counts(images), checked, by_time=spec.split == "time")
    if not images.val:
        fix = "increase data.val_rate, add images, or use the default split"
        raise DataError("the reference split leaves no images for validation", fix=fix)
    return images


def check_folder_classes(folder: Images) -> str:
    """Raise a DataError if a class has too few files, before any file is read.

    Return a note on classes of which no image can be held out, or an empty string.
    """
    have, first = Counter[tuple[str, str]](), dict[str, str]()
    for file in folder.rows:
        for name in folder.names(file):  # of two groups of images, one can be held out
            unit = file.group or file.path
            part = file.split or ("train" if first.setdefault(name, unit) == unit else "val")
            have[name, part] += 1
    _check_enough(have, folder)
    return _trained_only_note(have, folder.outputs.classes)


def _class_counts(images: Images) -> Mapping[tuple[str, str], int]:
    """Return the number of images of each class or label in each subset."""
    return Counter((name, row.split) for row in images.rows for name in images.names(row))


def _check_enough(
    have: Mapping[tuple[str, str], int], folder: Images, *, by_time: bool = False
) -> None:
    """Raise a DataError if classes have too few images for training and validation."""
    numbers = {name: (have[name, "train"], have[name, "val"]) for name in folder.outputs.classes}
    fix = "provide readable images: 1 of every class, and 2 (in 2 groups) of at least 2 classes"
    if folder.layout == "split":
        lacking = [
            f"{name} ({train:,} for training, {val:,} for validation)"
            for name, (train, val) in numbers.items()
            if not (train and val)
        ]
        fix = "give every class a training and a validation image, or remove these classes"
        fix += ". --set data.split_column=none ignores the column" * bool(folder.table)
    else:
        if by_time:
            fix = "hold out more, e.g. with --set data.val_rate=0.4, so that the latest images "
            fix += "include 2 classes that have earlier images, too, or use --split content"
        # A class may have training images only, if two other classes have validation images
        measured = sum(val > 0 for _, val in numbers.values())
        enough = folder.reference or measured >= min(2, len(numbers))
        lacking = [
            f"{name} ({train + val:,})"
            for name, (train, val) in numbers.items()
            if not (train and (val or enough))
        ]
    if not lacking:
        return
    problem = "too few readable images" if not by_time else "too few images with other dates"
    problem += " in different groups" * any(folder.column("group"))
    problem += f" for training and validation in {len(lacking)} of "
    problem += f"{len(numbers)} classes: {listing(lacking)}"
    if folder.bad:
        examples = "; ".join(f"{path}: {reason}" for path, reason in folder.bad[:2])
        problem += f", {count(len(folder.bad), 'file')} could not be read ({examples})"
    raise DataError(problem, fix=fix)


def _trained_only_note(have: Mapping[tuple[str, str], int], names: Sequence[str]) -> str:
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


# log messages about a split: a chart of the images per class, and warnings about leaks ------------

_MOST_CLASSES, _FEWEST_CLASSES = 20, 5
"""Maximum number of classes for a chart of all classes, and number of classes shown otherwise."""
_UNEVEN = 3  # ratio of the largest to the smallest class from which their sizes are shown
_MAX_CLASS_NAME = 28  # maximum number of characters of a class name in the chart


def log_dates(manifest: Images) -> None:
    """Log the dates of the training and validation images of a split by time."""
    dates, parts = manifest.column("time"), manifest.column("split")
    undated = int(np.isnat(dates[parts != "test"]).sum())
    train, val = (np.sort(dates[(parts == part) & ~np.isnat(dates)]) for part in ("train", "val"))
    ends = [times[[0, -1]].tolist() if len(times) else [] for times in (train, val)]
    days = not all(ends) or ends[0][1].date() != ends[1][0].date()  # else the time of day matters
    texts = [" to ".join(str(t.date() if days else t) for t in pair) or "none" for pair in ends]
    if late := int((val <= train[-1]).sum()) if len(train) else 0:
        log.warning(
            f"{late:,} of {count(len(manifest.val), 'validation image')} "
            f"{'is' if late == 1 else 'are'} not later than all training images, because of their "
            "group, their class or --like"
        )
    text = f"training {texts[0]}, validation {texts[1]}"
    text += f". {count(undated, 'image')} without a date" * bool(undated)
    log.info(labelled("Dates", text))


def log_split(manifest: Images) -> None:
    """Log the number of images of each part, and warn about identical files that are apart.

    With -v, chart the images per class (only the smallest classes if there are many).
    """
    have, names = _class_counts(manifest), manifest.outputs.classes
    size = {name: have[name, "train"] + have[name, "val"] for name in names}
    parts = [f"{len(manifest.train):,} for training", f"{len(manifest.val):,} for validation"]
    across = "in both training and validation"
    if manifest.test:
        parts.append(f"{len(manifest.test):,} for the final test")
        across = "in more than one of training, validation and test"
    fewest, most = min(size.values()), max(size.values())
    range_ = f", {fewest:,} to {most:,} images a class" * (most >= _UNEVEN * fewest)
    log.info(labelled("Split", f"{listing(parts)}{range_}"))
    shown = list(names)
    if len(shown) > _MOST_CLASSES:
        shown = sorted(sorted(shown, key=size.__getitem__)[:_FEWEST_CLASSES])
        log.debug(f"the {len(shown)} of {len(names):,} classes with the fewest images:")
    from rich.cells import cell_len  # not needed to read a split

    largest = max(size[name] for name in shown)
    titles = [visible(name) for name in shown]
    titles = [t if len(t) <= _MAX_CLASS_NAME else f"{t[: _MAX_CLASS_NAME - 1]}…" for t in titles]
    widest = max(map(cell_len, titles))
    for name, title in zip(shown, titles, strict=True):
        train, val = have[name, "train"], have[name, "val"]
        bar = "█" * round(30 * train / largest) + "░" * round(30 * val / largest)
        log.debug(f"  {title}{' ' * (widest - cell_len(title))}  {bar} {train:,} + {val:,}")
    if note := _trained_only_note(have, names):
        log.warning(note)
    if manifest.test and (lacking := [name for name in names if not have[name, "test"]]):
        log.warning(f"no test images, so the test says nothing about these: {listing(lacking)}")
    # Identical files on several sides, or with several labels
    first, file = files_of(manifest.column("sha256"))
    for kind, name in ((across, "split"), ("with different labels (one counts)", "label")):
        values = manifest.column(name)
        if len(apart := np.unique(first[file[values != values[first][file]]])):
            copies = manifest.where(file == file[apart[0]]).rows[:2]
            example = " and ".join(row.path for row in copies)
            log.warning(f"identical files {kind}: {count(len(apart), 'group')}, e.g. {example}")
