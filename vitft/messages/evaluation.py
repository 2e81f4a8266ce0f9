"""What `vitft evaluate` shows: labelled rows, the details of -v, tables, and rows of CSV."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vitft.messages.results import (
    TOP5,
    Rows,
    calibration_text,
    metric_lines,
    result_rows,
    with_interval,
)
from vitft.metrics.results import Results, mostly_taken_for
from vitft.system.text import count, interval, percent, points

_MOST_LISTED = 30  # maximum number of classes in the table
_CLASS_METRICS = ("recall", "precision", "f1")
_BOUNDS = "95% CI"


def evaluation_rows(results: Results, found: Mapping[str, Any]) -> Rows:
    """Return the accuracy of an evaluation, and what was measured besides."""
    rows, sizes = result_rows(results), {row["images"] for row in found["per_class"].values()}
    if "labels" not in found and len(sizes - {0}) > 1:
        rows.append(("Balanced", f"{with_interval(found, 'balanced')}, mean of the recalls"))
    if two := found.get("two_classes"):
        rows.append(("AUROC", with_interval(two, "auroc")))
    if by_group := found.get("by_group"):
        rows.append(("Groups", _groups_text(by_group)))
    if kept := found.get("kept"):
        part = f"{percent(kept['fraction'])} are kept at threshold {percent(kept['threshold'])}"
        right = f", {with_interval(kept, 'top1')} of them are right" if kept["images"] else ""
        rows.append(("Kept", part + right))
    return rows


def _groups_text(found: Mapping[str, Any]) -> str:
    """Return the accuracy of the answers for groups, or why there is none."""
    groups, several, without = (found[name] for name in ("groups", "several", "ungrouped"))
    left = ""
    if groups:
        text = f"{with_interval(found, 'top1')} of {count(groups, 'group')}, one answer each"
        verb = "has" if several == 1 else "have"
        left = f"{count(several, 'group')} {verb} several labels" * bool(several)
    elif several:
        which = "the only group" if several == 1 else f"all {several:,} groups"
        text = f"not measured: the images of {which} have different labels"
    else:
        text = "not measured: every group has one image"
    ungrouped = f"{count(without, 'image')} without a group" * bool(without)
    return ". ".join(filter(None, (text, ", ".join(filter(None, (left, ungrouped))))))


def evaluation_details(results: Results, found: Mapping[str, Any]) -> list[str]:
    """Return the other metrics of an evaluation, one per line."""
    lines, labels = metric_lines(results, found), found.get("labels")
    if labels:
        lines.append(f"F1 over all decisions: {with_interval(labels, 'micro_f1')}")
    elif found["top5"] is not None:
        lines.append(f"{TOP5}: {with_interval(found, 'top5')}")
    two = found.get("two_classes") or {"classes": {}}
    for name, row in two["classes"].items():
        lines.append(f"average precision of {name}: {with_interval(row, 'ap')}")
        rate = f"sensitivity for {name} at {percent(two['specificity'])} specificity"
        lines.append(f"{rate}: {with_interval(row, 'sensitivity')}")
    bounds = found["loss_interval"]
    ends = f"{_BOUNDS} {bounds[0]:.3f} to {bounds[1]:.3f}" if bounds else "too few groups for a CI"
    lines.append(f"log-loss: {found['loss']:.3f} nats ({ends})")
    return [*lines, calibration_text(found)]


def class_table(
    found: Mapping[str, Any], *, details: bool
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the headings and rows of a table of up to `_MOST_LISTED` classes of the lowest recall.

    With `details`, each metric has its interval, otherwise each class its most frequent mistake.
    """
    occurring = [(name, row) for name, row in found["per_class"].items() if row["images"]]
    if len(occurring) > _MOST_LISTED:
        occurring = sorted(occurring, key=lambda pair: pair[1]["recall"])[:_MOST_LISTED]
    others, with_others = mostly_taken_for(found), not details and not found.get("labels")
    headings, rows = ["class", "images"], []
    for heading in ("recall", "precision", "F1"):
        headings += [heading, _BOUNDS] if details else [heading]
    for name, row in occurring:
        cells = [name, str(row["images"])]
        for metric in _CLASS_METRICS:
            value, bounds = row[metric], row[f"{metric}_interval"]
            cells.append("" if value is None else percent(value))
            cells += ["" if value is None else interval(bounds)] * details
        rows.append((*cells, *[others.get(name, "")] * with_others))
    return (*headings, *["mostly predicted as"] * with_others), rows


def by_table(found: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the headings and rows of a table of up to `_MOST_LISTED` values of lowest accuracy."""
    values = sorted(found["values"].items(), key=lambda pair: pair[1]["top1"])[:_MOST_LISTED]
    rows = []
    for value, row in values:
        cells = [
            value or "(none)",
            f"{row['images']:,}",
            percent(row["top1"]),
            interval(row["top1_interval"]),
        ]
        if row["p_holm"] is not None:
            p = f"{row['p_holm']:.3f}" if row["p_holm"] >= 0.001 else "< 0.001"
            bounds = " to ".join(map(points, row["difference_interval"]))
            cells += [points(row["difference"]), bounds, p]
        rows.append(tuple(cells))
    headings = (found["column"], "images", "accuracy", _BOUNDS, "minus others", _BOUNDS, "p (Holm)")
    return headings[: len(rows[0])], rows


def long_table(results: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    """Yield rows: a header, then the overall and per-class metrics; undefined values are empty."""
    several, kept = results.get("labels") or {}, results.get("kept") or {}
    by_group, by = results.get("by_group") or {}, results.get("by") or {"values": {}}
    two = results.get("two_classes") or {"classes": {}}
    groups: list[tuple[str, str, Mapping[str, Any], Sequence[str]]] = [
        ("", "", results, ("images", "top1", "top5", "balanced", "loss")),
        ("", "", several, ("map", "macro_f1", "micro_f1") if "map" in several else ()),
        ("", "", kept, ("threshold",)),
        ("kept_", "", kept, ("images", "fraction", "top1")),
        ("", "", results["calibration"], ("ece", "ece_before")),
        ("group_", "", by_group, ("groups", "several", "ungrouped", "top1", "confidence")),
        ("", "", two, ("auroc", "specificity") if "auroc" in two else ()),
    ]
    for label, row in results["per_class"].items():
        groups.append(("", label, row, ("images", *_CLASS_METRICS)))
        groups.append(("", label, several.get("per_label", {}).get(label, {}), ("ap",)))
        groups.append(("", label, two["classes"].get(label, {}), ("ap", "sensitivity")))
    for row in results.get("levels") or ():
        name, kept = str(row["level"]), row["kept"] or {}
        groups.append(("level_", name, row, ("classes", "top1")))
        groups.append(("level_kept_", name, kept, ("threshold", "images", "fraction", "top1")))
    for value, row in by["values"].items():
        groups.append(("by_", value, row, ("images", "top1", "difference", "p_holm")))
    yield "figure", "class", "value", "low", "high"
    for prefix, label, found, names in groups:
        for name in names if found else ():
            bounds = found.get(f"{name}_interval") or ("", "")
            yield f"{prefix}{name}", label, "" if found[name] is None else found[name], *bounds
