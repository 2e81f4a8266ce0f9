"""Labelled images for evaluation, from class folders, a table or an array dataset.

Unlike in `data.folder`, one class is enough, and a class may be empty. The caller checks that the
class names match those of the model.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from vitft.config.schema import one_class_only
from vitft.config.sections import DataSpec
from vitft.data.arrays import find_arrays
from vitft.data.class_changes import note_on_changes, read_class_changes
from vitft.data.folder import check_are_classes, check_is_folder, split_folders, way_out
from vitft.data.label_table import read_label_table
from vitft.data.listed_files import find_files
from vitft.data.parts import Part
from vitft.data.table import is_table
from vitft.data.walk import Walk
from vitft.system.errors import DataError, UsageError
from vitft.system.text import count


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledImages:
    """Paths and class names of images that have not been opened yet."""

    source: Path | str  # folder or table, or the name of other data, for messages
    root: str  # folder to which the paths are relative
    classes: tuple[str, ...]
    """Class names, sorted as strings; a class may have no images. For multi-label data, these are
    the label sets that occur (see `data.label_sets`)."""
    images: tuple[tuple[str, str], ...]  # path and class name, or label set as text, of each image
    bad: tuple[tuple[str, str], ...] = ()
    """Paths with an image suffix that are not regular files, with the reasons."""
    notes: tuple[str, ...] = ()
    groups: Mapping[str, str] = field(default_factory=dict)
    """Mapping from paths to group names, if a table specifies groups."""
    labels: tuple[str, ...] = ()
    """Labels of multi-label data; empty if each image has exactly one class."""
    predicted: bool = False  # whether the data is a table with the columns of `vitft predict`

    def locate(self, path: str) -> str:
        return os.path.join(self.root, path)  # noqa: PTH118 - Path would normalise `..` and bytes


def find_labelled(
    source: Path, *, subset: str | None = None, spec: DataSpec | None = None
) -> LabelledImages:
    """List the labelled images of a folder, a table or an array dataset.

    `spec` may name the columns of a table and the folder to which its paths are relative. Of data
    with subsets, only `subset` is listed or, by default, val if it exists and test otherwise.

    Raises:
        DataError: The source is missing, unreadable or invalid, or has no labelled images.
        UsageError: The requested subset does not exist.
    """
    spec = spec or DataSpec()
    arrays = find_arrays(source)
    if arrays is not None:
        is_divided = arrays.splits
        part = _choose_part([found.name for found in arrays.parts], subset, source)
        rows = [(path, arrays.classes[i]) for path, i, own in arrays.listing() if own in ("", part)]
        found = LabelledImages(
            source=source,
            root=os.fspath(source),
            classes=arrays.classes,
            images=tuple(rows),
            notes=arrays.notes,
            labels=arrays.labels,
        )
    elif is_table(source):
        table, _ = find_files(read_label_table(source, spec), allow_bad=True)
        is_divided = len(table.parts) > 1
        part = _choose_part(table.parts, subset, source) if is_divided else ""
        kept = [row for row in table.rows if not is_divided or row.part == part]
        found = LabelledImages(
            source=table.copy.data if table.copy else source,
            root=os.fspath(table.root),
            classes=table.classes,
            images=tuple((row.path, row.label) for row in kept),
            notes=(*[f"evaluating the images in the {part} subset"] * is_divided, *table.notes),
            groups={row.path: row.group for row in table.rows if row.group},
            labels=table.labels,
            predicted=table.predicted,
        )
    else:
        check_is_folder(source)
        walk = Walk(os.fspath(source))
        folders = split_folders(walk, walk.folders_of("")[0])
        is_divided = bool(folders)
        folder = folders.get(_choose_part(folders, subset, source), "")
        classes, loose = walk.folders_of(folder)
        places = {name: f"{folder}/{name}".lstrip("/") for name in classes}
        images = [(path, name) for name in classes for path in walk.images_in(places[name])]
        walk.raise_if_refused()
        where = source / folder
        if not images and not walk.bad:
            content = count(len(classes), "empty class folder") if classes else "no class folders"
            content += f", {count(loose, 'image')} outside class folders" if loose else ""
            raise DataError(f"no labelled images in {where}: {content}", fix=way_out(where))
        if not spec.classes:
            check_are_classes(where, classes, {classes.index(name) for _, name in images})
        found = LabelledImages(
            source=source,
            root=os.fspath(source),
            classes=tuple(classes),
            images=tuple(images),
            bad=tuple(walk.bad),
            notes=(*[f"evaluating the images in {folder}/"] * bool(folder), *walk.notes()),
        )
    if spec.classes:
        found = with_changed_classes(found, Path(spec.classes).expanduser())
    if subset is not None and not is_divided:
        raise UsageError(
            f"cannot use --subset {subset}: {source} is not divided into subsets",
            fix="omit --subset",
        )
    return found


def with_changed_classes(data: LabelledImages, table: Path) -> LabelledImages:
    """Return the images with classes changed by a table, which may list unknown ones."""
    if data.labels:
        raise one_class_only("data.classes")
    changes = read_class_changes(table, data.classes, allow_unknown=True)
    new = {name: changes.get(name, name) for name in data.classes}
    images = tuple((path, new[name]) for path, name in data.images if new[name])
    dropped = len(data.images) - len(images)
    note = note_on_changes(table, data.classes, [*new.values()], dropped)
    classes = tuple(sorted({*new.values()} - {""}))
    return replace(data, classes=classes, images=images, notes=(*data.notes, note))


def _choose_part(present: Collection[str], subset: str | None, source: Path) -> Part:
    """Return the subset to evaluate: `subset` or, by default, val if it exists, otherwise test."""
    chosen = subset or ("val" if "val" in present else "test")
    if len(present) > 1 and chosen not in present:
        raise UsageError(
            f"{source} has no {chosen} subset. Subsets found: {', '.join(present)}",
            fix=f"use --subset {next(part for part in present if part != 'train')}",
        )
    return cast("Part", chosen)
