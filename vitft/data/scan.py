"""Scan of a data folder, a table or an array dataset: classes, image files and groups.

A data folder has one folder per class, or a train folder alongside a val folder, a test folder or
both, each containing one folder per class. Image files are not opened, and nothing is written.
"""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, cast

import numpy as np

from vitft.config.sections import DataSpec
from vitft.data.arrays import find_arrays
from vitft.data.groups import groups_of, no_columns, with_group_by
from vitft.data.image_table import Images, Row, pack
from vitft.data.label_table import GROUP, OTHER_GROUP, bare_name, read_label_table
from vitft.data.listed_files import find_files
from vitft.data.mistaken import check_is_folder
from vitft.data.parts import (
    PART_NAMES,
    Part,
    are_parts,
    check_one_name_each,
    part_named,
    rest_of,
    words_of,
)
from vitft.data.table import TableReader, is_table, quote_cell
from vitft.data.walk import Walk, by_suffix
from vitft.system.errors import DataError, UsageError
from vitft.system.suggest import EquivalentNames, entries_of
from vitft.system.text import count, listing, shell_quote


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
    if arrays := find_arrays(data):
        folder = arrays
    elif is_table(data):
        folder = _scan_table(data, spec)
    else:
        check_is_folder(data)
        folder = _scan_folder(data, spec)
    if arrays or folder.table:
        if reference:
            raise DataError(
                f"{folder.source} is not a folder of images, but the reference split needs one",
                fix="omit --split reference",
            )
        _refuse_measured(folder)
    if spec.classes:
        folder = change_classes(folder, Path(spec.classes).expanduser())
    if folder.empty and not (allow_empty or spec.fixes):
        raise empty_classes_error(folder, folder.empty)
    folder = _with_groups(folder, spec)
    if not (reference or spec.group or any(folder.column("group"))):
        notes = filter(None, [_sequence_note(folder), _note_on_group_names(folder)])
        folder = replace(folder, notes=(*folder.notes, *notes))
    _check_groups(folder)
    return folder


def find_labelled(
    source: Path,
    *,
    subset: str | None = None,
    spec: DataSpec | None = None,
    others: Mapping[str, str] | None = None,
) -> Images:
    """List labelled images for an evaluation; unlike in `scan`, a class may be empty.

    `spec` may name the columns of a table and the folder to which its paths are relative, and
    `others` further columns (see `read_label_table`). Of data with subsets, only `subset` is listed
    or, by default, val if it exists and test otherwise. The caller checks that the classes match
    those of the model.

    Raises:
        DataError: The source is missing, unreadable or invalid, or has no labelled images.
        UsageError: The requested subset does not exist.
    """
    spec, parts = spec or DataSpec(), list[str]()
    if arrays := find_arrays(source):
        images, parts = arrays, [*arrays.parts]
    elif is_table(source):
        images, _ = find_files(*read_label_table(source, spec, others), allow_bad=True)
        parts = [*images.parts]
    else:
        check_is_folder(source)
        walk = Walk(os.fspath(source))
        folders = _split_folders(walk, walk.folders_of("")[0])
        parts = [*folders]
        folder = folders.get(_chosen_part(parts, subset, source), "")
        where = source / folder
        classes, loose = walk.folders_of(folder)
        rows = _rows_in(walk, classes, {part_named(folder): folder})
        if not rows and not walk.bad:
            content = count(len(classes), "empty class folder") if classes else "no class folders"
            content += f", {count(loose, 'image')} outside class folders" if loose else ""
            raise DataError(f"no labelled images in {where}: {content}", fix=_way_out(where))
        if not spec.classes:
            _check_are_classes(where, classes, {row.label for row in rows})
        images = Images(
            source, tuple(classes), rows, bad=tuple(walk.bad), notes=tuple(walk.notes())
        )
    if subset is not None and len(parts) < 2:
        problem = f"cannot use --subset {subset}: {source} is not divided into subsets"
        raise UsageError(problem, fix="omit --subset")
    if len(parts) > 1:
        part = _chosen_part(parts, subset, source)
        notes = (f"evaluating the images in the {part} subset", *images.notes)
        images = replace(images.where(images.column("split") == part), notes=notes)
    if spec.classes:
        images = change_classes(images, Path(spec.classes).expanduser(), evaluated=True)
    return _with_groups(images, spec)


def with_groups(images: Images, value: str, option: str) -> Images:
    """Return images that `find_labelled` has listed with the groups that an option gives them.

    Its value is a column that it has asked for, `folder`, a pattern or `none`, as of
    `data.group_by`. A DataError says that no image has a group.
    """
    spec = with_group_by(DataSpec(), value, option)
    has_column = images.table is not None and spec.group not in ("", "none")
    cells = images.column(option) if has_column else [""] * len(images.rows)
    return _with_groups(images.with_column("group", cells), spec, option)


def _chosen_part(present: Collection[str], subset: str | None, source: Path) -> Part:
    """Return the subset to evaluate: `subset` or, by default, val if it exists, otherwise test."""
    chosen = subset or ("val" if "val" in present else "test")
    if len(present) > 1 and chosen not in present:
        problem = f"{source} has no {chosen} subset. Subsets found: {', '.join(present)}"
        fix = f"use --subset {next(part for part in present if part != 'train')}"
        raise UsageError(problem, fix=fix)
    return cast("Part", chosen)


def _refuse_measured(folder: Images) -> None:
    """Raise a DataError if the classes are numbers of which most have few images, or captions."""
    names, images = folder.classes, len(folder.rows)
    if not all(re.fullmatch(r"[+-]?\d+([.,]\d+)?(e-?\d+)?", name) for name in names):
        if folder.table and len(names) == images > 4 and {*folder.outputs.classes} == {*names}:
            problem = f"{folder.source}: each image has its own label, such as {names[0][:40]!r}"
            fix = "choose a column of classes, not of captions, with --set data.label=NAME"
            raise DataError(problem, fix=fix)
        return
    values = [float(name.replace(",", ".")) for name in names]
    has_fractions = any(value % 1 for value in values)
    classes, each = (5, 4) if has_fractions else (10, 2)
    are_indices = not has_fractions and max(values) < 2 * len(names)  # numbers of classes
    if len(names) > classes and images < each * len(names) and not (are_indices or folder.labels):
        column = "choose a column of classes with --set data.label=NAME, " * bool(folder.table)
        raise DataError(
            f"{folder.source}: the labels are {len(names):,} numbers such as {names[0]} and "
            f"{names[-1]}, and regression is not supported",
            fix=f"{column}write classes such as low and high, or add images if each number is a "
            "class",
        )


def _scan_table(source: Path, spec: DataSpec) -> Images:
    images, error = read_label_table(source, spec)
    classes, parts = images.classes, images.parts
    if len(classes) < 2:
        several = "every image has the same labels"
        problem = several if images.labels else "need at least 2 classes, found 1"
        fix = "add images of other classes"
        fix += ", or use --set data.labels=one if each cell is one class" * bool(images.labels)
        raise error(f"{problem} ({classes[0]})", 0, "label", fix)
    if parts and "train" not in parts:
        problem = f"no line is assigned to train, only to {' and '.join(parts)}"
        fix = "assign lines to train, or ignore the column with --set data.split_column=none"
        raise error(problem, 0, "split", fix)
    images, missing = find_files(images, error, allow_bad=spec.allow_bad)
    images = images.where(np.array([path not in missing for path in images.column("path")]))
    if len(parts) == 1:
        images = images.with_column("split", [""] * len(images.rows))
    doubts = _warnings_on_names(images.outputs.classes, several=bool(images.labels))
    words = sum(len(name.split()) for name in classes)
    if not images.labels and len(images.rows) < 3 * len(classes) and words >= 4 * len(classes):
        doubts += (
            f"labels such as {classes[0][:60]!r} have fewer than three images each. If they are "
            "captions, choose a column of classes with --set data.label=NAME",
        )
    bad = tuple(sorted(missing.items()))
    return replace(images, bad=bad, warnings=doubts).by_class()


def assign_parts(folder: Images, val_from: Literal["auto", "test"]) -> Images:
    """Return the folder with its files assigned to the subsets that a run or a study uses.

    With `auto`, test images are kept for a final evaluation; validation images may be drawn later.
    With `test`, test images are used for validation if there are no others, and otherwise left out.
    """
    parts, layout = folder.column("split"), folder.layout
    if "test" not in parts or ("val" in parts and val_from == "auto"):
        return folder
    if "val" in parts:
        return folder.where(parts != "test")
    if val_from == "test":
        parts = np.where(parts == "test", "val", parts)
        note = "no validation set: the test images are used for validation (data.val_from=test)"
    else:
        parts, layout = np.where(parts == "train", "", parts), "classes"
        note = "validation images are drawn from the training images. The test images are used "
        note += "only once, at the end"
    folder = folder.with_column("split", parts)
    return replace(folder, layout=layout, notes=(*folder.notes, note))


# layout of a data folder: classes, subsets, and ways out of other layouts -------------------------


def _scan_folder(root: Path, spec: DataSpec) -> Images:
    walk = Walk(os.fspath(root), reference=spec.split == "reference")
    names, _ = walk.folders_of("")
    walk.raise_if_refused()
    parts = _split_folders(walk, names)
    if parts and walk.reference:
        raise DataError(
            f"{root} has its own split ({' and '.join(f'{name}/' for name in parts.values())}), "
            "so the reference split cannot be drawn",
            fix=f"omit --split reference, or use --data {shell_quote(str(root / parts['train']))}",
        )
    images = _scan_classes(walk, root, parts or {"": ""})
    if not spec.classes:
        filled = {*images.column("label").tolist()}
        _check_are_classes(root / parts.get("train", ""), images.classes, filled)
    doubts = (*_warnings_on_names(images.classes), *_warnings_on_files(images))
    return replace(
        images, reference=walk.reference, warnings=doubts, notes=(*images.notes, *walk.notes())
    )


def _scan_classes(walk: Walk, root: Path, parts: Mapping[Part, str]) -> Images:
    """Return the images in the class folders of all subsets (`""`: no split)."""
    names = {part: walk.folders_of(folder)[0] for part, folder in parts.items()}
    walk.raise_if_refused()
    main: Part = "train" if "train" in parts else ""
    classes = names[main]
    used = {part: folder for part, folder in parts.items() if {*names[part]} == {*classes}}
    needed: Part = "val" if "val" in parts else "test" if main else ""
    if needed not in used:
        raise _unlike_classes(root, {parts[main]: classes, parts[needed]: names[needed]})
    where, loose = root / parts[main], walk.folders_of(parts[main])[1]
    if len(classes) < 2:
        inside = count(loose, "image") if loose else "no images"
        problem = f"no class folders in {where}, which contains {inside}"
        if classes:
            problem = f"need at least 2 classes, found 1 ({classes[0]}) in {where}"
        raise DataError(problem, fix=_way_out(where))
    notes = []
    if "test" in parts.keys() - used.keys():
        notes.append(
            f"{parts['test']}/ is not used for testing: its classes differ from those of the "
            "training images"
        )
    unused = [name for name in walk.folders_of("")[0] if main and name not in parts.values()]
    if unused:
        notes.append(f"not used for training or validation: {listing(unused)}")
    rows = _rows_in(walk, classes, used)
    filled = {(row.split, row.label) for row in rows}
    empty = {
        (path := f"{used[part]}/{name}".lstrip("/")): by_suffix(walk.unused(path))
        for label, name in enumerate(classes)
        for part in used
        if part != "test" and (part, label) not in filled
    }
    return Images(
        root,
        tuple(classes),
        rows,
        layout="split" if main else "classes",
        bad=tuple(walk.bad),
        unused=walk.unused(),
        notes=tuple(notes),
        empty=empty,
    )


def _rows_in(walk: Walk, classes: Sequence[str], parts: Mapping[Part, str]) -> Sequence[Row]:
    """Return the images in the class folders of each subset, whose folders `parts` gives."""
    rows = pack(
        Row(path, label, part)
        for label, name in enumerate(classes)
        for part, folder in parts.items()
        for path in walk.images(f"{folder}/{name}".lstrip("/"))
    )
    walk.raise_if_refused()
    return rows


def _unlike_classes(root: Path, names: Mapping[str, Sequence[str]]) -> DataError:
    """Return the error for two folders with different classes; `names` maps folders to classes."""
    (one, first), (other, second) = names.items()
    only = {one: sorted({*first} - {*second}), other: sorted({*second} - {*first})}
    lists = "; ".join(f"only in {part}/: {listing(n)}" for part, n in only.items() if n)
    fix = f"use the same class folders in {one}/ and {other}/"
    for part, own in names.items():
        if inner := root / part if len(own) > 1 else _class_folder_in(root / part):
            fix += f", or use {part}/ only, with --data {shell_quote(str(inner))}"
            break
    return DataError(f"{root}: the classes of {one}/ and {other}/ differ ({lists})", fix=fix)


def _split_folders(walk: Walk, names: Iterable[str]) -> dict[Part, str]:
    """Return the folders of train and val or test if images are in subfolders of both, or {}."""
    parts: dict[Part, str] = {}
    for part, known in PART_NAMES:
        own = Walk(walk.root, walk.reference)  # does not count anything twice
        fitting = [
            folder
            for folder in names
            if folder.lower() in known
            and any(any(own.images(f"{folder}/{n}")) for n in walk.folders_of(folder)[0])
        ]
        fix = "keep one of them and move the others elsewhere"
        check_one_name_each(walk.root, fitting, "folder", fix)
        if fitting:
            parts[part] = fitting[0]
    return parts if "train" in parts and len(parts) > 1 else {}


def empty_classes_error(images: Images, paths: Collection[str]) -> DataError:
    """Return the error for class folders without images, given the paths of some of them."""
    names = [f"{path} ({images.empty[path]})" if images.empty[path] else path for path in paths]
    left_out = dict.fromkeys((path.rpartition("/")[2], "") for path in paths)
    fix = "add images (jpg, png, webp, bmp, gif, tif, avif, heic), or remove these folders"
    filled = {(row.split, images.classes[row.label]) for row in images.rows if row.split != "test"}
    if len({name for _, name in filled} - {name for name, _ in left_out}) >= 2:
        fix += f", or leave the classes out with {class_table(left_out)}"
    elif inner := _class_folder_in(images.root):
        fix += f", or use --data {shell_quote(str(inner))}: its subfolders look like the classes"
    total = len(filled) + len(images.empty)
    return DataError(
        f"{images.root}: no images in {len(names)} of {total} class folders: {listing(names)}",
        fix=fix,
    )


def _check_are_classes(folder: Path, names: Sequence[str], filled: Collection[int]) -> None:
    """Raise a DataError if subfolders, of which some are `filled`, look like subsets of images."""
    used = [names[i] for i in sorted(filled)]
    if are_parts(used):
        problem = f"{folder}: the folders {listing(used)} do not look like classes"
    elif len(used) == 1 and are_parts(names):
        problem = f"{folder}: only {used[0]}/ contains images, and it does not look like a class"
    else:
        return
    fix = _way_out(folder)
    if len(used) > 1:
        fix += f". If they are classes, use {class_table((name, name) for name in used)}"
    raise DataError(problem, fix=fix)


def _way_out(folder: Path) -> str:
    """Return how to use a folder without class folders."""
    if inner := _class_folder_in(folder):
        return f"use --data {shell_quote(str(inner))}: its subfolders look like the classes"
    inside = _folders_in(folder)
    filled = [path for path in (*inside, folder) if any(Walk(str(path)).images())]
    best = next((path for path in filled if path != folder and not _rank(path)), folder)
    fix = "use "
    if best == folder in filled and _has_sibling_with_images(folder):
        parent = shell_quote(str(folder.parent))
        fix += f"--data {parent} if {folder.name} is one of its classes, or "
    fix += "a folder that contains one folder per class, e.g. "
    fix += f"{best}/cat/001.jpg and {best}/dog/001.jpg"
    found = (
        p / entry.name for p in (folder, *inside) for entry in entries_of(p, os.DirEntry.is_file)
    )
    tables = [p for p in found if is_table(p) and 2 not in (_rank(p), _rank(p.parent))]
    for table in sorted(tables[:_MOST_FOLDERS], key=_rank)[:1]:
        fix += f", or use --data {shell_quote(str(table))} if this table lists the images"
    if best in filled and (best != folder or not inside):
        fix += f", or label the images with `vitft label {shell_quote(str(best))}`"
    return fix


_MOST_FOLDERS = 20  # maximum number of subfolders or tables that are searched for classes


def _has_sibling_with_images(folder: Path) -> bool:
    """Return whether a folder next to this one contains images, as next to a class folder."""
    walk = Walk(os.fspath(folder.parent))
    names = [name for name in walk.folders_of("")[0] if name != folder.name]
    return any(walk.folders_of(name)[1] for name in names[:_MOST_FOLDERS])


def _folders_in(folder: Path) -> list[Path]:
    """Return at most `_MOST_FOLDERS` folders in a folder, those of training images first."""
    names = Walk(os.fspath(folder)).folders_of("")[0]
    return sorted((folder / name for name in names[:_MOST_FOLDERS]), key=_rank)


def _rank(path: Path) -> int:
    """Return 0 for a folder or table of training images, 2 for other images, and 1 if unclear."""
    words = {part_named(word) or word for word in words_of(path.stem)}
    if words & {"test", "val", "pred", "predictions", "submission", "augmented"}:
        return 2
    return int(not words & {"train", "image", "images", "img", "imgs", "photos", "jpeg"})


def _class_folder_in(folder: Path, depth: int = 3) -> Path | None:
    """Return the first folder below `folder` that contains class folders or subsets, or None."""
    for path in (inside := _folders_in(folder)):
        walk = Walk(os.fspath(path))
        names = walk.folders_of("")[0]
        filled = [name for name in names if any(walk.images(name))]
        if _split_folders(walk, names) or (len(filled) > 1 and not are_parts(filled)):
            return path
    deeper = (_class_folder_in(path, depth - 1) for path in inside if depth > 1)
    return next(filter(None, deeper), None)


_MASK = re.compile(
    r"(.*?)[ _-]*(mask|seg|segmentation|label|gt|ground_?truth|annotation|overlay|depth)s?"
    r"[ _-]*\d*",
    re.IGNORECASE,
)
"""Stem of the name of a mask, or name of a folder of masks, beside the images."""


def _warnings_on_files(images: Images) -> Iterator[str]:
    """Yield warnings about masks of other files, and subfolders named like classes or subsets."""
    classes, files = images.classes, images.rows
    folders = {  # the innermost subfolder of the class, if any
        f.path: f.path.split("/")[-2] if f.path.count("/") > 1 + bool(f.split) else ""
        for f in files
    }
    inside: dict[str, set[str]] = {}
    for file in files:
        if folders[file.path] and file.split in ("", "train"):
            inside.setdefault(classes[file.label], set()).add(folders[file.path])
    same: dict[frozenset[str], list[str]] = {}
    for own, names in inside.items():
        same.setdefault(frozenset(names), []).append(own)
        if others := sorted(names & {*classes} - {own}):
            yield (
                f"the class {own} has subfolders named like other classes: {listing(others)}. If "
                f"it is not a class, leave it out with {class_table([(own, '')])}"
            )
    for shared, owners in same.items():
        others = [name for name in shared if not _MASK.fullmatch(name)]
        if len(owners) > 1 and (len(others) > 1 or any(map(rest_of, others))):
            yield (
                f"the subfolders of {listing(owners)} have the same names, which are ignored: "
                f"{listing(sorted(shared))}. If they are classes or subsets, move them up a level"
            )
    # Masks of other files: x_mask.png or masks/x.png
    stems = {file.path.rpartition(".")[0]: file.path for file in files}
    pairs = ((path, _MASK.fullmatch(stem)) for stem, path in stems.items())
    found = [(path, stems[m[1]]) for path, m in pairs if m and m[1] in stems]
    inner = {path for path, folder in folders.items() if _MASK.fullmatch(folder or ".")}
    beside = {file.label: file.path for file in files if file.path not in inner}
    found += [(f.path, beside[f.label]) for f in files if f.path in inner and f.label in beside]
    if found:
        first, other = found[0]
        yield (
            f"names like those of masks or depth maps: {count(len(found), 'file')}, e.g. {first} "
            f"beside {other}. If they are, move them out of the class folders"
        )


# groups of images, such as those of a patient or a video -----------------------------------------


def _with_groups(folder: Images, spec: DataSpec, option: str = "--group-by") -> Images:
    """Return the images with the groups that `option` finds in their paths, if any."""
    if spec.group not in ("", "none") and not folder.table:
        raise no_columns(folder.source, spec.group, option)
    if spec.group_by or spec.group not in ("", "none"):
        pairs = zip(folder.column("path"), folder.column("group"), strict=True)
        folder = folder.with_column("group", [*groups_of(pairs, spec, option)])
    groups = sorted(uses := Counter(folder.column("group")))
    notes, twins = [*folder.notes], map(listing, _twins_among(groups))
    if spec.group_by:
        without = f", {count(uses[''], 'image')} without a group" * bool(uses[""])
        notes.append(
            f"{count(len(uses.keys() - {''}), 'group')} of images found in the paths{without}"
        )
    doubts = [f"{same} may be one group: if so, write it the same way everywhere" for same in twins]
    if lacking := [name for name in groups if _NO_GROUP.fullmatch(_key_of(name))]:
        doubts.append(
            f"the images of the group {listing(lacking)} are kept together. If they belong to no "
            "group, leave these cells empty"
        )
    warnings = dict.fromkeys((*folder.warnings, *doubts))  # an evaluation calls this twice
    return replace(folder, notes=tuple(notes), warnings=tuple(warnings))


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
            "column)"
        )
    frames = [path for path in paths if re.search(_FRAME, path, re.IGNORECASE)]
    if len(frames) <= 0.8 * len(paths):
        return ""
    return (
        f"the names look like frames of a video, e.g. {frames[0]}: neighbouring frames are on both "
        "sides of the split, unless --group-by finds the video of each image in the path or names "
        "its column"
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


# class changes (`--classes`): a table that renames, merges and drops classes, all at once ---------
#
#     class,new_class
#     tulips,bulbs        renamed, or merged if several classes are given the same name
#     weeds,              left out, with all its images

_CLASS_COLUMNS = ("class", "new_class")


def class_table(changes: Iterable[tuple[str, str]]) -> str:
    """Return the option for a table of class changes, with the lines of the table."""
    rows = (_CLASS_COLUMNS, *changes)
    lines = listing((f"`{','.join(map(quote_cell, row))}`" for row in rows), most=30)
    return (
        f"`--classes classes.csv`, a file with the lines {lines} "
        "(for `check` and `evaluate`: `--set data.classes=classes.csv`)"
    )


def change_classes(images: Images, table: Path, *, evaluated: bool = False) -> Images:
    """Return the images with classes changed by a table; a DataError names an invalid line.

    Unless they are `evaluated`, the table must not list unknown classes, and two must be left.
    """
    images.outputs.require_one_class("data.classes")
    columns = "use a table with the columns class and new_class"
    reader = TableReader(
        table,
        missing=f"{columns}, and check its path",
        fix=f"{columns}, where an empty new_class leaves the class out",
    )
    known, similar = images.classes, EquivalentNames(images.classes)
    changes: dict[str, str] = {}  # from names of classes to new names, empty to leave them out
    for row in reader.records(*_CLASS_COLUMNS):
        name = reader.checked(row["class"], "class", is_path=True)
        name = similar.find(name if name in known else name.strip())
        problem, fix = "", ""
        if name in changes:
            problem = f"{name} is listed twice"
        elif name not in known and not evaluated:
            problem = f"the data has no class {name[:40]!r}, only {listing(known)}"
            fix = "correct or remove the line"
        if problem:
            raise reader.error(problem, column="class", fix=fix)
        changes[name] = reader.checked(row["new_class"], "new_class").strip()
    if not changes:
        raise reader.error("the table lists no classes")
    new = [changes.get(name, name) for name in known]
    left = {*new} - {""}
    names = [new[label] or None for label in images.column("label")]
    changed = images.relabelled(names, left if evaluated else ())
    if len(changed.classes) < 2 and not evaluated:
        kept = count(len(changed.classes), "class", "classes")
        raise DataError(
            f"{table} leaves {kept} with images in {images.source}", fix="keep at least 2 classes"
        )
    dropped = len(images.rows) - len(changed.rows)
    note = f"{table.name}: {sum(a != b for a, b in zip(known, new, strict=True)):,} of "
    note += f"{count(len(known), 'class', 'classes')} changed, {len(left):,} left"
    note += f" ({count(dropped, 'image')} left out)" * (dropped > 0)
    return replace(
        changed if evaluated else changed.by_class(),
        warnings=_warnings_on_names(changed.classes),
        empty={p: text for p, text in images.empty.items() if p.split("/")[-1] not in changes},
        notes=(*images.notes, note),
        reclassed=True,
    )


# names that are probably one class, or stand for a missing label ---------------------------------

_MISSING_LABELS = re.compile(
    r"\?|#?n/a|<na>|nan|null|nil|tbd|todo|undefined|uncategori[sz]ed|unassigned|un_?sorted"
    r"|(to_?be_?|to_?)sort(ed)?|(un|(no|not|to)_?)(label(l?ed|s)?|tagged|annotated|reviewed)"
)
"""Names that stand for a missing label, as `_key_of` returns them."""
_NO_GROUP = re.compile(rf"{_MISSING_LABELS.pattern}|na|none|unknown|-+")
"""The same for a missing group."""


def _key_of(name: str) -> str:
    """Return what names have in common that are probably one: `Leaf rust` and `leaf_rust`."""
    key = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    key = key.casefold().strip()
    key = re.sub(r"(?<![\d.])0+(?=\d)", "", re.sub(r"^(-?\d+)\.0+$", r"\1", key))
    return re.sub(r"(?<=\w)[\s_-]+(?=\w)", "_", key)


def _twins_among(names: Iterable[str]) -> list[list[str]]:
    """Return the names that have the same key (see `_key_of`) as others, together with those."""
    by_key: dict[str, list[str]] = {}
    for name in names:
        by_key.setdefault(_key_of(name), []).append(name)
    return [twins for twins in by_key.values() if len(twins) > 1]


def _warnings_on_names(names: Iterable[str], *, several: bool = False) -> tuple[str, ...]:
    """Return warnings about names that probably mean one class, or that there is no label."""
    keys = {name: _key_of(name) for name in names}
    lacking = [name for name, key in keys.items() if _MISSING_LABELS.fullmatch(key)]
    if len(keys) > 2 and all(re.fullmatch(r"-?\d+", key) for key in keys.values()):
        numbers = {int(key): name for name, key in keys.items()}
        below = [name for number, name in numbers.items() if number < 0]
        lacking += below * (len(below) == 1)
        *others, last = sorted(number for number in numbers if number >= 0) or [0]
        if last - 1 not in others and 1 < len(others) == others[-1] - others[0] + 1:
            lacking += [numbers[last]] * bool(re.fullmatch("99+|255", str(last)))
    same = _twins_among(keys)
    shown = "; ".join(listing(repr(n) if n != n.strip() else n for n in twins) for twins in same)
    merged = [(other, twins[0]) for twins in same for other in twins[1:]]
    one = "names that differ only in case, blanks, separators, zeros or Unicode form: "
    one += f"{shown}. If they mean one class, merge them"
    none = f"{listing(lacking)} looks like a missing label. If so, leave out its images"
    found = ((one, merged), (none, [(name, "") for name in lacking]))
    how = "in the table" if several else ""
    return tuple(f"{text} {how or f'with {class_table(rows)}'}" for text, rows in found if rows)
