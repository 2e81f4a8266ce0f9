"""Scan of a data folder, a table or an array dataset: classes, image files and groups.

Image files are not opened.
"""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from vitft.config.schema import one_class_only
from vitft.config.sections import DataSpec
from vitft.data.arrays import find_arrays
from vitft.data.class_changes import change_classes
from vitft.data.folder import (
    File,
    Folder,
    check_is_folder,
    scan_folder,
    twins_among,
    warnings_on_names,
)
from vitft.data.label_table import GROUP, OTHER_GROUP, bare_name, read_label_table
from vitft.data.listed_files import find_files
from vitft.data.table import is_table
from vitft.system.errors import DataError
from vitft.system.text import count, listing


def scan(data: Path, spec: DataSpec | None = None, *, allow_empty: bool = False) -> Folder:
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
        folder = Folder(
            root=data,
            classes=arrays.classes,
            files=tuple(File(*row) for row in arrays.listing()),
            layout="split" if arrays.splits else "classes",
            notes=arrays.notes,
            labels=arrays.labels,
        )
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
    if spec.classes and folder.labels:
        raise one_class_only("data.classes")
    if spec.classes:
        folder = change_classes(folder, Path(spec.classes).expanduser())
        if folder.empty.content and not (spec.fixes or allow_empty):
            raise folder.empty.error(folder.root, folder.empty.content)
    if spec.group_by:
        folder = _with_groups(folder, spec.group_by)
    elif not (reference or spec.group or any(file.group for file in folder.files)):
        notes = filter(None, [_sequence_note(folder), _note_on_group_names(folder)])
        folder = replace(folder, notes=(*folder.notes, *notes))
    _check_groups(folder)
    twins = map(listing, twins_among(sorted({file.group for file in folder.files})))
    doubts = (f"{same} may be one group: if so, write it the same way everywhere" for same in twins)
    return replace(folder, warnings=(*folder.warnings, *doubts))


def _refuse_measured(folder: Folder) -> None:
    """Raise a DataError if the classes are numbers of which most have few images, or captions."""
    names, images = folder.classes, len(folder.files)
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


def _scan_table(source: Path, spec: DataSpec) -> Folder:
    table = read_label_table(source, spec)
    classes, rows, parts = table.classes, table.rows, table.parts
    index = {name: number for number, name in enumerate(classes)}
    if len(classes) < 2:
        same = (
            "every image has the same labels"
            if table.several
            else "need at least 2 classes, found 1"
        )
        problem, fix = f"{same} ({classes[0]})", "add images of other classes"
        raise table.error(problem, rows[0], "label", fix=fix)
    if parts and "train" not in parts:
        raise table.error(
            f"no line is assigned to train, only to {' and '.join(parts)}",
            rows[0],
            "split",
            fix="assign lines to train, or ignore the column with --set data.split_column=none",
        )
    table, missing = find_files(table, allow_bad=spec.allow_bad)
    files = [
        File(row.path, index[row.label], row.part if len(parts) > 1 else "", row.group)
        for row in table.rows
        if row.path not in missing
    ]
    doubts = warnings_on_names(table.labels or classes, several=table.several)
    words = sum(len(name.split()) for name in classes)
    if not table.several and len(files) < 3 * len(classes) and words >= 4 * len(classes):
        doubts += (
            f"labels such as {classes[0][:60]!r} have fewer than three images each. If they are "
            "captions, choose a column of classes with --set data.label=NAME",
        )
    return Folder(
        root=table.root,
        classes=classes,
        files=tuple(sorted(files, key=lambda file: (file.label, file.path))),
        layout="split" if len(parts) > 1 else "classes",
        bad=tuple(sorted(missing.items())),
        warnings=doubts,
        notes=table.notes,
        table=source,
        split_column=table.columns["split"].strip() if len(parts) > 1 else "",
        shown=table.copy.data if table.copy else "",
        labels=table.labels,
    )


def _with_groups(folder: Folder, pattern: str) -> Folder:
    """Return the folder with each file's group, which the first group of `pattern` captures."""
    expression, files = re.compile(pattern), []
    for file in folder.files:
        match = expression.search(file.path)
        files.append(replace(file, group=(match[1] or "") if match else ""))
    groups, without = {f.group for f in files if f.group}, sum(not f.group for f in files)
    if not groups:
        raise DataError(
            f"data.group_by={pattern} matches none of the paths, e.g. {files[0].path}",
            fix="correct the regular expression, which is applied to paths relative to the folder",
        )
    note = f"{count(len(groups), 'group')} of images found by data.group_by"
    note += f", {count(without, 'image')} without a group" if without else ""
    return replace(folder, files=tuple(files), notes=(*folder.notes, note))


_ROBOFLOW = r"([^/]*)[.]rf[.]\w+[.]\w+$"
"""Pattern of the names that Roboflow gives the augmented copies of an image."""
_SEQUENCE = r"([^/]*\d)[_ -][^_ /-]*\d\.\w+$"
"""Pattern of a name with the number of a sequence and the number of an image in it."""
_DATE = r"(19|20)\d\d[-_.]?[01]\d[-_.]?[0-3]\d"
"""Pattern of a date in the name of a photo, which is not the number of a sequence."""
_WHEN = re.compile(rf"{_DATE}|(19|20)\d\d([-_.][01]?\d)?|1\d\d(?=\w*[A-Z])[A-Z\d_]{{5}}")
"""Name of a day, a month, a year, or a folder of a camera, such as `100CANON`."""
_FRAME = r"frame[_ -]*\d+\.\w+$"


def _sequence_note(folder: Folder) -> str:
    """Return a note if most names are like `P03_12.jpg` or `frame_0001.jpg`, otherwise ""."""
    paths = {f.path: f.label for f in folder.files}
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


def _note_on_group_names(folder: Folder) -> str:
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


def _check_groups(folder: Folder) -> None:
    first: dict[str, File] = {}
    for file in folder.files:
        other = first.setdefault(file.group, file) if file.group else file
        if other.part != file.part:
            raise DataError(
                f"{folder.source}: the group {file.group} is in {other.part} ({other.path}) and in "
                f"{file.part} ({file.path})",
                fix="move all images of the group to one subset, or remove the split so that vitft "
                "draws one",
            )
