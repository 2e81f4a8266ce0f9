"""Scan of a data folder, a table or an array dataset: classes, image files and groups.

Image files are not opened.
"""

import os
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from vitft.config.sections import DataSpec
from vitft.data.arrays import ArraySet, find_arrays
from vitft.data.class_changes import change_classes
from vitft.data.folder import (
    check_are_classes,
    check_is_folder,
    empty_classes_error,
    scan_folder,
    split_folders,
    twins_among,
    warnings_on_names,
    way_out,
)
from vitft.data.image_table import Images, Row
from vitft.data.label_table import GROUP, OTHER_GROUP, bare_name, read_label_table
from vitft.data.listed_files import find_files
from vitft.data.parts import Part, part_named
from vitft.data.table import is_table
from vitft.data.walk import Walk
from vitft.system.errors import DataError, UsageError
from vitft.system.text import count, listing


def scan(data: Path, spec: DataSpec | None = None, *, allow_empty: bool = False) -> Images:
    """Find the classes, images and groups of a data folder, a table or an array dataset.

    Image files are not opened. If `spec` requests the reference split, the rules of the reference
    script apply. Class folders may be empty with `allow_empty`, and if `spec` names a table of
    fixes; `apply_fixes` then checks them.

    Raises:
        DataError: The data cannot be read, has fewer than two classes, an empty class or
            inconsistent subsets, or does not allow the reference split.
    """
    spec = spec or DataSpec()
    reference = spec.split == "reference"
    arrays = find_arrays(data)
    if arrays is not None:
        folder = _array_images(data, arrays)
    elif is_table(data):
        folder = _scan_table(data, spec)
    else:
        check_is_folder(data)
        may_be_empty = allow_empty or bool(spec.fixes or spec.classes)
        folder = scan_folder(
            data, reference=reference, allow_empty=may_be_empty, any_names=bool(spec.classes)
        )
    if arrays is not None or folder.table:
        if reference:
            raise DataError(
                f"{folder.source} is not a folder of images, but the reference split needs one",
                fix="omit --split reference",
            )
        _refuse_measured(folder)
    if spec.classes:
        folder = change_classes(folder, Path(spec.classes).expanduser())
        if folder.empty and not (spec.fixes or allow_empty):
            raise empty_classes_error(folder, folder.empty)
    if spec.group_by:
        folder = _with_groups(folder, spec.group_by)
    elif not (reference or spec.group or any(file.group for file in folder.rows)):
        notes = filter(None, [_sequence_note(folder), _note_on_group_names(folder)])
        folder = replace(folder, notes=(*folder.notes, *notes))
    _check_groups(folder)
    twins = map(listing, twins_among(sorted({file.group for file in folder.rows})))
    doubts = (f"{same} may be one group: if so, write it the same way everywhere" for same in twins)
    return replace(folder, warnings=(*folder.warnings, *doubts))


def find_labelled(
    source: Path, *, subset: str | None = None, spec: DataSpec | None = None
) -> Images:
    """List labelled images for an evaluation; unlike in `scan`, a class may be empty.

    `spec` may name the columns of a table and the folder to which its paths are relative. Of data
    with subsets, only `subset` is listed or, by default, val if it exists and test otherwise. The
    caller checks that the classes match those of the model.

    Raises:
        DataError: The source is missing, unreadable or invalid, or has no labelled images.
        UsageError: The requested subset does not exist.
    """
    spec = spec or DataSpec()
    parts: Sequence[str]
    if arrays := find_arrays(source):
        images = _array_images(source, arrays)
        parts = images.parts
    elif is_table(source):
        images, _ = find_files(read_label_table(source, spec), allow_bad=True)
        parts = images.parts
    else:
        check_is_folder(source)
        walk = Walk(os.fspath(source))
        folders = split_folders(walk, walk.folders_of("")[0])
        parts = [*folders]
        folder = folders.get(_chosen_part(parts, subset, source), "")
        where = source / folder
        classes, loose = walk.folders_of(folder)
        rows = [
            Row(path, label, part_named(folder))
            for label, name in enumerate(classes)
            for path in walk.images_in(f"{folder}/{name}".lstrip("/"))
        ]
        walk.raise_if_refused()
        if not rows and not walk.bad:
            content = count(len(classes), "empty class folder") if classes else "no class folders"
            content += f", {count(loose, 'image')} outside class folders" if loose else ""
            raise DataError(f"no labelled images in {where}: {content}", fix=way_out(where))
        if not spec.classes:
            check_are_classes(where, classes, {row.label for row in rows})
        images = Images(
            source, tuple(classes), rows, bad=tuple(walk.bad), notes=tuple(walk.notes())
        )
    if subset is not None and len(parts) < 2:
        raise UsageError(
            f"cannot use --subset {subset}: {source} is not divided into subsets",
            fix="omit --subset",
        )
    if len(parts) > 1:
        part = _chosen_part(parts, subset, source)
        rows, notes = [row for row in images.rows if row.split == part], images.notes
        notes = (f"evaluating the images in the {part} subset", *notes)
        images = replace(images, rows=rows, notes=notes)
    if spec.classes:
        images = change_classes(images, Path(spec.classes).expanduser(), evaluated=True)
    return images


def _chosen_part(present: Collection[str], subset: str | None, source: Path) -> Part:
    """Return the subset to evaluate: `subset` or, by default, val if it exists, otherwise test."""
    chosen = subset or ("val" if "val" in present else "test")
    if len(present) > 1 and chosen not in present:
        raise UsageError(
            f"{source} has no {chosen} subset. Subsets found: {', '.join(present)}",
            fix=f"use --subset {next(part for part in present if part != 'train')}",
        )
    return cast("Part", chosen)


def _array_images(data: Path, arrays: ArraySet) -> Images:
    rows = [Row(*row) for row in arrays.listing()]
    return Images(
        data,
        arrays.classes,
        rows,
        arrays.labels,
        layout="split" if arrays.splits else "classes",
        notes=arrays.notes,
    )


def _refuse_measured(folder: Images) -> None:
    """Raise a DataError if the classes are numbers of which most have few images, or captions."""
    names, images = folder.classes, len(folder.rows)
    if not all(re.fullmatch(r"[+-]?\d+([.,]\d+)?(e-?\d+)?", name) for name in names):
        if folder.table and len(names) == images > 4 and {*folder.outputs} == {*names}:
            raise DataError(
                f"{folder.source}: each image has its own label, such as {names[0][:40]!r}",
                fix="choose a column of classes, not of captions, with --set data.label=NAME",
            )
        return
    if folder.labels:
        return
    values = [float(name.replace(",", ".")) for name in names]
    has_fractions = any(value % 1 for value in values)
    if not has_fractions and max(values) < 2 * len(names):  # numbers of classes
        return
    classes, each = (5, 4) if has_fractions else (10, 2)
    if len(names) > classes and images < each * len(names):
        column = "choose a column of classes with --set data.label=NAME, " * bool(folder.table)
        raise DataError(
            f"{folder.source}: the labels are {len(names):,} numbers such as {names[0]} and "
            f"{names[-1]}, and regression is not supported",
            fix=f"{column}write classes such as low and high, or add images if each number is a "
            "class",
        )


def _scan_table(source: Path, spec: DataSpec) -> Images:
    table = read_label_table(source, spec)
    images, classes, parts = table.images, table.images.classes, table.images.parts
    if len(classes) < 2:
        several = "every image has the same labels"
        problem = several if images.labels else "need at least 2 classes, found 1"
        fix = "add images of other classes"
        raise table.error(f"{problem} ({classes[0]})", 0, "label", fix=fix)
    if parts and "train" not in parts:
        raise table.error(
            f"no line is assigned to train, only to {' and '.join(parts)}",
            0,
            "split",
            fix="assign lines to train, or ignore the column with --set data.split_column=none",
        )
    images, missing = find_files(table, allow_bad=spec.allow_bad)
    rows = [row for row in images.rows if row.path not in missing]
    if len(parts) == 1:
        rows = [row._replace(split="") for row in rows]
    doubts = warnings_on_names(images.outputs, several=bool(images.labels))
    words = sum(len(name.split()) for name in classes)
    if not images.labels and len(rows) < 3 * len(classes) and words >= 4 * len(classes):
        doubts += (
            f"labels such as {classes[0][:60]!r} have fewer than three images each. If they are "
            "captions, choose a column of classes with --set data.label=NAME",
        )
    bad = tuple(sorted(missing.items()))
    return replace(images, rows=rows, bad=bad, warnings=doubts).by_class()


def _with_groups(folder: Images, pattern: str) -> Images:
    """Return the folder with each file's group, which the first group of `pattern` captures."""
    matches = ((row, re.search(pattern, row.path)) for row in folder.rows)
    rows = [row._replace(group=(match[1] or "") if match else "") for row, match in matches]
    groups, without = {row.group for row in rows} - {""}, sum(not row.group for row in rows)
    if not groups:
        raise DataError(
            f"data.group_by={pattern} matches none of the paths, e.g. {rows[0].path}",
            fix="correct the regular expression, which is applied to paths relative to the folder",
        )
    note = f"{count(len(groups), 'group')} of images found by data.group_by"
    note += f", {count(without, 'image')} without a group" if without else ""
    return replace(folder, rows=rows, notes=(*folder.notes, note))


_ROBOFLOW = r"([^/]*)[.]rf[.]\w+[.]\w+$"
"""Pattern of the names that Roboflow gives the augmented copies of an image."""
_SEQUENCE = r"([^/]*\d)[_ -][^_ /-]*\d\.\w+$"
"""Pattern of a name with the number of a sequence and the number of an image in it."""
_DATE = r"(19|20)\d\d[-_.]?[01]\d[-_.]?[0-3]\d"
"""Pattern of a date in the name of a photo, which is not the number of a sequence."""
_WHEN = re.compile(rf"{_DATE}|(19|20)\d\d([-_.][01]?\d)?|1\d\d(?=\w*[A-Z])[A-Z\d_]{{5}}")
"""Name of a day, a month, a year, or a folder of a camera, such as `100CANON`."""
_FRAME = r"frame[_ -]*\d+\.\w+$"


def _sequence_note(folder: Images) -> str:
    """Return a note if most names are like `P03_12.jpg` or `frame_0001.jpg`, otherwise ""."""
    paths = {f.path: f.label for f in folder.rows}
    copies = Counter(m[1] for path in paths if (m := re.search(_ROBOFLOW, path)))
    if copies and len(copies) <= 0.8 * copies.total() > 0.5 * len(paths):
        return (
            f"the names look like augmented copies of {len(copies):,} images, e.g. {min(paths)}: "
            f"to keep the copies of an image on one side of the split, use --group-by '{_ROBOFLOW}'"
        )
    found = {path: m[1] for path in paths if (m := re.search(_SEQUENCE, path))}
    found = {path: name for path, name in found.items() if not re.search(_DATE, name)}
    by_class = Counter(label for label, _ in {(paths[path], name) for path, name in found.items()})
    # Every class must have several sequences, with at least three images each on average
    is_known = 0.8 * len(paths) <= len(found) >= 3 * by_class.total()
    if is_known and len(by_class) == len(folder.classes) and min(by_class.values()) > 1:
        path, name = next(iter(found.items()))
        return (
            f"the names look like {len({*found.values()}):,} sequences, e.g. {name} in {path}: if "
            f"the images of one show the same patient or place, use --group-by '{_SEQUENCE}' (or a "
            "column, data.group)"
        )
    frames = [path for path in paths if re.search(_FRAME, path, re.IGNORECASE)]
    if len(frames) <= 0.8 * len(paths):
        return ""
    return (
        f"the names look like frames of a video, e.g. {frames[0]}: neighbouring frames are on both "
        "sides of the split, unless a column names the video of each image (data.group), or a part "
        "of the path does (data.group_by)"
    )


def _note_on_group_names(folder: Images) -> str:
    """Return a note if all classes are named like groups, e.g. cam1 and cam2, otherwise ""."""
    names, first = folder.classes, folder.classes[0]
    words = {bare_name(re.sub(r"\d+|(?<=[\W_])[A-Za-z]$|(?<=[a-z])[A-Z]$", "", n)) for n in names}
    groups = (pattern.fullmatch(word) for pattern in (GROUP, OTHER_GROUP) for word in words)
    if not (len(words) == 1 and any(groups)) and not all(map(_WHEN.fullmatch, names)):
        return ""
    return (
        f"the classes {listing(names, most=3)} may be where or when the images were taken, not "
        f"what they show: if so, make folders such as cat/{first}, and keep each together with "
        "--group-by '([^/]*)/[^/]*$'"
    )


def _check_groups(folder: Images) -> None:
    first: dict[str, Row] = {}
    for file in folder.rows:
        other = first.setdefault(file.group, file) if file.group else file
        if other.split != file.split:
            raise DataError(
                f"{folder.source}: the group {file.group} is in {other.split} ({other.path}) and "
                f"in {file.split} ({file.path})",
                fix="move all images of the group to one subset, or remove the split so that vitft "
                "draws one",
            )
