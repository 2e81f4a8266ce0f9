"""The images of a data set as one immutable table, from the scan to the split and the audit.

A scan fills the columns path, label, split and group. Reading the files adds their digests, sizes
and remarks, and `data.split` assigns each image to a subset. `split.csv` is a view of the table.
"""

import functools
import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, cast

import numpy as np

from vitft.data.parts import PART_NAMES, Part
from vitft.data.places import short_name
from vitft.data.table import TableReader, encode_table
from vitft.metrics.intervals import Flags
from vitft.metrics.outputs import Outputs
from vitft.system.errors import RunError
from vitft.system.files import write_atomically

SPLIT_COLUMNS = ("path", "label", "split", "sha256")
_SETS_COLUMNS = ("path", "labels", "split", "sha256")  # columns of `split.csv` for multi-label data
GROUP_COLUMN = "group"
_MORE_COLUMNS = (GROUP_COLUMN, "kept_together")  # of `split.csv`, if any image has a value


class Row(NamedTuple):
    """One image of a data set."""

    path: str  # path relative to the data folder, with slashes
    label: int  # index of its class or label set
    split: Part = ""  # subset of the image; empty before the data are split
    sha256: str = ""  # hexadecimal SHA-256 digest of the file's bytes, once they are read
    width: int = 0  # width in pixels of the upright image, once it is decoded
    height: int = 0
    odd: tuple[str, ...] = ()  # remarks on the decoding, e.g. `rotated by EXIF`
    group: str = ""  # name of the group, which the split never divides; empty if there is none
    time: datetime | None = None  # date in a table or EXIF data, without a time zone, if known
    kept_together: str = ""  # digest that names the near-duplicates and groups that a split joined

    @property
    def unit(self) -> str:
        """Name shared by the images that intervals and tests count once; empty if there is none."""
        return self.kept_together or self.group


_RECORD = np.dtype([
    ("path", "O"), ("label", "i4"), ("split", "O"), ("sha256", "V32"), ("width", "i4"),
    ("height", "i4"), ("odd", "O"), ("group", "O"), ("time", "M8[s]"),
    ("kept_together", "O"),
])  # fmt: skip
_NO_DIGEST = bytes(32)
_BLOCK = 1024  # number of rows that are built at a time

_Array = np.ndarray[Any, Any]


class _Rows(Sequence[Row]):
    """Rows at some places of columns, which several share: 96 bytes an image, and its path."""

    def __init__(self, columns: Mapping[str, _Array], places: _Array) -> None:
        self.columns, self.places = columns, places

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Row]:
        for start in range(0, len(self), _BLOCK):
            places = self.places[start : start + _BLOCK]
            yield from map(_row, *(self.columns[name][places].tolist() for name in Row._fields))

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401 - a row or, for a slice, several
        if isinstance(place, slice):
            return _Rows(self.columns, self.places[place])
        return _row(*(self.columns[name].item(self.places[place]) for name in Row._fields))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]


def _row(path: str, label: int, split: Part, digest: bytes, *more: Any) -> Row:  # noqa: ANN401
    return Row(path, label, split, "" if digest == _NO_DIGEST else digest.hex(), *more)


def pack(rows: Iterable[Row]) -> _Rows:
    """Store rows as columns, without holding all of them in memory at any time."""
    if isinstance(rows, _Rows):
        return rows
    share = dict[Any, Any]().setdefault
    records = (
        (path, label, share(split, split), bytes.fromhex(sha256), width, height,
         share(odd, odd), share(group, group), time, share(unit, unit))
        for path, label, split, sha256, width, height, odd, group, time, unit in rows
    )  # fmt: skip
    table = np.fromiter(records, _RECORD)
    columns = {name: table[name] for name in Row._fields}
    return _Rows(columns, np.arange(len(table), dtype=np.int32))


@dataclass(frozen=True)
class Images:
    """The images of a data set or a run, with their classes."""

    root: Path  # folder to which the paths are relative
    classes: tuple[str, ...]
    """Class names in the order of their indices, i.e. sorted as strings. For multi-label data,
    these are the label sets that occur, which are treated like classes (see `join_labels`)."""
    rows: Sequence[Row]  # images sorted by class, then by path as a string; stored as columns
    labels: tuple[str, ...] = ()
    """Sorted labels of multi-label data; empty if each image has exactly one class."""
    layout: Literal["classes", "split"] = "classes"
    """`classes` if the validation images have not been drawn yet, `split` if the split is given."""
    reference: bool = False
    """Whether the reference script's rules apply: only four suffixes are accepted, hidden files are
    included and subfolders are not."""
    bad: tuple[tuple[str, str], ...] = ()
    """Paths of files that cannot be read as images, with the reasons."""
    unused: Mapping[str, int] = field(default_factory=dict)
    """Number of files that are neither images nor hidden, by suffix."""
    warnings: tuple[str, ...] = ()
    """Notes that need an action, such as class names that are probably one class."""
    notes: tuple[str, ...] = ()
    reclassed: bool = False  # whether `data.classes` has changed the classes
    empty: Mapping[str, str] = field(default_factory=dict)
    """Mapping from the paths of class folders without images to lists of the files that they
    contain instead; allowed only if fixes explain them (see `data.fixes`)."""
    table: Path | None = None  # table that lists the images, if any
    grouped: str = ""  # name of the table's column of groups, if it has one
    dates: str = ""  # name of the table's column of dates, if it has one and the split needs it
    in_utc: bool = False  # whether the dates in the table have a time zone
    shown: str = ""
    """Name of the data in messages, if it is neither a folder nor a table of the user."""
    predicted: bool = False  # whether the table has the columns of `vitft predict`
    shown_paths: Mapping[str, str] = field(default_factory=dict)
    """Mapping from paths to the names in `vitft predict`, e.g. of shard and member."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", pack(self.rows))

    @functools.cached_property
    def outputs(self) -> Outputs:
        """Outputs of a model of the images: the classes or, for multi-label data, the labels."""
        return Outputs.of(self.labels or self.classes, several=bool(self.labels))

    @property
    def parts(self) -> tuple[Part, ...]:
        """Subsets that have images, in the order train, val, test."""
        present = {*self.column("split")}
        return tuple(part for part, _ in PART_NAMES if part in present)

    @property
    def source(self) -> Path | str:
        """Table or folder that the user specified, or the name of other data, for messages."""
        return self.shown or self.table or self.root

    @property
    def name(self) -> str:
        return short_name(self.shown) if self.shown else (self.table or self.root).resolve().name

    @functools.cached_property
    def train(self) -> Sequence[Row]:
        return self.where(self.column("split") == "train").rows

    @functools.cached_property
    def val(self) -> Sequence[Row]:
        return self.where(self.column("split") == "val").rows

    @functools.cached_property
    def test(self) -> Sequence[Row]:
        return self.where(self.column("split") == "test").rows

    @functools.cached_property
    def _places(self) -> Mapping[str, int]:
        return {path: place for place, path in enumerate(self.column("path"))}

    def find(self, path: str) -> Row | None:
        """Return the image with a path, if there is one."""
        place = self._places.get(path)
        return None if place is None else self.rows[place]

    def column(self, name: str) -> _Array:
        """Return one value of each row, such as `label` (n,); digests are 32 bytes each."""
        rows = cast("_Rows", self.rows)
        return rows.columns[name][rows.places]

    def with_column(self, name: str, values: Sequence[object] | _Array) -> Self:
        """Return the images with new values of a column, one for each row.

        A name that is not that of a column adds one, of text; rows do not have it.
        """
        rows = cast("_Rows", self.rows)
        column = rows.columns.get(name, rows.columns["path"]).copy()
        column[rows.places] = np.array(values, dtype=column.dtype)
        return replace(self, rows=_Rows({**rows.columns, name: column}, rows.places))

    def where(self, chosen: _Array) -> Self:
        """Return the images for which a mask (n,) is true, or those with the given indices."""
        rows = cast("_Rows", self.rows)
        return replace(self, rows=_Rows(rows.columns, rows.places[chosen]))

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 digest of the table as written to `split.csv`."""
        digest = hashlib.sha256()
        for line in self._csv_lines():
            digest.update(line)
        return digest.hexdigest()

    def names(self, row: Row) -> tuple[str, ...]:
        """Return the class of an image or, for multi-label data, its labels."""
        text = self.classes[row.label]
        return _split_labels(text) if self.labels else (text,)

    def targets(self, rows: Sequence[Row]) -> Sequence[int] | Flags:
        """Return class indices (n,) or, for multi-label data, flags (n, C) for the labels."""
        index = [row.label for row in rows]
        return membership(self.classes, self.labels)[index] if self.labels else index

    def relabelled(self, names: Sequence[str | None], classes: Iterable[str] = ()) -> Self:
        """Return the images with new class names, one for each row; those without one are left out.

        `classes` are all classes, if some have no images.
        """
        kept = [name for name in names if name is not None]
        classes = tuple(sorted(classes or {*kept}))
        index = {name: number for number, name in enumerate(classes)}
        images = self.where(np.array([name is not None for name in names], dtype=bool))
        images = images.with_column("label", [index[name] for name in kept])
        return replace(images, classes=classes)

    def with_classes(self, names: Sequence[str]) -> Self:
        """Return the images with the classes in another order, which may include more classes."""
        index = {name: number for number, name in enumerate(names)}
        places = np.array([index[name] for name in self.classes], dtype=int)
        images = self.with_column("label", places[self.column("label")])
        return replace(images, classes=tuple(names))

    def by_class(self) -> Self:
        """Return the images sorted by class, then by path as a string."""
        keys = [*zip(self.column("label").tolist(), self.column("path"), strict=True)]
        return self.where(np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=int))

    def locate(self, row: Row) -> str:
        return os.path.join(self.root, row.path)  # noqa: PTH118 - Path is slow

    def _csv_lines(self) -> Iterator[bytes]:
        """Yield the lines of the table as in `split.csv`."""
        names = ["split", "sha256", *(n for n in _MORE_COLUMNS if any(self.column(n)))]
        rows = (
            [row.path, self.classes[row.label], *(getattr(row, name) for name in names)]
            for row in self.rows
        )
        return encode_table(["path", "labels" if self.labels else "label", *names], rows)

    def write(self, path: Path) -> None:
        write_atomically(path, self._csv_lines())

    @classmethod
    def from_csv(cls, path: Path, root: Path) -> Self:
        """Read a `split.csv`; a RunError names an invalid line."""
        table = TableReader(
            path,
            error=RunError,
            missing="use the split.csv of a run directory",
            fix="restore the file written by vitft",
        )
        lines = iter(table)
        header = tuple(next(lines, ()))
        columns, more = header[:4], header[4:]
        known = (name for name in _MORE_COLUMNS if name in more)
        if columns not in (SPLIT_COLUMNS, _SETS_COLUMNS) or more != (*known,):
            raise table.error(f"the header must be {','.join(SPLIT_COLUMNS)}")
        names, numbers = set[str](), dict[str, int]()  # numbers of the classes as they occur

        def rows() -> Iterator[Row]:
            for cells in lines:
                table.check_width(cells, header)
                name, label, part, sha256, *rest = cells
                if not name or name.startswith("/") or ".." in name.split("/"):
                    raise table.error(f"the path {name!r} does not point inside the data folder")
                if name in names:
                    raise table.error(f"{name!r} is listed twice")
                if part not in ("train", "val", "test"):
                    raise table.error(f"split is {part!r}, but must be 'train', 'val' or 'test'")
                if not re.fullmatch("[0-9a-f]{64}", sha256):
                    raise table.error(f"{sha256[:70]!r} is not a sha256 digest")
                names.add(name)
                number = numbers.setdefault(label, len(numbers))
                groups: dict[str, Any] = dict(zip(more, rest, strict=True))
                yield Row(name, number, cast("Part", part), sha256, **groups)

        packed = pack(rows())
        labels = label_names(numbers) if header[1] == "labels" else ()
        return cls(root, tuple(numbers), packed, labels).with_classes(sorted(numbers))


# identical files, which count once ----------------------------------------------------------------


def files_of(digests: _Array) -> tuple[_Array, _Array]:
    """Return the first place of each different digest (m,), and the number of each digest (n,)."""
    return np.unique(digests.view("S32"), return_index=True, return_inverse=True)[1:]


def distinct_places(rows: Sequence[Row]) -> _Array:
    """Return the place of one row for each distinct file, so that copies count once.

    Of copies with different labels, the content decides which one counts. If the first always
    counted, a model that always predicts the first label would be right.
    """
    table = pack(rows)
    digests, labels = (table.columns[name][table.places] for name in ("sha256", "label"))
    first, file = files_of(digests)
    chosen = np.empty_like(first)
    chosen[file] = np.arange(len(file))  # the last copy
    differ = np.isin(file, file[labels != labels[first][file]])
    copies: dict[int, dict[int, int]] = {}  # of files with several labels: the last of each label
    for place in np.flatnonzero(differ).tolist():
        copies.setdefault(int(file[place]), {})[int(labels[place])] = place
    for number, same in copies.items():
        text = digests.item(int(first[number])).hex()
        chosen[number] = [*same.values()][zlib.crc32(text.encode()) % len(same)]
    return chosen[np.argsort(first)]


def distinct_rows(rows: Sequence[Row]) -> Sequence[Row]:
    """Return one row for each distinct file (see `distinct_places`)."""
    table = pack(rows)
    return _Rows(table.columns, table.places[distinct_places(table)])


# label sets: all labels of an image in multi-label data, as text such as `a|b` --------------------

JOINER = "|"  # separator between the labels of a set; no label contains this character


def join_labels(labels: Iterable[str]) -> str:
    """Join the sorted labels of a set; the result is empty for an image without labels."""
    return JOINER.join(sorted({*labels}))


def _split_labels(text: str) -> tuple[str, ...]:
    """Return the labels of a set, given its text."""
    return tuple(text.split(JOINER)) if text else ()


def label_names(sets: Iterable[str]) -> tuple[str, ...]:
    """Return the labels that occur in any of the sets, sorted as strings."""
    return tuple(sorted({label for text in sets for label in _split_labels(text)}))


def membership(sets: Sequence[str], labels: Sequence[str]) -> Flags:
    """Return whether each set contains each label, as an array (sets, labels)."""
    index = {name: number for number, name in enumerate(labels)}
    found = np.zeros((len(sets), len(labels)), dtype=bool)
    for row, text in enumerate(sets):
        found[row, [index[label] for label in _split_labels(text)]] = True
    return found
