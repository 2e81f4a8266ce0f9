"""The parts of a run's page that show images: mistakes, confusions and doubtful images.

Pictures are those that `gallery` kept, embedded until the page is as large as it may be.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitft.predict.validation import ValidationPrediction, least_confident, mistakes
from vitft.report.palette import SHADES
from vitft.report.run_files import Run
from vitft.system.text import percent, whole_percent

Part = Mapping[str, Any] | None

MATRIX_CLASSES = 20
"""With more classes the confusion matrix gives way to the pairs most often confused."""
PAIRS = 30
WORST = 24
"""Mistakes shown with the attention beside them."""
CARDS = 300
"""Mistakes shown at all."""
SUSPECTS = 40
THUMB_BYTES = 2_000_000
"""Characters of embedded pictures; the page stays under 3 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One image with what was said of it."""

    path: str
    label: str
    guess: str
    confidence: str
    cell: str
    """Its place in the confusion matrix: row-column."""
    right: bool
    thumb: str
    """A data URI, or nothing."""
    attention: str


class Album:
    """Hands out thumbnails until the page is as large as it may be."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.left = THUMB_BYTES
        self.place = {name: i for i, name in enumerate(run.classes)}

    def picture(self, sha256: str, *, attention: bool = False) -> str:
        """A thumbnail as a data URI; empty if there is none or the page is full."""
        uri = self.run.thumb(sha256, attention=attention) if self.left > 0 else ""
        self.left -= len(uri)
        return uri

    def card(self, verdict: ValidationPrediction, *, attention: bool = False) -> Card:
        """An image of the validation part."""
        return Card(
            path=verdict.path,
            label=verdict.label,
            guess=verdict.predicted,
            confidence=whole_percent(verdict.probability),
            cell=f"{self.place[verdict.label]}-{self.place[verdict.predicted]}",
            right=verdict.is_correct,
            thumb=self.picture(verdict.sha256),
            attention=self.picture(verdict.sha256, attention=True) if attention else "",
        )


def worst_mistakes(run: Run, album: Album) -> Part:
    """The most confident mistakes with pictures, then the others."""
    wrong = mistakes(run.verdicts)
    if not run.verdicts:
        return None
    worst = [album.card(verdict, attention=True) for verdict in wrong[:WORST]]
    others = [album.card(verdict) for verdict in wrong[WORST:CARDS]]
    return {
        "total": len(wrong),
        "worst": worst,
        "others": others,
        "more": max(0, len(wrong) - CARDS),
        "attention": any(card.attention for card in worst),
        "pictures": any(card.thumb for card in worst),
    }


def confusion(run: Run, album: Album) -> Part:
    """The matrix for few classes, the most confused pairs for many."""
    counts = cells(run)
    if not counts:
        return None
    totals = Counter[int]()
    for (i, _), n in counts.items():
        totals[i] += n
    pairs = sorted(((n, i, j) for (i, j), n in counts.items() if i != j), key=lambda p: (-p[0], *p))
    small = len(run.classes) <= MATRIX_CLASSES
    barely = least_confident(run.verdicts, per_class=3, most=60) if small else []
    return {
        "classes": list(enumerate(run.classes)) if small else [],
        "matrix": matrix(run.classes, counts, totals) if small else [],
        "pairs": [
            {
                "label": run.classes[i],
                "guess": run.classes[j],
                "count": n,
                "share": percent(n / totals[i], 0),
                "cell": f"{i}-{j}",
            }
            for n, i, j in pairs[:PAIRS]
        ],
        "more": max(0, len(pairs) - PAIRS),
        "right": [album.card(verdict) for verdict in barely],
    }


def cells(run: Run) -> Mapping[tuple[int, int], int]:
    """How often each class (first) was taken for each (second); zeros left out."""
    place = {name: i for i, name in enumerate(run.classes)}
    if run.verdicts:
        return Counter((place[v.label], place[v.predicted]) for v in run.verdicts)
    table = run.figures.get("confusion") or []
    if len(table) != len(run.classes):
        return {}
    return {(i, j): n for i, row in enumerate(table) for j, n in enumerate(row) if n}


def matrix(
    classes: Sequence[str], counts: Mapping[tuple[int, int], int], totals: Mapping[int, int]
) -> list[dict[str, Any]]:
    """Rows of cells, shaded by their share of the row."""
    rows = []
    for i, label in enumerate(classes):
        line = []
        for j, guess in enumerate(classes):
            n = counts.get((i, j), 0)
            share = n / totals[i] if totals.get(i) else 0.0
            what = "named right" if i == j else f"taken for {guess}"
            line.append(
                {
                    "count": n,
                    "cell": f"{i}-{j}",
                    "shade": f"{'right' if i == j else 'wrong'}-{shade(share)}" if n else "",
                    "text": f"{n} of {totals.get(i, 0)} images of {label} {what}",
                }
            )
        rows.append({"name": label, "cells": line})
    return rows


def shade(share: float) -> int:
    """Step of a shaded cell."""
    return min(SHADES - 1, int(share * SHADES))


def suspects(run: Run, album: Album) -> Part:
    """What the check of the folder found: labels in doubt, copies, files that are odd or broken."""
    audit, freeze = run.audit, run.config.get("train", {}).get("freeze", "")
    if not audit:
        return None
    doubtful = [
        {
            "path": str(item["path"]),
            "label": str(item["label"]),
            "suggested": str(item["suggested"]),
            "given": whole_percent(item.get("given_probability")),
            "other": whole_percent(item.get("suggested_probability")),
            "thumb": album.picture(digest_of(run, str(item["path"]))),
        }
        for item in audit.get("mislabels", [])[:SUSPECTS]
    ]
    groups = [copies(run, group, album) for group in audit.get("duplicates", [])[:SUSPECTS]]
    files = {
        kind: [(str(i["path"]), str(i["reason"])) for i in audit.get(kind, [])[:SUSPECTS]]
        for kind in ("bad", "odd")
    }
    return {
        "mislabels": doubtful,
        "mislabel_count": len(audit.get("mislabels", [])),
        "duplicates": groups,
        "duplicate_count": len(audit.get("duplicates", [])),
        "bad": files["bad"],
        "bad_count": len(audit.get("bad", [])),
        "odd": files["odd"],
        "odd_count": len(audit.get("odd", [])),
        "looked": set(str(freeze).split(",")) <= {"head", "pre_logits"},
        "clean": not any(audit.get(k) for k in ("mislabels", "duplicates", "bad", "odd")),
    }


def copies(run: Run, group: Mapping[str, Any], album: Album) -> dict[str, Any]:
    """One group of equal or nearly equal images."""
    members = group["members"][:6]
    trouble = [
        text
        for flag, text in (
            ("across_split", "in training and in validation"),
            ("labels_differ", "under different labels"),
        )
        if group.get(flag)
    ]
    return {
        "kind": "identical files" if group.get("kind") == "exact" else "nearly equal",
        "trouble": trouble,
        "members": [
            {
                "path": str(m["path"]),
                "label": str(m["label"]),
                "split": {"train": "training", "val": "validation"}.get(str(m.get("split")), ""),
                "thumb": album.picture(digest_of(run, str(m["path"]))),
            }
            for m in members
        ],
        "more": len(group["members"]) - len(members),
    }


def digest_of(run: Run, path: str) -> str:
    """sha256 of an image of the run; empty if the run does not know it."""
    row = run.by_path.get(path)
    return row.sha256 if row else ""
