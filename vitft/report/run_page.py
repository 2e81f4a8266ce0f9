"""What each part of a run's page shows: plain values for the template, nothing for what is unknown.

A part that is None is left out of the page and of its contents.
"""

from collections import Counter
from itertools import pairwise
from typing import Any

from vitft.predict.validation import mistakes
from vitft.report import charts, summary
from vitft.report.advice import advise
from vitft.report.examples import Album, Part, confusion, suspects, worst_mistakes
from vitft.report.run_files import Run
from vitft.system.text import count, interval, percent, points


def report_view(run: Run) -> dict[str, Any]:
    """Everything the template of a run's page needs."""
    album = Album(run)
    return {
        "name": run.name,
        "title": f"{run.data_name or run.name}: what the model learned",
        "story": summary.story(run),
        "tiles": summary.tiles(run),
        "advice": advise(run),
        "balance": balance(run),
        "curves": epochs(run) or penalty_path(run),
        "per_class": per_class(run),
        "mistakes": worst_mistakes(run, album),  # before the others: its pictures matter most
        "suspects": suspects(run, album),
        "confusion": confusion(run, album),
        "confidence": confidence(run),
        "learning": learning(run),
        "again": again(run),
    }


def balance(run: Run) -> Part:
    """Images per class on both sides of the split, as bars."""
    if not run.rows:
        return None
    counts = Counter((row.label, row.split) for row in run.rows)
    totals = [counts[i, "train"] + counts[i, "val"] for i in range(len(run.classes))]
    most = max(totals)
    rows = [
        {
            "name": name,
            "train": counts[i, "train"],
            "val": counts[i, "val"],
            "train_width": round(100 * counts[i, "train"] / most, 2),
            "val_width": round(100 * counts[i, "val"] / most, 2),
        }
        for i, name in enumerate(run.classes)
    ]
    smallest, largest = min(totals), max(totals)
    text = f"Every class has {count(largest, 'image')}."
    if smallest != largest:
        few, many = run.classes[totals.index(smallest)], run.classes[totals.index(largest)]
        text = f"From {smallest:,} ({few}) to {largest:,} ({many}) images per class."
    return {"rows": rows, "text": text}


def epochs(run: Run) -> Part:
    """Loss and accuracy over the epochs."""
    needed = ("epoch", "train_loss", "val_loss", "train_top1", "val_top1")
    log = [line for line in run.log if all(line.get(key) is not None for key in needed)]
    if not log:
        return None

    xs = [line["epoch"] for line in log]
    if any(later <= earlier for earlier, later in pairwise(xs)):
        xs = list(range(1, len(log) + 1))  # trained in stages, each of which counts from one

    def pair(what: str) -> list[charts.Line]:
        return [
            ("training", "second", xs, [line[f"train_{what}"] for line in log]),
            ("validation", "accent", xs, [line[f"val_{what}"] for line in log]),
        ]

    best = run.figures.get("best_epoch")
    text = f"{count(len(log), 'epoch')}."
    if best:
        text += f" The weights of epoch {best} were kept: they did best on the held-back images."
    accuracy = charts.curves(
        "Accuracy over epochs", pair("top1"), x="epoch", y="accuracy", shares=True
    )
    return {
        "title": "Training curves",
        "text": text,
        "charts": [
            charts.curves("Loss over epochs", pair("loss"), x="epoch", y="loss (nats)"),
            accuracy,
        ],
        "columns": ["epoch", "training loss", "validation loss", "training", "validation"],
        "rows": [
            [
                x,
                f"{line['train_loss']:.4f}",
                f"{line['val_loss']:.4f}",
                percent(line["train_top1"]),
                percent(line["val_top1"]),
            ]
            for x, line in zip(xs, log, strict=True)
        ],
    }


def penalty_path(run: Run) -> Part:
    """The penalties that the solver tried by cross-validation."""
    log = [line for line in run.log if {"l2", "cv_top1", "cv_loss"} <= {*line}]
    if not log:
        return None
    best = run.figures.get("l2", 0.0)
    chart = charts.penalties(
        "Cross-validated accuracy over the penalty",
        [line["l2"] for line in log],
        [line["cv_top1"] for line in log],
        best,
    )
    return {
        "title": "How the head was fitted",
        "text": "The head was not trained in steps but solved to its optimum; its penalty was "
        "chosen by cross-validation on the training images alone, for the highest accuracy: "
        f"{best:g}.",
        "charts": [chart],
        "columns": ["penalty", "cross-validated loss", "cross-validated accuracy"],
        "rows": [
            [f"{line['l2']:g}", f"{line['cv_loss']:.4f}", percent(line["cv_top1"])] for line in log
        ],
    }


def per_class(run: Run) -> Part:
    """Recall, precision and F1 of each class, the weakest first."""
    tables = run.figures.get("per_class")
    if not tables:
        return None
    taken: dict[str, Counter[str]] = {}
    for verdict in mistakes(run.verdicts):
        taken.setdefault(verdict.label, Counter())[verdict.predicted] += 1
    train = Counter(run.classes[row.label] for row in run.rows if row.split == "train")
    rows = []
    for name, table in tables.items():
        confused = taken.get(name, Counter())
        most = [guess for guess, n in confused.items() if n == max(confused.values())]
        known = table.get("recall") is not None
        rows.append(
            {
                "name": name,
                "train": train[name],
                "images": table["images"],
                "recall": percent(table.get("recall")),
                "recall_sort": table["recall"] if known else -1,
                "recall_interval": interval(table["recall_interval"], 0) if known else "",
                "precision": percent(table.get("precision")),
                "precision_sort": table["precision"] if table.get("precision") is not None else -1,
                "precision_interval": interval(table.get("precision_interval"), 0),
                "f1": percent(table.get("f1")),
                "f1_interval": interval(table.get("f1_interval"), 0),
                "f1_sort": table["f1"] if table.get("f1") is not None else -1,
                "taken_for": f"{' or '.join(most[:3])} ({confused[most[0]]})" if most else "",
            }
        )
    rows.sort(key=lambda row: (row["recall_sort"] < 0, row["recall_sort"], row["name"]))
    has_f1 = any(table.get("f1") is not None for table in tables.values())
    return {"rows": rows, "f1": has_f1}


def confidence(run: Run) -> Part:
    """Whether 90 % sure means right nine times in ten."""
    table = run.figures.get("calibration") or {}
    bins = [b for b in table.get("bins") or [] if b.get("images")]
    if not bins or table.get("ece") is None:
        return None
    label = "Share of right answers over their confidence"
    bounds = interval(table.get("ece_interval"))
    text = f"On average confidence and accuracy lie {points(table['ece']).lstrip('+')} apart"
    if table["ece"] < 0.0005:
        text = "No distance between confidence and accuracy could be measured"
    text += f" (95 % interval {bounds})." if bounds else "."
    before, temperature = table.get("ece_before"), table.get("temperature")
    if before is not None and temperature not in (None, 1.0):
        text += (
            f" Before the scores were divided by {temperature:.2f}, the temperature fitted on the "
            f"validation images, it was {points(before).lstrip('+')}."
        )
    return {
        "text": text,
        "chart": charts.reliability(label, bins),
        "columns": ["confidence", "images", "mean confidence", "right"],
        "rows": [
            [
                f"{percent(b['low'], 0)} to {percent(b['high'], 0)}",
                b["images"],
                percent(b.get("confidence")),
                percent(b.get("accuracy")),
            ]
            for b in bins
        ],
    }


def learning(run: Run) -> Part:
    """Accuracy over the number of training images."""
    more = run.figures.get("cross_validation") or {}
    curve = more.get("curve") or []
    if len(curve) < 2:
        return None
    gain = more.get("gain_from_twice")
    points_of = [(p["images"], p["top1"]) for p in curve]
    beyond = (2 * points_of[-1][0], points_of[-1][1] + gain) if gain is not None else None
    text = "Cross-validated accuracy of the head when it learns from fewer of the images."
    if gain is not None:
        text += (
            f" Twice the images would bring about {points(gain)}: an extrapolation by a power law."
        )
    elif all(b["top1"] <= a["top1"] for a, b in pairwise(curve[-3:])):
        text += " It has stopped rising."
    return {
        "text": text,
        "chart": charts.learning("Accuracy over training images", points_of, beyond),
        "columns": ["training images", "accuracy"],
        "rows": [[f"{images:,}", percent(top1)] for images, top1 in points_of],
    }


def again(run: Run) -> Part:
    """Command, settings, versions and digests."""
    return {
        "command": summary.command_of(run.config) if run.config else "",
        "config": run.config_text.splitlines(),
        "versions": summary.versions(run),
        "digests": summary.digests(run),
        "seconds": run.figures.get("seconds"),
    }
