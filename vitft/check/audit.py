"""Findings about a labelled folder, as written to audit.json. This module does not open images."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

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


class AuditedImage(NamedTuple):
    """A readable image."""

    path: str
    label: str
    split: str
    """`train`, `val`, `test`, or empty if the image belongs to none of these subsets."""
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
    probabilities: Mapping[str, Mapping[str, float]] | None = None,
    view: ViewFacts | None = None,
    own_split: bool = False,
) -> AuditResults:
    """Return the findings about the images of a folder.

    Args:
        images: The readable images. Groups of duplicates list their members in this order.
        unused: Number of files that are neither images nor hidden, by suffix.
        notes: Notes on the folder; notes on the files in `unused` are left out.
        bad: Path of each unreadable file, with the reason.
        odd: Path of each unusual image, with a remark. Harmless remarks are left out.
        groups: Name of the group of each near-duplicate, by digest.
        mislabels: Probable label errors.
        probabilities: Class probabilities, by path, of files whose identical copies have other
        labels.
        view: Input size and cropping of the model, and how much of the image area remains.
        own_split: Whether the folder or the table divides the images into subsets.
    """
    labels = {image.path: image.label for image in images}
    found: AuditResults = {
        "images": len(images),
        "unused": unused_files(unused or {}),
        "notes": [note for note in notes if note not in unused_notes(unused or {})],
        "bad": [{"path": path, "reason": reason} for path, reason in bad],
        "odd": [
            FileRemark(path=path, reason=reason, label=labels[path])
            if path in labels  # an image may be outside the split
            else FileRemark(path=path, reason=reason)
            for path, reason in odd
            if not reason.startswith(("converted from", "rotated by EXIF"))  # harmless
        ],
        "duplicates": [
            *_copy_groups(images, "exact", lambda image: image.sha256),
            *_copy_groups(images, "near", lambda image: (groups or {}).get(image.sha256, "")),
        ],
        "mislabels": list(mislabels),
        "imbalance": class_imbalance(image.label for image in images),
    }
    for group in found["duplicates"]:
        known = (probabilities or {}).get(group["members"][0]["path"])
        if known and group["labels_differ"] and group["kind"] == "exact":
            names = {member["label"] for member in group["members"]}
            names.add(max(known, key=lambda name: known[name]))
            group["probabilities"] = {n: known[n] for n in sorted(names) if n in known}
    if view is not None:
        found["view"] = view
    if own_split:
        found["own_split"] = True
    return found


def _copy_groups(
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
