"""Scan of a data folder for classes and image files, without opening the image files.

There are two layouts: one folder per class, or a train folder alongside a val folder, a test folder
or both, each containing one folder per class. Nothing is ever written to the data folder.
`data.scan` also reads tables, `data.inspection` reads the files, and `data.split` selects the
validation images.
"""

import os
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from vitft.data.array_files import CLASSES, TORCHVISION
from vitft.data.arrays import ArraySet
from vitft.data.download.registry import KNOWN_ARCHIVES
from vitft.data.parts import PART_NAMES, Part
from vitft.data.remote.places import place_of, short_name
from vitft.data.table import OTHER_EXCEL, TABLE_SUFFIXES, quote_cell
from vitft.data.unused import by_suffix, unused_files
from vitft.data.walk import Walk
from vitft.system.errors import DataError, UsageError
from vitft.system.files import WEIGHT_SUFFIXES
from vitft.system.near_paths import path_fix
from vitft.system.text import count, describe_os_error, listing, shell_quote


@dataclass(frozen=True, slots=True)
class File:
    """A file with an image suffix, and its label."""

    path: str
    """Path relative to the data folder, with slashes."""
    label: int
    part: Part = ""
    """Subset that contains the file; empty before the data are split."""
    group: str = ""
    """Name of the file's group, which the split never divides; empty if the file has none."""


CLASS_COLUMNS = ("class", "new_class")
"""Columns of a table of class changes (see `data.class_changes`)."""


@dataclass(frozen=True, slots=True)
class EmptyClasses:
    """Class folders without images."""

    content: Mapping[str, str] = field(default_factory=dict)
    """Mapping from the path of each empty class folder, relative to the data folder, to a list of
    the files that it contains instead."""
    total: int = 0
    """Number of class folders, empty or not."""

    def error(self, root: Path, paths: Collection[str]) -> DataError:
        """Return the error for the given empty class folders."""
        names = [f"{path} ({self.content[path]})" if self.content[path] else path for path in paths]
        left_out = dict.fromkeys(quote_cell(path.rpartition("/")[2]) + "," for path in paths)
        lines = [f"`{line}`" for line in (",".join(CLASS_COLUMNS), *left_out)]
        return DataError(
            f"{root}: no images in {len(names)} of {self.total} class folders: {listing(names)}",
            fix="add images (jpg, png, webp, bmp, gif, tif, avif, heic), remove these folders, or "
            "leave the classes out with `--classes classes.csv`, a file with the lines "
            f"{listing(lines)} (for `vitft check`: `--set data.classes=classes.csv`)",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """The classes and files of a data folder or table, before any file is opened."""

    root: Path
    """Folder to which the paths are relative."""
    classes: tuple[str, ...]
    """Class names in the order of their indices, i.e. sorted as strings. For multi-label data,
    these are the label sets that occur (see `data.label_sets`)."""
    files: tuple[File, ...]
    """Files sorted by class, then by path as a string."""
    layout: Literal["classes", "split"]
    """`classes` if the validation images have not been drawn yet, `split` if the split is given."""
    reference: bool = False
    """Whether the reference script's rules apply: only four suffixes are accepted, hidden files are
    included and subfolders are not."""
    bad: tuple[tuple[str, str], ...] = ()
    """Paths with an image suffix that are not regular files, with the reasons."""
    unused: Mapping[str, int] = field(default_factory=dict)
    """Number of files that are neither images nor hidden, by suffix."""
    warnings: tuple[str, ...] = ()
    """Notes that need an action, such as class names that are probably one class."""
    notes: tuple[str, ...] = ()
    empty: EmptyClasses = field(default_factory=EmptyClasses)
    """Class folders without images; allowed only if fixes explain them (see `data.fixes`)."""
    table: Path | None = None
    """Table that lists the files, if any."""
    split_column: str = ""
    """Column of the table that gives the split, if any."""
    shown: str = ""
    """Name of the data in messages, if it is neither a folder nor a table of the user."""
    labels: tuple[str, ...] = ()
    """Sorted labels of multi-label data; empty if each image has exactly one class."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of a model's outputs: the classes or, for multi-label data, the labels."""
        return self.labels or self.classes

    @property
    def source(self) -> Path | str:
        """Table or folder that the user specified, or the name of other data, for messages."""
        return self.shown or self.table or self.root

    @property
    def name(self) -> str:
        """Short name of the data, for titles."""
        return short_name(self.shown) if self.shown else (self.table or self.root).resolve().name


def scan_folder(root: Path, *, reference: bool, allow_empty: bool) -> Folder:
    """Find the classes and images of a data folder.

    Raises:
        DataError: A folder cannot be read, there are fewer than two classes, a class is empty
            (unless `allow_empty` is set), or the folder's own split is inconsistent or conflicts
            with `reference`.
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
    scan_layout = scan_parts if parts else scan_classes
    classes, files, notes, empty = scan_layout(walk, root, parts)
    if empty.content and not allow_empty:
        raise empty.error(root, empty.content)
    notes += walk.notes()
    return Folder(
        root=root,
        classes=tuple(classes),
        files=tuple(files),
        layout="split" if parts else "classes",
        reference=reference,
        bad=tuple(walk.bad),
        unused=walk.unused(),
        warnings=warnings_on_names(classes),
        notes=tuple(notes),
        empty=empty,
    )


def scan_arrays(root: Path, arrays: ArraySet, *, reference: bool) -> Folder:
    """Return a `Folder` that presents an array dataset as image files.

    Raises:
        DataError: The reference split is requested, which requires image files.
    """
    if reference:
        raise DataError(
            f"{root} contains arrays, but the reference split needs image files",
            fix="omit --split reference",
        )
    return Folder(
        root=root,
        classes=arrays.classes,
        files=tuple(File(*row) for row in arrays.listing()),
        layout="split" if arrays.splits else "classes",
        notes=arrays.notes,
    )


def check_is_folder(root: Path) -> None:
    """Raise a DataError if `root` is missing, is a file or cannot be accessed.

    If the folder is missing, the fix suggests existing folders with a similar name, or with the
    same name in another place, if any.
    """
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
    if exists and root.suffix.lower() == ".npy":
        raise DataError(
            f"{root} contains a single array, without labels",
            fix="save images and labels together: numpy.savez('data.npz', x=images, y=labels)",
        )
    if exists and root.suffix.lower() in OTHER_EXCEL:
        raise DataError(
            f"{root} is in an Excel format that vitft does not read",
            fix=f"save the table as {root.with_suffix('.xlsx').name}, or as CSV",
        )
    if exists and root.suffix.lower() in WEIGHT_SUFFIXES:
        raise DataError(
            f"{root} is a weight file, not a folder of images",
            fix=f"pass it with --weights {shell_quote(str(root))}, and the images with --data",
        )
    if exists:
        raise DataError(
            f"{root} is a file, not a folder",
            fix=f"use the folder {root.parent}, or a table of labels ({', '.join(TABLE_SUFFIXES)})",
        )
    fix = path_fix(root, may_be_data)
    known = {name.lower(): name for name in CLASSES}
    if str(root).lower() in known and "did you mean" not in fix:
        fix = f"use --data {TORCHVISION}{known[str(root).lower()]}, which torchvision downloads"
    if str(root) in KNOWN_ARCHIVES:
        fix = f"fetch it first with `vitft data fetch {root}`, or try the command with --data demo"
    kind = "file" if root.suffix.lower() in (".npz", *TABLE_SUFFIXES) else "folder"
    raise DataError(f"data {kind} not found: {root}", fix=fix)


def may_be_data(entry: "os.DirEntry[str]") -> bool:
    """Return whether an entry is a folder, an array file or a table."""
    return entry.is_dir() or entry.name.lower().endswith((".npz", *TABLE_SUFFIXES))


Found = tuple[list[str], list[File], list[str], EmptyClasses]
"""Class names, files, notes and empty class folders."""


def scan_classes(walk: Walk, root: Path, _parts: Mapping[Part, str]) -> Found:
    """Scan a folder that contains one folder per class."""
    classes, _ = walk.folders_of("")
    check_class_count(walk, root, "")
    found = {name: walk.images_in(name) for name in classes}
    walk.raise_if_refused()
    files = [File(p, i) for i, name in enumerate(classes) for p in found[name]]
    return classes, files, [], empty_classes(walk, found)


def scan_parts(walk: Walk, root: Path, parts: Mapping[Part, str]) -> Found:
    """Scan a folder that contains a train folder and a val folder, a test folder or both."""
    train = parts["train"]
    names = {part: walk.folders_of(folder)[0] for part, folder in parts.items()}
    walk.raise_if_refused()
    classes = names["train"]
    used = {part: folder for part, folder in parts.items() if {*names[part]} == {*classes}}
    needed: Part = "val" if "val" in parts else "test"
    if needed not in used:
        raise unlike_classes(walk, root, {train: classes, parts[needed]: names[needed]})
    check_class_count(walk, root, train)
    notes = []
    if "test" in parts.keys() - used.keys():
        notes.append(
            f"{parts['test']}/ is not used for testing: its classes differ from those of the "
            "training images"
        )
    if unused := [name for name in walk.folders_of("")[0] if name not in parts.values()]:
        notes.append(f"not used for training or validation: {listing(unused)}")
    places = {(part, n): f"{folder}/{n}" for n in classes for part, folder in used.items()}
    found = {place: walk.images_in(place) for place in places.values()}
    walk.raise_if_refused()
    required = {place: found[place] for (part, _), place in places.items() if part != "test"}
    files = [
        File(path, label, part)
        for label, name in enumerate(classes)
        for part in used
        for path in found[places[part, name]]
    ]
    return classes, files, notes, empty_classes(walk, required)


def unlike_classes(walk: Walk, root: Path, names: Mapping[str, Sequence[str]]) -> DataError:
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
    without = f"; no images in {listing(empty)}" if empty else ""
    fix = f"use the same class folders in {one}/ and {other}/"
    return DataError(
        f"{root}: the classes of {one}/ and {other}/ differ ({lists}{without})",
        fix=f"remove the empty {listing(empty)}, or {fix}" if empty else fix,
    )


def split_folders(walk: Walk, names: Iterable[str]) -> dict[Part, str]:
    """Return the folder name of each subset, or an empty dict if the data has no split of its own.

    The data has its own split if there is a train folder and a val or test folder, each with
    subfolders.

    Raises:
        DataError: There is more than one folder for the same subset.
    """
    parts: dict[Part, str] = {}
    for part, known in PART_NAMES:
        fitting = [n for n in names if n.lower() in known and walk.folders_of(n)[0]]
        if len(fitting) > 1:
            raise DataError(
                f"{walk.root} has more than one {part} folder: {listing(fitting)}",
                fix="keep one of them and move the others elsewhere",
            )
        if fitting:
            parts[part] = fitting[0]
    return parts if "train" in parts and len(parts) > 1 else {}


def assign_parts(folder: Folder, val_from: Literal["auto", "test"]) -> Folder:
    """Return the folder with its files assigned to the subsets that a run or a study uses.

    A folder without test images is returned unchanged. Otherwise, the result depends on the setting
    `data.val_from`:

    auto  The test images are kept for a final evaluation. If there are no validation images,
          some of the training images will be drawn for validation.
    test  If there are no validation images, the test images are used for validation. Otherwise, the
          test images are left out, as in runs before `data.val_from` existed.
    """
    present = {file.part for file in folder.files}
    if "test" not in present:
        return folder
    if "val" in present:
        if val_from == "auto":
            return folder
        files = tuple(file for file in folder.files if file.part != "test")
        return replace(folder, files=files)
    if val_from == "test":
        files = tuple(replace(f, part="val") if f.part == "test" else f for f in folder.files)
        note = "no validation set: the test images are used for validation (data.val_from=test)"
        return replace(folder, files=files, notes=(*folder.notes, note))
    files = tuple(replace(f, part="") if f.part == "train" else f for f in folder.files)
    note = (
        "validation images are drawn from the training images; the test images are used only once, "
        "at the end"
    )
    return replace(folder, files=files, layout="classes", notes=(*folder.notes, note))


def check_class_count(walk: Walk, root: Path, folder: str) -> None:
    """Raise a DataError if `folder` contains fewer than two classes.

    If the classes seem to be one folder deeper, the fix suggests that folder.
    """
    names, loose = walk.folders_of(folder)
    if len(names) >= 2:
        return
    where = root / folder
    if not names:
        content = count(loose, "image") if loose else "no images"
        problem = f"no class folders in {where}, which contains {content}"
    else:
        problem = f"need at least 2 classes, found 1 ({names[0]}) in {where}"
    if names and not folder and len(walk.folders_of(names[0])[0]) >= 2:
        fix = f"use {where / names[0]}: the classes seem to be one folder deeper"
    else:
        fix = f"put each class in its own folder, e.g. {where}/cat/001.jpg and {where}/dog/001.jpg"
        if not folder and (parent := parent_of_class(root)):
            fix = f"use {parent}: {root.absolute().name} seems to be one of its classes"
        if loose and not names:
            fix += f", or label the images with `vitft label {shell_quote(str(where))}`"
    raise DataError(problem, fix=fix)


def parent_of_class(root: Path) -> Path | None:
    """Return the parent of a folder if it contains other folders with images too, else None.

    The current and the home folder, and the root of a disk, are not suggested.
    """
    full = root.absolute()
    if ".." in full.parts or full.parent in (Path.cwd(), Path.home(), Path(full.anchor)):
        return None
    walk = Walk(str(full.parent))
    if not walk.images_in(full.name):
        return None
    others = (name for name in walk.folders_of("")[0] if name != full.name)
    if not any(walk.folders_of(name)[1] for name in others):
        return None
    return root.parent if root.name else full.parent


def empty_classes(walk: Walk, found: Mapping[str, Sized]) -> EmptyClasses:
    """Return the class folders without images, given the images of each class folder."""
    empty = [path for path, images in found.items() if not images]
    content = {path: by_suffix(unused_files(walk.unused(path))) for path in empty}
    return EmptyClasses(content, len(found))


def warnings_on_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return a warning about class names that some file systems treat as equal, if there are any.

    They are probably one class, but a table of class changes has to say so.
    """
    by_key: dict[str, list[str]] = {}
    for name in names:
        by_key.setdefault(unicodedata.normalize("NFC", name).casefold(), []).append(name)
    found = [twins for twins in by_key.values() if len(twins) > 1]
    if not found:
        return ()
    twins = "; ".join(" and ".join(twins) for twins in found)
    first, second = found[0][:2]
    return (
        f"class names that differ only in case or Unicode normalisation: {twins}; if they are one "
        f"class, merge them with --classes TABLE.csv: the line `class,new_class`, then e.g. "
        f"`{second},{first}`",
    )
