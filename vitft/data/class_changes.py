"""Table that renames, merges and drops classes of a dataset, and doubts about names of classes.

    class,new_class
    tulips,bulbs        renamed, or merged if several classes are given the same name
    weeds,              left out, with all its images

Classes that the table does not list keep their names. All changes are made simultaneously, so two
classes may swap names, and no file is changed.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from vitft.config.schema import one_class_only
from vitft.data.image_table import Images
from vitft.data.table import TableReader, quote_cell
from vitft.system.errors import DataError
from vitft.system.suggest import EquivalentNames, misspelt_name
from vitft.system.text import count, listing

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
    if images.labels:
        raise one_class_only("data.classes")
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
            near = misspelt_name(name, known)
            fix = (
                f"correct the name: did you mean {near}?" if near else "correct or remove the line"
            )
        if problem:
            raise reader.error(problem, column="class", fix=fix)
        changes[name] = reader.checked(row["new_class"], "new_class").strip()
    if not changes:
        raise reader.error("the table lists no classes")
    new = [changes.get(name, name) for name in known]
    left = {*new} - {""}
    changed = images.relabelled(
        (new[row.label] or None for row in images.rows), left if evaluated else ()
    )
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
        warnings=warnings_on_names(changed.classes),
        empty={p: text for p, text in images.empty.items() if p.split("/")[-1] not in changes},
        notes=(*images.notes, note),
    )


# names that are probably one class, or stand for a missing label ---------------------------------

_MISSING_LABELS = re.compile(
    r"\?|#?n/a|<na>|nan|null|nil|tbd|todo|undefined|uncategori[sz]ed|unassigned|un_?sorted"
    r"|(to_?be_?|to_?)sort(ed)?|(un|(no|not|to)_?)(label(l?ed|s)?|tagged|annotated|reviewed)"
)
"""Names that stand for a missing label, as `key_of` returns them."""


def key_of(name: str) -> str:
    """Return what names have in common that are probably one: `Leaf rust` and `leaf_rust`."""
    key = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    key = key.casefold().strip()
    key = re.sub(r"(?<![\d.])0+(?=\d)", "", re.sub(r"^(-?\d+)\.0+$", r"\1", key))
    return re.sub(r"(?<=\w)[\s_-]+(?=\w)", "_", key)


def twins_among(names: Iterable[str]) -> list[list[str]]:
    """Return the names that have the same key (see `key_of`) as others, together with those."""
    by_key: dict[str, list[str]] = {}
    for name in names:
        by_key.setdefault(key_of(name), []).append(name)
    return [twins for twins in by_key.values() if len(twins) > 1]


def warnings_on_names(names: Iterable[str], *, several: bool = False) -> tuple[str, ...]:
    """Return warnings about names that probably mean one class, or that there is no label."""
    keys = {name: key_of(name) for name in names}
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
