"""What the page of a comparison shows: plain values for the template."""

from typing import Any

from vitft.metrics.intervals import wilson
from vitft.report import charts
from vitft.report.comparison import Comparison, Shared
from vitft.report.summary import flat, toml_word, weights_name
from vitft.system.text import count, interval, percent, points, whole_percent

SHOWN = 60
"""Disputed images shown at all."""
THUMB_BYTES = 2_000_000
"""Characters of embedded pictures."""


def comparison_view(comparison: Comparison) -> dict[str, Any]:
    """Everything the template needs."""
    return {
        "title": " against ".join(comparison.names)
        if len(comparison.runs) == 2
        else f"{len(comparison.runs)} runs compared",
        "notes": comparison.notes,
        "verdicts": comparison.verdict_lines(),
        "shared": count(comparison.shared, "held-back image"),
        "runs": run_rows(comparison),
        "chart": chart(comparison),
        "pairs": pair_rows(comparison),
        "settings": setting_rows(comparison),
        "letters": comparison.letters,
        "classes": class_rows(comparison),
        "disputed": disputed(comparison),
    }


def run_rows(comparison: Comparison) -> list[dict[str, str]]:
    """Name, what was trained, accuracies."""
    rows = []
    best = max(comparison.rights)
    for i, run in enumerate(comparison.runs):
        right, shared = comparison.rights[i], comparison.shared
        rows.append(
            {
                "letter": comparison.letters[i],
                "name": comparison.names[i],
                "weights": weights_name(str(run.config.get("weights", {}).get("name", ""))),
                "trained": str(run.config.get("train", {}).get("freeze", "")),
                "accuracy": percent(run.figures.get("top1")),
                "range": interval(run.figures.get("top1_interval")),
                "images": f"{len(run.verdicts):,}",
                "shared": percent(right / shared) if shared else percent(None),
                "shared_range": interval(wilson(right, shared)) if shared else "",
                "best": "winner" if shared and right == best else "",
            }
        )
    return rows


def chart(comparison: Comparison) -> str:
    """Accuracies on the shared images with their intervals; nothing without such images."""
    if not comparison.shared:
        return ""
    shares = [right / comparison.shared for right in comparison.rights]
    bounds = [wilson(right, comparison.shared) for right in comparison.rights]
    return charts.ranges(
        "Accuracy of each run with its interval", comparison.letters, shares, bounds
    )


def pair_rows(comparison: Comparison) -> list[dict[str, str]]:
    """Each pair of runs."""
    names = ("pair", "difference", "range", "only_one", "only_other", "p")
    return [dict(zip(names, row, strict=True)) for row in comparison.pair_rows()]


def setting_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """The settings in which the runs differ."""
    tables = [flat(run.config) for run in comparison.runs]
    rows = []
    for key in sorted({key for table in tables for key in table}):
        values = [toml_word(table[key]) if key in table else "–" for table in tables]
        if len({*values}) > 1:
            rows.append({"key": key, "values": values})
    return rows


def class_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Recall of each class by run on the shared images, the largest differences first."""
    rows = []
    for name in comparison.classes:
        counts = [comparison.found(name, i) for i in range(len(comparison.runs))]
        shares = [right / of for right, of in counts]
        spread = max(shares) - min(shares)
        rows.append(
            {
                "name": name,
                "images": counts[0][1],
                "spread": points(spread).lstrip("+"),
                "spread_sort": spread,
                "cells": [
                    {
                        "share": percent(share),
                        "sort": share,
                        "range": interval(wilson(right, of), 0),
                        "best": "winner" if spread > 0 and share == max(shares) else "",
                    }
                    for share, (right, of) in zip(shares, counts, strict=True)
                ],
            }
        )
    return sorted(rows, key=lambda row: (-row["spread_sort"], row["name"]))


def disputed(comparison: Comparison) -> dict[str, Any]:
    """The images on which the runs disagree: those that one gets right first."""
    images = [image for image in comparison.images if image.disputed]
    images.sort(key=lambda image: (not settled(image), -max(image.confidences), image.path))
    cards, left = [], THUMB_BYTES
    for image in images[:SHOWN]:
        thumb = picture(comparison, image) if left > 0 else ""
        left -= len(thumb)
        cards.append(
            {
                "path": image.path,
                "label": image.label,
                "thumb": thumb,
                "answers": [
                    {
                        "letter": letter,
                        "guess": guess,
                        "sure": whole_percent(confidence),
                        "kind": "good" if guess == image.label else "bad",
                    }
                    for letter, guess, confidence in zip(
                        comparison.letters, image.guesses, image.confidences, strict=True
                    )
                ],
            }
        )
    return {"cards": cards, "total": len(images), "more": max(0, len(images) - SHOWN)}


def settled(image: Shared) -> bool:
    """Whether any of the runs is right."""
    return any(image.right(i) for i in range(len(image.guesses)))


def picture(comparison: Comparison, image: Shared) -> str:
    """The thumbnail, from whichever run kept it."""
    found = (run.thumb(image.sha256) for run in comparison.runs)
    return next((uri for uri in found if uri), "")
