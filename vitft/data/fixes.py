"""Table of decisions about individual images, applied without changing any image file.

`vitft check` writes a proposed table, the user edits it or decides on a page (`report.decisions`),
and `vitft finetune --fixes` applies it to the result of `scan`: `drop` leaves an image out, `move`
changes its label, `keep` has no effect, and `undecided` means that nobody has decided.
"""

import contextlib
import hashlib
import logging
import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from vitft.config.sections import DataSpec
from vitft.data.folder import empty_classes_error
from vitft.data.image_table import Images
from vitft.data.inspection import readable_now
from vitft.data.label_table import number_in
from vitft.data.table import TableReader, encode_table, is_utf8
from vitft.metrics.results import AuditResults, CopyGroup, CopyMember
from vitft.system.errors import DataError
from vitft.system.files import write_atomically
from vitft.system.imports import missing_library_command
from vitft.system.suggest import EquivalentNames, suggest
from vitft.system.text import count, escape_formula, listing, shell_quote

log = logging.getLogger(__name__)


FIX_COLUMNS = ("path", "action", "label", "new_label", "reason", "kind", "confidence")
UNDECIDED = "undecided"  # action of an image that nobody has decided on; it is used as it is
_ACTIONS = (UNDECIDED, "keep", "move", "drop")  # actions, the strongest last
_MOST_MISSING_NAMED = 3  # maximum number of missing files named in the warning


@dataclass(frozen=True, slots=True)
class Fix:
    """An action for one image."""

    path: str  # path relative to the data folder, with slashes
    action: str  # one of `_ACTIONS`; `move` means to `new_label`
    _: KW_ONLY
    label: str = ""
    new_label: str = ""  # new class. Unless the action is `move`, it is only a suggestion.
    reason: str = ""
    kind: str = ""
    confidence: float | None = None  # from 0 to 1

    @property
    def cells(self) -> tuple[str, ...]:
        confidence = "" if self.confidence is None else f"{self.confidence:.3f}"
        return (
            self.path, self.action, self.label, self.new_label, self.reason, self.kind, confidence,
        )  # fmt: skip


def write_fixes(path: Path, fixes: Iterable[Fix]) -> None:
    """Write the table for spreadsheets: with a byte order mark, and with formulas escaped."""
    rows = (tuple(map(escape_formula, fix.cells)) for fix in fixes)
    write_atomically(path, encode_table(FIX_COLUMNS, rows, bom=True))


def apply_fixes(folder: Images, spec: DataSpec, *, warn: bool = False) -> tuple[Images, DataSpec]:
    """Return the folder with the fixes of `spec` applied, and `spec` with the table's digest.

    Rows for files that are not in the folder are skipped, with a warning if `warn` is set. A class
    is left out if the table drops or moves all of its images, even if the files are already gone.

    Raises:
        DataError: The table is invalid, does not match the folder or the digest in the settings, or
            leaves fewer than two classes.
    """
    if not spec.fixes:
        return folder, spec
    path = Path(spec.fixes).expanduser()
    table, digest = open_table(path, spec.fixes_digest)
    known = {file.path: folder.classes[file.label] for file in folder.rows}
    known |= {name: "" for name, _ in folder.bad}
    found = read_decisions(table, known, folder.classes)
    # An empty class folder is explained if the table moves or drops the images that it contained
    unexplained = []
    for name in folder.empty:
        gone = {act for file, act in found.missing.items() if file.startswith(f"{name}/")}
        unexplained += [name] * (not gone or not gone <= {"move", "drop"})
    if unexplained:
        raise empty_classes_error(folder, unexplained)
    later = _later_table(path, known)
    if found.rows and len(found.missing) == found.rows and not folder.empty:
        create = f"run `vitft check {shell_quote(str(folder.source))}` to create a table for this "
        raise DataError(
            f"{path} does not belong to {folder.source}: all images in the table "
            f"are missing from the folder, e.g. {min(found.missing)}",
            fix=(f"use {later}, which is newer, or " if later else "") + f"{create}folder",
        )
    if later and warn:
        log.warning(f"{later} is newer than {path}: pass it to --fixes if you decided there")
    if found.missing and warn:
        log.warning(
            f"{path}: skipped {count(len(found.missing), 'line')} for files that are not in "
            f"{folder.source}: {listing(sorted(found.missing), _MOST_MISSING_NAMED)}"
        )
    unread = found.unreadable if warn else ()
    if names := readable_now(folder, unread, max_pixels=spec.max_pixels):
        those = count(
            len(names), "file that was unreadable but is", "files that were unreadable but are"
        )
        log.warning(
            f"{path}: drops {those} readable now: {listing(names, _MOST_MISSING_NAMED)}. To use "
            "them, remove these lines or set the action to keep"
        )
    return _with_fixes(folder, found), replace(spec, fixes=str(path.resolve()), fixes_digest=digest)


def _later_table(path: Path, known: Container[str]) -> Path | None:
    """Return the newest table that `vitft check` wrote beside `path` later, for `known` paths."""
    numbered = re.compile(re.escape(re.sub(r"-\d+$", "", path.stem)) + r"-\d+")
    with contextlib.suppress(OSError, DataError):
        tables = [one for one in path.parent.glob("*.csv") if numbered.fullmatch(one.stem)]
        newest = max([path, *tables], key=lambda one: one.stat().st_mtime_ns)
        if newest != path and any(fix.path in known for fix in read_fixes(newest, "")):
            return newest
    return None


def open_table(path: Path, expected: str) -> tuple[TableReader, str]:
    """Open a table of decisions, and return it with its digest (DataError if not `expected`)."""
    table = TableReader(
        path,
        missing="use the table that you saved on the page, which the browser may have put "
        "elsewhere or named fixes (1).csv, or the fixes.csv that `vitft check` wrote",
        fix="correct or remove the line, or write a new table with `vitft check`",
    )
    digest = hashlib.sha256(table.data).hexdigest()
    if expected not in ("", digest):
        raise DataError(
            f"{path} has changed since it was applied: its sha256 differs from "
            f"data.fixes_digest={expected[:12]}...",
            fix="restore the table, or remove data.fixes_digest from the settings",
        )
    return table, digest


def _fixes_in(table: TableReader) -> Iterator[Fix]:
    """Yield the rows of a table, of which `table` tells the line; formulas stay escaped."""
    lines = iter(table)
    header = [cell.strip() for cell in next(lines, [])]
    if lacking := [name for name in ("path", "action") if name not in header]:
        raise table.error(f"the header has no {' or '.join(lacking)} column")
    for cells in filter(any, lines):
        row = dict.fromkeys(FIX_COLUMNS, "") | dict(zip(header, cells, strict=False))
        path, action, *texts, confidence = (row[name] for name in FIX_COLUMNS)
        more = dict(zip(FIX_COLUMNS[2:], texts, strict=False))
        yield Fix(path, action.strip().lower(), **more, confidence=number_in(confidence))


def read_fixes(path: Path, digest: str) -> list[Fix]:
    """Read the rows of a table (see `open_table`). Formulas in the cells stay escaped."""
    return [*_fixes_in(open_table(path, digest)[0])]


def settled_paths(spec: DataSpec) -> set[str]:
    """Return the paths that the applied table has settled; none if it was changed since."""
    try:
        fixes = read_fixes(Path(spec.fixes), spec.fixes_digest) if spec.fixes else []
    except DataError:
        return set()
    return paths_settled_by(fixes)


def paths_settled_by(fixes: Iterable[Fix]) -> set[str]:
    """Return the paths whose labels an applied table has settled: by `keep` or by `move`."""
    kept = [fix.path for fix in fixes if fix.action in ("keep", "move")]
    return {*kept, *(path[1:] for path in kept if path.startswith("'"))}


def with_former(former: Iterable[Fix], proposed: Iterable[Fix]) -> list[Fix]:
    """Return the fixes of an earlier table, replaced and followed by proposals (see `replaces`).

    The page of `vitft check` merges in the same way (`report/templates/decisions.js`).
    """
    rows = {escape_formula(fix.path): fix for fix in former}
    for fix in proposed:
        earlier = rows.get(escape_formula(fix.path))
        if earlier is None or replaces(fix, earlier.action):
            rows[escape_formula(fix.path)] = fix
    return [*rows.values()]


def not_yet_decided(former: Iterable[Fix], proposed: Iterable[Fix]) -> list[Fix]:
    """Return the proposals that an earlier table does not decide, as `with_former` merges them."""
    actions = {escape_formula(fix.path): fix.action for fix in former}
    pairs = ((fix, actions.get(escape_formula(fix.path), UNDECIDED)) for fix in proposed)
    return [fix for fix, earlier in pairs if earlier == UNDECIDED or replaces(fix, earlier)]


def replaces(proposed: Fix, earlier: str) -> bool:
    """Return whether a proposal replaces a fix whose action is `earlier`, of the same file."""
    return proposed.action != UNDECIDED and earlier != "keep"


class Decisions(NamedTuple):
    """Decisions read from a table."""

    changes: Mapping[str, str | None]
    """Mapping from the path of an image to its new class name, or to None if it is dropped."""
    missing: Mapping[str, str]
    """Mapping from paths in the table that are missing from the folder to their actions."""
    rows: int
    kept: int = 0  # number of files in the folder that someone has decided to keep
    undecided: int = 0  # number of files in the folder that are listed but undecided
    unreadable: Collection[str] = ()
    """Paths that the table drops because the files could not be read when it was written."""

    @property
    def without_effect(self) -> str:
        """Numbers of listed images that stay as they are, such as `, 3 kept, 4 undecided`."""
        undecided = f", {self.undecided:,} undecided (used as they are)" * (self.undecided > 0)
        return f"{f', {self.kept:,} kept' * (self.kept > 0)}{undecided}"


def read_decisions(
    table: TableReader, known: Mapping[str, str], classes: tuple[str, ...]
) -> Decisions:
    """Read the decisions from a table.

    `known` maps each path in the folder to its class name; empty if it is not a regular file.

    Raises:
        DataError: The header or a row is invalid; the message names the line.
    """
    fix = "save the table in UTF-8 (in Excel: CSV UTF-8)"
    seen: dict[str, str] = {}  # action for each path
    paths, labels = EquivalentNames(known), EquivalentNames(classes)
    changes: dict[str, str | None] = {}
    unreadable = set[str]()
    for row in _fixes_in(table):
        name, action = paths.find(_unescaped(row.path, known)), row.action
        new = labels.find(_unescaped(row.new_label, classes))
        unknown = [name] * (name not in known) + [new] * (action == "move" and new not in classes)
        if not all(map(is_utf8, unknown)):  # existing names may be any bytes
            raise table.error("the text is not UTF-8", fix=fix)
        if problem := _fix_problem(name, action, new, known, classes):
            raise table.error(problem)
        if name in seen:
            raise table.error(f"{name!r} is listed twice")
        seen[name] = action
        if action == "drop" and row.kind.strip() == "bad":
            unreadable.add(name)
        if action == "drop" or (action == "move" and known.get(name)):
            changes[name] = new if action == "move" else None
    missing = {name: action for name, action in seen.items() if name not in known}
    actions = Counter(action for name, action in seen.items() if name in known)
    return Decisions(
        changes={n: c for n, c in changes.items() if n in known},
        missing=missing,
        rows=len(seen),
        kept=actions["keep"],
        undecided=actions[UNDECIDED],
        unreadable=unreadable,
    )


def _unescaped(cell: str, known: Container[str]) -> str:
    """Return a cell without the apostrophe that escapes formulas, if that makes it a known name."""
    return cell[1:] if cell.startswith("'") and cell not in known and cell[1:] in known else cell


def _fix_problem(
    name: str, action: str, new: str, known: Mapping[str, str], classes: tuple[str, ...]
) -> str:
    if action not in _ACTIONS:
        return f"action is {action!r}, but must be 'keep', 'move', 'drop' or 'undecided'"
    if action != "move" or name not in known or new in classes:
        return ""
    if not new:
        return "action is 'move', but new_label is empty"
    near = suggest(new, classes, cutoff=0, inside=True, most=5)
    which = "its classes are" if len(near) == len(classes) else "the most similar classes are"
    return f"new_label is {new!r}, which is not a class of the data folder: {which} {listing(near)}"


def _with_fixes(folder: Images, decisions: Decisions) -> Images:
    """Return the folder with the decisions applied to its list of files, without empty classes."""
    old, decided = folder.classes, decisions.changes
    given = [old[row.label] for row in folder.rows]
    new = [decided.get(row.path, name) for row, name in zip(folder.rows, given, strict=True)]
    fixed = folder.relabelled(new)
    empty = [name for name in old if name not in fixed.classes]
    if len(fixed.classes) < 2:
        raise DataError(
            f"the fixes leave images in only {count(len(fixed.classes), 'class', 'classes')} of "
            f"{folder.source}: all images of {listing(empty)} are moved or left out",
            fix="remove lines from the table so that at least 2 classes still have images",
        )
    moved = sum(name not in (before, None) for before, name in zip(given, new, strict=True))
    note = f"fixes applied: {count(new.count(None), 'image')} left out, {moved:,} relabelled"
    notes = [*folder.notes, note + decisions.without_effect]
    if empty:
        left_out = count(len(empty), "class", "classes")
        notes.append(f"fixes: left out {left_out} without images: {listing(empty)}")
    bad = tuple(entry for entry in folder.bad if entry[0] not in decided)
    return replace(fixed.by_class(), bad=bad, notes=tuple(notes))


# fixes proposed for the findings about labelled images, for the user to accept or change ----------

_ClassProbabilities = Mapping[str, float]
_KIND_ORDER = ("bad", "exact", "two labels", "mislabel", "near", "odd")
"""Kinds of fixes, in the order in which the table lists fixes with the same action."""
_COPY_MARK = re.compile(
    r"\(\d+\)$|~\d*$"
    r"|(?:^|[\W_])(?:copy|kopie|copie|copia)[\W_]*\d*\W*$"
    r"|^(?:copy[\W_]of|kopie[\W_]von|copie[\W_]de|copia[\W_]de)[\W_]",
    re.IGNORECASE,
)
"""What programs add to the name of a copy, without the suffix: `x (1)`, `x - Kopie`, `x_copy1`."""
_PARTS = {
    "train": "training image",
    "val": "validation image",
    "test": "test image",
    "": "not in the split",
}
SUBSETS = {"train": "training", "val": "validation", "test": "test"}


def subset_names(group: CopyGroup) -> list[str]:
    """Return the names of the subsets to which the images of a group belong, in a fixed order."""
    found = {member["split"] for member in group["members"]}
    return [name for part, name in SUBSETS.items() if part in found]


def is_leak(group: CopyGroup) -> bool:
    """Return whether a group has both training and validation images."""
    return {"train", "val"} <= {member["split"] for member in group["members"]}


def propose_fixes(audit: AuditResults) -> list[Fix]:
    """Return the proposed fixes, at most one per file, those that change something first."""
    fixes = [
        Fix(path=entry["path"], action="drop", reason=entry["reason"], kind="bad", confidence=1.0)
        for entry in audit["bad"]
        if not missing_library_command(entry["reason"])  # the file itself may be intact
    ]
    for group in audit["duplicates"]:
        if group["kind"] == "exact":
            fixes += identical_file_fixes(group["members"], group.get("probabilities", {}))
        else:
            first, *others = group["members"]
            for member in others:
                details = [f"label {first['label']}"] * (member["label"] != first["label"])
                details += [_PARTS[first["split"]]] * (member["split"] != first["split"])
                reason = f"nearly identical to {first['path']}"
                reason += f" ({', '.join(details)})" * bool(details)
                path, label = member["path"], member["label"]
                fixes.append(Fix(path, UNDECIDED, label=label, reason=reason, kind="near"))
    fixes += [
        Fix(
            entry["path"],
            UNDECIDED,
            label=entry["label"],
            new_label=entry["suggested"],
            reason=f"probably {entry['suggested']}: set the action to move, keep or drop",
            kind="mislabel",
            confidence=entry["suggested_probability"],
        )
        for entry in audit["mislabels"]
    ]
    for entry in audit["odd"]:
        path, label, reason = entry["path"], entry.get("label", ""), entry["reason"]
        fixes.append(Fix(path, UNDECIDED, label=label, reason=reason, kind="odd"))

    def order(fix: Fix) -> tuple[int, int, float, str]:
        rest = (-(fix.confidence or 0), fix.path)
        if fix.kind == "mislabel":  # in the order of the audit
            rest = 0.0, ""
        return -_ACTIONS.index(fix.action), _KIND_ORDER.index(fix.kind), *rest

    # One fix per path, with the strongest action and all reasons for that path
    by_path: dict[str, list[Fix]] = {}
    for fix in fixes:
        by_path.setdefault(fix.path, []).append(fix)
    merged = []
    for same in by_path.values():
        strongest = max(same, key=lambda f: (_ACTIONS.index(f.action), -_KIND_ORDER.index(f.kind)))
        reasons = [strongest.reason, *(fix.reason for fix in same if fix is not strongest)]
        label = next((fix.label for fix in same if fix.label), "")
        merged.append(replace(strongest, label=label, reason="; ".join(reasons)))
    return sorted(merged, key=order)


def identical_file_fixes(members: Sequence[CopyMember], known: _ClassProbabilities) -> list[Fix]:
    """Return fixes that keep one file per label in a group of identical files.

    If one label is the most probable class and 30 times as probable as the others, only one file is
    kept. Validation images are kept in preference to others so that the set changes little, then
    files whose name is not that of a copy (`_COPY_MARK`), then files with a short name.
    """

    def order(member: CopyMember) -> tuple[bool, bool, int, str]:
        path = member["path"]
        name = path.rpartition("/")[2]
        is_marked = _COPY_MARK.search(name.rpartition(".")[0] or name) is not None
        return member["split"] != "val", is_marked, len(name), path

    ordered = sorted(members, key=order)
    first = {member["label"]: member for member in reversed(ordered)}
    right = ""
    if len(first) > 1 and {*first} <= known.keys():
        best, second, *_ = sorted(first, key=lambda label: -known[label])
        if known[best] == max(known.values()) and known[best] >= 30 * known[second]:
            right = best
    fixes = []
    for member in ordered:
        label, kept = member["label"], first[member["label"]]
        drop = Fix(path=member["path"], action="drop", label=label, kind="exact", confidence=1.0)
        if right and label != right:
            reason = f"identical to {first[right]['path']}, whose label is more probable"
            fixes.append(replace(drop, reason=reason, kind="two labels", confidence=known[right]))
        elif member is not kept:
            fixes.append(replace(drop, reason=f"identical to {kept['path']}"))
        elif len(first) > 1 and not right:
            others = ", ".join(sorted({*first} - {label}))
            reason = f"identical to a file with another label ({others}): drop all but one"
            doubt = replace(drop, action=UNDECIDED, kind="two labels", confidence=None)
            fixes.append(replace(doubt, reason=reason))
    return fixes
