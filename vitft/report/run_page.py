"""HTML page of a run: its sections as plain values for the template.

A section without data is None or empty, and is omitted from the page and its table of contents.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from vitft.metrics.results import CalibrationMetrics, ClassMetrics
from vitft.predict.validation import least_confident, mistakes
from vitft.report import charts
from vitft.report.advice import advise
from vitft.report.html import render
from vitft.report.palette import NUM_SHADES
from vitft.report.reproduce import command_of, digests, environment_rows
from vitft.report.run_files import Run, Thumbnails, read_run
from vitft.report.summary import key_figures, summary_sentences
from vitft.system.files import write_atomically
from vitft.system.text import count, interval, percent, points

MAX_WITH_ATTENTION, MAX_MISTAKES = 24, 300
"""Maximum number of mistakes with an attention map, and maximum number of mistakes shown."""
MAX_FINDINGS = 40
"""Maximum number of findings of each kind that are shown."""
MAX_MATRIX_CLASSES, MAX_PAIRS = 20, 30
"""With more than `MAX_MATRIX_CLASSES` classes, the page lists up to `MAX_PAIRS` confused pairs
instead of the matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSection:
    """A section with text, charts and a table of the charted values."""

    title: str
    text: str
    charts: list[str]
    caption: str = ""
    columns: list[str]
    rows: list[list[str | int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    """A row in the table of classes."""

    name: str
    train: int
    metrics: ClassMetrics
    confused_with: str
    ap: str = ""
    """Average precision of one of several labels with its interval."""
    threshold: str = ""
    """Minimum probability at which one of several labels is assigned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionCell:
    """A true class and a predicted class, with the number of images."""

    label: str
    predicted: str
    count: int
    fraction: str
    """Number of images as a percentage of the true class's images."""
    cell: str
    """Position in the matrix, as `row-column`."""
    shade: str
    """CSS class of the background; empty for a count of 0."""
    text: str


@dataclass(frozen=True, slots=True)
class Confusion:
    """The confusion matrix (empty if there are many classes) and the most confused pairs."""

    matrix: list[list[ConfusionCell]]
    pairs: list[ConfusionCell]
    more: int
    """Number of confused pairs that are not shown."""


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the page of a run and return the path of the page.

    The default path is `report.html` in the run directory.

    Raises:
        RunError: A file of the run is damaged, or the page cannot be written.
        ResourceError: The disk is full.
    """
    path = out or run / "report.html"
    write_atomically(path, render("report.html.j2", run_page(read_run(run))))
    return path


def run_page(run: Run) -> dict[str, object]:
    """Return the values for the template `report.html.j2`."""
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
        "several": run.several,
        "num_mistakes": len(wrong),
        "mistakes": wrong[:MAX_MISTAKES],
        "with_attention": MAX_WITH_ATTENTION,
        "has_attention": any(
            run.thumbnail(one.sha256, attention=True) for one in wrong[:MAX_WITH_ATTENTION]
        ),
        "confusion": confusion_of(run),
        "least_confident": least_confident(run.predictions, per_class=3, most=60),
        "classes": class_rows(run),
        "audit": run.audit,
        "max_findings": MAX_FINDINGS,
        "labels_checked": set(freeze.split(",")) <= {"head", "pre_logits"},
        "charts": {
            "confidence": confidence_section(run),
            "learning": learning_section(run),
            "training": epochs_section(run) or penalty_section(run),
        },
        "balance": balance_section(run),
        "command": command_of(run.config) if run.config else "",
        "seconds": run.results.get("seconds"),
        "environment": environment_rows(run),
        "digests": digests(run),
        "config": run.config_text.splitlines(),
    }


def balance_section(run: Run) -> tuple[str, list[tuple[str, int, int, float, float]]] | None:
    """Return a sentence about the class sizes and one bar per class, or None if there is no split.

    Each bar is a tuple: the class name, the numbers of training and validation images, and both
    numbers as percentages of the number of images in the largest class.
    """
    if not run.rows:
        return None
    counts = Counter((name, row.split) for row in run.rows for name in run.split.names(row))
    totals = [counts[name, "train"] + counts[name, "val"] for name in run.classes]
    smallest, largest = min(totals), max(totals)
    rows = []
    for name in run.classes:
        train, val = counts[name, "train"], counts[name, "val"]
        widths = round(100 * train / largest, 2), round(100 * val / largest, 2)
        rows.append((name, train, val, *widths))
    text = f"Every class has {count(largest, 'image')}."
    if smallest != largest:
        few, many = run.classes[totals.index(smallest)], run.classes[totals.index(largest)]
        text = f"Class sizes range from {smallest:,} ({few}) to {count(largest, 'image')} ({many})."
    return text, rows


def epochs_section(run: Run) -> ChartSection | None:
    """Return the section on loss and accuracy by epoch, or None if the log has no epochs."""
    needed = ("epoch", "train_loss", "val_loss", "train_top1", "val_top1")
    log = [line for line in run.log if all(line.get(key) is not None for key in needed)]
    if not log:
        return None
    xs = [line["epoch"] for line in log]
    if any(later <= earlier for earlier, later in pairwise(xs)):
        xs = list(range(1, len(log) + 1))  # in the log, each training stage counts from 1

    loss = [[line[key] for line in log] for key in ("train_loss", "val_loss")]
    top1 = [[line[key] for line in log] for key in ("train_top1", "val_top1")]
    parts = ("training", "validation")
    best = run.results.get("best_epoch")
    text = f"The run trained for {count(len(log), 'epoch')}."
    if planned := epochs_not_trained(run, len(log)):
        text = f"The run stopped early, after {len(log)} of {planned} epochs: {without_gain(run)}."
    if best:
        text += f" The saved weights come from epoch {best}, the best on the validation images."
    return ChartSection(
        title="Training curves",
        text=text,
        charts=[
            charts.epoch_chart("Loss by epoch", xs, *loss, y="loss (nats)"),
            charts.epoch_chart("Accuracy by epoch", xs, *top1, y="accuracy", is_percent=True),
        ],
        columns=["epoch", *(f"{p} loss" for p in parts), *(f"{p} accuracy" for p in parts)],
        rows=[
            [x, f"{a:.4f}", f"{b:.4f}", percent(c), percent(d)]
            for x, a, b, c, d in zip(xs, *loss, *top1, strict=True)
        ],
    )


def epochs_not_trained(run: Run, trained: int) -> int:
    """Return the planned number of epochs if a finished run stopped early, otherwise 0."""
    stages = [s for s in str(run.setting("train", "freeze") or "").split(",") if s != "head"]
    planned = int(run.setting("optim", "epochs") or 0) * max(1, len(stages))
    is_finished = run.environment.get("status") == "finished"
    is_early = bool(run.setting("optim", "patience")) and trained < planned
    return planned if is_finished and is_early else 0


def without_gain(run: Run) -> str:
    """Return the reason for stopping early."""
    return f"no improvement in {count(int(run.setting('optim', 'patience') or 0), 'epoch')}"


def penalty_section(run: Run) -> ChartSection | None:
    """Return the section on penalties compared by cross-validation, or None if there are none."""
    log = [line for line in run.log if {"l2", "cv_top1", "cv_loss"} <= {*line}]
    if not log:
        return None
    best, label = run.results.get("l2", 0.0), "Cross-validated accuracy by penalty"
    penalties, accuracies = [line["l2"] for line in log], [line["cv_top1"] for line in log]
    chosen = f"the L2 penalty with the highest accuracy: {best:g}"
    if run.several:
        chosen = f"for each label, the L2 penalty with the lowest loss; their median is {best:g}"
    return ChartSection(
        title="How the head was fitted",
        text="The head was fitted to convergence by L-BFGS. Cross-validation on the "
        f"training images selected {chosen}.",
        charts=[charts.penalty_chart(label, penalties, accuracies, best)],
        columns=["penalty", "cross-validated loss", "cross-validated accuracy"],
        rows=[
            [f"{line['l2']:g}", f"{line['cv_loss']:.4f}", percent(line["cv_top1"])] for line in log
        ],
    )


def class_rows(run: Run) -> list[ClassRow]:
    """Return a table row for each class, lowest recall first and undefined recalls last."""
    several = run.results.get("labels")
    by_label = several["per_label"] if several else {}
    confusions: dict[str, Counter[str]] = {}
    for one in mistakes(run.predictions):
        confusions.setdefault(one.label, Counter())[one.predicted] += 1
    own = (run.split.names(row) for row in run.rows if row.split == "train")
    train = Counter(name for names in own for name in names)
    rows = []
    for name, metrics in run.results.get("per_class", {}).items():
        confused = confusions.get(name, Counter())
        most = [guess for guess, n in confused.items() if n == max(confused.values())]
        with_ = f"{' or '.join(most[:3])} ({confused[most[0]]})" if most else "–"
        found = by_label.get(name)
        rows.append(
            ClassRow(
                name=name,
                train=train[name],
                metrics=metrics,
                confused_with=with_,
                ap=f"{percent(found['ap'])} ({interval(found['ap_interval'], 0)})" if found else "",
                threshold=percent(found.get("threshold"), 0) if found else "",
            )
        )

    def order(row: ClassRow) -> tuple[bool, float, str]:
        recall = row.metrics.get("recall")
        return recall is None, recall or 0.0, row.name

    return sorted(rows, key=order)


def confusion_of(run: Run) -> Confusion | None:
    """Return the confusions of a run, or None if it has neither predictions nor a matrix.

    If images may have several labels, there are no confusions, because a wrong label does not
    replace another one.
    """
    if run.several:
        return None
    counts = confusion_counts(run)
    if not counts:
        return None
    totals = Counter[int]()
    for (i, _), n in counts.items():
        totals[i] += n

    def cell(i: int, j: int) -> ConfusionCell:
        n, total = counts.get((i, j), 0), totals[i]
        label, predicted = run.classes[i], run.classes[j]
        shade = min(NUM_SHADES - 1, int(n / total * NUM_SHADES)) if n else 0
        result = "classified correctly" if i == j else f"classified as {predicted}"
        return ConfusionCell(
            label=label,
            predicted=predicted,
            count=n,
            fraction=percent(n / total, 0) if total else "",
            cell=f"{i}-{j}",
            shade=f"{'right' if i == j else 'wrong'}-{shade}" if n else "",
            text=f"{n} of {total} images of {label} {result}",
        )

    pairs = sorted((-n, n, i, j) for (i, j), n in counts.items() if i != j)
    indices = range(len(run.classes) if len(run.classes) <= MAX_MATRIX_CLASSES else 0)
    return Confusion(
        matrix=[[cell(i, j) for j in indices] for i in indices],
        pairs=[cell(i, j) for _, _, i, j in pairs[:MAX_PAIRS]],
        more=max(0, len(pairs) - MAX_PAIRS),
    )


def confusion_counts(run: Run) -> Mapping[tuple[int, int], int]:
    """Count the images by index of the true class and of the predicted class, omitting zeros."""
    if run.predictions:
        index = {name: i for i, name in enumerate(run.classes)}
        return Counter((index[one.label], index[one.predicted]) for one in run.predictions)
    table = run.results.get("confusion") or []
    if len(table) != len(run.classes):
        return {}
    return {(i, j): n for i, row in enumerate(table) for j, n in enumerate(row) if n}


def confidence_section(run: Run) -> ChartSection | None:
    """Return the section on calibration, or None if the calibration error is unknown."""
    calibration = run.results.get("calibration")
    if not calibration or calibration.get("ece") is None:
        return None
    bins = [b for b in calibration.get("bins") or [] if b.get("images")]
    if not bins:
        return None
    error, bounds = calibration["ece"], interval(calibration.get("ece_interval"))
    text = f"On average, confidence and accuracy differ by {points(error).lstrip('+')}"
    if error < 0.0005:  # displayed as 0.0 points
        text = "No difference between confidence and accuracy could be measured"
    text += f" (95% interval: {bounds})." if bounds else "."
    before, temperature = calibration.get("ece_before"), calibration.get("temperature")
    if before is not None and temperature not in (None, 1.0):
        text += (
            f" The logits are divided by a temperature of {temperature:.2f}, which was fitted to "
            f"{calibration_images(calibration)}; without it, the difference was "
            f"{points(before).lstrip('+')}."
        )
    return ChartSection(
        title="Is the confidence reliable?",
        text=text,
        charts=[charts.reliability_diagram("Accuracy by confidence", bins)],
        caption="Points above the diagonal: underconfident. Points below: overconfident.",
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


def calibration_images(calibration: CalibrationMetrics) -> str:
    """Describe the images to which the temperature was fitted."""
    more = calibration.get("cross_validated")
    if not more:
        return "the validation images"
    return (
        "the validation images and the cross-validated predictions for "
        f"{count(more, 'training image')}"
    )


def learning_section(run: Run) -> ChartSection | None:
    """Return the section on accuracy by number of training images, or None if it is unknown."""
    more = run.results.get("cross_validation")
    curve = (more.get("curve") or []) if more else []
    if not more or len(curve) < 2:
        return None
    gain = more.get("gain_from_twice")
    measured = [(point["images"], point["top1"]) for point in curve]
    last = measured[-1]
    extrapolated = (2 * last[0], last[1] + gain) if gain is not None else None
    text = "Cross-validated accuracy of heads fitted to subsets of the images."
    if gain is not None:
        text += (
            f" Twice as many images would improve the accuracy by about {points(gain).lstrip('+')} "
            "(extrapolated with a power law)."
        )
    elif all(b["top1"] <= a["top1"] for a, b in pairwise(curve[-3:])):
        text += " The curve has stopped rising."
    return ChartSection(
        title="Would more images help?",
        text=text,
        charts=[
            charts.learning_curve_chart(
                "Accuracy by number of training images", measured, extrapolated
            )
        ],
        columns=["training images", "accuracy"],
        rows=[[f"{images:,}", percent(top1)] for images, top1 in measured],
    )
