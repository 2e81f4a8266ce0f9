"""Answers as text: one row per input in one of `FORMATS`, printed through the console.

Files of rows, and how they are resumed, are `rowfile`'s.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitft.system import console
from vitft.system.console import csv_line, json_line, visible
from vitft.system.errors import UsageError
from vitft.system.extras import require_extra

FORMATS = ("table", "json", "jsonl", "csv", "parquet")
SUFFIXES = {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv",
            ".parquet": "parquet", ".pq": "parquet", ".txt": "table"}  # fmt: skip
LOOK = 100
"""Rows of a table that decide how wide its first column is."""
DIGITS = 6
"""Decimals of a probability; the last bits are not the same on every machine."""


class Row(NamedTuple):
    """The answer to one input."""

    path: str
    classes: Sequence[str] = ()
    shares: Sequence[float] = ()
    error: str = ""
    notes: Sequence[str] = ()
    """What to think of the answer: `not sure`, `unlike the training images`."""


class Rows:
    """Rows written one by one as text.

    Args:
        style: table, json, jsonl or csv.
        top_k: Classes per row.
        write: Takes one line without its end; default: stdout.
    """

    def __init__(
        self, style: str, top_k: int, write: Callable[[str], object] = console.exact
    ) -> None:
        self.style, self.top_k, self.write = style, top_k, write
        self.count = self.errors = 0
        self.has_begun = False
        self.held = ""
        self.first: list[tuple[str, str]] | None = [("image", "answer")]
        self.width = 0

    def begin(self) -> None:
        """What comes before the first row, once."""
        if self.has_begun:
            return
        self.has_begun = True
        if self.style == "csv":
            self.write(csv_line(header(self.top_k)))
        elif self.style == "json":
            self.write("[")

    def add(
        self,
        path: str,
        classes: Sequence[str],
        shares: Sequence[float],
        error: str = "",
        notes: Sequence[str] = (),
    ) -> None:
        """One input's answer, or why there is none."""
        self.begin()
        self.count += 1
        self.errors += bool(error)
        self.put(Row(path, classes, shares, error, notes))

    def put(self, row: Row) -> None:
        """One row in the style of the file."""
        if self.style == "csv":
            self.write(csv_line(cells_of(row, self.top_k)))
        elif self.style == "jsonl":
            self.write(json_line(fields_of(row)))
        elif self.style == "json":
            self.hold(f"  {json_line(fields_of(row))}")
        else:
            self.add_line(visible(row.path), in_words(row))

    def hold(self, line: str) -> None:
        """A line of JSON, which ends in a comma if another one follows."""
        if self.held:
            self.write(f"{self.held},")
        self.held = line

    def add_line(self, path: str, answer: str) -> None:
        """A line of the table, as soon as the width of its first column is known."""
        if self.first is None:
            self.write(f"{path:<{self.width}}  {answer}")
            return
        self.first.append((path, answer))
        if len(self.first) > LOOK:
            self.show_first()

    def show_first(self) -> None:
        """The lines whose paths decided the width."""
        lines, self.first = self.first or [], None
        self.width = max((len(path) for path, _ in lines), default=0)
        for path, answer in lines:
            self.add_line(path, answer)

    def close(self) -> None:
        """What comes after the last row."""
        self.begin()
        if self.style == "json":
            if self.held:
                self.write(self.held)
            self.write("]")
        elif self.style == "table" and self.first is not None:
            self.show_first()


def header(top_k: int) -> list[str]:
    """Columns of CSV and Parquet."""
    ranks = [name for i in range(1, top_k + 1) for name in (f"class_{i}", f"share_{i}")]
    return ["path", *ranks, "note", "error"]


def cells_of(row: Row, top_k: int) -> list[str]:
    """One row under `header`; no cell is a formula once `csv_line` has seen it."""
    pairs = zip(row.classes, row.shares, strict=True)
    cells = [cell for name, share in pairs for cell in (name, f"{share:.{DIGITS}f}")]
    blanks = [""] * (2 * top_k - len(cells))
    return [row.path, *cells, *blanks, "; ".join(row.notes), row.error]


def fields_of(row: Row) -> dict[str, Any]:
    """One row of JSON; `notes` only if there are any."""
    if row.error:
        return {"path": row.path, "error": row.error}
    pairs = zip(row.classes, row.shares, strict=True)
    answers = [{"class": name, "probability": round(share, DIGITS)} for name, share in pairs]
    return {"path": row.path, "classes": answers} | ({"notes": [*row.notes]} if row.notes else {})


def in_words(row: Row) -> str:
    """One row of the table behind the path."""
    if row.error:
        return visible(f"error: {row.error}")
    pairs = zip(row.classes, row.shares, strict=True)
    best = ", ".join(f"{visible(name)} {share:.1%}" for name, share in pairs)
    return f"{best} ({', '.join(row.notes)})" if row.notes else best


def style_of(wanted: str | None, out: str | None) -> str:
    """The format that was asked for, or that the name of the file says.

    Raises:
        UsageError: Neither says, or Parquet without a file or without its library.
    """
    style = wanted or ("table" if out is None else SUFFIXES.get(Path(out).suffix.lower(), ""))
    if not style:
        raise UsageError(
            f"--out {out}: its suffix is none of {', '.join(SUFFIXES)}",
            fix="add --format jsonl (or csv, json, table, parquet)",
        )
    if style == "parquet":
        if out is None:
            raise UsageError("parquet is not for a terminal", fix="add --out predictions.parquet")
        require_extra("parquet", feature="--format parquet")
    return style
