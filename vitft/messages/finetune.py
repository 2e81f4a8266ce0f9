"""What `vitft finetune` shows at the end of a run: labelled rows, and the details of -v."""

from vitft.config.sections import layers_text
from vitft.messages.results import (
    WIDE,
    chance_clause,
    difference_text,
    estimate_text,
    measured_on,
    rough_interval,
    rough_percent,
)
from vitft.messages.training import (
    describe_interpolation,
    describe_skipped,
    describe_start,
    needed_budget,
    selected_epoch,
    start_trials,
)
from vitft.metrics.results import BudgetResults, RunResults
from vitft.metrics.summary import ClassEstimate, Estimate, Results
from vitft.system.text import (
    count,
    interval,
    is_measurable,
    not_calibrated,
    percent,
    percent_or_bound,
)

Rows = list[tuple[str, str]]
"""Labels and the texts beside them; an empty label continues the row before."""


def result_rows(results: Results, budget: BudgetResults | None = None, *, remedy: str = "") -> Rows:
    """Return the numbers of a run that everybody needs: one to quote, one beside it, findings.

    Args:
        results: Numbers of the run.
        budget: What a run with a time budget tried.
        remedy: Advice for a model at chance level.
    """
    one, clause = results.headline, chance_clause(results)
    if one is None:
        return []
    texts = (
        [f"at chance level: the model {clause}. {remedy[:1].upper()}{remedy[1:]}."]
        if clause
        else []
    )
    within = f" (95% CI {rough_interval(one)})" if one.interval else ""
    texts.append(f"{rough_percent(one)}{within}{_on(one)}")
    if results.exact:
        texts.append(f"all labels are right for {rough_percent(results.exact)} of the images")
    elif results.supporting:
        texts.append(f"{rough_percent(results.supporting[0])}{_on(results.supporting[0])}")
    texts.append(difference_text(results))
    if results.selected_on_validation and one.kind == "validation":
        texts.append("slightly optimistic, because the epoch was selected on these images")
    label = "Mean AP" if results.exact else "Accuracy"
    rows = [("" if number else label, text) for number, text in enumerate(filter(None, texts))]
    if budget and budget["chosen"]:
        rows.append(("Trained", _chosen_layers(budget)))
    if results.weakest and not clause:
        rows.append(("Weakest", _weakest(results.weakest[0], results)))
    if results.growth:
        low, high = (100 * end for end in results.growth)
        digits = 0 if high - low > 100 * WIDE else 1
        gain = f"{low:.{digits}f} to {high:.{digits}f} points"
        rows.append(("More data", f"twice as many would add {gain}"))
    return rows


def detail_lines(results: Results, found: RunResults, layers: str, planned: int) -> list[str]:
    """Return all that the report has on the accuracy of a run, one fact a line.

    Args:
        results: Numbers of the run.
        found: Contents of its eval.json.
        layers: Trained layers.
        planned: Number of epochs of each stage.
    """
    lines = [estimate_text(one) for one in results.estimates]
    if results.headline and results.headline.baseline is not None:
        several = results.exact is not None
        name = "random scores" if several else "always predicting the largest class"
        lines.append(f"{name}: {percent(results.headline.baseline)}")
    if labels := found.get("labels"):
        bounds = interval(labels["macro_f1_interval"])
        lines.append(f"mean F1 of the labels {percent(labels['macro_f1'])} (95% CI {bounds})")
    if (top1 := found.get("knn_top1")) is not None:
        lines.append(f"nearest neighbours on the validation images: accuracy {percent(top1)}")
    if found["selected_on_validation"]:
        lines.append(f"saved: {selected_epoch(found, layers, planned)}")
    if (calibration := found["calibration"]) and calibration["temperature"] != 1:
        lines.append(_calibration(found))
    lines += [f"weak: {_weakest(one, results)}" for one in results.weakest[1:]]
    test = found.get("test")
    if test and test["left_out"]:
        lines.append(
            f"excluded from the test set: {count(test['left_out'], 'image')} identical to a "
            "training or validation image"
        )
    if (own := found.get("cross_validation")) and not results.estimate("cross-validation"):
        lines.append(f"the head alone, cross-validated: accuracy {percent(own['top1'])}")
    return [*lines, *_budget_lines(found.get("budget"))]


def _on(one: Estimate) -> str:
    """Return on which images a number was measured, to follow it."""
    how = ", cross-validated on" if one.kind == "cross-validation" else " on"
    return f"{how} {measured_on(one)}"


def _weakest(one: ClassEstimate, results: Results) -> str:
    """Return e.g. `tulips: 88% recall, mostly predicted as roses`."""
    measure = "average precision" if results.exact else "recall"
    also = f", mostly predicted as {one.taken_for}" if one.taken_for else ""
    return f"{one.name}: {percent(one.value, 0)} {measure}{also}"


def _chosen_layers(budget: BudgetResults) -> str:
    """Return which layers a run with a time budget trained."""
    if budget["chosen"] == "head":
        if budget["trials"]:
            return "only the head, because no trial of more layers was clearly better"
        if skipped := budget["skipped"]:
            needed = needed_budget(min(one["seconds_needed"] for one in skipped))
            return f"only the head, because training more layers needs {needed}"
        return "only the head, because there are too few images for a trial of more layers"
    part = describe_interpolation(budget)
    return (
        f"{layers_text(budget['chosen'] or 'head')} for {count(budget['epochs'], 'epoch')}"
        f"{f', {part}' if part else ''}"
    )


def _calibration(found: RunResults) -> str:
    """Return the calibration error; one that is too small to be measured has no interval."""
    if doubt := not_calibrated(found):
        return doubt
    calibration = found["calibration"]
    assert calibration is not None
    bounds = calibration["ece_interval"]
    assert bounds is not None
    error = f"calibration error {percent_or_bound(calibration['ece'], bounds)}"
    if not is_measurable(calibration["ece"]):
        return f"{error} (too small to be measured on these images)"
    before, shown = calibration["ece_before"], f"{error} (95% CI {interval(bounds)})"
    if before is not None and bounds[0] <= before < calibration["ece"]:
        return f"{shown}, not measurably different before calibration"
    return f"{shown}, {percent(before)} before calibration"


def _budget_lines(budget: BudgetResults | None) -> list[str]:
    """Return what a run with a time budget tried, and what it skipped."""
    if budget is None:
        return []
    trials = [
        f"trial: after training {layers_text(trial['layers'])} for "
        f"{count(trial['epochs'], 'epoch')}"
        f"{f' and {part}' if (part := describe_interpolation(trial)) else ''}, "
        f"{percent(trial['top1'])} of {trial['held_out']:,} held-out training images are "
        f"classified correctly (with the head alone: {percent(trial['head_top1'])}), mean loss "
        f"{trial['loss']:.3f} ({trial['head_loss']:.3f})"
        for trial in budget["trials"]
    ]
    return [
        *map(describe_start, start_trials(budget)),
        *trials,
        *map(describe_skipped, budget["skipped"]),
    ]
