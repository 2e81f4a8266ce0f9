"""What a run says about its own images: `vitft check` in short, from what the run saw anyway.

Digests tell identical files. Where one feature per image is cached, features tell which pictures
may be near copies (a few of them are looked at again) and which labels look wrong. Nothing is
computed twice, and nothing here changes the run.
"""

import logging
import shlex

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.check.audit import AuditedImage, audit_images, audit_summary
from vitft.data.duplicates import IndexPair, copies_among, group_names
from vitft.data.folder import File, Folder
from vitft.data.inspection import InspectedFolder
from vitft.data.split import Row
from vitft.features.cross_validation import CV_IMAGES, HeldOutLogits, stratified_subset
from vitft.features.fingerprints import Fingerprints, fingerprint_folder
from vitft.features.label_errors import (
    DEFAULT_L2,
    find_label_errors,
    label_probabilities,
    out_of_fold_logits,
)
from vitft.features.ood import REFERENCE_FILE, fit_reference
from vitft.metrics.results import Mislabel
from vitft.system.rundir import RunDir
from vitft.training.batches import Feed
from vitft.training.best import Best

log = logging.getLogger(__name__)

ALIKE = 0.75
"""Cosine of centred features from which two pictures are looked at again. Features alone do not
tell copies from pictures of the same kind (docs/experiments.md); their fingerprints decide."""
SHARE_AGAIN, MOST_AGAIN = 0.1, 500
"""Pairs looked at again: at most this share of all images, and at most so many."""

REFERENCE_IMAGES = 20_000
"""From so many the scatter of features is known well enough."""


def take_stock(feed: Feed, run: RunDir, best: Best, checked: InspectedFolder) -> None:
    """Write audit.json, and say in a line or two what should be looked at."""
    manifest, once = feed.manifest, feed.once
    names = manifest.classes
    groups = dict(feed.groups)
    mislabels: list[Mislabel] = []
    if feed.cut.pooled:
        x, held_out = best.judged or judged_by_usual_head(feed)
        if not feed.config.data.group_duplicates:
            pairs = copies_by_features(feed, once, x)
            groups = group_names([row.sha256 for row in once], pairs)
        mislabels = wrong_labels(feed, once, x, held_out)
    audit = audit_images(
        [AuditedImage(path=r.path, label=names[r.label], split=r.split, sha256=r.sha256)
         for r in manifest.rows],
        bad=checked.bad,
        odd=[(file.path, remark) for file in checked.good for remark in file.odd],
        groups=groups,
        mislabels=mislabels,
    )  # fmt: skip
    run.write_json("audit.json", audit)
    if summary := audit_summary(audit):
        data, path = (shlex.quote(str(place)) for place in (manifest.root, run.path))
        log.info(f"{summary}: vitft check {data} --run {path}")


def keep_reference(feed: Feed, run: RunDir) -> None:
    """Write what the training features look like, for `predict` to tell what is unlike them.

    Only where one feature per image is cached; of many images some are looked at.
    """
    if not feed.cut.pooled:
        return
    rows = feed.manifest.train[:: 1 + len(feed.manifest.train) // REFERENCE_IMAGES]
    held_out = feed.manifest.val[:: 1 + len(feed.manifest.val) // REFERENCE_IMAGES]
    found = fit_reference(
        feed.cached(rows).numpy(),
        feed.labels(rows).cpu().numpy(),
        feed.cached(held_out).numpy(),
    )
    if found is not None:
        run.write_arrays(REFERENCE_FILE, **found.arrays())


def judged_by_usual_head(feed: Feed) -> tuple[Tensor, HeldOutLogits]:
    """Features of every picture and scores of heads that did not see it, at a usual penalty."""
    once, seed = feed.once, feed.config.train.seed
    x, y = feed.cached(once), feed.labels(once).cpu()
    rows = stratified_subset(y, CV_IMAGES, seed)
    logits = out_of_fold_logits(
        x[rows],
        y[rows],
        feed.alike(once)[rows],
        classes=len(feed.manifest.classes),
        seed=seed,
        l2=DEFAULT_L2,
    )
    return x, HeldOutLogits(rows, logits)


def copies_by_features(feed: Feed, once: list[Row], x: Tensor) -> list[IndexPair]:
    """Pairs of near copies among the pictures whose features are most alike."""
    most = min(MOST_AGAIN, round(SHARE_AGAIN * len(once)))
    pairs = most_alike(x, most) if len(once) <= CV_IMAGES else []
    rows = sorted({row for pair in pairs for row in pair})
    place = {row: i for i, row in enumerate(rows)}
    fingerprints = fingerprints_of(feed, [once[row] for row in rows])
    if fingerprints is None:
        return []  # a file has changed meanwhile
    table = fingerprints.table([once[row].sha256 for row in rows])
    found = copies_among(table, [(place[one], place[other]) for one, other in pairs])
    return [(rows[one], rows[other]) for one, other in found]


def fingerprints_of(feed: Feed, rows: list[Row]) -> Fingerprints | None:
    """Return the fingerprints of some images; None if one of the files has changed."""
    folder = Folder(
        root=feed.manifest.root,
        classes=feed.manifest.classes,
        files=tuple(File(row.path, row.label) for row in rows),
        layout="classes",
    )
    spec = feed.config
    fingerprints = Fingerprints(spec.train.cache)
    fingerprint_folder(folder, fingerprints, max_pixels=spec.data.max_pixels)
    is_same = {row.sha256 for row in rows} == {*fingerprints.by_digest}
    return fingerprints if is_same else None


def most_alike(x: Tensor, most: int) -> list[IndexPair]:
    """At most `most` index pairs (i < j) of features (n, D), the most alike first."""
    if most < 1 or len(x) < 2:
        return []
    known = F.normalize(x - x.mean(dim=0), dim=-1)
    found: list[tuple[float, int, int]] = []
    for begin in range(0, len(known), 1024):
        alike = known[begin : begin + 1024] @ known.T  # (m, n)
        alike.masked_fill_(
            torch.arange(len(known)) <= torch.arange(begin, begin + len(alike))[:, None], -1.0
        )
        near = torch.nonzero(alike.flatten() >= ALIKE)[:, 0]  # few: sorting them all takes longer
        best = alike.flatten()[near].topk(min(most, len(near)))
        places = near[best.indices].tolist()
        for cosine, place in zip(best.values.tolist(), places, strict=True):
            found.append((-cosine, begin + place // len(known), place % len(known)))
    return [(i, j) for _, i, j in sorted(found)[:most]]


def wrong_labels(feed: Feed, once: list[Row], x: Tensor, held_out: HeldOutLogits) -> list[Mislabel]:
    """The labels that are probably wrong, as audit.json has them; one path for each picture."""
    rows = held_out.rows
    some = [once[row] for row in rows.tolist()]
    names, y = feed.manifest.classes, torch.tensor([row.label for row in some])
    shares = label_probabilities(held_out.logits, x[rows], y, feed.alike(some))
    labels: dict[str, set[int]] = {}
    for row in feed.manifest.rows:
        labels.setdefault(row.sha256, set()).add(row.label)
    return [
        {
            "path": some[suspect.row].path,
            "label": names[some[suspect.row].label],
            "suggested": names[suspect.suggested],
            "given_probability": suspect.given_probability,
            "suggested_probability": suspect.suggested_probability,
        }
        for suspect in find_label_errors(shares, y)
        if len(labels[some[suspect.row].sha256]) == 1
    ]
