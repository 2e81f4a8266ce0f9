"""What may be wrong with a labelled folder: findings as audit.json holds them, and proposals.

    audit.json   {"images", "bad": [{path, reason}], "odd": [{path, reason}],
                  "duplicates": [{kind, members: [{path, label, split}], across_split,
                  labels_differ}], "mislabels": [{path, label, suggested, given_probability,
                  suggested_probability}], "imbalance": {largest, smallest, ratio}}

Only what is sure is proposed as `drop`; a doubt is a `keep` with its reason. How copies and wrong
labels are recognised is decided in `data.duplicates` and `suspects`; nothing here opens an image.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from vitft.data.fixes import ACTIONS, Fix
from vitft.metrics.results import AuditResults, CopyGroup, CopyMember, Imbalance, Mislabel

Shares = Mapping[str, float]
"""How likely each class is for one picture, by name."""

HARMLESS = ("converted from", "rotated by EXIF")
"""Remarks on how an image was read that nobody has to look at."""
SURE = 30.0
"""Of two labels of one file the second is dropped if the first is so many times as likely."""
KINDS = ("bad", "exact", "two labels", "mislabel", "near", "odd")
"""In the order of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One readable image."""

    path: str
    """Relative to the data folder, with slashes."""
    label: str
    split: str
    """`train`, `val`, or empty if there is no split."""
    sha256: str


def audit_of(
    items: Sequence[Item],
    *,
    bad: Iterable[tuple[str, str]] = (),
    odd: Iterable[tuple[str, str]] = (),
    groups: Mapping[str, str] | None = None,
    mislabels: Sequence[Mislabel] = (),
) -> AuditResults:
    """The findings.

    Args:
        items: The readable images, in order.
        bad: Paths and reasons of the others.
        odd: Paths and remarks; the harmless ones are left out.
        groups: Names of groups of near copies, by digest.
        mislabels: As audit.json has them.
    """
    return {
        "images": len(items),
        "bad": [{"path": path, "reason": reason} for path, reason in bad],
        "odd": [
            {"path": path, "reason": reason}
            for path, reason in odd
            if not reason.startswith(HARMLESS)
        ],
        "duplicates": [
            *duplicates(items, "exact", lambda item: item.sha256),
            *duplicates(items, "near", lambda item: (groups or {}).get(item.sha256, "")),
        ],
        "mislabels": list(mislabels),
        "imbalance": imbalance(item.label for item in items),
    }


def duplicates(items: Sequence[Item], kind: str, name_of: Callable[[Item], str]) -> list[CopyGroup]:
    """The groups of items with one name; an empty name is none."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        if name := name_of(item):
            groups.setdefault(name, []).append(item)
    return [
        {
            "kind": kind,
            "members": [
                {"path": item.path, "label": item.label, "split": item.split} for item in group
            ],
            "across_split": {"train", "val"} <= {item.split for item in group},
            "labels_differ": len({item.label for item in group}) > 1,
        }
        for group in groups.values()
        if len(group) > 1
    ]


def imbalance(labels: Iterable[str]) -> Imbalance:
    """The largest and the smallest class and how many times the one is the other."""
    counts = Counter(labels)
    if not counts:
        return {"largest": None, "smallest": None, "ratio": None}
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    largest, smallest = ranked[0], ranked[-1]
    return {
        "largest": largest,
        "smallest": smallest,
        "ratio": largest[1] / smallest[1],
    }


def lines_of(audit: AuditResults) -> list[str]:
    """What a training says about its own images: three lines at most, none if all is well."""
    across = sum(group["across_split"] for group in audit["duplicates"])
    labels = sum(group["labels_differ"] for group in audit["duplicates"])
    found = {
        "look mislabelled": (len(audit["mislabels"]), "image", "images"),
        "across the split": (across, "group of copies", "groups of copies"),
        "under two labels": (labels, "picture", "pictures"),
    }
    said = [
        f"{count} {one if count == 1 else many} {what.replace('look', 'looks', count == 1)}"
        for what, (count, one, many) in found.items()
        if count
    ]
    return [", ".join(said)] if said else []


# proposals --------------------------------------------------------------------------------------


def proposals(audit: AuditResults, shares: Mapping[str, Shares]) -> list[Fix]:
    """One fix per image that something was found about, what changes something first.

    Args:
        audit: The findings.
        shares: How likely the classes are for the pictures, by path, where that is known.
    """
    found = [
        Fix(path=entry["path"], action="drop", reason=entry["reason"], kind="bad", confidence=1.0)
        for entry in audit["bad"]
    ]
    for group in audit["duplicates"]:
        of_kind = exact_fixes if group["kind"] == "exact" else near_fixes
        found += of_kind(group["members"], shares)
    found += [
        Fix(
            path=entry["path"],
            action="keep",
            label=entry["label"],
            new_label=entry["suggested"],
            reason=f"looks like {entry['suggested']}; to accept, write move",
            kind="mislabel",
            confidence=entry["suggested_probability"],
        )
        for entry in audit["mislabels"]
    ]
    found += [
        Fix(path=entry["path"], action="keep", reason=entry["reason"], kind="odd")
        for entry in audit["odd"]
    ]
    return sorted(
        merged(found),
        key=lambda fix: (
            -ACTIONS.index(fix.action), KINDS.index(fix.kind), -(fix.confidence or 0), fix.path,
        ),
    )  # fmt: skip


def exact_fixes(members: Sequence[CopyMember], shares: Mapping[str, Shares]) -> list[Fix]:
    """For identical files: the first of each label stays, unless it is sure which label is right.

    A copy in the validation part comes first, so that what is measured on stays the same.
    """
    ordered = sorted(members, key=lambda m: (m["split"] != "val", m["path"]))
    first = {member["label"]: member for member in reversed(ordered)}
    right = surest(list(first), shares.get(ordered[0]["path"], {}))
    fixes = []
    for member in ordered:
        label, kept = member["label"], first[member["label"]]
        plain = Fix(path=member["path"], action="drop", label=label, kind="exact", confidence=1.0)
        if right and label != right:
            reason = f"the same file as {first[right]['path']}, under the less likely label"
            likely = shares[ordered[0]["path"]][right]
            fixes.append(replace(plain, reason=reason, kind="two labels", confidence=likely))
        elif member is not kept:
            fixes.append(replace(plain, reason=f"the same file as {kept['path']}"))
        elif len(first) > 1 and not right:
            others = ", ".join(sorted({*first} - {label}))
            reason = f"the same file lies under {others}; drop all but one"
            doubt = replace(plain, action="keep", kind="two labels", confidence=None)
            fixes.append(replace(doubt, reason=reason))
    return fixes


def surest(labels: Sequence[str], likely: Shares) -> str:
    """The label that is `SURE` times as likely as the other ones, or nothing."""
    if len(labels) < 2 or not likely:
        return ""
    best, second, *_ = sorted(labels, key=lambda label: -likely[label])
    is_best_of_all = likely[best] == max(likely.values())
    return best if is_best_of_all and likely[best] >= SURE * likely[second] else ""


def near_fixes(members: Sequence[CopyMember], _: Mapping[str, Shares]) -> list[Fix]:
    """For near copies: all stay, and every one but the first is named."""
    first, *others = members
    return [
        Fix(
            path=member["path"],
            action="keep",
            label=member["label"],
            reason=f"nearly the same picture as {first['path']}"
            + ("" if member["label"] == first["label"] else f", which lies under {first['label']}")
            + ("" if member["split"] == first["split"] else f", which is in {first['split']}"),
            kind="near",
        )
        for member in others
    ]


def merged(found: Iterable[Fix]) -> list[Fix]:
    """One fix per path: the strongest action, with the reasons of all."""
    by_path: dict[str, list[Fix]] = {}
    for fix in found:
        by_path.setdefault(fix.path, []).append(fix)
    result = []
    for fixes in by_path.values():
        strongest = max(fixes, key=lambda f: (ACTIONS.index(f.action), -KINDS.index(f.kind)))
        reasons = [strongest.reason, *(fix.reason for fix in fixes if fix is not strongest)]
        label = next((fix.label for fix in fixes if fix.label), "")
        result.append(replace(strongest, label=label, reason="; ".join(reasons)))
    return result
