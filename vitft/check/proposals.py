"""Proposed fixes for the findings of an audit.

Only certain findings are proposed as `drop`; a doubtful one is a `keep` with its reason, which the
user may change.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from vitft.data.fixes import ACTIONS, Fix
from vitft.metrics.results import AuditResults, CopyMember

ClassProbabilities = Mapping[str, float]
KIND_ORDER = ("bad", "exact", "two labels", "mislabel", "near", "odd")
"""Kinds of fixes in the order of the table."""


def propose_fixes(
    audit: AuditResults, probabilities: Mapping[str, ClassProbabilities]
) -> list[Fix]:
    """Return one fix per image with a finding, those that change something first.

    The class probabilities, by path, may be incomplete.
    """
    fixes = [
        Fix(path=entry["path"], action="drop", reason=entry["reason"], kind="bad", confidence=1.0)
        for entry in audit["bad"]
    ]
    for group in audit["duplicates"]:
        if group["kind"] == "exact":
            fixes += identical_file_fixes(group["members"], probabilities)
        else:
            fixes += near_duplicate_fixes(group["members"])
    fixes += [
        Fix(
            path=entry["path"],
            action="keep",
            label=entry["label"],
            new_label=entry["suggested"],
            reason=f"probably {entry['suggested']}; write move to accept",
            kind="mislabel",
            confidence=entry["suggested_probability"],
        )
        for entry in audit["mislabels"]
    ]
    fixes += [
        Fix(path=entry["path"], action="keep", reason=entry["reason"], kind="odd")
        for entry in audit["odd"]
    ]

    def order(fix: Fix) -> tuple[int, int, float, str]:
        kind = KIND_ORDER.index(fix.kind)
        return -ACTIONS.index(fix.action), kind, -(fix.confidence or 0), fix.path

    return sorted(merge_fixes(fixes), key=order)


def identical_file_fixes(
    members: Sequence[CopyMember], probabilities: Mapping[str, ClassProbabilities]
) -> list[Fix]:
    """Keep the first of identical files with each label, or with the only probable label.

    A copy among the validation images comes first, so that these do not change.
    """
    ordered = sorted(members, key=lambda m: (m["split"] != "val", m["path"]))
    first = {member["label"]: member for member in reversed(ordered)}
    known = probabilities.get(ordered[0]["path"], {})
    right = most_probable_label(list(first), known)
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
            reason = f"identical to a file with the label {others}; drop all but one"
            doubt = replace(drop, action="keep", kind="two labels", confidence=None)
            fixes.append(replace(doubt, reason=reason))
    return fixes


def most_probable_label(labels: Sequence[str], probabilities: ClassProbabilities) -> str:
    """Return the label that is at least 30 times as probable as the others, or nothing."""
    if len(labels) < 2 or not probabilities:
        return ""
    best, second, *_ = sorted(labels, key=lambda label: -probabilities[label])
    is_best = probabilities[best] == max(probabilities.values())
    is_clear = probabilities[best] >= 30 * probabilities[second]
    return best if is_best and is_clear else ""


def near_duplicate_fixes(members: Sequence[CopyMember]) -> list[Fix]:
    """Keep all near-duplicates, and name every one but the first."""
    first, *others = members
    fixes = []
    for member in others:
        reason = f"nearly identical to {first['path']}"
        if member["label"] != first["label"]:
            reason += f", which has the label {first['label']}"
        if member["split"] != first["split"]:
            reason += f", which is in {first['split']}"
        path, label = member["path"], member["label"]
        fixes.append(Fix(path=path, action="keep", label=label, reason=reason, kind="near"))
    return fixes


def merge_fixes(fixes: Iterable[Fix]) -> list[Fix]:
    """Return one fix per path: the strongest action, with the reasons of all."""
    by_path: dict[str, list[Fix]] = {}
    for fix in fixes:
        by_path.setdefault(fix.path, []).append(fix)
    merged = []
    for same in by_path.values():
        strongest = max(same, key=lambda f: (ACTIONS.index(f.action), -KIND_ORDER.index(f.kind)))
        reasons = [strongest.reason, *(fix.reason for fix in same if fix is not strongest)]
        label = next((fix.label for fix in same if fix.label), "")
        merged.append(replace(strongest, label=label, reason="; ".join(reasons)))
    return merged
