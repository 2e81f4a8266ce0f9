"""Tables that list images with their labels: one image per row, in CSV, TSV, JSON Lines or Parquet.

Columns are recognised by their usual names or specified in the settings: path and label and,
optionally, split and group. Image files are not opened. An image has one class or, in multi-label
data, any number of labels.
"""

import contextlib
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from vitft.config.run import config_from_table, merge_settings, parse_setting
from vitft.config.sections import DataSpec
from vitft.data.copies import IndexReader, copy_of_table
from vitft.data.image_table import JOINER, Images, Row, join_labels, label_names
from vitft.data.parts import (
    CHOSEN,
    CHOSEN_PARTS,
    SKIPPED,
    Part,
    check_one_name_each,
    note_on_chosen,
    part_named,
)
from vitft.data.signatures import FORMAT_BY_SUFFIX
from vitft.data.table import PATH_COLUMNS, RowError, TableReader, base_folder, path_in
from vitft.system.errors import DataError, RunError, UsageError
from vitft.system.structure import parse_json
from vitft.system.text import count, listing, parse_time, shell_quote, unescape_formula

# labels in the cells of a table: one class per row or, for multi-label data, any number of --------

_SEVERAL_NAMES = ("labels", "tags")
"""Usual names of a column with label sets, used if none has a usual name of a class column."""
_SPLIT_COLUMNS = ("split", "subset", "set", "part", "partition")
GROUP = re.compile("(group|patient|subject|video|camera|person|participant)(id|no|number)?")
"""Names of the group column, without blanks or underscores: `patient_id`, `PatientID`."""
OTHER_GROUP = re.compile(
    "(animal|case|slide|study|series|specimen|session|cam|site|scene|visit|year|hospital|clinic|"
    "scanner|device|location|station)(id|no|number)?|pid|"
    "(group|patient|subject|video|camera|person|participant)(s|name|code|key|nr|num|uu?id|index)"
)
"""Names of columns that may contain groups, but are not used for them without a setting."""
_WEIGHT_COLUMNS = ("weight", "sample_weight")
_YES = ("1", "1,0", "true", "t", "yes", "y", "x", "+", "positive", "pos", "present")
_NO = ("0", "0,0", "-1", "false", "f", "no", "n", "-", "negative", "neg", "absent")
_FLAGS = dict.fromkeys(_YES, True) | dict.fromkeys(_NO, False)
_SPLIT = re.compile(
    "usage|phase|(.*_)?(split|subset)(_.*)?|(k_?)?folds?|(is_?)?(train|val|valid|test)",
    re.IGNORECASE,
)
"""Names of columns that may contain a split, but are not used for it without a setting."""
_BOX = re.compile("(^|[^a-z])[xy]_?(min|max|[12])$|^(b|bounding_?)?box(es)?$", re.IGNORECASE)
"""Names of columns that contain the boxes of objects."""
_BOX_SIDES = ("x", "y", "w", "h", "width", "height")
_ITEM = r"""'[^']*+'|"[^"]*+"|-?\d++"""
_LIST = re.compile(rf"[\[({{]\s*+(?:(?:{_ITEM})[\s,]*+)*+[\])}}]")
"""A list, tuple or set in Python, or an array in NumPy, which omits the commas."""


class _Line(NamedTuple):
    """A line of a table of labels, which may be one of several for an image."""

    path: str  # path relative to the base folder, or as given if it leads outside the base folder
    label: str  # text of the label cells
    part: Part
    group: str  # name of the group; empty if the image belongs to none
    time: datetime | None  # in UTC if the cell has a time zone
    number: int
    cells: tuple[str, ...]  # cells of the label columns
    chosen: str  # how `vitft label` chose the image (see `data.parts`)
    others: tuple[str, ...]  # cells of the other columns that were asked for


def column_kind(name: str) -> str:
    """Return what the groups in a column are by its name, e.g. `patient` of `Patient ID`, or ""."""
    found = GROUP.fullmatch(bare_name(name))
    return found[1] if found else ""


def _is_several(columns: str) -> bool:
    """Return whether the value of `data.label` names several columns of a table."""
    return columns == "*" or "," in columns


class _LabelColumn:
    """A column of labels; its cells have no blanks around them."""

    def __init__(self, name: str, cells: Sequence[str]) -> None:
        self.name, self.cells = name, cells
        numbers = {cell: number_in(cell) for cell in dict.fromkeys(cells) if cell}
        texts = {cell: cell.lower() if n is None else f"{n:g}" for cell, n in numbers.items()}
        self.values = {cell: _FLAGS.get(text) for cell, text in texts.items()}
        """Mapping from the nonempty cells to their meaning as flags, if any; 1.0 means 1."""
        self.is_flag = bool(self.values) and None not in self.values.values()
        self.numbers = [n for n in numbers.values() if n is not None]

    def is_index(self, images: int) -> bool:
        """Return whether the column has another value for each image, like an index or a remark."""
        differs = len(self.values) >= max(2, images) and "" not in self.cells
        return differs and not self.is_flag and not any(n % 1 for n in self.numbers)


class _LabelParser:
    """Labels of each row: those in one cell, columns of flags, or values as `name=value`."""

    def __init__(
        self,
        reader: TableReader,
        names: Sequence[str],
        rows: Sequence[_Line],
        spec: DataSpec,
        *,
        predicted: bool = False,
    ) -> None:
        cells = zip(*([cell.strip() for cell in row.cells] for row in rows), strict=True)
        columns = [_LabelColumn(name, own) for name, own in zip(names, cells, strict=True)]
        if spec.label == "*":
            images = len({row.path for row in rows})
            columns = [one for one in columns if one.name and not one.is_index(images)]
        if not columns:
            fix = "add label columns"
            raise reader.error("no column is left for data.label=*", line=1, fix=fix)
        self.reader, self.spec, self.predicted = reader, spec, predicted
        self.names, self.lines = [one.name for one in columns], [row.number for row in rows]
        self.sets: list[list[str]] = [[] for _ in rows]  # labels of each row
        self.several = True  # whether an image may have any number of labels
        self.notes: list[str] = []
        if len(columns) > 1:
            self.read_columns(columns)
        else:
            self.read_cells(columns[0])
        self.check_sets()

    def read_cells(self, column: _LabelColumn) -> None:
        """Read a single column, which contains all labels of an image in one cell."""
        labels, separator = self.spec.labels, self.spec.separator
        usual = _is_several(self.spec.label) or column.name.lower() in _SEVERAL_NAMES
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
        """Read several columns: flags, of which each represents a label, and attributes."""
        flags = [column for column in columns if column.is_flag]
        texts = [column for column in columns if column.values and not column.is_flag]
        fix = "write 1 if the image has the label, otherwise 0"
        if numbers := [column for column in texts if column.numbers]:
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
        if len({frozenset(text.values) for text in texts}) == 1 and len(texts[0].values) == 2:
            example += " (if the values mean yes or no, write 1 or 0)"
        remarks = {
            "-1 is read as no, not as unknown, in": [
                column for column in flags if -1 in column.numbers
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
        prefix, found = f"{column.name}=" * (len(self.names) > 1), dict[str, list[str]]()
        for cell, flag in column.values.items():
            if prefix and column.is_flag:
                found[cell] = [column.name] * bool(flag)
            else:
                own = self.labels_in(column, cell)
                found[cell] = [unicodedata.normalize("NFC", prefix + label) for label in own]
        for labels, cell in zip(self.sets, column.cells, strict=True):
            labels += found.get(cell, ())

    def labels_in(self, column: _LabelColumn, cell: str) -> list[str]:
        if _looks_like_list(cell):  # in JSON, Python or NumPy
            value: Any = None
            if _LIST.fullmatch(cell):
                value = [re.sub("^(['\"])(.*)\\1$", r"\2", one) for one in re.findall(_ITEM, cell)]
            with contextlib.suppress(ValueError):
                value = parse_json(cell)
            if isinstance(value, dict) and len(value) == 1:  # as Label Studio writes it
                value = next(iter(value.values()))
            if isinstance(value, list) and all(type(label) in (str, int) for label in value):
                found = [str(label).strip() for label in value]
                if len({*found}) == len(found) and "" not in found:
                    return found
            if self.spec.labels != "one":
                fix = "write the labels as a|b, or read the cells as text: --set data.labels=one"
                raise self.error(f"{cell[:40]} is not a list of labels", column, cell, fix=fix)
        parts = cell.split(self.spec.separator) if self.several else [cell]
        return [part for part in map(str.strip, parts) if part]

    def check_sets(self) -> None:
        """Check the labels of all rows, which are classes if each row has exactly one."""
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
                if not own and self.predicted:
                    fix = "remove the lines of images that vitft predict could not read"
            if problem:
                raise self.reader.error(problem, line=line, column=self.names[0], fix=fix)

    def error(
        self, problem: str, column: _LabelColumn, cell: str, *, fix: str
    ) -> DataError | RunError:
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
    return cell[:1] + cell[-1:] in ("[]", "{}") or cell[:2] in ("('", '("', "()")


def _note_on_separator(cells: Collection[str], *, several: bool) -> list[str]:
    """Return a note if all parts of a cell also occur alone or, if divided by blanks, twice."""
    for separator in ",;/&+ ":
        parts = {cell: {*map(str.strip, cell.split(separator))} for cell in cells}
        uses = Counter(part for own in parts.values() for part in own)
        few = several or separator != " " or min(uses.values(), default=0) > 1
        for cell, own in parts.items():
            if len(own) > 1 and all(part in parts or (few and uses[part] > 1) for part in own):
                setting = shell_quote(f"data.separator={separator}")
                return [f"{cell[:40]!r} is read as one label (to split it, use --set {setting})"]
    return []


# tables that list images with their labels: one image per row, in CSV, TSV, JSON Lines or ---------

_ID_COLUMNS = ("image_id", "image_name", "id_code", "image index", "id")
"""Headers of a column of names without suffix, used if no column has a usual name of paths."""
_USUAL_NAMES: Mapping[str, tuple[str, ...]] = {
    "path": PATH_COLUMNS,
    "label": ("label", "class", "class_name", "category", "target"),
    "split": _SPLIT_COLUMNS,
    "group": ("group",),
    "time": ("time", "date", "datetime", "timestamp", "date_time", "date_taken", "captured_at"),
}
"""Mapping from roles to the usual names of their columns, the preferred name first."""
SETTING_OF: Mapping[str, str] = {
    "path": "data.path_column",
    "label": "data.label",
    "split": "data.split_column",
    "group": "data.group",
    "time": "data.time",
}
"""Mapping from roles to the settings that name their columns."""
_FIX = (
    "use a table with the columns path and label, one image per row, and paths relative to the "
    "table"
)


def read_label_table(
    source: Path, spec: DataSpec, others: Mapping[str, str] | None = None
) -> tuple[Images, RowError]:
    """Return the images in a table of labels, and a function that returns errors for its rows.

    Rows that repeat an earlier row are left out. `others` maps options to the names of columns that
    they ask for; `Images.column` returns their cells by option.

    Raises:
        DataError: The table cannot be read, has no images, or has an invalid header or row; the
            message names the line and the column.
    """
    table = _Table(source, spec, others or {})
    table.read_rows()
    # The test part is left out if none of its images has a label
    test = {row.path for row in table.listed if row.part == "test"}
    labelled, unlabelled = {row.path for row in table.listed if row.label}, list[str]()
    if test and labelled and not test & labelled:
        table.listed = [row for row in table.listed if row.path not in test]
        table.by_path = {path: row for path, row in table.by_path.items() if path not in test}
        unlabelled = [f"not used: the test part ({count(len(test), 'image')} without a label)"]
    names = [table.header[place] for place in table.labels]
    labels = _LabelParser(table.reader, names, table.listed, spec, predicted=table.predicted)
    sets: dict[str, set[str]] = {}
    for line, own in zip(table.listed, labels.sets, strict=True):
        sets.setdefault(line.path, set()).update(own)
    if not any(sets.values()):
        raise DataError(
            f"no image in {source} has a label", fix="fill in the label of at least one image"
        )
    columns = {"label": labels.names[0]} | {r: table.header[i] for r, i in table.roles.items()}
    listed = [*table.by_path.values()]
    texts = {path: join_labels(own) for path, own in sets.items()}
    classes = tuple(sorted({*texts.values()}))
    index = {name: number for number, name in enumerate(classes)}
    is_divided = len({line.part for line in listed} - {""}) > 1
    copy = table.copy
    images = Images(
        root=table.root,
        classes=classes,
        rows=[Row(r.path, index[texts[r.path]], r.part, "", 0, 0, (), *r[3:5]) for r in listed],
        labels=label_names(classes) if labels.several else (),
        layout="split" if is_divided else "classes",
        notes=(
            *(copy.notes if copy else ()), *unlabelled, *labels.notes, *table.notes(labels.names),
        ),
        table=source,
        grouped=columns.get("group", ""),
        dates=columns.get("time", ""),
        in_utc=True in table.zoned,
        shown=copy.data if copy else "",
        predicted=table.predicted,
    )  # fmt: skip
    for i, option in enumerate(table.others):
        images = images.with_column(option, [line.others[i] for line in listed])

    def error(problem: str, row: int, role: str, fix: str) -> DataError | RunError:
        return table.reader.error(problem, line=listed[row].number, column=columns[role], fix=fix)

    fix = "rename one, such as to test, or ignore the column with --set data.split_column=none"
    check_one_name_each(source, sorted(table.splits), "name in the split", fix)
    unassigned = [i for i, line in enumerate(listed) if not line.part]
    if unassigned and len(unassigned) < len(listed):
        problem = "the split is empty, although other rows specify one"
        fix = "fill in the cell, or ignore the column with --set data.split_column=none"
        raise error(problem, unassigned[0], "split", fix)
    return images, error


class _Table:
    """A table of labels while it is read: its columns, and the lines so far."""

    def __init__(self, source: Path, spec: DataSpec, others: Mapping[str, str]) -> None:
        self.spec, self.source = spec, source
        self.root, self.copy = base_folder(source, spec.root), copy_of_table(source)
        self.reader = (
            IndexReader(source, self.copy.data)
            if self.copy
            else TableReader(source, missing="check the path and its permissions", fix=_FIX)
        )
        self.header = [cell.strip() for cell in next(iter(self.reader), [])]
        self.names = [name.lower() for name in self.header]
        if {"path", "action", "new_label"} <= {*self.names}:
            raise DataError(
                f"{source} is a table of decisions on images (vitft check), not a table of labels",
                fix="pass the folder or the table of the images as data, and this table with "
                f"--fixes {shell_quote(str(source))}",
            )
        self.roles = self.find_columns()
        """Index of the column of each role; split, group and several labels may be missing."""
        self.labels = self.label_columns()
        self.predicted = self.is_predicted()
        asked = {option: name for option, name in others.items() if name not in ("", "none")}
        self.others = {option: self.column_named(name, "") for option, name in asked.items()}
        """Index of the column that each option asks for."""
        self.by_path = dict[str, _Line]()  # first line of each image
        self.listed = list[_Line]()  # lines that do not repeat an earlier one
        self.splits, self.zoned = set[str](), set[bool]()  # zoned: whether dates have a time zone
        self.repeated = self.skipped = 0  # repeated lines, and images skipped in `vitft label`

    def find_columns(self) -> dict[str, int]:
        spec, found = self.spec, dict[str, int]()
        wanted = {
            "path": spec.path_column,
            "label": spec.label,
            "split": spec.split_column,
            "group": "none" if spec.group_by else spec.group,
            "time": spec.time if spec.split == "time" else "none",
        }
        if _is_several(spec.label):
            del wanted["label"]
        named = {
            role: self.column_named(name, SETTING_OF[role])
            for role, name in wanted.items()
            if name not in ("", "none")
        }
        taken = {*named.values(), *self.named_labels()}
        for role, name in wanted.items():
            setting, places = SETTING_OF[role], [] if name else self.usual_columns(role, taken)
            if role in named:
                places = [named[role]]
            if len(places) > 1:
                raise self.reader.error(
                    f"several columns may contain the {role}: "
                    f"{listing(self.header[i] for i in places)}",
                    fix=f"choose one with --set {setting}=NAME"
                    if len({self.names[i] for i in places}) > 1
                    else "rename all but one of them",
                )
            if not places and role in ("path", "label"):
                titles = listing((title[:40] for title in self.header), most=12) or "none"
                sheet = f" in the worksheet {self.reader.sheet}" if self.reader.sheet else ""
                every = f", or one column per label with --set {shell_quote('data.label=*')}"
                raise self.reader.error(
                    f"no {role} column{sheet}. Columns found: {titles}",
                    fix=f"write the name {role} above the column, in the first {self.reader.unit}, "
                    f"or choose the column with --set {setting}=NAME" + every * (role == "label"),
                )
            if places:
                found[role] = places[0]
        return found

    def usual_columns(self, role: str, taken: Collection[int]) -> list[int]:
        """Return the indices of the columns that may have a role by their names."""
        names, usual = [n * (i not in taken) for i, n in enumerate(self.names)], _USUAL_NAMES[role]
        places = [i for i, name in enumerate(names) if name in usual]
        if role == "group":
            places = [i for i, name in enumerate(names) if GROUP.fullmatch(bare_name(name))]
        elif role == "path" and not places:
            places = [names.index(name) for name in _ID_COLUMNS if name in names][:1]
        elif role == "label" and not places:
            places = [i for i, name in enumerate(names) if name in _SEVERAL_NAMES]
            shard = (name for name in ("cls", "txt") if name in names)  # as WebDataset names it
            places = places or [names.index(name) for name in shard][:1]
        if not places and role == "path" and taken:  # the column of paths has another role
            return self.usual_columns(role, ())
        best = [i for i in places if names[i] == usual[0]]
        return best if len(best) == 1 else places

    def column_named(self, name: str, setting: str) -> int:
        option = setting * (setting != SETTING_OF["group"])  # which has two options
        return self.reader.column_named(self.header, name, option)

    def label_columns(self) -> Sequence[int]:
        """Return the indices of the label columns; for `*`, of those that may be one by name."""
        label = self.spec.label
        if not _is_several(label):
            return (self.roles["label"],)
        used = {*self.roles.values()}
        if label == "*":
            others = (*_SPLIT_COLUMNS, *_WEIGHT_COLUMNS)
            return [
                i
                for i, title in enumerate(self.header)
                if i not in used
                and not (_SPLIT.fullmatch(title) or _BOX.search(title) or title.lower() in others)
                and not GROUP.fullmatch(bare_name(title))
            ]
        found = self.named_labels()
        if len({*found} - used) < len(found):
            problem = f"data.label={label} names a column twice, or one with another role"
            fix = "list each label column once, and omit columns with another role"
            raise self.reader.error(problem, fix=fix)
        return found

    def named_labels(self) -> list[int]:
        """Return the columns that the setting lists, if it lists several."""
        names = self.spec.label.split(",") if "," in self.spec.label else []
        return [self.column_named(name.strip(), "data.label") for name in names]

    def is_predicted(self) -> bool:
        """Return whether the labels are predictions, by the other columns."""
        answer = [self.names[place] for place in self.labels]
        if answer == ["class"]:
            return "probability" in self.names
        return answer == ["labels"] and any(n.startswith("probability_") for n in self.names)

    def box_columns(self) -> list[str]:
        """Return the names of the columns that contain the boxes of objects."""
        plain = [name for name in self.header if name.lower() in _BOX_SIDES]
        return [name for name in self.header if _BOX.search(name)] or plain * (len(plain) == 4)

    def read_rows(self) -> None:
        path = self.header[self.roles["path"]]
        is_id = not (self.spec.path_column or self.copy) and path.lower() in _ID_COLUMNS
        for cells in filter(any, self.reader):
            if is_id and not self.by_path:
                pairs = zip(self.header, cells, strict=False)
                suffixes = {name: Path(cell.strip()).suffix.lower() for name, cell in pairs}
                files = [name for name, suffix in suffixes.items() if suffix in FORMAT_BY_SUFFIX]
                if files and path not in files:
                    raise self.reader.error(
                        f"several columns may contain the path: {listing([path, *files])}",
                        fix="choose one with --set data.path_column=NAME",
                    )
            self.add(cells)
        if not self.by_path:
            raise DataError(
                f"the table {self.source} lists no images", fix="add rows with a path and a label"
            )

    def add(self, cells: Sequence[str]) -> None:
        header, checked = self.header, self.reader.checked
        self.reader.check_width(cells, header)
        if self.predicted or {"class", "probability"} <= {*self.names}:  # vitft wrote the table
            cells = [*map(unescape_formula, cells)]
        texts = {
            role: checked(cells[i], header[i], is_path=role == "path")
            for role, i in self.roles.items()
            if role != "label"
        }
        path, group = path_in(self.root, texts["path"]), texts.get("group", "").strip()
        labels = tuple(checked(cells[i], header[i], is_label=True) for i in self.labels)
        label = " ".join(cell.strip() for cell in labels).strip()
        others = tuple(checked(cells[i], header[i]).strip() for i in self.others.values())
        chosen = cells[self.names.index(CHOSEN)] if CHOSEN in self.names else ""
        if path and not label and chosen == SKIPPED:
            self.skipped += 1
            return
        split = texts.get("split", "").strip()
        part = CHOSEN_PARTS.get(split) or part_named(split) if split else ""
        self.splits.add(split.lower())
        if not path or (split and not part):
            problem = f"the split is {split[:40]!r} instead of train, val or test"
            fix = "correct the cell, or ignore the column with --set data.split_column=none"
            if not path:
                problem, fix = "the path is empty", "fill in the cell, or remove the line"
            column = header[self.roles["split" if path else "path"]]
            raise self.reader.error(problem, column=column, fix=fix)
        time = self.time_in(texts.get("time", ""))
        row = _Line(path, label, part, group, time, self.reader.line, labels, chosen, others)
        first = self.by_path.setdefault(path, row)
        if first is not row:
            self.check_same(first, row)
        if first is not row and first.label == row.label:
            self.repeated += 1
        else:
            self.listed.append(row)

    def time_in(self, cell: str) -> datetime | None:
        """Return the date in a cell: in UTC if it has a time zone, or None if it is empty."""
        if not cell.strip():
            return None
        time, problem = parse_time(cell), f"{cell.strip()[:40]!r} is not a date of ISO 8601 or EXIF"
        fix = "write it as 2024-02-01 or 2024-02-01 13:30, or leave the cell empty"
        if time and {*self.zoned, time.tzinfo is not None} == {True, False}:
            problem = f"{cell.strip()[:40]!r} and other dates differ in having a time zone"
            time, fix = None, "write the time zone of all dates or of none"
        if time is None:
            raise self.reader.error(problem, column=self.header[self.roles["time"]], fix=fix)
        self.zoned.add(time.tzinfo is not None)
        return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time

    def check_same(self, first: _Line, row: _Line) -> None:
        pairs = {"label": (first.label, row.label), "split": (first.part, row.part)}
        pairs |= {"group": (first.group, row.group)}
        pairs["time"] = str(first.time or ""), str(row.time or "")
        pairs |= dict(zip(self.others, zip(first.others, row.others, strict=True), strict=True))
        for role, (old, new) in pairs.items():
            if old == new or (role == "label" and self.spec.labels == "several"):
                continue
            fix = "keep one of the two lines"
            if role == "label":
                fix += ", or give the image both labels with --set data.labels=several"
                fix += ", or crop each box to an image of its own" * bool(self.box_columns())
            raise self.reader.error(
                f"{row.path} is listed twice: {old or 'nothing'} ({self.reader.unit} "
                f"{first.number}) and {new or 'nothing'} (here)",
                column=self.header[(self.roles | self.others).get(role, self.labels[0])],
                fix=fix,
            )

    def notes(self, labels: Sequence[str]) -> Iterator[str]:
        """Yield notes on groups, and on rows and columns left out; `labels` are used as such."""
        groups = Counter(row.group for row in self.by_path.values())
        if names := groups.keys() - {""}:
            without = f", {count(groups[''], 'image')} without a group" * bool(groups[""])
            column = self.header[self.roles["group"]]
            yield f"{count(len(names), 'group')} of images in the column {column}{without}"
            if {name.lower() for name in names} <= _FLAGS.keys():
                yield (
                    f"the groups in {column} are called {listing(sorted(names))}: if they are "
                    "labels or attributes, use --set data.group=none"
                )
        if others := listing(self.reader.other_sheets):
            yield f"only the worksheet {self.reader.sheet} is read, not {others}"
        if self.repeated:
            yield f"{count(self.repeated, 'repeated line')} of the table left out"
        if united := {row.path for row in self.listed if row is not self.by_path[row.path]}:
            yield f"{count(len(united), 'image')} with labels from more than one line"
        if self.skipped:
            yield f"not used: {count(self.skipped, 'image')} skipped in vitft label"
        if "split" not in self.roles:
            yield from filter(None, [note_on_chosen([(r.label, r.chosen) for r in self.listed])])
        yield from self.notes_on_columns(labels)

    def notes_on_columns(self, labels: Sequence[str]) -> Iterator[str]:
        """Yield notes on columns that are not used, although their names promise something."""
        spec, roles = self.spec, self.roles
        used = {*(self.header[i] for i in (*roles.values(), *self.others.values())), *labels}
        rest = [name for name in self.header if name and name not in used]
        if spec.label == "*" and rest:
            columns = "to use other columns, list all in data.label"
            yield f"not read as labels: {listing(rest)} ({columns})"
        has_groups = bool(spec.group_by or "group" in roles or spec.group == "none")
        for name in rest:
            setting, why = "", ""
            if _SPLIT.fullmatch(name) and "split" not in roles and spec.split_column != "none":
                setting = "split_column"
                why = "to split by it, use train, val or test in its cells, and"
            elif name.lower() in (*_USUAL_NAMES["label"], *_SEVERAL_NAMES):
                setting, why = "label", "to read the labels from it, use"
            elif name.lower() in _WEIGHT_COLUMNS:
                why = "sample weights are not supported"
            elif OTHER_GROUP.fullmatch(bare_name(name)) and not has_groups:
                setting, why = "group", "if the images of one belong together, use"
            if why:
                option = f" --set {shell_quote(f'data.{setting}={name}')}" * bool(setting)
                yield f"not used: the column {name} ({why}{option})"
        if (boxes := self.box_columns()) and {*boxes} <= {*rest}:
            boxed = listing(boxes)
            yield f"not used: the boxes in {boxed} (vitft classifies whole images: crop first)"


# the option `--set` of commands that read a table of labels but do not train ----------------------

_OTHERS = ("labels", "separator", "root", "classes", "allow_private_addresses")
TABLE_SETTINGS = (
    *(key for role, key in SETTING_OF.items() if role != "time"),  # only for a split
    *(f"data.{name}" for name in _OTHERS),
)


def with_table_settings(spec: DataSpec, texts: Iterable[str]) -> DataSpec:
    """Return the settings updated with the values of `--set`, which must be for tables."""
    settings = [parse_setting(text) for text in texts]
    for key, _ in settings:
        if key not in TABLE_SETTINGS:
            raise UsageError(
                f"{key} is not a setting for reading tables",
                fix=f"use one of {', '.join(TABLE_SETTINGS)}",
            )
    return config_from_table(merge_settings({"data": asdict(spec)}, settings)).data
