"""Scan of a data folder for classes and image files, without opening the image files.

There are two layouts: one folder per class, or a train folder alongside a val folder, a test folder
or both, each containing one folder per class. Nothing is ever written to the data folder.
"""

import contextlib
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal

from vitft.config.sections import DataSpec
from vitft.data.archive import KNOWN_ARCHIVES
from vitft.data.arrays import PUBLISHED_SIZES, TORCHVISION
from vitft.data.image_table import Images, Row
from vitft.data.label_table import read_label_table
from vitft.data.parts import (
    PART_NAMES,
    Part,
    are_parts,
    check_one_name_each,
    part_and_class,
    part_named,
    rest_of,
    words_of,
)
from vitft.data.remote.places import place_of
from vitft.data.signatures import FORMAT_BY_SUFFIX
from vitft.data.table import OTHER_EXCEL, TABLE_SUFFIXES, is_table, quote_cell
from vitft.data.walk import ARCHIVE_SUFFIXES, Walk, by_suffix, unused_files
from vitft.system.errors import DataError, UsageError, VitftError
from vitft.system.files import WEIGHT_SUFFIXES
from vitft.system.suggest import entries_of, path_fix
from vitft.system.text import count, describe_os_error, listing, shell_quote

CLASS_COLUMNS = ("class", "new_class")
"""Columns of a table of class changes (see `data.class_changes`)."""


def class_table(changes: Iterable[tuple[str, str]]) -> str:
    """Return the option for a table of class changes, with the lines of the table."""
    rows = (CLASS_COLUMNS, *changes)
    lines = listing((f"`{','.join(map(quote_cell, row))}`" for row in rows), most=30)
    return (
        f"`--classes classes.csv`, a file with the lines {lines} "
        "(for `check` and `evaluate`: `--set data.classes=classes.csv`)"
    )


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


def scan_folder(root: Path, *, reference: bool, allow_empty: bool, any_names: bool) -> Images:
    """Find the classes and images of a data folder.

    Raises:
        DataError: A folder cannot be read, there are fewer than two classes, the folders do not
            look like classes (unless `any_names`), a class is empty (unless `allow_empty`), or the
            folder's own split is inconsistent or conflicts with `reference`.
    """
    walk = Walk(os.fspath(root), reference)
    names, _ = walk.folders_of("")
    walk.raise_if_refused()
    parts = split_folders(walk, names)
    if parts and reference:
        raise DataError(
            f"{root} has its own split ({' and '.join(f'{name}/' for name in parts.values())}), "
            "so the reference split cannot be drawn",
            fix=f"omit --split reference, or use --data {shell_quote(str(root / parts['train']))}",
        )
    images = _scan_classes(walk, root, parts or {"": ""})
    classes = images.classes
    if not any_names:
        check_are_classes(root / parts.get("train", ""), classes, {r.label for r in images.rows})
    if images.empty and not allow_empty:
        raise empty_classes_error(images, images.empty)
    return replace(
        images,
        reference=reference,
        warnings=(*warnings_on_names(classes), *_warnings_on_files(classes, images.rows)),
        notes=(*images.notes, *walk.notes()),
    )


_ARRAY_FIX = "save images and labels together: numpy.savez('data.npz', x=images, y=labels)"
_TABLE_FIX = (
    "write a table {stem}.csv: the line `path,label`, then one like `img/1.jpg,cat` per image"
)
_EXCEL_FIX = "save the table as {stem}.xlsx, or as CSV"
_IMAGE_FIX = "use the folder that contains its class folder, or classify it: vitft predict {path}"
_WEIGHTS_FIX = "pass it with --weights {path}, and the images with --data"
_OTHER_FILES: Sequence[tuple[Collection[str], str, str]] = (
    ({".npy"}, "contains a single array, without labels", _ARRAY_FIX),
    ({".h5", ".hdf5", ".mat", ".pkl", ".pickle"}, "is not a supported file of arrays", _ARRAY_FIX),
    (OTHER_EXCEL, "is in an Excel format that vitft does not read", _EXCEL_FIX),
    (WEIGHT_SUFFIXES, "is a weight file, not a folder of images", _WEIGHTS_FIX),
    ({".txt", ".lst"}, "is a text file, not a table", _TABLE_FIX),
    ({".json", ".xml", ".yaml", ".yml"}, "has annotations that vitft does not read", _TABLE_FIX),
    (ARCHIVE_SUFFIXES, "is an archive, which is not opened", "unpack it, and use the new folder"),
    (FORMAT_BY_SUFFIX, "is an image, not a folder", _IMAGE_FIX),
)
"""Suffixes of files that are not data, what is wrong with them, and what to do."""


def check_is_folder(root: Path) -> None:
    """Raise a DataError if `root` is not a folder or cannot be accessed; suggest what was meant."""
    if place_of(str(root)):
        raise UsageError(f"{root} is not a folder", fix="use a folder for this command")
    try:
        if root.is_dir():
            return
        exists = root.exists()
    except OSError as error:  # e.g. no permission for a parent folder
        raise DataError(
            f"cannot read the data folder {root}: {describe_os_error(error)}",
            fix="check the path and its permissions",
        ) from error
    if exists:
        suffix = root.suffix.lower()
        found = (entry for suffixes, *entry in _OTHER_FILES if suffix in suffixes)
        usual = f"use a folder, or a table of labels ({', '.join(TABLE_SUFFIXES)})"
        what, fix = next(found, ["is a file, not a folder", usual])
        names = {"path": shell_quote(str(root)), "stem": root.stem}
        raise DataError(f"{root} {what}", fix=fix.format(**names))
    data = (".npz", *TABLE_SUFFIXES)
    fix = path_fix(root, lambda entry: entry.is_dir() or entry.name.lower().endswith(data))
    known = {name.lower(): name for name in PUBLISHED_SIZES}
    if str(root).lower() in known and "did you mean" not in fix:
        fix = f"use --data {TORCHVISION}{known[str(root).lower()]}, which torchvision downloads"
    if str(root) in KNOWN_ARCHIVES:
        fix = f"fetch it first with `vitft data fetch {root}`, or try the command with --data demo"
    kind = "file" if root.suffix.lower() in data else "folder"
    raise DataError(f"data {kind} not found: {root}", fix=fix)


_MOST_FOLDERS = 20  # maximum number of subfolders or tables that are searched for classes


def _scan_classes(walk: Walk, root: Path, parts: Mapping[Part, str]) -> Images:
    """Return the images in the class folders of all subsets (`""`: no split)."""
    names = {part: walk.folders_of(folder)[0] for part, folder in parts.items()}
    walk.raise_if_refused()
    main: Part = "train" if "train" in parts else ""
    classes = names[main]
    used = {part: folder for part, folder in parts.items() if {*names[part]} == {*classes}}
    needed: Part = "val" if "val" in parts else "test" if main else ""
    if needed not in used:
        raise _unlike_classes(walk, root, {parts[main]: classes, parts[needed]: names[needed]})
    where, loose = root / parts[main], walk.folders_of(parts[main])[1]
    if len(classes) < 2:
        inside = count(loose, "image") if loose else "no images"
        problem = f"no class folders in {where}, which contains {inside}"
        if classes:
            problem = f"need at least 2 classes, found 1 ({classes[0]}) in {where}"
        raise DataError(problem, fix=way_out(where, None if main else _parent_of_class(root)))
    notes = []
    if "test" in parts.keys() - used.keys():
        notes.append(
            f"{parts['test']}/ is not used for testing: its classes differ from those of the "
            "training images"
        )
    unused = [name for name in walk.folders_of("")[0] if main and name not in parts.values()]
    if unused:
        notes.append(f"not used for training or validation: {listing(unused)}")
    places = {
        (part, n): f"{folder}/{n}".lstrip("/") for n in classes for part, folder in used.items()
    }
    found = {place: walk.images_in(path) for place, path in places.items()}
    walk.raise_if_refused()
    rows = [
        Row(path, label, part)
        for label, name in enumerate(classes)
        for part in used
        for path in found[part, name]
    ]
    empty = {
        path: by_suffix(unused_files(walk.unused(path)))
        for place, path in places.items()
        if place[0] != "test" and not found[place]
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


def _unlike_classes(walk: Walk, root: Path, names: Mapping[str, Sequence[str]]) -> DataError:
    """Return the error for two folders with different classes; `names` maps folders to classes."""
    (one, first), (other, second) = names.items()
    missing = {one: sorted({*first} - {*second}), other: sorted({*second} - {*first})}
    empty = [
        f"{part}/{name}"
        for part, only in missing.items()
        for name in only
        if not walk.images_in(f"{part}/{name}")
    ]
    lists = "; ".join(f"only in {part}/: {listing(n)}" for part, n in missing.items() if n)
    without = f", no images in {listing(empty)}" if empty else ""
    twins = {_key_of(name): f"{other}/{name}" for name in missing[one]}
    new = [f"{other}/{n} to {twins[_key_of(n)]}" for n in missing[other] if _key_of(n) in twins]
    fix = f"use the same class folders in {one}/ and {other}/"
    fix = f"rename {listing(new)}" if new else fix
    for part, own in names.items():
        if inner := root / part if len(own) > 1 else _class_folder_in(root / part):
            fix += f", or use {part}/ only, with --data {shell_quote(str(inner))}"
            break
    return DataError(
        f"{root}: the classes of {one}/ and {other}/ differ ({lists}{without})",
        fix=f"remove the empty {listing(empty)}, or {fix}" if empty else fix,
    )


def split_folders(walk: Walk, names: Iterable[str]) -> dict[Part, str]:
    """Return the folder name of each subset, or an empty dict if the data has no split of its own.

    A split consists of a train folder and a val or test folder, each with images in subfolders.

    Raises:
        DataError: There is more than one folder for the same subset.
    """
    parts: dict[Part, str] = {}
    for part, known in PART_NAMES:
        own = Walk(walk.root, walk.reference)  # does not count anything twice
        fitting = [
            folder
            for folder in names
            if folder.lower() in known
            and any(own.images_in(f"{folder}/{name}") for name in walk.folders_of(folder)[0])
        ]
        fix = "keep one of them and move the others elsewhere"
        check_one_name_each(walk.root, fitting, "folder", fix)
        if fitting:
            parts[part] = fitting[0]
    return parts if "train" in parts and len(parts) > 1 else {}


def assign_parts(folder: Images, val_from: Literal["auto", "test"]) -> Images:
    """Return the folder with its files assigned to the subsets that a run or a study uses.

    With `auto`, test images are kept for a final evaluation; validation images may be drawn later.
    With `test`, test images are used for validation if there are no others, and otherwise left out.
    """
    present = {file.split for file in folder.rows}
    if "test" not in present:
        return folder
    if "val" in present:
        if val_from == "auto":
            return folder
        return replace(folder, rows=[row for row in folder.rows if row.split != "test"])
    if val_from == "test":
        rows = [row._replace(split="val") if row.split == "test" else row for row in folder.rows]
        note = "no validation set: the test images are used for validation (data.val_from=test)"
        return replace(folder, rows=rows, notes=(*folder.notes, note))
    rows = [row._replace(split="") if row.split == "train" else row for row in folder.rows]
    note = (
        "validation images are drawn from the training images. The test images are used only once, "
        "at the end"
    )
    return replace(folder, rows=rows, layout="classes", notes=(*folder.notes, note))


def check_are_classes(folder: Path, names: Sequence[str], filled: Collection[int]) -> None:
    """Raise a DataError if the subfolders of a folder look like subsets or containers of images.

    `filled` are the indices of the names of subfolders with images.
    """
    used = [names[i] for i in sorted(filled)]
    if are_parts(used):
        problem = f"{folder}: the folders {listing(used)} do not look like classes"
    elif len(used) == 1 and are_parts(names):
        problem = f"{folder}: only {used[0]}/ contains images, and it does not look like a class"
    else:
        return
    fix = way_out(folder)
    if len(used) > 1:
        fix += f". If they are classes, use {class_table((name, name) for name in used)}"
    pairs = {name: part_and_class(name) for name in used}
    only = [(name, own if part == "train" else "") for name, (part, own) in pairs.items()]
    if len({own for _, own in only if own}) > 1 and ("", "") not in pairs.values():
        moved = listing(f"{name} to {part}/{own}" for name, (part, own) in pairs.items())
        fix = f"rename {moved}, or train without the others with {class_table(only)}"
    raise DataError(problem, fix=fix)


def way_out(folder: Path, parent: Path | None = None) -> str:
    """Return how to use a folder without class folders; it may be a class in `parent`."""
    if inner := _class_folder_in(folder):
        return f"use --data {shell_quote(str(inner))}: its subfolders look like the classes"
    inside = _folders_in(folder)
    above = folder / os.pardir if str(folder) == os.curdir else folder.parent
    tables, roots = _tables_in([folder, *inside]), (folder, *inside)
    for table in (*tables, *_tables_in([above])):
        if (options := _options_for(table, roots)) is not None:
            return f"use --data {shell_quote(str(table))}{options}, a table that lists the images"
    if parent:
        return f"use {parent}: {folder.absolute().name} seems to be one of its classes"
    images = {path: Walk(str(path)).images_in("") for path in (*inside, folder)}
    best = next((path for path in inside if images[path] and not rank(path)), folder)
    fix = f"put each class in its own folder, e.g. {best}/cat/001.jpg and {best}/dog/001.jpg"
    names = (path.rpartition("/")[2] for path in images[best])
    begin = Counter(m[1] for name in names if (m := re.match(r"([^\W\d_]+)[\W\d_]", name)))
    if 1 < len(begin) <= len(images[best]) / 4:
        fix += f" (the file names begin with {listing(sorted(begin))}, which may be the classes)"
    for table in tables[:1]:
        fix += f", or use --data {shell_quote(str(table))} if this table lists the images"
    if images[best] and (best != folder or not inside):
        fix += f", or label the images with `vitft label {shell_quote(str(best))}`"
    return fix


def _folders_in(folder: Path) -> list[Path]:
    """Return at most `_MOST_FOLDERS` folders in a folder, those of training images first."""
    names = Walk(os.fspath(folder)).folders_of("")[0]
    return sorted((folder / name for name in names[:_MOST_FOLDERS]), key=rank)


def rank(path: Path) -> int:
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
        filled = [name for name in names if walk.images_in(name)]
        if split_folders(walk, names) or (len(filled) > 1 and not are_parts(filled)):
            return path
    deeper = (_class_folder_in(path, depth - 1) for path in inside if depth > 1)
    return next(filter(None, deeper), None)


def _tables_in(folders: Iterable[Path]) -> list[Path]:
    """Return the tables in some folders, those of training images first, without those of tests."""
    found = (p / entry.name for p in folders for entry in entries_of(p, os.DirEntry.is_file))
    tables = [p for p in found if is_table(p) and 2 not in (rank(p), rank(p.parent))]
    return sorted(tables[:_MOST_FOLDERS], key=rank)


def _options_for(table: Path, roots: Iterable[Path]) -> str | None:
    """Return the options for a table of labels of images in one of the roots; None if it is not."""
    for label, root in product(("", "*"), dict.fromkeys((table.parent, *roots))):
        with contextlib.suppress(VitftError):
            found = read_label_table(table, DataSpec(root=str(root), label=label))
            if found.images.predicted:
                return None
            if any((root / row.path).exists() for row in found.images.rows[:20]):
                options = " --set 'data.label=*'" * bool(label)
                return options + f" --set data.root={shell_quote(str(root))}" * (
                    root != table.parent
                )
    return None


def _parent_of_class(root: Path) -> Path | None:
    """Return the parent of a folder if it is an unusual one with other folders of images."""
    full = root.absolute()
    if ".." in full.parts or full.parent in (Path.cwd(), Path.home(), Path(full.anchor)):
        return None
    walk = Walk(str(full.parent))
    if not walk.images_in(full.name):
        return None
    names = walk.folders_of("")[0]
    others = [name for name in names if name != full.name and walk.folders_of(name)[1]]
    if not others or are_parts([full.name, *others]):
        return None
    return root.parent if root.name else full.parent


_MISSING_LABELS = re.compile(
    r"\?|#?n/a|<na>|nan|null|nil|tbd|todo|undefined|uncategori[sz]ed|unassigned|un_?sorted"
    r"|(to_?be_?|to_?)sort(ed)?|(un|(no|not|to)_?)(label(l?ed|s)?|tagged|annotated|reviewed)"
)
"""Names that stand for a missing label, as `_key_of` returns them."""


def _key_of(name: str) -> str:
    """Return what names have in common that are probably one: `Leaf rust` and `leaf_rust`."""
    key = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    key = key.casefold().strip()
    key = re.sub(r"(?<![\d.])0+(?=\d)", "", re.sub(r"^(-?\d+)\.0+$", r"\1", key))
    return re.sub(r"(?<=\w)[\s_-]+(?=\w)", "_", key)


def twins_among(names: Iterable[str]) -> list[list[str]]:
    """Return the names that have the same key (see `_key_of`) as others, together with those."""
    by_key: dict[str, list[str]] = {}
    for name in names:
        by_key.setdefault(_key_of(name), []).append(name)
    return [twins for twins in by_key.values() if len(twins) > 1]


def warnings_on_names(names: Iterable[str], *, several: bool = False) -> tuple[str, ...]:
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
    same = twins_among(keys)
    shown = "; ".join(listing(repr(n) if n != n.strip() else n for n in twins) for twins in same)
    merged = [(other, twins[0]) for twins in same for other in twins[1:]]
    one = "names that differ only in case, blanks, separators, zeros or Unicode form: "
    one += f"{shown}. If they mean one class, merge them"
    none = f"{listing(lacking)} looks like a missing label. If so, leave out its images"
    found = ((one, merged), (none, [(name, "") for name in lacking]))
    how = "in the table" if several else ""
    return tuple(f"{text} {how or f'with {class_table(rows)}'}" for text, rows in found if rows)


_MASK = re.compile(
    r"(.*?)[ _-]*(mask|seg|segmentation|label|gt|ground_?truth|annotation|overlay|depth)s?"
    r"[ _-]*\d*",
    re.IGNORECASE,
)
"""Stem of the name of a mask, or name of a folder of masks, beside the images."""


def _warnings_on_files(classes: Sequence[str], files: Sequence[Row]) -> Iterator[str]:
    """Yield warnings about masks of other files, and subfolders named like classes or subsets."""
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
