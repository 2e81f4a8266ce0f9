"""Findings about a labelled folder, as written to audit.json, and proposed fixes.

The proposed action is `drop` only if a finding is certain. Otherwise it is `keep`, with the reason,
and the user may change it. This module does not open images.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from vitft.data.fixes import ACTIONS, Fix
from vitft.data.unused import unused_files, unused_notes
from vitft.metrics.results import (
    AuditResults,
    CopyGroup,
    CopyMember,
    Imbalance,
    Mislabel,
    ViewFacts,
)
from vitft.system.text import count

ClassProbabilities = Mapping[str, float]
KIND_ORDER = ("bad", "exact", "two labels", "mislabel", "near", "odd")
"""Kinds of fixes, in the order in which the table lists fixes with the same action."""
PARTS = {
    "train": "training image",
    "val": "validation image",
    "test": "test image",
    "": "not in the split",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedImage:
    """A readable image.

    `split` is `train`, `val`, `test`, or empty if the image belongs to none of these parts.
    """

    path: str
    label: str
    split: str
    sha256: str


def audit_images(
    images: Sequence[AuditedImage],
    *,
    unused: Mapping[str, int] | None = None,
    notes: Iterable[str] = (),
    bad: Iterable[tuple[str, str]] = (),
    odd: Iterable[tuple[str, str]] = (),
    groups: Mapping[str, str] | None = None,
    mislabels: Sequence[Mislabel] = (),
    view: ViewFacts | None = None,
) -> AuditResults:
    """Return the findings about the images of a folder.

    Args:
        images: The readable images. Groups of duplicates list their members in this order.
        unused: Mapping from suffix to the number of files that are neither images nor hidden.
        notes: Notes on the folder; notes on the files in `unused` are left out.
        bad: Path of each unreadable file, with the reason.
        odd: Path of each unusual image, with a remark. Harmless remarks are left out.
        groups: Mapping from the digest of each near-duplicate to the name of its group.
        mislabels: Probable label errors.
        view: How much of the images the model's view shows.
    """
    found: AuditResults = {
        "images": len(images),
        "unused": unused_files(unused or {}),
        "notes": [note for note in notes if note not in unused_notes(unused or {})],
        "bad": [{"path": path, "reason": reason} for path, reason in bad],
        "odd": [
            {"path": path, "reason": reason}
            for path, reason in odd
            if not reason.startswith(("converted from", "rotated by EXIF"))  # harmless
        ],
        "duplicates": [
            *copy_groups(images, "exact", lambda image: image.sha256),
            *copy_groups(images, "near", lambda image: (groups or {}).get(image.sha256, "")),
        ],
        "mislabels": list(mislabels),
        "imbalance": class_imbalance(image.label for image in images),
    }
    if view is not None:
        found["view"] = view
    return found


def copy_groups(
    images: Sequence[AuditedImage], kind: str, key: Callable[[AuditedImage], str]
) -> list[CopyGroup]:
    """Return the groups of two or more images with the same key, ignoring empty keys."""
    groups: dict[str, list[AuditedImage]] = {}
    for image in images:
        if name := key(image):
            groups.setdefault(name, []).append(image)
    return [
        CopyGroup(
            kind=kind,
            members=[CopyMember(path=i.path, label=i.label, split=i.split) for i in group],
            across_split=len({image.split for image in group} - {""}) > 1,
            labels_differ=len({image.label for image in group}) > 1,
        )
        for group in groups.values()
        if len(group) > 1
    ]


def class_imbalance(labels: Iterable[str]) -> Imbalance:
    """Return the largest class, the smallest class and the ratio of their sizes.

    All three are None if there are no labels.
    """
    counts = Counter(labels)
    if not counts:
        return {"largest": None, "smallest": None, "ratio": None}
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    largest, smallest = ranked[0], ranked[-1]
    return {"largest": largest, "smallest": smallest, "ratio": largest[1] / smallest[1]}


def audit_summary(audit: AuditResults) -> str:
    """Return a one-line summary of findings that affect training, or an empty string."""
    across = sum(group["across_split"] for group in audit["duplicates"])
    relabelled = sum(group["labels_differ"] for group in audit["duplicates"])
    findings = (
        (len(audit["mislabels"]), "probable label error", "probable label errors"),
        (across, "group of duplicates across splits", "groups of duplicates across splits"),
        (
            relabelled,
            "group of duplicates with different labels",
            "groups of duplicates with different labels",
        ),
    )
    return ", ".join(count(number, one, many) for number, one, many in findings if number)


def propose_fixes(
    audit: AuditResults, probabilities: Mapping[str, ClassProbabilities]
) -> list[Fix]:
    """Return the proposed fixes, at most one per file, starting with those that change something.

    `probabilities` maps paths to class probabilities and need not contain every image.
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
            reason=f"probably {entry['suggested']}; to accept, set the action to “move”",
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
    """Return fixes that keep one file per label in a group of identical files.

    If one label is clearly the most probable, only one file with that label is kept. Files in the
    validation set are kept in preference to others so that the set changes as little as possible.
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
            reason = f"identical to a file with another label ({others}); drop all but one"
            doubt = replace(drop, action="keep", kind="two labels", confidence=None)
            fixes.append(replace(doubt, reason=reason))
    return fixes


def most_probable_label(labels: Sequence[str], probabilities: ClassProbabilities) -> str:
    """Return the label that is at least 30 times as probable as each other label.

    The result is an empty string if there is no such label, or if a class that is not among the
    labels is more probable.
    """
    if len(labels) < 2 or not probabilities:
        return ""
    best, second, *_ = sorted(labels, key=lambda label: -probabilities[label])
    is_best = probabilities[best] == max(probabilities.values())
    is_clear = probabilities[best] >= 30 * probabilities[second]
    return best if is_best and is_clear else ""


def near_duplicate_fixes(members: Sequence[CopyMember]) -> list[Fix]:
    """Return fixes that keep all near-duplicates and add a remark to all but the first."""
    first, *others = members
    fixes = []
    for member in others:
        reason = f"nearly identical to {first['path']}"
        details = []
        if member["label"] != first["label"]:
            details.append(f"label {first['label']}")
        if member["split"] != first["split"]:
            details.append(PARTS[first["split"]])
        if details:
            reason += f" ({', '.join(details)})"
        path, label = member["path"], member["label"]
        fixes.append(Fix(path=path, action="keep", label=label, reason=reason, kind="near"))
    return fixes


def merge_fixes(fixes: Iterable[Fix]) -> list[Fix]:
    """Return one fix per path, with the strongest action and all reasons for that path."""
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
