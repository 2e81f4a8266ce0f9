"""Findings about a labelled folder, as in audit.json. Nothing here opens an image."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from vitft.metrics.results import AuditResults, CopyGroup, CopyMember, Imbalance, Mislabel
from vitft.system.text import count


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedImage:
    """A readable image; `split` is `train`, `val`, or empty."""

    path: str
    label: str
    split: str
    sha256: str


def audit_images(
    images: Sequence[AuditedImage],
    *,
    bad: Iterable[tuple[str, str]] = (),
    odd: Iterable[tuple[str, str]] = (),
    groups: Mapping[str, str] | None = None,
    mislabels: Sequence[Mislabel] = (),
) -> AuditResults:
    """Return the findings.

    Args:
        images: The readable images, in order.
        bad: Paths of the unreadable files, with reasons.
        odd: Paths with remarks on how an image was decoded; harmless remarks are left out.
        groups: Groups of near-duplicates: digest to name of the group.
        mislabels: Probable label errors.
    """
    return {
        "images": len(images),
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


def copy_groups(
    images: Sequence[AuditedImage], kind: str, key: Callable[[AuditedImage], str]
) -> list[CopyGroup]:
    """Group the images with equal keys; an image with an empty key is in no group."""
    groups: dict[str, list[AuditedImage]] = {}
    for image in images:
        if name := key(image):
            groups.setdefault(name, []).append(image)
    return [
        CopyGroup(
            kind=kind,
            members=[CopyMember(path=i.path, label=i.label, split=i.split) for i in group],
            across_split={"train", "val"} <= {image.split for image in group},
            labels_differ=len({image.label for image in group}) > 1,
        )
        for group in groups.values()
        if len(group) > 1
    ]


def class_imbalance(labels: Iterable[str]) -> Imbalance:
    """Return the largest and the smallest class and their ratio."""
    counts = Counter(labels)
    if not counts:
        return {"largest": None, "smallest": None, "ratio": None}
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    largest, smallest = ranked[0], ranked[-1]
    return {"largest": largest, "smallest": smallest, "ratio": largest[1] / smallest[1]}


def audit_summary(audit: AuditResults) -> str:
    """Return the findings that concern training in one line; empty if there are none."""
    across = sum(group["across_split"] for group in audit["duplicates"])
    relabelled = sum(group["labels_differ"] for group in audit["duplicates"])
    findings = (
        (len(audit["mislabels"]), "probable label error", "probable label errors"),
        (across, "group of copies across the split", "groups of copies across the split"),
        (relabelled, "image with two labels", "images with two labels"),
    )
    return ", ".join(count(number, one, many) for number, one, many in findings if number)
