"""Decisions about individual images, made on a page and saved there as `fixes.csv`.

The page of a run and that of `vitft check` show the same findings with the same controls. The page
contains the encoded cells of the table, so its script only has to join them. The saved file has the
content that `data.fixes.write_fixes` would write.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path

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
from vitft.data.table import quote_cell
from vitft.messages.pages import COPIES_WARNING, TEST_COPIES_WARNING
from vitft.metrics.results import AuditResults, CopyGroup, FileRemark, Mislabel
from vitft.report.reproduce import command_of
from vitft.report.run_files import Run, Thumbnails
from vitft.system.console import visible
from vitft.system.errors import VitftError
from vitft.system.text import count, escape_formula, listing, shell_quote

MAX_FINDINGS, MAX_MEMBERS = 40, 6
"""Maximum number of findings of each kind, and of members of a group of duplicates, on a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecisionCard:
    """A file to decide on; a file named in several findings has several cards."""

    number: int
    """Number of the card on the page."""
    file: int
    """Position of the file in the table."""
    path: str
    label: str
    """Class of the image; empty if it is unknown."""
    suggested: str = ""
    """Class that is more probable than the label, or an empty string if there is none."""
    class_index: int | None = None
    """Index of `suggested` among the classes to which images can be moved."""
    label_probability: float | None = None
    suggested_probability: float | None = None
    detail: str = ""
    is_readable: bool = True
    """Whether the file can be used; an unreadable one can only be dropped or left undecided."""
    thumbnail: str = ""
    """Data URI, or an empty string if there is no thumbnail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CardGroup:
    """Files to compare with each other, e.g. duplicates."""

    title: str = ""
    warnings: Sequence[str] = ()
    cards: Sequence[_DecisionCard]
    more: int = 0
    """Number of further files in the group, which are not shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FindingSection:
    """Findings of one kind."""

    id: str
    title: str
    number: str
    """Number and kind of the undecided findings, such as `3 probable label errors`."""
    text: str
    groups: Sequence[_CardGroup]
    more: int
    """Number of findings that are not shown."""
    kept: int = 0
    """Number of findings that earlier fixes keep; `number` does not count them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecisionPart:
    """Findings to decide on, and the table of all decisions."""

    sections: Sequence[_FindingSection]
    about: str
    """Sentence with the numbers of findings and files, or an empty string if they are equal."""
    table: str
    """JSON object with the encoded cells of the table, escaped for an HTML attribute."""
    can_decide: bool
    """Whether decisions can be saved; false for multi-label data, for which no table of fixes can
    be used."""
    former: str
    """Sentence about decisions from an earlier table, or an empty string if there are none."""
    steps: Sequence[tuple[str, str]]
    """Next steps, each with a command."""


@dataclass(slots=True, kw_only=True)
class _DecisionTable:
    """Files of the table, in the order of their first mention, with their proposed fixes."""

    fixes: list[Fix]
    labels: Mapping[str, str]
    thumbnail: Callable[[str], str]
    classes: Sequence[str]
    """Names of the classes to which images can be moved."""
    is_listed: set[str] = field(default_factory=set)
    """Paths with a proposed fix. Other files are written to the table only if they change."""
    position: dict[str, int] = field(default_factory=dict)
    cards: int = 0
    """Number of cards made so far."""

    def __post_init__(self) -> None:
        self.position = {fix.path: i for i, fix in enumerate(self.fixes)}
        self.is_listed = {*self.position}

    def card(self, path: str, **fields: object) -> _DecisionCard:
        """Return a card for a file, after adding the file to the table if necessary."""
        if path not in self.position:
            self.position[path] = len(self.fixes)
            self.fixes.append(Fix(path=path, action=UNDECIDED, label=self.labels.get(path, "")))
        self.cards += 1
        return _DecisionCard(
            number=self.cards,
            file=self.position[path],
            path=path,
            label=self.labels.get(path, ""),
            thumbnail=self.thumbnail(path),
            **fields,  # type: ignore[arg-type]
        )

    def to_json(self, classes: Sequence[str], former: Sequence[Fix]) -> str:
        """Return the table as JSON for the script of the page, escaped for an HTML attribute."""
        files = [
            [
                *map(_encoded_cell, fix.cells[:4]),
                ",".join(map(_encoded_cell, fix.cells[4:])),
                fix.path in self.is_listed,
            ]
            for fix in self.fixes
        ]
        content = {
            "header": ",".join(FIX_COLUMNS),
            "files": files,
            "classes": [[visible(name), _encoded_cell(name)] for name in classes],
            "former": [
                [_encoded_cell(f.path), f.action, ",".join(map(_encoded_cell, f.cells))]
                for f in former
            ],
        }
        text = json.dumps(content)
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        return escape(json.dumps({**content, "key": key}))


def _encoded_cell(text: str) -> str:
    """Return a cell as `write_fixes` writes it: quoted if necessary, with formulas escaped."""
    return quote_cell(escape_formula(text))


def make_decisions(
    audit: AuditResults,
    fixes: Sequence[Fix],
    *,
    classes: Sequence[str],
    labels: Mapping[str, str],
    thumbnail: Callable[[str], str],
    several: bool,
    former: Sequence[Fix] = (),
    warning: str = "",
    steps: Sequence[tuple[str, str]] = (),
) -> _DecisionPart | None:
    """Return the findings of an audit with controls for decisions, or None if there are none.

    Args:
        audit: Findings about a dataset.
        fixes: Proposed fixes.
        classes: Names of the classes to which an image can be moved.
        labels: Mapping from paths to classes or label sets.
        thumbnail: Function that returns the thumbnail of a path as a data URI, or "".
        several: Whether the dataset is multi-label.
        former: Fixes that have already been applied, which the saved table includes.
        warning: Sentence that reports former fixes that cannot be read, or an empty string.
        steps: Next steps, each with a command.
    """
    proposed = [] if several else list(fixes)
    table = _DecisionTable(fixes=proposed, labels=labels, thumbnail=thumbnail, classes=classes)
    open_labels, open_groups = undecided_numbers(audit, paths_settled_by(former))
    sections = [
        one
        for one in (
            _mislabel_section(audit["mislabels"], table, several=several, undecided=open_labels),
            _duplicate_section(audit["duplicates"], table, undecided=open_groups),
            _remark_section("odd", "Unusual images", audit["odd"], table),
            _remark_section("bad", "Unreadable files", audit["bad"], table),
        )
        if one
    ]
    if not sections:
        return None
    if former:
        those = count(len(former), "earlier decision")
        warning = f"The saved table also contains {those}, unless you decide otherwise here."
    return _DecisionPart(
        sections=sections,
        about=_files_sentence(audit),
        table="" if several else table.to_json(classes, former),
        can_decide=not several,
        former=warning,
        steps=steps,
    )


def undecided_numbers(audit: AuditResults, kept: Collection[str] = ()) -> tuple[int, int]:
    """Return the numbers of probable label errors and of groups of duplicates to decide on.

    Images in `kept`, the paths that earlier fixes keep, are decided. A group is decided if at most
    one of its images is not.
    """
    labels = sum(item["path"] not in kept for item in audit["mislabels"])
    groups = sum(
        sum(member["path"] not in kept for member in group["members"]) > 1
        for group in audit["duplicates"]
    )
    return labels, groups


def undecided_findings(audit: AuditResults, kept: Collection[str] = ()) -> str:
    """Return the numbers of label errors and duplicates to decide on, as text; empty if none.

    If only some of the groups of duplicates are across splits, their number is included, because
    a run logs it.
    """
    labels, groups = undecided_numbers(audit, kept)
    apart = [group for group in audit["duplicates"] if group["across_split"]]
    _, across = undecided_numbers({**audit, "duplicates": apart}, kept)
    of_them = f" ({across:,} across splits)" if 0 < across < groups else ""
    texts = (_labels_text(labels) * bool(labels), f"{_groups_text(groups)}{of_them}" * bool(groups))
    return " and ".join(filter(None, texts))


def _labels_text(number: int) -> str:
    """Return a number of probable label errors as text."""
    return count(number, "probable label error")


def _groups_text(number: int) -> str:
    """Return a number of groups of duplicates as text."""
    return count(number, "group of duplicates", "groups of duplicates")


def _files_sentence(audit: AuditResults) -> str:
    """Return a sentence with the numbers of findings and of their files, if these differ."""
    single = [item["path"] for kind in ("mislabels", "odd", "bad") for item in audit[kind]]
    grouped = [member["path"] for group in audit["duplicates"] for member in group["members"]]
    found, files = len(single) + len(audit["duplicates"]), len({*single, *grouped})
    if found == files:
        return ""
    return (
        f"In total: {count(found, 'finding')} on {count(files, 'file')}. The table lists each file "
        "once. Of duplicates, it lists the file that the others are compared with only if you "
        "change it."
    )


def _mislabel_section(
    found: Sequence[Mislabel], table: _DecisionTable, *, several: bool, undecided: int
) -> _FindingSection | None:
    """Return the section on probable label errors, or None if there are none."""
    if not found:
        return None
    cards, class_index = [], {name: number for number, name in enumerate(table.classes)}
    for item in found[:MAX_FINDINGS]:
        card = table.card(
            item["path"],
            suggested=item["suggested"],
            class_index=class_index.get(item["suggested"]),
            label_probability=item["given_probability"],
            suggested_probability=item["suggested_probability"],
        )
        cards.append(replace(card, label=item["label"]))
    what = "suggests that a label is wrong or missing" if several else "predicts another class"
    return _FindingSection(
        id="mislabels",
        title="Probable label errors",
        number=_labels_text(undecided),
        text=f"A model that was not trained on these images {what}. Look at each image before you "
        "change its label, because difficult images are also listed. Other wrong labels may "
        "remain: the fewer images there are, and the more difficult the classes are, the fewer of "
        "them can be found.",
        groups=[_CardGroup(cards=cards)],
        more=len(found) - len(cards),
        kept=len(found) - undecided,
    )


def _duplicate_section(
    found: Sequence[CopyGroup], table: _DecisionTable, *, undecided: int
) -> _FindingSection | None:
    """Return the section on duplicates, or None if there are none."""
    if not found:
        return None
    groups = []
    for group in shown_groups(found):
        warnings = [f"in {listing(subset_names(group))}"] * group["across_split"]
        warnings += ["with different labels"] * group["labels_differ"]
        cards = [
            table.card(member["path"], detail=SUBSETS.get(member["split"], ""))
            for member in group["members"][:MAX_MEMBERS]
        ]
        groups.append(
            _CardGroup(
                title="Identical files" if group["kind"] == "exact" else "Near-duplicates",
                warnings=warnings,
                cards=cards,
                more=len(group["members"]) - len(cards),
            )
        )
    warning = ""
    if any(map(is_leak, found)):
        warning = COPIES_WARNING
    if any("test" in subset_names(g) and g["across_split"] and g["kind"] == "near" for g in found):
        warning += TEST_COPIES_WARNING
    return _FindingSection(
        id="duplicates",
        title="Duplicates",
        number=_groups_text(undecided),
        text=warning + "Keep only one of identical files.",
        groups=groups,
        more=len(found) - len(groups),
        kept=len(found) - undecided,
    )


def shown_groups(found: Sequence[CopyGroup]) -> Sequence[CopyGroup]:
    """Return the groups of duplicates to show, at most `MAX_FINDINGS`.

    Groups across subsets or with different labels come first.
    """
    ordered = sorted(found, key=lambda g: not (g["across_split"] or g["labels_differ"]))
    return ordered[:MAX_FINDINGS]


def _remark_section(
    kind: str, title: str, found: Sequence[FileRemark], table: _DecisionTable
) -> _FindingSection | None:
    """Return the section on unusual or unreadable files, or None if there are none."""
    if not found:
        return None
    shown = found[:MAX_FINDINGS]
    texts = {
        "odd": "These images may be fine. Drop those that do not show their class.",
        "bad": "These files are not used. The table drops damaged ones so that they do not stop a "
        "run, but not those that only need a library: install it and check again.",
    }
    cards = [
        table.card(item["path"], detail=item["reason"], is_readable=kind != "bad") for item in shown
    ]
    return _FindingSection(
        id=kind,
        title=title,
        number=count(len(found), f"{title.lower().removesuffix('s')}"),
        text=texts[kind],
        groups=[_CardGroup(cards=cards)],
        more=len(found) - len(cards),
    )


# decisions on the page of a run: its findings, earlier decisions and the next commands ------------

DOWNLOADED = "~/Downloads/fixes.csv"
"""Path where browsers usually save the table of decisions."""
OTHER_PATH = (
    "Change the path if your browser saved it elsewhere, or under another name such as "
    "fixes (1).csv."
)


def run_decisions(run: Run, thumbnails: Thumbnails) -> _DecisionPart | None:
    """Return the findings of a run with the controls to decide on them, or None without findings.

    The saved table includes the fixes that the run applied, because a run applies only one table.
    """
    if not run.audit:
        return None
    former, warning = former_fixes(run)
    return make_decisions(
        run.audit,
        propose_fixes(run.audit),
        classes=run.classes,
        labels={row.path: run.split.classes[row.label] for row in run.rows},
        thumbnail=thumbnails.of_path,
        several=run.several,
        former=former,
        warning=warning,
        steps=_next_steps(run),
    )


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


def _next_steps(run: Run) -> list[tuple[str, str]]:
    """Return the commands that repeat a run with the saved decisions and compare both runs."""
    data = {
        key: value
        for key, value in run.config.get("data", {}).items()
        if key not in ("fixes", "fixes_digest", "like")
    }
    command = command_of({**run.config, "data": data})
    if not command:
        return []
    name = shell_quote(str(run.path))
    is_drawn = data.get("split") == "content" and not run.audit.get("own_split", False)
    is_drawn &= not data.get("group_duplicates")
    near = any(group["kind"] == "near" for group in run.audit.get("duplicates", []))
    together = " --group-duplicates" * (near and is_drawn)
    like = f" --like {name}" if data.get("split") == "content" else ""
    return [
        (
            f"Repeat the run with the table. {OTHER_PATH}",
            f"{command} --fixes {DOWNLOADED}{together}{like}",
        ),
        ("Compare both runs.", f"vitft compare {name} runs/latest"),
    ]
