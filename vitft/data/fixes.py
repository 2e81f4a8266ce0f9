"""The user's decisions about single images, as a table that is applied without touching a file.

`vitft check` proposes the table, the user edits it, `vitft finetune --fixes` applies it to what
`scan` found: `drop` leaves an image out, `move` puts it under another label, `keep` changes
nothing. What is proposed is decided in `audit`.
"""

import csv
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vitft.config.data import DataSpec
from vitft.data.folder import File, Folder
from vitft.data.split import quoted
from vitft.system.errors import DataError
from vitft.system.files import write_atomically
from vitft.system.text import count, escape_formula

COLUMNS = ("path", "action", "label", "new_label", "reason", "kind", "confidence")
NEEDED = ("path", "action")
ACTIONS = ("keep", "move", "drop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One image and what is to become of it."""

    path: str
    """Relative to the data folder, with slashes."""
    action: str
    """`keep`, `move` (to `new_label`) or `drop`."""
    label: str = ""
    new_label: str = ""
    """With `keep` a suggestion: the user only changes the action."""
    reason: str = ""
    kind: str = ""
    confidence: float | None = None
    """From 0 to 1; None where there is no figure."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        confidence = "" if self.confidence is None else f"{self.confidence:.3f}"
        return (
            self.path, self.action, self.label, self.new_label, self.reason, self.kind, confidence,
        )  # fmt: skip


def write_fixes(path: Path, fixes: Iterable[Fix]) -> None:
    """Write the table; no spreadsheet takes a cell of it for a formula."""
    lines = [
        ",".join(COLUMNS),
        *(",".join(quoted(escape_formula(c)) for c in f.cells) for f in fixes),
    ]
    write_atomically(path, ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))


def apply_fixes(folder: Folder, spec: DataSpec) -> tuple[Folder, DataSpec]:
    """The folder with the fixes of `spec` applied, and `spec` with the table's digest.

    Raises:
        DataError: The table cannot be read, does not fit the folder (the line is named) or is not
            the one of the digest.
    """
    if not spec.fixes:
        return folder, spec
    path = Path(spec.fixes).expanduser()
    data = read_table(path)
    digest = hashlib.sha256(data).hexdigest()
    if spec.fixes_digest not in ("", digest):
        raise DataError(
            f"{path} is not the table of data.fixes_digest {spec.fixes_digest[:12]}...",
            fix="restore the table, or take data.fixes_digest out of the settings",
        )
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    known = {file.path: folder.classes[file.label] for file in folder.files}
    known |= {name: "" for name, _ in folder.bad}
    decided = dict(decisions(path, text, known, folder.classes))
    return fixed(folder, decided), replace(spec, fixes=str(path.resolve()), fixes_digest=digest)


def read_table(path: Path) -> bytes:
    """The bytes of the table."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"cannot read the fixes {path}: {(error.strerror or '').lower()}",
            fix="give the fixes.csv that `vitft check` wrote",
        ) from error


def decisions(
    path: Path, text: str, known: Mapping[str, str], classes: tuple[str, ...]
) -> Iterator[tuple[str, str | None]]:
    """Path and label (None: left out) of every row that changes something, each row checked."""
    separator = ";" if ";" in text.partition("\n")[0] else ","  # as some spreadsheets save it
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    seen: set[str] = set()
    try:
        header = [cell.strip() for cell in next(reader, [])]
        lacking = [name for name in NEEDED if name not in header]
        if lacking:
            raise bad_row(path, 1, f"no column {' and '.join(lacking)} in the header")
        for cells in reader:
            if not any(cells):
                continue
            row = dict(zip(header, cells, strict=False))
            name = unescaped(row.get("path", ""), known)
            new = unescaped(row.get("new_label", ""), classes)
            action = row.get("action", "").strip().lower()
            if problem := problem_of(name, action, new, known, classes):
                raise bad_row(path, reader.line_num, problem)
            if name in seen:
                raise bad_row(path, reader.line_num, f"{name!r} stands there twice")
            seen.add(name)
            if action == "drop" or (action == "move" and known[name]):
                yield name, new if action == "move" else None
    except csv.Error as error:
        raise bad_row(path, reader.line_num, str(error)) from error


def unescaped(cell: str, known: Iterable[str]) -> str:
    """A cell without the apostrophe that keeps spreadsheets from computing it."""
    names = known if isinstance(known, Mapping) else set(known)
    return cell[1:] if cell.startswith("'") and cell not in names and cell[1:] in names else cell


def problem_of(
    name: str, action: str, new: str, known: Mapping[str, str], classes: tuple[str, ...]
) -> str:
    """What is wrong with one row, or nothing."""
    if name not in known:
        return f"{name!r} is no image of the data folder"
    if action not in ACTIONS:
        return f"the action is {action!r}, not keep, move or drop"
    if action == "move" and new not in classes:
        return f"new_label is {new!r}, which is no class of the data folder"
    return ""


def bad_row(path: Path, line: int, problem: str) -> DataError:
    """The error of a table that cannot be applied."""
    return DataError(
        f"{path}, line {line}: {problem}",
        fix="correct or remove that line, or make a fresh table with `vitft check`",
    )


def fixed(folder: Folder, decided: Mapping[str, str | None]) -> Folder:
    """The folder as if the images lay where the decisions put them; no file is touched."""
    index = {name: number for number, name in enumerate(folder.classes)}
    files, moved = [], 0
    for file in folder.files:
        label = decided.get(file.path, folder.classes[file.label])
        if label is not None:
            moved += index[label] != file.label
            files.append(File(file.path, index[label], file.part))
    files.sort(key=lambda file: (file.label, file.path))
    dropped = len(folder.files) - len(files)
    note = f"fixes applied: {count(dropped, 'image')} left out, {moved} under another label"
    return replace(
        folder,
        files=tuple(files),
        bad=tuple(entry for entry in folder.bad if entry[0] not in decided),
        notes=(*folder.notes, note),
    )
