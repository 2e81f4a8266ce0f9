"""Table that renames, merges and drops classes of a dataset, without changing any file.

    class,new_class
    tulips,bulbs        renamed, or merged if several classes are given the same name
    weeds,              left out, with all its images

Classes that the table does not list keep their names. All changes are made simultaneously, so two
classes may swap names.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vitft.data.folder import CLASS_COLUMNS, Folder, warnings_on_names
from vitft.data.table import TableReader
from vitft.system.errors import DataError
from vitft.system.suggest import EquivalentNames, misspelt_name
from vitft.system.text import count, listing

_ClassChanges = Mapping[str, str]
"""Mapping from class names to new names; a class with an empty new name is left out."""


def read_class_changes(
    path: Path, known: Collection[str], *, allow_unknown: bool = False
) -> _ClassChanges:
    """Read a table of changes to `known` classes (or any); a DataError names an invalid line."""
    reader = TableReader(
        path,
        missing="use a table with the columns class and new_class, and check its path",
        fix="use a table with the columns class and new_class, where an empty new_class leaves the "
        "class out",
    )
    lines = iter(reader)
    header = [cell.strip() for cell in next(lines, [])]
    names = [cell.lower() for cell in header]
    for name in CLASS_COLUMNS:
        if names.count(name) != 1:
            many = "more than one column named" if name in names else "no column named"
            raise reader.error(f"{many} {name}. Columns found: {listing(header) or 'none'}")
    places = [names.index(name) for name in CLASS_COLUMNS]
    changes: dict[str, str] = {}
    names_of_classes = EquivalentNames(known)
    for cells in filter(any, lines):
        if len(cells) != len(header):
            column = header[min(len(cells), len(header) - 1)]
            raise reader.error(
                f"found {count(len(cells), 'cell')} instead of {len(header)}", column=column
            )
        old = reader.checked(cells[places[0]], "class", is_path=True)
        old = names_of_classes.find(old if old in known else old.strip())
        new = reader.checked(cells[places[1]], "new_class")
        if not old:
            raise reader.error("the class name is empty", column="class")
        if old in changes:
            raise reader.error(f"{old} is listed twice", column="class")
        if old not in known and not allow_unknown:
            near = misspelt_name(old, known)
            raise reader.error(
                f"the data has no class {old[:40]!r}, only {listing(sorted(known))}",
                column="class",
                fix=f"correct the name: did you mean {near}?"
                if near
                else "correct or remove the line",
            )
        changes[old] = new.strip()
    if not changes:
        raise reader.error("the table lists no classes", line=reader.line)
    return changes


def change_classes(folder: Folder, table: Path) -> Folder:
    """Return the folder with classes changed by a table (DataError if fewer than two are left)."""
    changes = read_class_changes(table, folder.classes)
    new = [changes.get(name, name) for name in folder.classes]
    classes = sorted({new[file.label] for file in folder.files} - {""})
    if len(classes) < 2:
        left = count(len(classes), "class", "classes")
        raise DataError(
            f"{table} leaves {left} with images in {folder.source}", fix="keep at least 2 classes"
        )
    index = {name: number for number, name in enumerate(classes)}
    kept = [file for file in folder.files if new[file.label]]
    files = [replace(file, label=index[new[file.label]]) for file in kept]
    unexplained = {
        path: text
        for path, text in folder.empty.content.items()
        if path.rpartition("/")[2] not in changes
    }
    note = note_on_changes(table, folder.classes, new, len(folder.files) - len(kept))
    return replace(
        folder,
        warnings=warnings_on_names(classes),
        classes=tuple(classes),
        files=tuple(sorted(files, key=lambda file: (file.label, file.path))),
        empty=replace(folder.empty, content=unexplained),
        notes=(*folder.notes, note),
    )


def note_on_changes(table: Path, old: Sequence[str], new: Sequence[str], dropped: int) -> str:
    """Return a note on how many classes a table changes, and how many images it leaves out."""
    changed = sum(a != b for a, b in zip(old, new, strict=True))
    note = f"{table.name}: {changed:,} of {count(len(old), 'class', 'classes')} changed"
    left = f", {len({*new} - {''}):,} left"
    return note + left + f" ({count(dropped, 'image')} left out)" * (dropped > 0)
