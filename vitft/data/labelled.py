"""Labelled images for evaluation, from a folder of classes, a table or an array data set.

Unlike in `data.folder`, one class is enough, and a class may be empty. The caller checks that the
class names match those of the model.
"""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from vitft.data.arrays import find_arrays
from vitft.data.folder import Part, check_is_folder, split_folders
from vitft.data.table import TableReader
from vitft.data.walk import Walk
from vitft.system.errors import DataError, UsageError
from vitft.system.text import count, listing


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledImages:
    """Paths and class names of images that have not been opened yet."""

    source: Path
    root: str
    """Folder to which the paths are relative."""
    classes: tuple[str, ...]
    """Class names, sorted as strings; a class may have no images."""
    images: tuple[tuple[str, str], ...]
    """Path and class name of each image."""
    bad: tuple[tuple[str, str], ...] = ()
    """Paths with an image suffix that are not regular files, with the reasons."""
    notes: tuple[str, ...] = ()

    def locate(self, path: str) -> str:
        """Return the path for opening an image, given its path in `images`."""
        return os.path.join(self.root, path)  # noqa: PTH118 - Path would normalise `..` and bytes


def find_labelled(source: Path, *, subset: str | None = None) -> LabelledImages:
    """List the labelled images of a folder, a table or an array data set.

    A table is a CSV file with the columns path and label; the paths are relative to the folder of
    the table. If the data is divided into parts, one part is listed: `subset` or, by default, val
    if it exists and test otherwise.

    Raises:
        DataError: The source is missing, unreadable or invalid, or has no labelled images.
        UsageError: The requested part does not exist.
    """
    arrays = find_arrays(source)
    if arrays is not None:
        part = choose_part([found.name for found in arrays.parts], subset, source)
        rows = [(path, arrays.classes[i]) for path, i, own in arrays.listing() if own in ("", part)]
        found, parts = (
            LabelledImages(
                source=source,
                root=os.fspath(source),
                classes=arrays.classes,
                images=tuple(rows),
                notes=arrays.notes,
            ),
            arrays.splits,
        )
    elif source.is_file():
        found, parts = from_table(source), False
    else:
        check_is_folder(source)
        found, parts = from_folder(source, subset)
    if subset is not None and not parts:
        raise UsageError(
            f"cannot use --subset {subset}: {source} is not divided into parts",
            fix="omit --subset",
        )
    return found


def choose_part(present: Collection[str], subset: str | None, source: Path) -> Part:
    """Return the part to evaluate: `subset` or, by default, val if it exists and test otherwise.

    Raises:
        UsageError: The data has parts, but not the requested one.
    """
    chosen = subset or ("val" if "val" in present else "test")
    if len(present) > 1 and chosen not in present:
        raise UsageError(
            f"{source} has no {chosen} part; parts found: {', '.join(present)}",
            fix=f"use --subset {next(part for part in present if part != 'train')}",
        )
    return cast("Part", chosen)


def from_folder(root: Path, subset: str | None) -> tuple[LabelledImages, bool]:
    """Return the labelled images of a folder, and whether the folder is divided into parts.

    Raises:
        DataError: There are no labelled images, or a folder cannot be read.
        UsageError: The folder has parts, but not the requested one.
    """
    walk = Walk(os.fspath(root))
    parts = split_folders(walk, walk.folders_of("")[0])
    part = parts.get(choose_part(parts, subset, root), "")
    classes, loose = walk.folders_of(part)
    images = [
        (path, name) for name in classes for path in walk.images_in(f"{part}/{name}".lstrip("/"))
    ]
    walk.raise_if_refused()
    where = root / part
    if not images and not walk.bad:
        content = "no class folders"
        if classes:
            content = count(len(classes), "empty class folder")
        loosely = f"; {count(loose, 'image')} outside class folders" if loose else ""
        raise DataError(
            f"no labelled images in {where}: {content}{loosely}",
            fix=f"put each class in its own folder, e.g. {where}/cat/001.jpg, or use a CSV file "
            "with the columns path and label",
        )
    notes = [f"evaluating the images in {part}/"] if part else []
    notes += walk.notes()
    return LabelledImages(
        source=root,
        root=os.fspath(root),
        classes=tuple(classes),
        images=tuple(images),
        bad=tuple(walk.bad),
        notes=tuple(notes),
    ), bool(parts)


def from_table(source: Path) -> LabelledImages:
    """Return the images listed in a CSV file; columns other than path and label are ignored."""
    table = TableReader(
        source,
        missing="check the path and its permissions",
        fix='use a CSV file with the header "path,label" and one image per row; its paths are '
        "relative to the folder of the file",
    )
    images = tuple(rows_of(table))
    if not images:
        raise DataError(
            f"the table {source} lists no images", fix="add rows with a path and a label"
        )
    return LabelledImages(
        source=source,
        root=os.fspath(source.parent),
        classes=tuple(sorted({label for _, label in images})),
        images=images,
    )


def rows_of(table: TableReader) -> Iterator[tuple[str, str]]:
    """Validate each row, and yield its path and label."""
    lines = iter(table)
    header = [cell.strip().lower() for cell in next(lines, [])]
    if header.count("path") != 1 or header.count("label") != 1:
        start = listing((cell[:40] for cell in header), most=6) or "nothing"
        raise table.error(f"the header needs one path column and one label column; found: {start}")
    path, label = header.index("path"), header.index("label")
    seen: set[str] = set()
    for cells in filter(any, lines):
        if len(cells) != len(header):
            problem = f"{count(len(cells), 'cell')} instead of {len(header)}"
            raise table.error(problem)
        if not cells[path] or not cells[label]:
            raise table.error("the path or label is empty")
        if cells[path] in seen:
            raise table.error(f"{cells[path]!r} is listed twice")
        seen.add(cells[path])
        yield cells[path], cells[label]
