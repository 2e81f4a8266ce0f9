"""Fixes proposed for the findings about labelled images, for the user to accept or change.

The proposed action is `drop` only if a finding is certain. Otherwise it is `undecided`, with the
reason. This module does not open images.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from vitft.data.fixes import ACTIONS, UNDECIDED, Fix
from vitft.metrics.results import AuditResults, CopyGroup, CopyMember
from vitft.system.imports import missing_library_command

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
    """Return the proposed fixes, at most one per file, starting with those that change something.

    No fix is proposed for an image that only lacks an optional library.
    """
    fixes = [
        Fix(path=entry["path"], action="drop", reason=entry["reason"], kind="bad", confidence=1.0)
        for entry in audit["bad"]
        if not missing_library_command(entry["reason"])  # the file itself may be intact
    ]
    for group in audit["duplicates"]:
        if group["kind"] == "exact":
            fixes += identical_file_fixes(group["members"], group.get("probabilities", {}))
        else:
            fixes += _near_duplicate_fixes(group["members"])
    fixes += [
        Fix(
            path=entry["path"],
            action=UNDECIDED,
            label=entry["label"],
            new_label=entry["suggested"],
            reason=f"probably {entry['suggested']}; set the action to move, keep or drop",
            kind="mislabel",
            confidence=entry["suggested_probability"],
        )
        for entry in audit["mislabels"]
    ]
    fixes += [
        Fix(
            path=entry["path"],
            action=UNDECIDED,
            label=entry.get("label", ""),
            reason=entry["reason"],
            kind="odd",
        )
        for entry in audit["odd"]
    ]

    def order(fix: Fix) -> tuple[int, int, float, str]:
        kind = _KIND_ORDER.index(fix.kind)
        if fix.kind == "mislabel":  # in the order of the audit
            return -ACTIONS.index(fix.action), kind, 0.0, ""
        return -ACTIONS.index(fix.action), kind, -(fix.confidence or 0), fix.path

    return sorted(_merge_fixes(fixes), key=order)


def identical_file_fixes(members: Sequence[CopyMember], known: _ClassProbabilities) -> list[Fix]:
    """Return fixes that keep one file per label in a group of identical files.

    If one label is clearly the most probable, only one file with that label is kept. Files in the
    validation set are kept in preference to others so that the set changes as little as possible,
    then files whose name is not that of a copy (`_COPY_MARK`), then files with a short name.
    """

    def order(member: CopyMember) -> tuple[bool, bool, int, str]:
        path = member["path"]
        name = path.rpartition("/")[2]
        is_marked = _COPY_MARK.search(name.rpartition(".")[0] or name) is not None
        return member["split"] != "val", is_marked, len(name), path

    ordered = sorted(members, key=order)
    first = {member["label"]: member for member in reversed(ordered)}
    right = _most_probable_label(list(first), known)
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
            reason = f"identical to a file with another label ({others}); drop all but one"
            doubt = replace(drop, action=UNDECIDED, kind="two labels", confidence=None)
            fixes.append(replace(doubt, reason=reason))
    return fixes


def _most_probable_label(labels: Sequence[str], probabilities: _ClassProbabilities) -> str:
    """Return the label that is at least 30 times as probable as every other label.

    The result is an empty string if there is no such label, or if a class that is not among the
    labels is more probable.
    """
    if len(labels) < 2 or not {*labels} <= probabilities.keys():
        return ""
    best, second, *_ = sorted(labels, key=lambda label: -probabilities[label])
    is_best = probabilities[best] == max(probabilities.values())
    is_clear = probabilities[best] >= 30 * probabilities[second]
    return best if is_best and is_clear else ""


def _near_duplicate_fixes(members: Sequence[CopyMember]) -> list[Fix]:
    """Return undecided fixes with a remark for all near-duplicates but the first."""
    first, *others = members
    fixes = []
    for member in others:
        reason = f"nearly identical to {first['path']}"
        details = []
        if member["label"] != first["label"]:
            details.append(f"label {first['label']}")
        if member["split"] != first["split"]:
            details.append(_PARTS[first["split"]])
        if details:
            reason += f" ({', '.join(details)})"
        path, label = member["path"], member["label"]
        fixes.append(Fix(path=path, action=UNDECIDED, label=label, reason=reason, kind="near"))
    return fixes


def _merge_fixes(fixes: Iterable[Fix]) -> list[Fix]:
    """Return one fix per path, with the strongest action and all reasons for that path."""
    by_path: dict[str, list[Fix]] = {}
    for fix in fixes:
        by_path.setdefault(fix.path, []).append(fix)
    merged = []
    for same in by_path.values():
        strongest = max(same, key=lambda f: (ACTIONS.index(f.action), -_KIND_ORDER.index(f.kind)))
        reasons = [strongest.reason, *(fix.reason for fix in same if fix is not strongest)]
        label = next((fix.label for fix in same if fix.label), "")
        merged.append(replace(strongest, label=label, reason="; ".join(reasons)))
    return merged
