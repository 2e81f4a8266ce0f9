"""The page of a run: its sections as plain values for the template.

A section without data is None, and is left out of the page and its contents.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from vitft.predict.validation import mistakes
from vitft.report import charts
from vitft.report.advice import advise
from vitft.report.examples import Thumbnails, audit_section, confusion_section, mistakes_section
from vitft.report.reproduce import reproduce_section
from vitft.report.run_files import Run
from vitft.report.summary import key_figures, summary_sentences
from vitft.system.text import count, interval, percent, points

NO_CHANGE = 0.0005
"""A calibration error below this is displayed as 0.0 points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSection:
    """A section with text, charts and a table of the values in them."""

    title: str
    text: str
    charts: list[str]
    caption: str = ""
    columns: list[str]
    rows: list[list[str | int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceRow:
    """Images of a class, and the lengths of their bars in percent."""

    name: str
    train: int
    val: int
    train_width: float
    val_width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCell:
    """A metric with its interval, and a number to sort by."""

    text: str
    interval: str
    sort: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    """Metrics of a class."""

    name: str
    train: int
    """Training images."""
    images: int
    """Validation images."""
    recall: MetricCell
    precision: MetricCell
    f1: MetricCell
    confused_with: str


def run_page(run: Run) -> dict[str, object]:
    """Return the values of the template `report.html.j2`."""
    thumbnails = Thumbnails(run)
    return {
        "name": run.name,
        "title": f"{run.data_name or run.name}: training report",
        "summary": summary_sentences(run),
        "figures": key_figures(run),
        "advice": advise(run),
        "balance": balance_section(run),
        "training": epochs_section(run) or penalty_section(run),
        "classes": class_rows(run),
        "mistakes": mistakes_section(run, thumbnails),  # first: its thumbnails matter most
        "audit": audit_section(run, thumbnails),
        "confusion": confusion_section(run, thumbnails),
        "confidence": confidence_section(run),
        "learning": learning_section(run),
        "reproduce": reproduce_section(run),
    }


def balance_section(run: Run) -> tuple[str, list[BalanceRow]] | None:
    """Return the number of images per class as a sentence and as bars."""
    if not run.rows:
        return None
    counts = Counter((row.label, row.split) for row in run.rows)
    totals = [counts[i, "train"] + counts[i, "val"] for i in range(len(run.classes))]
    smallest, largest = min(totals), max(totals)
    rows = [
        BalanceRow(
            name=name,
            train=counts[i, "train"],
            val=counts[i, "val"],
            train_width=round(100 * counts[i, "train"] / largest, 2),
            val_width=round(100 * counts[i, "val"] / largest, 2),
        )
        for i, name in enumerate(run.classes)
    ]
    text = f"Every class has {count(largest, 'image')}."
    if smallest != largest:
        few, many = run.classes[totals.index(smallest)], run.classes[totals.index(largest)]
        text = f"From {smallest:,} ({few}) to {count(largest, 'image')} ({many}) per class."
    return text, rows


def epochs_section(run: Run) -> ChartSection | None:
    """Return loss and accuracy over the epochs."""
    needed = ("epoch", "train_loss", "val_loss", "train_top1", "val_top1")
    log = [line for line in run.log if all(line.get(key) is not None for key in needed)]
    if not log:
        return None

    xs = [line["epoch"] for line in log]
    if any(later <= earlier for earlier, later in pairwise(xs)):
        xs = list(range(1, len(log) + 1))  # each stage of a training counts from 1

    def lines(metric: str) -> list[charts.Line]:
        return [
            charts.Line("training", "second", xs, [line[f"train_{metric}"] for line in log]),
            charts.Line("validation", "accent", xs, [line[f"val_{metric}"] for line in log]),
        ]

    best = run.results.get("best_epoch") if run.results else None
    text = f"The run trained for {count(len(log), 'epoch')}."
    if best:
        text += f" The saved weights are those of epoch {best}, the best on the validation images."
    return ChartSection(
        title="Training curves",
        text=text,
        charts=[
            charts.epoch_chart("Loss by epoch", lines("loss"), y="loss (nats)"),
            charts.epoch_chart("Accuracy by epoch", lines("top1"), y="accuracy", is_percent=True),
        ],
        columns=[
            "epoch",
            "training loss",
            "validation loss",
            "training accuracy",
            "validation accuracy",
        ],
        rows=[
            [
                x,
                f"{line['train_loss']:.4f}",
                f"{line['val_loss']:.4f}",
                percent(line["train_top1"]),
                percent(line["val_top1"]),
            ]
            for x, line in zip(xs, log, strict=True)
        ],
    )


def penalty_section(run: Run) -> ChartSection | None:
    """Return the penalties that the solver compared by cross-validation."""
    log = [line for line in run.log if {"l2", "cv_top1", "cv_loss"} <= {*line}]
    if not log:
        return None
    best = run.results.get("l2", 0.0) if run.results else 0.0
    chart = charts.penalty_chart(
        "Cross-validated accuracy by penalty",
        [line["l2"] for line in log],
        [line["cv_top1"] for line in log],
        best,
    )
    return ChartSection(
        title="How the head was fitted",
        text="The head was not trained in steps but solved to its optimum. Cross-validation on the "
        f"training images selected the L2 penalty with the highest accuracy: {best:g}.",
        charts=[chart],
        columns=["penalty", "cross-validated loss", "cross-validated accuracy"],
        rows=[
            [f"{line['l2']:g}", f"{line['cv_loss']:.4f}", percent(line["cv_top1"])] for line in log
        ],
    )


def class_rows(run: Run) -> list[ClassRow]:
    """Return recall, precision and F1 of each class, the lowest recall first."""
    tables = run.results.get("per_class") if run.results else None
    confusions: dict[str, Counter[str]] = {}
    for one in mistakes(run.predictions):
        confusions.setdefault(one.label, Counter())[one.predicted] += 1
    train = Counter(run.classes[row.label] for row in run.rows if row.split == "train")
    rows = []
    for name, table in (tables or {}).items():
        confused = confusions.get(name, Counter())
        most = [guess for guess, n in confused.items() if n == max(confused.values())]
        rows.append(
            ClassRow(
                name=name,
                train=train[name],
                images=table["images"],
                recall=metric_cell(table.get("recall"), table.get("recall_interval")),
                precision=metric_cell(table.get("precision"), table.get("precision_interval")),
                f1=metric_cell(table.get("f1"), table.get("f1_interval")),
                confused_with=f"{' or '.join(most[:3])} ({confused[most[0]]})" if most else "–",
            )
        )
    return sorted(rows, key=lambda row: (row.recall.sort < 0, row.recall.sort, row.name))


def metric_cell(value: float | None, bounds: Sequence[float] | None) -> MetricCell:
    """Return a metric as text; without a value it sorts below 0."""
    if value is None:
        return MetricCell(text=percent(None), interval="", sort=-1)
    return MetricCell(text=percent(value), interval=interval(bounds, 0), sort=value)


def confidence_section(run: Run) -> ChartSection | None:
    """Return how well the confidence of predictions agrees with their accuracy."""
    calibration = run.results.get("calibration") if run.results else None
    if not calibration or calibration.get("ece") is None:
        return None
    bins = [b for b in calibration.get("bins") or [] if b.get("images")]
    if not bins:
        return None
    error, bounds = calibration["ece"], interval(calibration.get("ece_interval"))
    text = f"On average, confidence and accuracy differ by {points(error).lstrip('+')}"
    if error < NO_CHANGE:
        text = "No difference between confidence and accuracy was measurable"
    text += f" (95 % interval: {bounds})." if bounds else "."
    before, temperature = calibration.get("ece_before"), calibration.get("temperature")
    if before is not None and temperature not in (None, 1.0):
        text += (
            f" The logits are divided by a temperature of {temperature:.2f}, which was fitted to "
            f"the validation images; without it, the difference was {points(before).lstrip('+')}."
        )
    return ChartSection(
        title="Can its confidence be trusted?",
        text=text,
        charts=[charts.reliability_diagram("Accuracy by confidence", bins)],
        caption="Points above the diagonal: more accurate than confident. Below: less accurate.",
        columns=["confidence", "images", "mean confidence", "accuracy"],
        rows=[
            [
                f"{percent(b['low'], 0)} to {percent(b['high'], 0)}",
                b["images"],
                percent(b.get("confidence")),
                percent(b.get("accuracy")),
            ]
            for b in bins
        ],
    )


def learning_section(run: Run) -> ChartSection | None:
    """Return the accuracy by number of training images."""
    more = run.results.get("cross_validation") if run.results else None
    curve = (more.get("curve") or []) if more else []
    if not more or len(curve) < 2:
        return None
    gain = more.get("gain_from_twice")
    measured = [(point["images"], point["top1"]) for point in curve]
    last = measured[-1]
    extrapolated = (2 * last[0], last[1] + gain) if gain is not None else None
    text = "Cross-validated accuracy of heads that were fitted to fewer of the images."
    if gain is not None:
        text += (
            f" Twice as many images would bring about {points(gain)}, extrapolated by a power law."
        )
    elif all(b["top1"] <= a["top1"] for a, b in pairwise(curve[-3:])):
        text += " The curve has stopped rising."
    return ChartSection(
        title="Would more images help?",
        text=text,
        charts=[charts.learning_curve_chart("Accuracy by training images", measured, extrapolated)],
        columns=["training images", "accuracy"],
        rows=[[f"{images:,}", percent(top1)] for images, top1 in measured],
    )
