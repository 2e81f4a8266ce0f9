"""Table of decisions on single images, applied without changing any image file.

`vitft check` proposes the table, the user edits it, and `vitft finetune --fixes` applies it to the
result of `scan`: `drop` leaves an image out, `move` changes its label, `keep` has no effect.
`check.audit` makes the proposals.
"""

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vitft.config.sections import DataSpec
from vitft.data.folder import File, Folder
from vitft.data.table import TableReader, encode_table
from vitft.system.errors import DataError
from vitft.system.files import write_atomically
from vitft.system.text import count, escape_formula

FIX_COLUMNS = ("path", "action", "label", "new_label", "reason", "kind", "confidence")
ACTIONS = ("keep", "move", "drop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One image and the action for it."""

    path: str  # path relative to the data folder, with slashes
    action: str  # `keep`, `move` (to `new_label`) or `drop`
    label: str = ""
    new_label: str = ""
    """New class; with `keep` only a suggestion, which takes effect if the user sets `move`."""
    reason: str = ""
    kind: str = ""
    confidence: float | None = None  # from 0 to 1

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of the row as text."""
        confidence = "" if self.confidence is None else f"{self.confidence:.3f}"
        return (
            self.path, self.action, self.label, self.new_label, self.reason, self.kind, confidence,
        )  # fmt: skip


def write_fixes(path: Path, fixes: Iterable[Fix]) -> None:
    """Write the table, with cells escaped so that spreadsheets do not evaluate them as formulas."""
    rows = (tuple(map(escape_formula, fix.cells)) for fix in fixes)
    write_atomically(path, encode_table(FIX_COLUMNS, rows))


def apply_fixes(folder: Folder, spec: DataSpec) -> tuple[Folder, DataSpec]:
    """Return the folder with the fixes of `spec` applied, and `spec` with the table's digest.

    Raises:
        DataError: The table cannot be read, does not fit the folder (the message names the line)
            or has a different digest from the one in the settings.
    """
    if not spec.fixes:
        return folder, spec
    path = Path(spec.fixes).expanduser()
    table = TableReader(
        path,
        missing="use the fixes.csv that `vitft check` wrote",
        fix="correct or remove the line, or write a new table with `vitft check`",
        separators=",;",  # some spreadsheets use semicolons
    )
    digest = hashlib.sha256(table.data).hexdigest()
    if spec.fixes_digest not in ("", digest):
        raise DataError(
            f"{path} has changed: its sha256 differs from "
            f"data.fixes_digest={spec.fixes_digest[:12]}...",
            fix="restore the table, or remove data.fixes_digest from the settings",
        )
    known = {file.path: folder.classes[file.label] for file in folder.files}
    known |= {name: "" for name, _ in folder.bad}
    decided = dict(decisions(table, known, folder.classes))
    fixed = with_fixes(folder, decided)
    return fixed, replace(spec, fixes=str(path.resolve()), fixes_digest=digest)


def decisions(
    table: TableReader, known: Mapping[str, str], classes: tuple[str, ...]
) -> Iterator[tuple[str, str | None]]:
    """Yield the path and label (None if dropped) of every row that changes something."""
    lines = iter(table)
    header = [cell.strip() for cell in next(lines, [])]
    if lacking := [name for name in ("path", "action") if name not in header]:
        raise table.error(f"the header has no {' or '.join(lacking)} column")
    seen: set[str] = set()
    for cells in filter(any, lines):
        row = dict(zip(header, cells, strict=False))
        name = unescaped(row.get("path", ""), known)
        new = unescaped(row.get("new_label", ""), classes)
        action = row.get("action", "").strip().lower()
        if problem := fix_problem(name, action, new, known, classes):
            raise table.error(problem)
        if name in seen:
            raise table.error(f"{name!r} is listed twice")
        seen.add(name)
        if action == "drop" or (action == "move" and known[name]):
            yield name, new if action == "move" else None


def unescaped(cell: str, known: Container[str]) -> str:
    """Return a cell without the apostrophe that escapes it in spreadsheets."""
    return cell[1:] if cell.startswith("'") and cell not in known and cell[1:] in known else cell


def fix_problem(
    name: str, action: str, new: str, known: Mapping[str, str], classes: tuple[str, ...]
) -> str:
    """Return the problem with a row, or an empty string if there is none."""
    if name not in known:
        return f"{name!r} is not an image in the data folder"
    if action not in ACTIONS:
        return f"action is {action!r} instead of keep, move or drop"
    if action == "move" and new not in classes:
        return f"new_label is {new!r}, which is not a class of the data folder"
    return ""


def with_fixes(folder: Folder, decided: Mapping[str, str | None]) -> Folder:
    """Return the folder with the decisions applied to its list of files; no file is moved."""
    index = {name: number for number, name in enumerate(folder.classes)}
    files, moved = [], 0
    for file in folder.files:
        label = decided.get(file.path, folder.classes[file.label])
        if label is not None:
            moved += index[label] != file.label
            files.append(File(file.path, index[label], file.part))
    files.sort(key=lambda file: (file.label, file.path))
    dropped = len(folder.files) - len(files)
    note = f"fixes applied: {count(dropped, 'image')} left out, {moved} relabelled"
    return replace(
        folder,
        files=tuple(files),
        bad=tuple(entry for entry in folder.bad if entry[0] not in decided),
        notes=(*folder.notes, note),
    )
