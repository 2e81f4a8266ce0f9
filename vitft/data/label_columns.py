"""Labels in the cells of a table: one class per row or, for multi-label data, any number of labels.

The labels of a multi-label image are written as `a|b` in one cell, as one 0/1 column per label, or
as attributes: in a column such as `colour`, the cell `red` becomes the label `colour=red`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

from vitft.config.schema import is_several
from vitft.config.sections import DataSpec
from vitft.data.label_sets import JOINER, join_labels
from vitft.data.table import TableReader
from vitft.system.errors import DataError, RunError
from vitft.system.text import listing, shell_quote

SEVERAL_NAMES = ("labels", "tags")
"""Usual names of a column with label sets, used if none has a usual name of a class column."""
WEIGHT_COLUMNS = ("weight", "sample_weight")
YES, NO = ("1", "true"), ("0", "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelCells:
    """The label cells of a row."""

    cells: tuple[str, ...]
    line: int


def label_places(
    reader: TableReader, header: Sequence[str], roles: Mapping[str, int], spec: DataSpec
) -> tuple[int, ...]:
    """Return the indices of the label columns.

    Raises:
        DataError: `data.label` names a column that does not exist or already has another role.
    """
    if not is_several(spec.label):
        return (roles["label"],)
    names, used = [cell.strip() for cell in header], {*roles.values()}
    if spec.label == "*":
        rest = [i for i, name in enumerate(names) if name.lower() not in WEIGHT_COLUMNS]
        if places := tuple(i for i in rest if i not in used):
            return places
        raise reader.error("no column is left for data.label=*", fix="add label columns")
    found: list[int] = []
    for wanted in (part.strip() for part in spec.label.split(",")):
        if names.count(wanted) != 1 or names.index(wanted) in {*used, *found}:
            shown = listing((name[:40] for name in names), most=12) or "nothing"
            raise reader.error(
                f"no usable column named {wanted} (data.label={spec.label}); columns found: "
                f"{shown}",
                fix="list each label column once, and omit columns with another role",
            )
        found.append(names.index(wanted))
    return tuple(found)


def missing_column(
    reader: TableReader, header: Sequence[str], role: str, setting: str, *, has_names: bool
) -> DataError | RunError:
    """Return the error for a table without a column for a role.

    `setting` names the column, and `has_names` is whether any column has a usual name.
    """
    shown = listing((cell.strip()[:40] for cell in header), most=12) or "nothing"
    sheet = f" in the worksheet {reader.sheet}" if reader.sheet else ""
    choose = f"choose it with --set {setting}=NAME"
    first = f"the first {reader.unit} of the {'first worksheet' if sheet else 'table'}"
    return reader.error(
        f"no {role} column{sheet}; columns found: {shown}",
        fix=f"rename the column that contains the {role} to {role}, or {choose}"
        if has_names
        else f"write the names of the columns, such as path and label, into {first}; if the "
        f"column of the {role} has another name there, {choose}",
    )


def is_predicted(header: Sequence[str], places: Sequence[int]) -> bool:
    """Return whether a table has the columns of `vitft predict`, whose answers are its labels.

    `places` are the indices of the label columns.
    """
    names = [cell.strip().lower() for cell in header]
    answer = [names[place] for place in places]
    if answer == ["class"]:
        return "probability" in names
    return answer == ["labels"] and any(name.startswith("probability_") for name in names)


def refuse_decisions(reader: TableReader, header: Sequence[str]) -> None:
    """Raise a DataError if a table has the columns of the decisions that `vitft check` writes."""
    if {"path", "action", "new_label"} <= {cell.strip().lower() for cell in header}:
        raise DataError(
            f"{reader.path} is a table of decisions on images (vitft check), not a table of labels",
            fix="pass the folder or the table of the images as data, and this table with "
            f"--fixes {shell_quote(str(reader.path))}",
        )


def has_several(names: Sequence[str], rows: Sequence[LabelCells], spec: DataSpec) -> bool:
    """Return whether a table contains multi-label data.

    `names` are the names of the label columns.
    """
    if spec.labels != "auto":
        return spec.labels == "several"
    if is_several(spec.label) or names[0].lower() in SEVERAL_NAMES:
        return True
    return any(spec.separator in row.cells[0] for row in rows)


def label_texts(
    reader: TableReader, names: Sequence[str], rows: Sequence[LabelCells], spec: DataSpec
) -> list[str]:
    """Return the label set of each row as text; an image without labels has an empty set.

    `names` are the names of the label columns. A single column contains the labels of each image in
    one cell. If there are several columns, each 0/1 column represents one label, and the cells of
    any other column contain values that become labels of the form `name=value`.

    Raises:
        DataError: A name or a cell is invalid; the message names the line and the column.
    """
    flags = [len(names) > 1 and is_flag(row.cells[i] for row in rows) for i in range(len(names))]
    for name in compress(names, flags):
        check_label(reader, name, column=name, line=1)
    texts = []
    for row in rows:
        found: list[str] = []
        for name, cell, flag in zip(names, row.cells, flags, strict=True):
            if flag:
                found += [name] * flag_of(reader, cell, column=name, line=row.line)
                continue
            labels = [part.strip() for part in cell.split(spec.separator)]
            prefix = f"{name}=" if len(names) > 1 else ""
            found += [f"{prefix}{label}" for label in labels if label]
        for label in found:
            check_label(reader, label, column=names[0], line=row.line)
        texts.append(join_labels(found))
    return texts


def is_flag(cells: Iterable[str]) -> bool:
    """Return whether the nonempty cells of a column are all 0 or 1 (or true or false)."""
    values = {cell.strip().lower() for cell in cells}
    return bool(values - {""}) and values <= {*YES, *NO, ""}


def flag_of(reader: TableReader, cell: str, *, column: str, line: int) -> bool:
    """Return whether an image has a label, given its cell in the 0/1 column of the label.

    Raises:
        DataError: The cell is empty.
    """
    if not cell.strip():
        raise reader.error(
            "the cell is empty, but the other cells of the column are 0 or 1",
            line=line,
            column=column,
            fix="write 1 if the image has the label, otherwise 0",
        )
    return cell.strip().lower() in YES


def check_label(reader: TableReader, label: str, *, column: str, line: int) -> None:
    """Raise a DataError if a label contains the character that joins the labels of a set."""
    if JOINER in label:
        raise reader.error(
            f"the label {label[:40]!r} contains the character {JOINER}",
            line=line,
            column=column,
            fix=f"rename the label, or separate labels with {JOINER} (the default data.separator)",
        )
