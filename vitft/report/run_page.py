"""HTML page of a run: its sections as plain values for the template, and advice on the next steps.

A section without data is None or empty, and is omitted from the page and its table of contents.
"""

import itertools
import logging
import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitft.data.duplicates import MAX_SEARCHED
from vitft.data.fixes import is_leak, paths_settled_by
from vitft.data.images import describe_counts
from vitft.data.transforms import describe_view
from vitft.features.ood import TOO_HIGH, alarms_text, power_text
from vitft.messages import results as messages
from vitft.metrics.intervals import Interval, sample_size
from vitft.metrics.results import class_pair_counts, own_cross_validation
from vitft.models.pretrained.catalog import weights_name
from vitft.predict.validation import least_confident, mistakes
from vitft.report.charts import chart_sections, score_bar
from vitft.report.decisions import MAX_FINDINGS, former_fixes, run_decisions, undecided_numbers
from vitft.report.html import SHADES, filled, render
from vitft.report.run_files import (
    Run,
    Thumbnails,
    command_of,
    effective_settings,
    read_run,
)
from vitft.system.console import visible
from vitft.system.errors import VitftError
from vitft.system.files import write_atomically
from vitft.system.text import (
    count,
    duration,
    interval,
    listing,
    not_calibrated,
    percent,
    percent_or_bound,
    scored_images,
)

log = logging.getLogger(__name__)

_MAX_EXAMPLES = 8  # maximum number of example images on the first screen
_MAX_UNFOLDED, _MAX_MISTAKES = 24, 300  # maximum numbers of mistakes shown unfolded and in total
_MAX_BARS = 100  # maximum number of classes whose recalls are drawn as bars
_MAX_MATRIX_CLASSES, _MAX_PAIRS = 20, 30
"""With more than `_MAX_MATRIX_CLASSES` classes, the page lists up to `_MAX_PAIRS` confused pairs
instead of the matrix."""
_SMALL_CLASS = 20  # a smaller class that is less than a third of the median is small
_WHAT_WAS_TRAINED: Mapping[str, str] = {  # by `train.layers`
    "head": "only a new linear head was trained",
    "pre_logits": "only its pre_logits layer and a new head were trained",
    "lora": "LoRA adapters and a new head were trained",
    "all": "all of its layers were trained",
}


def report_of_new_run(run: Path) -> Path | None:
    """Write the report at the end of a run and return its path, or None with a warning.

    Under torchrun, only the main process writes it, and the others return None.
    """
    if os.environ.get("RANK", "0") == "0":
        try:
            return write_report(run)
        except VitftError as error:
            log.warning(f"the report was not written: {error.problem}")
    return None


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the page of a run (default: `report.html` in its directory) and return its path."""
    path = out or run / "report.html"
    write_atomically(path, render("report.html.j2", _run_page(read_run(run))))
    return path


def _run_page(run: Run) -> dict[str, object]:
    """Return the values for the template `report.html.j2`."""
    wrong, one = mistakes(run.predictions), run.results.headline
    is_named = not run.results.at_chance and len(run.classes) > 1
    weak = next(iter(run.results.weakest), None) if is_named else None
    thumbnails, counts = Thumbnails([run]), _cross_validated_counts(run)
    budget, decisions = run.measured.get("budget"), run_decisions(run, thumbnails)
    labels, groups = undecided_numbers(run.audit) if decisions else (0, 0)
    review = count(labels, "label") if labels else count(groups, "duplicate")
    bar = one and score_bar(
        one.measure, one.value, one.interval, one.baseline, marks=messages.baseline_text(one)
    )
    return {
        "run": run,
        "messages": messages,
        "data_name": run.data_name or run.name,
        "score": one,
        "score_bar": bar,
        "weakest": weak,
        "weakest_text": messages.weak_text(weak)
        if weak
        else messages.weakest_sentence(run.results, len(run.classes)),
        "examples": _examples(run, thumbnails),
        "about": _about(run),
        "figures": key_figures(run),
        "advice": _advise(run),
        "thumbnails": thumbnails,
        "class_index": {name: i for i, name in enumerate(run.classes)},
        "several": run.several,
        "searched": len(run.rows) <= MAX_SEARCHED,
        "num_mistakes": len(wrong),
        "mistakes": wrong[:_MAX_MISTAKES],
        "unfolded": _MAX_UNFOLDED,
        "with_attention": [
            one for one in wrong[:_MAX_UNFOLDED] if run.thumbnail(one.sha256, attention=True)
        ],
        "confusion": _confusion_of(run.classes, class_pair_counts(run.measured)),
        "cross_validated": _confusion_of(run.classes, counts),
        "num_cross_validated": counts.total(),
        "least_confident": least_confident(run.predictions, per_class=3, most=60),
        "classes": _class_rows(run),
        "audit": run.audit,
        "decisions": decisions,
        "review": f"{'See' if run.several else 'Review'} "
        f"{review if labels or groups else 'the findings'}",
        "max_findings": MAX_FINDINGS,
        "charts": chart_sections(run),
        "balance": [
            (name, train := run.sizes[name, "train"], val := run.sizes[name, "val"], train + val)
            for name in (run.classes if run.rows else ())
        ],
        "command": command_of(run.config) if run.config else "",
        "is_budget_choice": bool(budget and budget["chosen"] not in ("", "head")),
    }


def key_figures(run: Run) -> list[dict[str, str]]:
    """Return the metrics of a run, or an empty list if the run has no results.

    Each has a `name`, a `value`, its `interval`, a `meaning` and a `bar`: SVG of the value and its
    interval, which the calibration error does not have.
    """
    results, found = run.results, run.measured
    if not found:
        return []
    rows: list[tuple[str, float, Interval | None, str]] = [
        (
            f"{'test ' * (one.kind == 'test')}{one.measure}",
            one.value,
            one.interval,
            messages.how_measured(one).lstrip(", "),
        )
        for one in results.estimates
    ]
    name, meaning = "balanced accuracy", "mean recall of all classes"
    if labels := found.get("labels"):
        ends = labels["macro_f1_interval"]
        rows.append(("mean F1", labels["macro_f1"], ends, "mean over the labels"))
        name, meaning = "mean recall", "mean over the labels that occur"
    elif (more := found.get("cross_validation")) and not results.estimate("cross-validation"):
        head = "cross-validated accuracy of the head alone, before further training"
        text = f"on {scored_images(more)}, each predicted by a head that was not trained on it"
        rows.append((head, more["top1"], more["top1_interval"], text))
    rows.append((name, found["balanced"], found["balanced_interval"], meaning))
    figures = [
        {"name": name, "value": percent(value), "interval": interval(ends), "meaning": meaning}
        | {"bar": score_bar(name, value, ends, None)}
        for name, value, ends, meaning in rows
    ]
    if (calibration := found["calibration"]) and not not_calibrated(found):
        error, ends = calibration["ece"], calibration["ece_interval"]
        row = {"name": "calibration error", "value": percent_or_bound(error, ends), "bar": ""}
        meaning = "mean difference between confidence and accuracy"
        figures.append({**row, "interval": interval(ends), "meaning": meaning})
    return figures


def cautions(run: Run) -> dict[str, Any]:
    """Return the values of `cautions.j2`: sentences about the limits of the results."""
    notes = [messages.EXACT_LABELS] * run.several
    if run.measured.get("selected_on_validation"):
        planned = int(run.setting("optim", "epochs") or 0)
        epoch = messages.selected_epoch(run.measured, run.layers, planned)
        notes.append(messages.selection_note(epoch))
    if (head := run.measured.get("head")) and head["last_block_top1"] is not None:
        notes.append(
            f"The head uses the last {head['blocks']} blocks. A head on only the last block, as in "
            f"exports for timm and transformers, classifies {percent(head['last_block_top1'])} of "
            "the validation images correctly."
        )
    return {"run": run, "messages": messages, "notes": notes}


def _about(run: Run) -> list[str]:
    """Return the paragraphs of `about.j2`."""
    results, shape = run.results, run.card and run.card.architecture
    clause, name = messages.chance_clause(results), str(run.setting("weights", "name") or "")
    classes = f"{run.split.outputs.counted} ({visible(listing(run.classes))})"
    purpose = f"{messages.distinguishes('This model', classes, clause)}."
    if run.several and not clause:
        purpose = f"This multi-label model assigns each image any combination of {classes}."
    trained = []  # a clause for each stage
    for stage in run.layers.split(","):
        number = stage.removeprefix("blocks:")
        last = "its last block" if number == "1" else f"its last {number} blocks"
        is_blocks = f"{last} and a new head were trained" if number != stage else ""
        trained.append(is_blocks or _WHAT_WAS_TRAINED.get(stage, ""))
    tried = list[str]()
    if budget := run.measured.get("budget"):
        tried = [f"the run had a time budget of {duration(budget['seconds'])}"]
        tried += messages.budget_lines(budget)
        tried += [f"the run trained {messages.chosen_layers(budget)}"] * bool(budget["chosen"])
    text = filled(
        "about.j2",
        **cautions(run),
        used=len(run.rows),
        different=len({row.sha256 for row in run.rows}),
        bad=len(run.audit.get("bad", [])),
        parts=Counter(row.split for row in run.rows),
        purpose=purpose,
        data=visible(run.data_name),
        weights=visible(weights_name(name)),
        from_scratch=name == "none" or name.startswith("random:"),
        shape=shape,
        blocks=shape.depth if shape else 0,
        trained=[clause for clause in trained if clause],
        tried=tried,
        describe_counts=describe_counts,
        describe_view=describe_view,
        power_text=power_text,
        alarms_text=alarms_text,
        too_high=TOO_HIGH,
    )
    paragraphs = (part.strip("\n").replace("\n", " ") for part in text.split("\n\n"))
    return [part for part in paragraphs if part]


def _examples(run: Run, thumbnails: Thumbnails) -> dict[str, object] | None:
    """Return the most confident mistakes, or else right predictions of low confidence."""
    doubtful = least_confident(run.predictions, per_class=2, most=2 * _MAX_EXAMPLES)
    for kind, title, predictions in (
        ("wrong", "Mistakes, most confident first", mistakes(run.predictions)),
        ("doubtful", "Right, but with the lowest confidence", doubtful),
    ):
        shown = [one for one in predictions[:60] if run.thumbnail(one.sha256)][:_MAX_EXAMPLES]
        if shown:
            pairs = [(one, thumbnails.get(one.sha256)) for one in shown]
            return {"kind": kind, "title": title, "pairs": pairs}
    return None


def _class_rows(run: Run) -> list[dict[str, Any]]:
    """Return a table row for each class, lowest recall first and undefined recalls last."""
    several = run.measured.get("labels")
    by_label = several["per_label"] if several else {}
    confusions: dict[str, Counter[str]] = {}
    for one in mistakes(run.predictions):
        confusions.setdefault(one.label, Counter())[one.predicted] += 1
    rows = []
    for name, metrics in run.measured.get("per_class", {}).items():
        confused, found = confusions.get(name, Counter()), by_label.get(name)
        most = [guess for guess, n in confused.items() if n == max(confused.values())]
        recall, bar = metrics["recall"], ""
        if recall is not None and len(run.classes) <= _MAX_BARS:
            bar = score_bar("recall", recall, metrics["recall_interval"], None)
        rows.append(
            {
                "name": name,
                "train": run.sizes[name, "train"],
                "metrics": metrics,
                "confused_with": f"{' or '.join(most[:3])} ({confused[most[0]]})" if most else "–",
                "bar": bar,
                "ap": found and f"{percent(found['ap'])} ({interval(found['ap_interval'], 0)})",
                "threshold": found and percent(found.get("threshold"), 0),
            }
        )

    def place(row: Mapping[str, Any]) -> tuple[float, str]:
        recall = row["metrics"]["recall"]
        return 2.0 if recall is None else recall, row["name"]

    return sorted(rows, key=place)


def _confusion_of(
    classes: Sequence[str], counts: Mapping[tuple[int, int], int]
) -> dict[str, object] | None:
    """Return the confusions, given numbers of images by true and predicted class, or None.

    The matrix is empty if there are many classes. `more` counts the pairs that are not shown.
    """
    if not counts:
        return None
    totals = Counter[int]()
    for (i, _), n in counts.items():
        totals[i] += n

    def cell(i: int, j: int) -> dict[str, object]:
        """The images of class i that are predicted as j."""
        n, total = counts.get((i, j), 0), totals[i]
        shade = min(len(SHADES) - 1, int(n / total * len(SHADES))) if n else 0
        return {
            "label": classes[i],
            "predicted": classes[j],
            "count": n,
            "fraction": percent(n / total, 0) if total else "",
            "cell": f"{i}-{j}",
            "shade": f"{'right' if i == j else 'wrong'}-{shade}" if n else "",
            "total": total,
        }

    pairs = sorted((-n, n, i, j) for (i, j), n in counts.items() if i != j)
    indices = range(len(classes) if len(classes) <= _MAX_MATRIX_CLASSES else 0)
    return {
        "matrix": [[cell(i, j) for j in indices] for i in indices],
        "pairs": [cell(i, j) for _, _, i, j in pairs[:_MAX_PAIRS]],
        "more": max(0, len(pairs) - _MAX_PAIRS),
    }


def _cross_validated_counts(run: Run) -> Counter[tuple[int, int]]:
    """Count the distinct images by true class and class predicted in cross-validation.

    There are none if the model is not the cross-validated head, or if the validation images are at
    least as many.
    """
    if run.several or not own_cross_validation(run.measured):
        return Counter()
    index = {name: i for i, name in enumerate(run.classes)}
    named = (row for row in run.rows if row.sha256 in run.cross_validated)
    true = {row.sha256: run.split.names(row)[0] for row in named}
    counts = Counter((index[true[key]], index[name]) for key, name in run.cross_validated.items())
    return counts if counts.total() > len(run.predictions) else Counter()


# values of `advice.html.j2`: next steps for the user, with their evidence -------------------------


def _advise(run: Run) -> dict[str, Any] | None:
    """Return what the next steps for a run depend on, or None without results."""
    results, headline, remedy = run.results, run.results.headline, ""
    if not headline:
        return None
    if (chance := results.at_chance) and not results.exact:
        mirrored = bool(effective_settings(run.config).get("train.flip"))
        if chance.predicts or mirrored or chance.too_few:
            keys = ("weights", "name"), ("optim", "solver")
            start = [str(run.setting(*key) or "") for key in keys]
            remedy = messages.chance_remedy(*start, mirrored=mirrored, too_few=chance.too_few)
    settled = paths_settled_by(former_fixes(run)[0])
    # Images that measure the accuracy well enough; with groups, a number of these would be needed
    best = own_cross_validation(run.measured) or run.measured  # few images may all be right
    is_crossed = headline.kind == "cross-validation"
    measured = best if is_crossed else run.measured
    low, high = measured["top1_interval"]
    images, needed = measured["images"], sample_size(0.04, best["top1"])
    is_wide = high - low > 0.08 and needed > images and not run.measured.get("groups")
    return {
        "chance": chance,
        "remedy": remedy,
        "leaks": sum(map(is_leak, run.audit.get("duplicates", []))),
        "suspects": sum(item["path"] not in settled for item in run.audit.get("mislabels", [])),
        **({} if chance else _improvements(run)),
        "needed": needed if is_wide else 0,
        "images": images,
        "width": high - low,
        "is_crossed": is_crossed,
    }


def _improvements(run: Run) -> dict[str, Any]:
    """Return what ways to a better model depend on."""
    # Two classes whose confusion accounts for at least a quarter of all mistakes
    wrong, found = mistakes(run.predictions), dict[str, Any](confused=())
    pairs = Counter(tuple(sorted((v.label, v.predicted))) for v in wrong)
    if wrong and len(run.classes) > 2 and not run.several:
        pair, times = pairs.most_common(1)[0]
        found = {"confused": pair if times >= max(4, len(wrong) / 4) else (), "times": times}
    # Classes or labels with too few images, or else with a low recall
    sizes = {name: run.sizes[name, "train"] + run.sizes[name, "val"] for name in run.classes}
    usual = statistics.median(sizes.values())
    small = sorted((n, name) for name, n in sizes.items() if n < min(usual / 3, _SMALL_CLASS))
    known = [one for one in run.results.weakest if run.sizes[one.name, "train"]]
    worst, how = next(iter(known), None) if len(run.classes) > 1 else None, ""
    overall = worst and run.results.estimate(worst.kind)
    if worst and overall and worst.measure == "recall":
        classes = sum(part == "train" for _, part in run.sizes)
        if worst.kind == "validation":
            classes = sum(row["images"] > 0 for row in run.measured["per_class"].values())
        how = messages.compared_with_accuracy(worst, overall.value, classes)
    # The gain from twice as many images, or that the curve has stopped rising
    more = own_cross_validation(run.measured)
    last = more["curve"][-3:] if more else []
    kept = {name: run.config.get(name, {}) for name in ("data", "weights")}  # not of a head
    return {
        **found,
        "small": listing((f"{name} ({n:,})" for n, name in small), most=3),
        "smallest": [name for _, name in small],
        "usual": f"{usual:,.0f}",
        "validated": run.sizes[small[0][1], "val"] if small else 0,
        "worst": worst,
        "how": how,
        "gain": messages.growth_sentence(run.results.growth) if len(last) > 2 else "",
        "is_flat": len(last) > 2
        and all(b["top1"] <= a["top1"] for a, b in itertools.pairwise(last)),
        "command": command_of({**kept, "train": {"layers": "blocks:2"}}),
    }
