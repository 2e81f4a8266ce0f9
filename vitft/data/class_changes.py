"""Table that renames, merges and drops classes of a dataset, without changing any file.

    class,new_class
    tulips,bulbs        renamed, or merged if several classes are given the same name
    weeds,              left out, with all its images

Classes that the table does not list keep their names. All changes are made simultaneously, so two
classes may swap names.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from vitft.config.schema import one_class_only
from vitft.data.folder import CLASS_COLUMNS, warnings_on_names
from vitft.data.image_table import Images
from vitft.data.table import TableReader
from vitft.system.errors import DataError
from vitft.system.suggest import EquivalentNames, misspelt_name
from vitft.system.text import count, listing

_ClassChanges = Mapping[str, str]
"""Mapping from class names to new names; a class with an empty new name is left out."""


def _read_class_changes(
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
        reader.check_width(cells, header)
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


def change_classes(images: Images, table: Path, *, evaluated: bool = False) -> Images:
    """Return the images with classes changed by a table.

    Unless they are `evaluated`, the table must not list unknown classes, and two must be left.
    """
    if images.labels:
        raise one_class_only("data.classes")
    changes = _read_class_changes(table, images.classes, allow_unknown=evaluated)
    old, new = images.classes, [changes.get(name, name) for name in images.classes]
    left = {*new} - {""} if evaluated else ()
    changed = images.relabelled((new[row.label] or None for row in images.rows), left)
    classes = changed.classes
    if len(classes) < 2 and not evaluated:
        kept = count(len(classes), "class", "classes")
        raise DataError(
            f"{table} leaves {kept} with images in {images.source}", fix="keep at least 2 classes"
        )
    dropped = len(images.rows) - len(changed.rows)
    note = f"{table.name}: {sum(a != b for a, b in zip(old, new, strict=True)):,} of "
    note += f"{count(len(old), 'class', 'classes')} changed, {len({*new} - {''}):,} left"
    note += f" ({count(dropped, 'image')} left out)" * (dropped > 0)
    empty = {p: text for p, text in images.empty.items() if p.split("/")[-1] not in changes}
    return replace(
        changed if evaluated else changed.by_class(),
        warnings=warnings_on_names(classes),
        empty=empty,
        notes=(*images.notes, note),
    )
