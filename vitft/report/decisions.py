"""Decisions about individual images, made on a page and saved there as `fixes.csv`.

The page of a run and that of `vitft check` show the same findings with the same controls. The page
contains the encoded cells of the table, so its script only has to join them. The saved file has the
content that `data.fixes.write_fixes` would write.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from vitft.data.fixes import (
    FIX_COLUMNS,
    SUBSETS,
    UNDECIDED,
    Fix,
    is_leak,
    paths_settled_by,
    propose_fixes,
    read_fixes,
    subset_names,
)
from vitft.data.image_table import Images
from vitft.data.table import quote_cell
from vitft.messages.results import COPIES_WARNING, TEST_COPIES_WARNING
from vitft.metrics.results import AuditResults, CopyGroup
from vitft.report.run_files import Run, Thumbnails, command_of
from vitft.system.console import visible
from vitft.system.errors import VitftError
from vitft.system.text import count, escape_formula, listing, shell_quote

_View = dict[str, Any]  # values for the template `decisions.html.j2`
_LABELS, _GROUPS = ("probable label error",), ("group of duplicates", "groups of duplicates")
MAX_FINDINGS, MAX_MEMBERS = 40, 6  # of each kind on a page, and of members of a group of duplicates


def _table_json(
    fixes: Sequence[Fix], proposed: int, classes: Sequence[str], former: Sequence[Fix]
) -> Iterator[str]:
    """Yield the parts of the table as JSON for the script, escaped for an HTML attribute."""

    def cell(text: str) -> str:
        """A cell as `write_fixes` writes it: quoted if necessary, with formulas escaped."""
        return quote_cell(escape_formula(text))

    def row(number: int, fix: Fix) -> list[object]:
        return [*map(cell, fix.cells[:4]), ",".join(map(cell, fix.cells[4:])), number < proposed]

    shown = [[visible(name), cell(name)] for name in classes]
    earlier = [[cell(f.path), f.action, ",".join(map(cell, f.cells))] for f in former]
    rows = ((", " if n else "") + json.dumps(row(n, fix)) for n, fix in enumerate(fixes))
    start = f'{{"header": {json.dumps(",".join(FIX_COLUMNS))}, "files": ['
    end = f'], "classes": {json.dumps(shown)}, "former": {json.dumps(earlier)}'
    digest = hashlib.sha256()
    for part in itertools.chain([start], rows, [end]):
        digest.update(part.encode())
        yield escape(part)
    yield escape(f', "key": "{digest.hexdigest()[:16]}"}}')


def make_decisions(
    audit: AuditResults,
    fixes: Sequence[Fix],
    *,
    classes: Sequence[str],
    images: Images,
    thumbnail: Callable[[str], str],
    several: bool,
    former: Sequence[Fix] = (),
    warning: str = "",
    steps: Sequence[tuple[str, str]] = (),
) -> _View | None:
    """Return the findings of an audit with controls for decisions, or None if there are none.

    `images` are those of the audit, and `thumbnail` returns that of a path as a data URI, or "".
    There is no table for `several` labels. It includes the fixes that were applied before
    (`former`), or there is a `warning` that they cannot be read. `steps` have commands.
    """
    table = [] if several else list(fixes)  # other files than these are written if they change
    proposed, position = len(table), {fix.path: i for i, fix in enumerate(table)}
    numbers = itertools.count(1)

    def card(path: str, **fields: object) -> _View:
        """Return a card for a file, after adding the file to the table if necessary.

        A file named in several findings has several cards. `class_index` is the place of the class
        `suggested` among those to which images can be moved. A file that is not `is_readable` can
        only be dropped or left undecided.
        """
        row = images.find(path)
        label = "" if row is None else images.classes[row.label]
        if path not in position:
            position[path] = len(table)
            table.append(Fix(path=path, action=UNDECIDED, label=label))
        usual = {"label_probability": None, "suggested": "", "class_index": None, "detail": ""}
        place = {"number": next(numbers), "file": position[path], "path": path, "label": label}
        picture = {"is_readable": True, "thumbnail": thumbnail(path)}
        return {**place, **usual, **picture, **fields}

    open_labels, open_groups = undecided_numbers(audit, paths_settled_by(former))
    findings, groups, sections = dict[str, Any](audit), audit["duplicates"], list[_View]()

    def add(kind: str, title: str, noun: Sequence[str], found: Sequence[_View], left: int) -> None:
        """Add the findings of a kind, `left` of which need a decision."""
        if number := len(findings[kind]):
            heading = {"id": kind, "title": title, "number": count(left, *noun)}
            more = max(0, number - MAX_FINDINGS)
            sections.append({**heading, "kept": number - left, "groups": found, "more": more})

    place = {name: number for number, name in enumerate(classes)}
    cards = [
        card(
            item["path"],
            label=item["label"],
            suggested=item["suggested"],
            class_index=place.get(item["suggested"]),
            label_probability=item["given_probability"],
            suggested_probability=item["suggested_probability"],
        )
        for item in audit["mislabels"][:MAX_FINDINGS]
    ]
    add("mislabels", "Probable label errors", _LABELS, [_group(cards)], open_labels)
    copies = [_copies(group, card) for group in shown_groups(groups)]
    add("duplicates", "Duplicates", _GROUPS, copies, open_groups)
    for kind, noun in (("odd", "unusual image"), ("bad", "unreadable file")):
        cards = [
            card(item["path"], detail=item["reason"], is_readable=kind != "bad")
            for item in findings[kind][:MAX_FINDINGS]
        ]
        add(kind, f"{noun.capitalize()}s", (noun,), [_group(cards)], len(findings[kind]))
    if not sections:
        return None
    single = [item["path"] for kind in ("mislabels", "odd", "bad") for item in findings[kind]]
    grouped = [member["path"] for group in groups for member in group["members"]]
    near = [group for group in groups if group["across_split"] and group["kind"] == "near"]
    is_tested = any("test" in subset_names(group) for group in near)
    return {
        "sections": sections,
        "findings": len(single) + len(groups),
        "files": len({*single, *grouped}),
        "copies": COPIES_WARNING * any(map(is_leak, groups)) + TEST_COPIES_WARNING * is_tested,
        "table": () if several else _table_json(table, proposed, classes, former),
        "can_decide": not several,
        "former": len(former),
        "warning": warning,
        "steps": steps,
    }


def undecided_numbers(audit: AuditResults, kept: Collection[str] = ()) -> tuple[int, int]:
    """Return the numbers of probable label errors and of groups of duplicates to decide on.

    `kept` are the paths that earlier fixes keep. A group is decided if at most one is not.
    """
    labels = sum(item["path"] not in kept for item in audit["mislabels"])
    groups = sum(
        sum(member["path"] not in kept for member in group["members"]) > 1
        for group in audit["duplicates"]
    )
    return labels, groups


def _group(
    cards: Sequence[_View], title: str = "", warnings: Sequence[str] = (), more: int = 0
) -> _View:
    """Return files to compare with each other, e.g. duplicates; `more` are not shown."""
    return {"cards": cards, "title": title, "warnings": warnings, "more": more}


def _copies(group: CopyGroup, card: Callable[..., _View]) -> _View:
    warnings = [f"in {listing(subset_names(group))}"] * group["across_split"]
    warnings += ["with different labels"] * group["labels_differ"]
    cards = [
        card(member["path"], detail=SUBSETS.get(member["split"], ""))
        for member in group["members"][:MAX_MEMBERS]
    ]
    title = "Identical files" if group["kind"] == "exact" else "Near-duplicates"
    return _group(cards, title, warnings, len(group["members"]) - len(cards))


def shown_groups(found: Sequence[CopyGroup]) -> Sequence[CopyGroup]:
    """Return the `MAX_FINDINGS` first groups; those across subsets or labels come first."""
    ordered = sorted(found, key=lambda g: not (g["across_split"] or g["labels_differ"]))
    return ordered[:MAX_FINDINGS]


# decisions on the page of a run: its findings, earlier decisions and the next commands ------------

DOWNLOADED = "~/Downloads/fixes.csv"  # path where browsers usually save the table of decisions
OTHER_PATH = (
    "Change the path if your browser saved it elsewhere, or under another name such as "
    "fixes (1).csv."
)


def run_decisions(run: Run, thumbnails: Thumbnails) -> _View | None:
    """Return the findings of a run with the controls to decide on them, or None without findings.

    The saved table includes the fixes that the run applied, because a run applies only one table.
    """
    if not run.audit:
        return None
    former, warning = former_fixes(run)
    near = any(group["kind"] == "near" for group in run.audit.get("duplicates", []))
    is_drawn = not run.audit.get("own_split", False)
    steps = list[tuple[str, str]]()
    if command := command_for_fixes(run.config, str(run.path), together=near and is_drawn):
        repeat = f"{command} --fixes {DOWNLOADED}"
        steps.append((f"Repeat the run with the table. {OTHER_PATH}", repeat))
        compare = f"vitft compare {shell_quote(str(run.path))} runs/latest"
        steps.append(("Compare both runs.", compare))
    return make_decisions(
        run.audit,
        propose_fixes(run.audit),
        classes=run.classes,
        images=run.split,
        thumbnail=thumbnails.of_path,
        several=run.several,
        former=former,
        warning=warning,
        steps=steps,
    )


def command_for_fixes(
    settings: Mapping[str, Mapping[str, Any]], run: str = "", *, together: bool
) -> str:
    """Return the command that trains with these settings, to which a table of fixes is appended.

    It holds out the same images as the run again and, if `together`, keeps near-duplicates on one
    side. It is empty if the settings are invalid.
    """
    data = {**settings.get("data", {}), "fixes": "", "fixes_digest": "", "like": ""}
    if data.get("split") != "reference":  # which is fixed
        data["group_duplicates"] = together or data.get("group_duplicates", False)
        if run:
            data |= {"like": run, "split": "time" if data.get("split") == "time" else "content"}
    return command_of({**settings, "data": data})


def former_fixes(run: Run) -> tuple[list[Fix], str]:
    """Return the fixes that a run applied, or a warning if their table is changed or missing."""
    table = str(run.setting("data", "fixes") or "")
    if not table:
        return [], ""
    try:
        return read_fixes(Path(table), str(run.setting("data", "fixes_digest") or "")), ""
    except VitftError as error:
        return [], (
            f"This run applied the decisions in {table}, which cannot be shown here "
            f"({error.problem}). Copy those that still hold into the saved table."
        )
