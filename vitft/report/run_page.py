"""The page of a run: its sections as plain values for the template.

A section without data is None, and is left out of the page and its contents.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from vitft.metrics.results import ClassMetrics
from vitft.predict.validation import least_confident, mistakes
from vitft.report import charts
from vitft.report.advice import advise
from vitft.report.confusion import confusion_of
from vitft.report.reproduce import command_of, digests, environment_rows
from vitft.report.run_files import Run
from vitft.report.summary import key_figures, summary_sentences
from vitft.report.thumbnails import Thumbnails
from vitft.system.text import count, interval, percent, points

MAX_WITH_ATTENTION = 24
"""Mistakes shown with their attention map."""
MAX_MISTAKES = 300
MAX_FINDINGS = 40
"""Findings shown of each kind."""
LABEL_CHECKING_STAGES = frozenset({"head", "pre_logits"})
"""Values of `train.freeze` with which a run checks its labels."""
NO_FINDINGS: Mapping[str, object] = {"bad": [], "odd": [], "duplicates": [], "mislabels": []}
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
class ClassRow:
    """A row of the table of classes."""

    name: str
    train: int
    """Training images."""
    metrics: ClassMetrics
    confused_with: str


def run_page(run: Run) -> dict[str, object]:
    """Return the values of the template `report.html.j2`."""
    wrong = mistakes(run.predictions)
    freeze = str(run.setting("train", "freeze") or "")
    return {
        "name": run.name,
        "title": f"{run.data_name or run.name}: training report",
        "summary": summary_sentences(run),
        "figures": key_figures(run),
        "advice": advise(run),
        "thumbnails": Thumbnails([run]),
        "class_index": {name: i for i, name in enumerate(run.classes)},
        "num_mistakes": len(wrong),
        "mistakes": wrong[:MAX_MISTAKES],
        "with_attention": MAX_WITH_ATTENTION,
        "has_attention": any(
            run.thumbnail(one.sha256, attention=True) for one in wrong[:MAX_WITH_ATTENTION]
        ),
        "confusion": confusion_of(run),
        "least_confident": least_confident(run.predictions, per_class=3, most=60),
        "classes": class_rows(run),
        "audit": {**NO_FINDINGS, **run.audit} if run.audit else None,
        "max_findings": MAX_FINDINGS,
        "labels_checked": set(freeze.split(",")) <= LABEL_CHECKING_STAGES,
        "charts": {
            "confidence": confidence_section(run),
            "learning": learning_section(run),
            "training": epochs_section(run) or penalty_section(run),
        },
        "balance": balance_section(run),
        "command": command_of(run.config) if run.config else "",
        "seconds": run.results.get("seconds") if run.results else None,
        "environment": environment_rows(run),
        "digests": digests(run),
        "config": run.config_text.splitlines(),
    }


def balance_section(run: Run) -> tuple[str, list[tuple[str, int, int, float, float]]] | None:
    """Return the number of images per class as a sentence and as bars.

    Returns:
        The sentence, and for each class its name, training images, validation images, and the
        lengths of both bars in percent; None without a split.
    """
    if not run.rows:
        return None
    counts = Counter((row.label, row.split) for row in run.rows)
    totals = [counts[i, "train"] + counts[i, "val"] for i in range(len(run.classes))]
    smallest, largest = min(totals), max(totals)
    rows = []
    for i, name in enumerate(run.classes):
        train, val = counts[i, "train"], counts[i, "val"]
        rows.append(
            (name, train, val, round(100 * train / largest, 2), round(100 * val / largest, 2))
        )
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

    def values(metric: str) -> tuple[list[float], list[float]]:
        return [line[f"train_{metric}"] for line in log], [line[f"val_{metric}"] for line in log]

    best = run.results.get("best_epoch") if run.results else None
    text = f"The run trained for {count(len(log), 'epoch')}."
    if best:
        text += f" The saved weights are those of epoch {best}, the best on the validation images."
    return ChartSection(
        title="Training curves",
        text=text,
        charts=[
            charts.epoch_chart("Loss by epoch", xs, *values("loss"), y="loss (nats)"),
            charts.epoch_chart(
                "Accuracy by epoch", xs, *values("top1"), y="accuracy", is_percent=True
            ),
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
    confusions: dict[str, Counter[str]] = {}
    for one in mistakes(run.predictions):
        confusions.setdefault(one.label, Counter())[one.predicted] += 1
    train = Counter(run.classes[row.label] for row in run.rows if row.split == "train")
    rows = []
    per_class = run.results.get("per_class", {}) if run.results else {}
    for name, metrics in per_class.items():
        confused = confusions.get(name, Counter())
        most = [guess for guess, n in confused.items() if n == max(confused.values())]
        with_ = f"{' or '.join(most[:3])} ({confused[most[0]]})" if most else "–"
        rows.append(ClassRow(name=name, train=train[name], metrics=metrics, confused_with=with_))

    def order(row: ClassRow) -> tuple[bool, float, str]:
        recall = row.metrics.get("recall")
        return recall is None, recall or 0.0, row.name

    return sorted(rows, key=order)


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
