"""Findings about a labelled folder, as written to audit.json. This module does not open images."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from vitft.data.image_table import Images, Row
from vitft.data.walk import unused_files, unused_notes
from vitft.metrics.results import (
    AuditResults,
    CopyGroup,
    CopyMember,
    FileRemark,
    Imbalance,
    Mislabel,
    ViewFacts,
)
from vitft.system.text import count


def audit_images(
    images: Images,
    *,
    remarks: Callable[[Row], Iterable[str]],
    groups: Mapping[str, str] | None = None,
    mislabels: Sequence[Mislabel] = (),
    probabilities: Mapping[str, Mapping[str, float]] | None = None,
    view: ViewFacts | None = None,
    own_split: bool = False,
) -> AuditResults:
    """Return the findings about the images of a folder.

    Args:
        images: The images. Groups of duplicates list their members in this order.
        remarks: Function that returns remarks on an image. Harmless remarks are left out.
        groups: Name of the group of each near-duplicate, by digest.
        mislabels: Probable label errors.
        probabilities: Class probabilities, by path, of files whose identical copies have other
        labels.
        view: Input size and cropping of the model, and how much of the image area remains.
        own_split: Whether the folder or the table divides the images into subsets.
    """
    names, known_notes = images.classes, unused_notes(images.unused)
    found: AuditResults = {
        "images": len(images.rows),
        "unused": unused_files(images.unused),
        "notes": [n for n in (*images.warnings, *images.notes) if n not in known_notes],
        "bad": [{"path": path, "reason": reason} for path, reason in images.bad],
        "odd": [
            FileRemark(path=row.path, reason=reason, label=names[row.label])
            for row in images.rows
            for reason in remarks(row)
            if not reason.startswith(("converted from", "rotated by EXIF"))  # harmless
        ],
        "duplicates": [
            *_copy_groups(images, "exact", lambda row: row.sha256),
            *_copy_groups(images, "near", lambda row: (groups or {}).get(row.sha256, "")),
        ],
        "mislabels": list(mislabels),
        "imbalance": _class_imbalance(name for row in images.rows for name in images.names(row)),
    }
    for group in found["duplicates"]:
        known = (probabilities or {}).get(group["members"][0]["path"])
        if known and group["labels_differ"] and group["kind"] == "exact":
            shown = {member["label"] for member in group["members"]}
            shown.add(max(known, key=lambda name: known[name]))
            group["probabilities"] = {n: known[n] for n in sorted(shown) if n in known}
    if view is not None:
        found["view"] = view
    if own_split:
        found["own_split"] = True
    return found


def _copy_groups(images: Images, kind: str, key: Callable[[Row], str]) -> list[CopyGroup]:
    """Return the groups of two or more images with the same key, ignoring empty keys."""
    groups: dict[str, list[Row]] = {}
    for row in images.rows:
        if name := key(row):
            groups.setdefault(name, []).append(row)
    names = images.classes
    return [
        CopyGroup(
            kind=kind,
            members=[CopyMember(path=r.path, label=names[r.label], split=r.split) for r in group],
            across_split=len({row.split for row in group} - {""}) > 1,
            labels_differ=len({row.label for row in group}) > 1,
        )
        for group in groups.values()
        if len(group) > 1
    ]


def _class_imbalance(labels: Iterable[str]) -> Imbalance:
    """Return the largest class, the smallest class and the ratio of their sizes, if any."""
    counts = Counter(labels)
    if not counts:
        return {"largest": None, "smallest": None, "ratio": None}
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    largest, smallest = ranked[0], ranked[-1]
    return {"largest": largest, "smallest": smallest, "ratio": largest[1] / smallest[1]}


def audit_summary(audit: AuditResults, kept: Collection[str] = ()) -> str:
    """Return a one-line summary of findings that affect training, or an empty string.

    Probable label errors in `kept`, the paths that fixes keep, are mentioned only alongside others.
    """
    across = sum(group["across_split"] for group in audit["duplicates"])
    relabelled = sum(group["labels_differ"] for group in audit["duplicates"])
    looked_at = sum(item["path"] in kept for item in audit["mislabels"])
    some = f" (besides {looked_at:,} already decided)" * (looked_at > 0)
    findings = (
        (len(audit["mislabels"]) - looked_at, "probable label error", some),
        (across, "group", " of duplicates across splits"),
        (relabelled, "group", " of duplicates with different labels"),
    )
    return ", ".join(count(number, what) + more for number, what, more in findings if number)
