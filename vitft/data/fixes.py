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
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from vitft.config.sections import DataSpec
from vitft.data.image_table import Images
from vitft.data.label_table import number_in
from vitft.data.scan import empty_classes_error
from vitft.data.table import TableReader, encode_table, is_utf8
from vitft.metrics.results import AuditResults, CopyGroup, CopyMember
from vitft.system.errors import DataError, ImageError
from vitft.system.files import write_atomically
from vitft.system.imports import missing_library_command
from vitft.system.suggest import EquivalentNames, suggest
from vitft.system.text import count, escape_formula, listing, shell_quote

log = logging.getLogger(__name__)


UNDECIDED = "undecided"  # action of an image that nobody has decided on; it is used as it is
_ACTIONS = (UNDECIDED, "keep", "move", "drop")  # actions, the strongest last
_MOST_MISSING_NAMED = 3  # maximum number of missing files named in the warning


class Fix(NamedTuple):
    """An action for one image: a row of the table."""

    path: str  # path relative to the data folder, with slashes
    action: str  # one of `_ACTIONS`; `move` means to `new_label`
    label: str = ""
    new_label: str = ""  # new class. Unless the action is `move`, it is only a suggestion.
    reason: str = ""
    kind: str = ""
    confidence: float | None = None  # from 0 to 1

    @property
    def cells(self) -> tuple[str, ...]:
        *texts, confidence = self
        return (*map(str, texts), "" if confidence is None else f"{confidence:.3f}")


FIX_COLUMNS = Fix._fields


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
    path, found = Path(spec.fixes).expanduser(), read_decisions(spec, folder, folder.classes)
    # An empty class folder is explained if the table moves or drops the images that it contained
    unexplained = []
    for name in folder.empty:
        gone = {act for file, act in found.missing.items() if file.startswith(f"{name}/")}
        unexplained += [name] * (not gone or not gone <= {"move", "drop"})
    if unexplained:
        raise empty_classes_error(folder, unexplained)
    later = _later_table(path, folder)
    if found.rows and len(found.missing) == found.rows and not folder.empty:
        create = f"run `vitft check {shell_quote(str(folder.source))}` to create a table for this "
        raise DataError(
            f"{path} does not belong to {folder.source}: all images in the table "
            f"are missing from the folder, e.g. {min(found.missing)}",
            fix=(f"use {later}, which is newer, or " if later else "") + f"{create}folder",
        )
    if warn:
        _warn(path, folder, found, later, spec.max_pixels)
    fixed = folder.relabelled(found.names)
    empty = [name for name in folder.classes if name not in fixed.classes]
    if len(fixed.classes) < 2:
        raise DataError(
            f"the fixes leave images in only {count(len(fixed.classes), 'class', 'classes')} of "
            f"{folder.source}: all images of {listing(empty)} are moved or left out",
            fix="remove lines from the table so that at least 2 classes still have images",
        )
    notes = [*folder.notes, f"fixes applied: {found.summary}"]
    if empty:
        left_out = count(len(empty), "class", "classes")
        notes.append(f"fixes: left out {left_out} without images: {listing(empty)}")
    fixed = replace(fixed.by_class(), bad=found.bad, notes=tuple(notes))
    return fixed, replace(spec, fixes=str(path.resolve()), fixes_digest=found.digest)


def _warn(
    path: Path, folder: Images, found: "_Decisions", later: Path | None, max_pixels: int
) -> None:
    """Log what in a table is probably out of date."""
    from vitft.data.images import OpenedImage, inspect_file  # it imports Pillow

    if later:
        log.warning(f"{later} is newer than {path}: pass it to --fixes if you decided there")
    if found.missing:
        log.warning(
            f"{path}: skipped {count(len(found.missing), 'line')} for files that are not in "
            f"{folder.source}: {listing(sorted(found.missing), _MOST_MISSING_NAMED)}"
        )
    if found.outdated:
        log.warning(
            f"{path}: {count(len(found.outdated), 'image')} had another label when the table was "
            f"written, and the table decides: {listing(found.outdated, _MOST_MISSING_NAMED)}"
        )
    root, read = str(folder.root), OpenedImage.facts
    dropped = [row for row in folder.rows if row.path in found.unreadable]
    results = (inspect_file(root, row, read, max_pixels=max_pixels) for row in dropped)
    if repaired := [one.path for one in results if not isinstance(one, ImageError)]:
        log.warning(
            f"{path}: drops {count(len(repaired), 'file')} that can be read now: "
            f"{listing(repaired, _MOST_MISSING_NAMED)}. To use repaired files, remove these lines "
            "or set the action to keep"
        )


def _later_table(path: Path, folder: Images) -> Path | None:
    """Return the newest table that `vitft check` wrote beside `path` later, for the same images."""
    numbered = re.compile(re.escape(re.sub(r"-\d+$", "", path.stem)) + r"-\d+")
    with contextlib.suppress(OSError, DataError):
        tables = [one for one in path.parent.glob("*.csv") if numbered.fullmatch(one.stem)]
        newest = max([path, *tables], key=lambda one: one.stat().st_mtime_ns)
        known = {*folder.column("path")} if newest != path else ()
        if any(fix.path in known for fix in read_fixes(newest, "")):
            return newest
    return None


def _open_table(path: Path, expected: str) -> tuple[TableReader, str]:
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
    for cells in table.records("path", "action", ragged=True):
        path, action, *texts, confidence = (cells.get(name, "") for name in FIX_COLUMNS)
        label, new, reason, kind = texts
        yield Fix(path, action.strip().lower(), label, new, reason, kind, number_in(confidence))


def read_fixes(path: Path, digest: str) -> list[Fix]:
    """Read the rows of a table (see `_open_table`). Formulas in the cells stay escaped."""
    return [*_fixes_in(_open_table(path, digest)[0])]


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


def merge_fixes(former: Iterable[Fix], proposed: Iterable[Fix]) -> tuple[list[Fix], list[Fix]]:
    """Return the fixes of an earlier table, replaced and followed by proposals, and the open ones.

    The page of `vitft check` merges in the same way (`report/templates/decisions.js`).
    """
    rows, still_open = {escape_formula(fix.path): fix for fix in former}, []
    for fix in proposed:
        path = escape_formula(fix.path)
        earlier = rows[path].action if path in rows else ""
        is_stronger = fix.action != UNDECIDED and earlier != "keep"
        if is_stronger or not earlier:
            rows[path] = fix
        if is_stronger or earlier in ("", UNDECIDED):
            still_open.append(fix)
    return [*rows.values()], still_open


class _Decisions(NamedTuple):
    """Decisions of a table on images."""

    names: Sequence[str | None]  # class name of each image, or None if it is dropped
    bad: tuple[tuple[str, str], ...]  # unreadable files that are not dropped, with the reasons
    summary: str  # such as `1 image left out, 2 relabelled, 3 kept`
    rows: int
    digest: str  # of the table
    missing: Mapping[str, str]
    """Mapping from paths in the table that are missing from the images to their actions."""
    unreadable: Collection[str]  # paths that are dropped because they could not be read before
    outdated: Sequence[str]  # paths that are moved or dropped, whose label has changed since


def read_decisions(spec: DataSpec, images: Images, classes: Collection[str]) -> _Decisions:
    """Read the decisions of the table in `spec`; a DataError names the line of an invalid row."""
    table, digest = _open_table(Path(spec.fixes).expanduser(), spec.fixes_digest)
    given = [images.classes[label] for label in images.column("label")]
    known = dict(zip(images.column("path"), given, strict=True)) | {n: "" for n, _ in images.bad}
    actions, former, unreadable = dict[str, str](), dict[str, str](), set[str]()
    changes: dict[str, str | None] = {}
    paths, labels = EquivalentNames(known), EquivalentNames(classes)
    for row in _fixes_in(table):
        name, action = paths.find(_unescaped(row.path, known)), row.action
        new = labels.find(_unescaped(row.new_label, classes))
        unknown = [name] * (name not in known) + [new] * (action == "move" and new not in classes)
        if not all(map(is_utf8, unknown)):  # existing names may be any bytes
            fix = "save the table in UTF-8 (in Excel: CSV UTF-8)"
            raise table.error("the text is not UTF-8", fix=fix)
        if problem := _fix_problem(name, action, new, known, classes):
            raise table.error(problem)
        if name in actions:
            raise table.error(f"{name!r} is listed twice")
        actions[name], former[name] = action, _unescaped(row.label, classes)
        if action == "drop" and row.kind == "bad":
            unreadable.add(name)
        if action == "drop" or (action == "move" and known.get(name)):
            changes[name] = new if action == "move" else None
    names = [
        changes.get(path, name) for path, name in zip(images.column("path"), given, strict=True)
    ]
    moved = sum(name not in (None, before) for before, name in zip(given, names, strict=True))
    uses = Counter(action for name, action in actions.items() if name in known)
    summary = f"{count(names.count(None), 'image')} left out, {moved:,} relabelled"
    summary += f", {uses['keep']:,} kept" * (uses["keep"] > 0)
    summary += f", {uses[UNDECIDED]:,} undecided (used as they are)" * (uses[UNDECIDED] > 0)
    return _Decisions(
        names=names,
        bad=tuple(entry for entry in images.bad if entry[0] not in changes),
        summary=summary,
        rows=len(actions),
        digest=digest,
        missing={name: action for name, action in actions.items() if name not in known},
        unreadable=unreadable,
        outdated=[
            name
            for name, new in changes.items()
            if known.get(name) and former[name] in classes and former[name] != known[name] != new
        ],
    )


def _unescaped(cell: str, known: Container[str]) -> str:
    """Return a cell without the apostrophe that escapes formulas, if that makes it a known name."""
    return cell[1:] if cell.startswith("'") and cell not in known and cell[1:] in known else cell


def _fix_problem(
    name: str, action: str, new: str, known: Mapping[str, str], classes: Collection[str]
) -> str:
    if action not in _ACTIONS:
        return f"action is {action!r}, but must be 'keep', 'move', 'drop' or 'undecided'"
    if action != "move" or name not in known or new in classes:
        return ""
    if not new:
        return "action is 'move', but new_label is empty"
    near = listing(suggest(new, classes, cutoff=0, inside=True, most=5))
    return f"new_label is {new!r}, which is not a class of the data folder, such as {near}"


# fixes proposed for the findings about labelled images, for the user to accept or change ----------

_KIND_ORDER = ("bad", "exact", "two labels", "mislabel", "near", "odd")
"""Kinds of fixes, in the order in which the table lists fixes with the same action."""
_COPY_MARK = re.compile(
    r"\(\d+\)$|~\d*$"
    r"|(?:^|[\W_])(?:copy|kopie|copie|copia)[\W_]*\d*\W*$"
    r"|^(?:copy[\W_]of|kopie[\W_]von|copie[\W_]de|copia[\W_]de)[\W_]",
    re.IGNORECASE,
)
"""What programs add to the name of a copy, without the suffix: `x (1)`, `x - Kopie`, `x_copy1`."""
SUBSETS = {"train": "training", "val": "validation", "test": "test"}
_PARTS = {part: f"{name} image" for part, name in SUBSETS.items()} | {"": "not in the split"}


def subset_names(group: CopyGroup) -> list[str]:
    """Return the names of the subsets to which the images of a group belong, in a fixed order."""
    found = {member["split"] for member in group["members"]}
    return [name for part, name in SUBSETS.items() if part in found]


def is_leak(group: CopyGroup) -> bool:
    """Return whether a group has both training and validation images."""
    return {"train", "val"} <= {member["split"] for member in group["members"]}


def leaked_paths(audit: AuditResults) -> set[str]:
    """Return the paths of the images in groups with both training and validation images."""
    leaks = filter(is_leak, audit.get("duplicates", []))
    return {member["path"] for group in leaks for member in group["members"]}


def propose_fixes(audit: AuditResults) -> list[Fix]:
    """Return the proposed fixes, at most one per file, those that change something first."""
    fixes = [
        Fix(entry["path"], "drop", reason=entry["reason"], kind="bad", confidence=1.0)
        for entry in audit["bad"]
        if not missing_library_command(entry["reason"])  # the file itself may be intact
    ]
    for group in audit["duplicates"]:
        if group["kind"] == "exact":
            fixes += _identical_file_fixes(group["members"], group.get("probabilities", {}))
        else:
            first, *others = group["members"]
            for member in others:
                details = [f"label {first['label']}"] * (member["label"] != first["label"])
                details += [_PARTS[first["split"]]] * (member["split"] != first["split"])
                reason = f"nearly identical to {first['path']}"
                reason += f" ({', '.join(details)})" * bool(details)
                fix = Fix(member["path"], UNDECIDED, member["label"], reason=reason, kind="near")
                fixes.append(fix)
    for item in audit["mislabels"]:
        path, label, new = item["path"], item["label"], item["suggested"]
        reason = f"probably {new}: set the action to move, keep or drop"
        probability = item["suggested_probability"]
        fixes.append(Fix(path, UNDECIDED, label, new, reason, "mislabel", probability))
    for odd in audit["odd"]:
        label, reason = odd.get("label", ""), odd["reason"]
        fixes.append(Fix(odd["path"], UNDECIDED, label, reason=reason, kind="odd"))

    def order(fix: Fix) -> tuple[int, int, float, str]:
        strength, kind = -_ACTIONS.index(fix.action), _KIND_ORDER.index(fix.kind)
        if fix.kind == "mislabel":  # in the order of the audit
            return strength, kind, 0, ""
        return strength, kind, -(fix.confidence or 0), fix.path

    # One fix per path, with the strongest action and all reasons for that path
    by_path: dict[str, list[Fix]] = {}
    for fix in fixes:
        by_path.setdefault(fix.path, []).append(fix)
    merged = []
    for same in by_path.values():
        strongest = max(same, key=lambda f: (_ACTIONS.index(f.action), -_KIND_ORDER.index(f.kind)))
        reasons = [strongest.reason, *(fix.reason for fix in same if fix is not strongest)]
        label = next((fix.label for fix in same if fix.label), "")
        merged.append(strongest._replace(label=label, reason="; ".join(reasons)))
    return sorted(merged, key=order)


def _identical_file_fixes(members: Sequence[CopyMember], known: Mapping[str, float]) -> list[Fix]:
    """Return fixes that keep one identical file per label, or one if its label is surely right."""

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
        drop = Fix(member["path"], "drop", label, kind="exact", confidence=1.0)
        if right and label != right:
            reason = f"identical to {first[right]['path']}, whose label is more probable"
            fixes.append(drop._replace(reason=reason, kind="two labels", confidence=known[right]))
        elif member is not kept:
            fixes.append(drop._replace(reason=f"identical to {kept['path']}"))
        elif len(first) > 1 and not right:
            others = ", ".join(sorted({*first} - {label}))
            reason = f"identical to a file with another label ({others}): drop all but one"
            doubt = Fix(member["path"], UNDECIDED, label, reason=reason, kind="two labels")
            fixes.append(doubt)
    return fixes
