"""Labels in the cells of a table: one class per row or, for multi-label data, any number of labels.

The labels of a multi-label image are written as `a|b` or as a list in one cell, as one column of
flags (1 or 0, yes or no) per label, or as attributes: in a column such as `colour`, the cell `red`
becomes the label `colour=red`. If each image has exactly one label, the labels are classes.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vitft.config.schema import is_several
from vitft.config.sections import DataSpec
from vitft.data.label_sets import JOINER, normal_form
from vitft.data.parts import Part
from vitft.data.table import TableReader
from vitft.system.errors import DataError, RunError
from vitft.system.structure import parse_json
from vitft.system.text import count, listing, shell_quote

SEVERAL_NAMES = ("labels", "tags")
"""Usual names of a column with label sets, used if none has a usual name of a class column."""
SPLIT_COLUMNS = ("split", "subset", "set", "part", "partition")
GROUP = re.compile("(group|patient|subject|video|camera|person|participant)(id|no|number)?")
"""Names of the group column, without blanks and underscores: `patient_id`, `PatientID`."""
OTHER_GROUP = re.compile(
    "(animal|case|slide|study|series|specimen|session|cam|site|scene|visit|year|hospital|clinic|"
    "scanner|device|location|station)(id|no|number)?"
)
"""Names of columns that may contain groups, but are not used for them without a setting."""
WEIGHT_COLUMNS = ("weight", "sample_weight")
_YES = ("1", "1,0", "true", "t", "yes", "y", "x", "+", "positive", "pos", "present")
_NO = ("0", "0,0", "-1", "false", "f", "no", "n", "-", "negative", "neg", "absent")
_SEPARATOR_NAMES: Mapping[str, str] = {
    ",": "commas",
    ";": "semicolons",
    "/": "slashes",
    "&": "ampersands",
    "+": "plus signs",
    " ": "blanks",
}
SPLIT = re.compile(
    "usage|phase|(.*_)?(split|subset)(_.*)?|(k_?)?folds?|(is_?)?(train|val|valid|test)",
    re.IGNORECASE,
)
"""Names of columns that may contain a split, but are not used for it without a setting."""
_BOX = re.compile("(^|[^a-z])[xy]_?(min|max|[12])$|^(b|bounding_?)?box(es)?$", re.IGNORECASE)
"""Names of columns that contain the boxes of objects."""
_ITEM = r"""'[^']*+'|"[^"]*+"|-?\d++"""
_LIST = re.compile(rf"[\[({{]\s*+(?:(?:{_ITEM})[\s,]*+)*+[\])}}]")
"""A list, tuple or set in Python, or an array in NumPy, which omits the commas."""


class LabelledRow(NamedTuple):
    """A row of a table of labels."""

    path: str
    """Path relative to the base folder, or as given if it leads outside the base folder."""
    label: str
    """Class of the image, or its labels as text (see `label_sets`)."""
    part: Part
    group: str
    """Name of the group; empty if the image belongs to none."""
    line: int
    cells: tuple[str, ...] = ()
    """Cells of the label columns."""


def label_places(
    reader: TableReader, header: Sequence[str], roles: Mapping[str, int], spec: DataSpec
) -> tuple[int, ...]:
    """Return the indices of the label columns or, for `*`, of those that may be one by their name.

    Raises:
        DataError: `data.label` names a column that does not exist or already has another role.
    """
    if not is_several(spec.label):
        return (roles["label"],)
    names, used = [cell.strip() for cell in header], {*roles.values()}
    if spec.label == "*":
        others = (*SPLIT_COLUMNS, *WEIGHT_COLUMNS)
        return tuple(
            place
            for place, name in enumerate(names)
            if place not in used
            and not (SPLIT.fullmatch(name) or _BOX.search(name) or name.lower() in others)
            and not GROUP.fullmatch(bare_name(name))
        )
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


def is_predicted(header: Sequence[str], places: Sequence[int]) -> bool:
    """Return whether a table has the columns of `vitft predict`, whose answers are its labels.

    `places` are the indices of the label columns.
    """
    names = [cell.strip().lower() for cell in header]
    answer = [names[place] for place in places]
    if answer == ["class"]:
        return "probability" in names
    return answer == ["labels"] and any(name.startswith("probability_") for name in names)


def box_columns(header: Sequence[str]) -> list[str]:
    """Return the names of the columns that contain the boxes of objects, if any."""
    names = [cell.strip() for cell in header]
    plain = [name for name in names if name.lower() in ("x", "y", "w", "h", "width", "height")]
    return [name for name in names if _BOX.search(name)] or plain * (len(plain) == 4)


def read_labels(
    reader: TableReader, names: Sequence[str], rows: Sequence[LabelledRow], spec: DataSpec
) -> "_LabelParser":
    """Read the labels of each row.

    `names` are the names of the label columns. A single column contains the class or the labels of
    each image in one cell. Of several columns, each column of flags represents one label, and the
    cells of any other column contain values that become labels of the form `name=value`.

    Raises:
        DataError: A name or a cell is invalid; the message names the line and the column.
    """
    columns = [
        _LabelColumn(name, [row.cells[i].strip() for row in rows]) for i, name in enumerate(names)
    ]
    if spec.label == "*":
        images = len({row.path for row in rows})
        columns = [one for one in columns if one.name and not one.is_index(images)]
    if not columns:
        raise reader.error("no column is left for data.label=*", line=1, fix="add label columns")
    names = [column.name for column in columns]
    parser = _LabelParser(reader=reader, spec=spec, names=names, lines=[row.line for row in rows])
    if len(columns) > 1:
        parser.read_columns(columns)
    else:
        parser.read_cells(columns[0])
    parser.check_sets()
    return parser


class _LabelColumn:
    """A column of labels; its cells have no blanks around them."""

    def __init__(self, name: str, cells: Sequence[str]) -> None:
        self.name, self.cells = name, cells
        numbers = {cell: number_in(cell) for cell in dict.fromkeys(cells) if cell}
        texts = {cell: cell.lower() if n is None else f"{n:g}" for cell, n in numbers.items()}
        self.values = {
            c: True if t in _YES else False if t in _NO else None for c, t in texts.items()
        }
        """Mapping from the nonempty cells to their meaning as flags, if any; 1.0 means 1."""
        self.is_flag = bool(self.values) and None not in self.values.values()
        known = [n for n in numbers.values() if n is not None]
        self.has_numbers, self.has_fractions = bool(known), any(n % 1 for n in known)
        self.has_minus = -1 in known

    def is_index(self, images: int) -> bool:
        """Return whether the column has another value for each image, like an index or a remark."""
        differs = len(self.values) >= max(2, images) and "" not in self.cells
        return differs and not self.is_flag and not self.has_fractions


@dataclass(slots=True, kw_only=True)
class _LabelParser:
    """Parser for the label columns of a table."""

    reader: TableReader
    spec: DataSpec
    names: Sequence[str]
    """Names of the label columns."""
    lines: Sequence[int]
    """Line of each row."""
    sets: list[list[str]] = field(default_factory=list)
    """Labels of each row."""
    several: bool = True
    """Whether an image may have any number of labels."""
    notes: list[str] = field(default_factory=list)

    def read_cells(self, column: _LabelColumn) -> None:
        """Read a single column, which contains all labels of an image in one cell."""
        labels, separator = self.spec.labels, self.spec.separator
        usual = is_several(self.spec.label) or column.name.lower() in SEVERAL_NAMES
        split = labels != "one" and any(separator in cell for cell in column.values)
        lists = any(map(_looks_like_list, column.values))
        self.several = labels == "several" or (labels == "auto" and (usual or split or lists))
        if labels == "auto" and split and separator == JOINER and not usual:
            one = "to read each cell as one class, use --set data.labels=one"
            self.notes.append(f"cells with {JOINER} contain several labels ({one})")
        if labels != "one" and not split and not lists:
            self.notes += _note_on_separator(column.values, several=self.several)
        self.add(column)

    def read_columns(self, columns: Sequence[_LabelColumn]) -> None:
        """Read several columns: flags, of which each represents a label, and attributes.

        Raises:
            DataError: A cell is neither, or may be either.
        """
        flags = [column for column in columns if column.is_flag]
        texts = [column for column in columns if column.values and not column.is_flag]
        fix = "write 1 if the image has the label, otherwise 0"
        if numbers := [column for column in texts if column.has_numbers]:
            cell = next(cell for cell, flag in numbers[0].values.items() if flag is None)
            problem = f"the cell is {cell[:40]!r}, but a label column has 0 or 1"
            if rest := ",".join(column.name for column in columns if column not in numbers):
                fix += f", or use --set {shell_quote(f'data.label={rest}')}"
            raise self.error(problem, numbers[0], cell, fix=fix)
        blank = [column for column in flags if "" in column.cells]
        if blank and any(False in column.values.values() for column in flags):
            problem = "the cell is empty, but the other cells of the label columns are 0 or 1"
            raise self.error(problem, blank[0], "", fix=fix)
        for column in columns:
            self.add(column)
        example = next((label for row in self.sets for label in row if label not in self.names), "")
        if len(texts) > 1 and len({frozenset(text.values) for text in texts}) == 1:
            example += " (if the values mean yes or no, write 1 or 0)" * (len(texts[0].values) == 2)
        remarks = {
            "-1 is read as no, not as unknown, in": [
                column for column in flags if column.has_minus
            ],
            "an empty cell is read as no, not as unknown, in": blank,
            f"labels such as {example} are read from": texts,
            "no image has the label": [c for c in columns if not ({*c.values.values()} - {False})],
            "every image has the label": [
                c for c in flags if {*map(c.values.get, c.cells)} == {True}
            ],
        }
        names = {text: [column.name for column in some] for text, some in remarks.items() if some}
        self.notes += [f"{text} {listing(some)}" for text, some in names.items()]

    def add(self, column: _LabelColumn) -> None:
        """Add the labels in a column to those of the rows."""
        has_name = len(self.names) > 1
        prefix = f"{column.name}=" if has_name else ""
        found = {
            cell: [column.name] * bool(flag)
            if has_name and column.is_flag
            else [normal_form(prefix + label) for label in self.labels_in(column, cell)]
            for cell, flag in column.values.items()
        }
        self.sets = self.sets or [[] for _ in self.lines]
        for labels, cell in zip(self.sets, column.cells, strict=True):
            labels += found.get(cell, ())

    def labels_in(self, column: _LabelColumn, cell: str) -> list[str]:
        """Return the labels in a cell.

        Raises:
            DataError: The cell contains an invalid list.
        """
        if _looks_like_list(cell):
            if (found := _list_in(cell)) is not None:
                return found
            if self.spec.labels != "one":
                fix = "write the labels as a|b, or read the cells as text: --set data.labels=one"
                raise self.error(f"{cell[:40]} is not a list of labels", column, cell, fix=fix)
        parts = cell.split(self.spec.separator) if self.several else [cell]
        return [part for part in map(str.strip, parts) if part]

    def check_sets(self) -> None:
        """Check the labels of all rows, which are classes if each row has exactly one.

        Raises:
            DataError: Each image must have one class, but one has more or none; or a label contains
                the character that joins the labels of a set.
        """
        if self.spec.labels == "auto" and self.several and all(len(own) == 1 for own in self.sets):
            self.several = False
            self.notes.append(
                "each image has exactly one label, so the labels are classes (if images may have "
                "several or none, use --set data.labels=several)"
            )
        self.several = self.several and self.spec.labels != "one"
        odd = [line for line, own in zip(self.lines, self.sets, strict=True) if len(own) != 1]
        if self.spec.labels == "auto" and self.several and 20 * len(odd) <= len(self.sets):
            self.notes.append(
                f"all but {count(len(odd), 'image')} have exactly one label (if each should have "
                f"one class, correct {self.reader.unit} {odd[0]})"
            )
        for line, own in zip(self.lines, self.sets, strict=True):
            problem, fix = "", ""
            if self.several and (label := next((one for one in own if JOINER in one), "")):
                problem = f"the label {label[:40]!r} contains the character {JOINER}"
                fix = f"rename the label, or separate labels with {JOINER}"
            elif not self.several and len(own) != 1:
                problem = f"one class is expected, but found {listing(own)}"
                problem = problem if own else "the label is empty"
                fix = "correct the cell, or remove the line. If images may have several labels or "
                fix += "none, use --set data.labels=several"
            if problem:
                raise self.reader.error(problem, line=line, column=self.names[0], fix=fix)

    def error(
        self, problem: str, column: _LabelColumn, cell: str, *, fix: str
    ) -> DataError | RunError:
        """Return the error for the first row with a cell."""
        line = self.lines[column.cells.index(cell)]
        return self.reader.error(problem, line=line, column=column.name, fix=fix)


def bare_name(name: str) -> str:
    """Return the name of a column in lower case, without blanks, underscores and the like."""
    return re.sub(r"[\W_]+", "", name.lower())


def number_in(cell: str) -> float | None:
    """Return the number in a cell, or None if it contains other text."""
    try:
        return float(cell)
    except ValueError:
        return None


def _looks_like_list(cell: str) -> bool:
    """Return whether a cell looks like a list, or like an object in JSON."""
    return cell[:1] + cell[-1:] in ("[]", "{}") or cell[:2] in ("('", '("', "()")


def _list_in(cell: str) -> list[str] | None:
    """Return the labels in a list in JSON, Python or NumPy, or None if it is not a list of labels.

    In an object with a single value, as Label Studio writes it, the value is the list.
    """
    value: Any = None
    if _LIST.fullmatch(cell):
        value = [re.sub("^(['\"])(.*)\\1$", r"\2", item) for item in re.findall(_ITEM, cell)]
    with contextlib.suppress(ValueError):
        value = parse_json(cell)
    if isinstance(value, dict) and len(value) == 1:
        value = next(iter(value.values()))
    if not isinstance(value, list) or any(type(label) not in (str, int) for label in value):
        return None
    labels = [str(label).strip() for label in value]
    return labels if len({*labels}) == len(labels) and "" not in labels else None


def _note_on_separator(cells: Collection[str], *, several: bool) -> list[str]:
    """Return a note if cells seem to contain several labels that are not separated.

    This is the case if all parts of a cell also occur alone or in other cells. Blanks also separate
    the words of a class name, so then all words must occur in several cells.
    """
    for separator, name in _SEPARATOR_NAMES.items():
        parts = {cell: {*map(str.strip, cell.split(separator))} for cell in cells}
        uses = Counter(part for own in parts.values() for part in own)
        few = several or separator != " " or min(uses.values(), default=0) > 1
        for cell, own in parts.items():
            if len(own) > 1 and all(part in parts or (few and uses[part] > 1) for part in own):
                setting = shell_quote(f"data.separator={separator}")
                return [
                    f"{cell[:40]!r} is read as one label (to split at {name}, use --set {setting})"
                ]
    return []
