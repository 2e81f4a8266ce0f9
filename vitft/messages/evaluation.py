"""What `vitft evaluate` shows: labelled rows, the details of -v, and a table of the classes."""

from collections.abc import Mapping
from typing import Any

from vitft.messages.finetune import Rows
from vitft.metrics.results import mostly_taken_for
from vitft.system.text import (
    interval,
    is_measurable,
    is_scaled,
    not_calibrated,
    percent,
    percent_or_bound,
    scored_images,
)

_MOST_LISTED = 30
"""Maximum number of classes in the table."""
CLASS_METRICS = ("recall", "precision", "f1")
_BOUNDS = "95% CI"


def evaluation_rows(found: Mapping[str, Any]) -> Rows:
    """Return the accuracy of an evaluation, given the contents of its eval.json."""
    on, labels = f"on {scored_images(found)}", found.get("labels")
    if labels:
        rows = [("Mean AP", f"{_with_interval(labels, 'map')} {on}")]
        rows.append(("", f"all labels are right for {percent(found['top1'])} of them"))
    else:
        rows = [("Accuracy", f"{_with_interval(found, 'top1')} {on}")]
        if len({row["images"] for row in found["per_class"].values() if row["images"]}) > 1:
            rows.append(("Balanced", f"{_with_interval(found, 'balanced')}, mean of the recalls"))
    if kept := found.get("kept"):
        part = f"{percent(kept['fraction'])} are kept at threshold {percent(kept['threshold'])}"
        right = f", {_with_interval(kept, 'top1')} of them are right" if kept["images"] else ""
        rows.append(("Kept", part + right))
    return rows


def evaluation_details(found: Mapping[str, Any]) -> list[str]:
    """Return the other metrics of an evaluation, one a line."""
    calibration, lines = found["calibration"], []
    if labels := found.get("labels"):
        lines.append(f"random scores: mean average precision {percent(labels['chance_map'])}")
        lines.append(f"mean F1 of the labels: {_with_interval(labels, 'macro_f1')}")
        lines.append(f"F1 over all decisions: {_with_interval(labels, 'micro_f1')}")
    else:
        lines.append(f"always predicting the largest class: {percent(found['majority'])}")
        if found["top5"] is not None:
            lines.append(f"top-5 accuracy: {_with_interval(found, 'top5')}")
    bounds = found["loss_interval"]
    within = (
        f"{_BOUNDS} {bounds[0]:.3f} to {bounds[1]:.3f}" if bounds else "too few groups for a CI"
    )
    lines.append(f"log-loss: {found['loss']:.3f} nats ({within})")
    if doubt := not_calibrated(found):
        return [*lines, doubt]
    error = percent_or_bound(calibration["ece"], calibration["ece_interval"])
    line = f"calibration error: {error} ({_BOUNDS} {interval(calibration['ece_interval'])})"
    before, temperature = calibration["ece_before"], calibration["temperature"]
    if is_scaled(temperature) and before is not None:
        shown = percent(before) if is_measurable(before) else "too small to measure"
        line += f", {shown} before calibration"
    return [*lines, line]


def class_table(
    found: Mapping[str, Any], *, details: bool
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the headings and rows of a table of the classes that have images.

    If there are more than `_MOST_LISTED`, it has those of the lowest recall. With `details`, each
    metric has its interval, otherwise each class its most frequent wrong prediction.
    """
    occurring = [(name, row) for name, row in found["per_class"].items() if row["images"]]
    if len(occurring) > _MOST_LISTED:
        occurring = sorted(occurring, key=lambda pair: pair[1]["recall"])[:_MOST_LISTED]
    if details:
        headings = ("class", "images", "recall", _BOUNDS, "precision", _BOUNDS, "F1", _BOUNDS)
        rows = [
            (name, str(row["images"]), *(c for m in CLASS_METRICS for c in _cells(row, m)))
            for name, row in occurring
        ]
        return headings, rows
    also, others = () if found.get("labels") else ("mostly mistaken for",), mostly_taken_for(found)
    return ("class", "images", "recall", "precision", "F1", *also), [
        (
            name,
            str(row["images"]),
            *(_cells(row, metric)[0] for metric in CLASS_METRICS),
            *([others.get(name, "")] if also else ()),
        )
        for name, row in occurring
    ]


def _with_interval(found: Mapping[str, Any], name: str) -> str:
    """Return e.g. `94.3% (95% CI 92.9 to 95.5%)`."""
    bounds = found[f"{name}_interval"]
    return percent(found[name]) + (f" ({_BOUNDS} {interval(bounds)})" if bounds else "")


def _cells(row: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Return a metric of a class and its interval, or two empty strings if it is undefined."""
    value = row[name]
    return ("", "") if value is None else (percent(value), interval(row[f"{name}_interval"]))
