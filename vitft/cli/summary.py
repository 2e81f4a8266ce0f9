"""The result that `vitft finetune` prints: accuracy, selection, calibration, weakest classes."""

from pathlib import Path

from vitft.cli import output
from vitft.config.run import Config
from vitft.config.sections import layers_text
from vitft.messages.results import (
    baseline_text,
    estimate_text,
    growth_text,
    verdict,
    weak_text,
)
from vitft.messages.training import (
    describe_interpolation,
    describe_skipped,
    describe_start,
    selected_epoch,
    start_trials,
)
from vitft.metrics.budget_results import BudgetResults
from vitft.metrics.results import AuditResults, CalibrationMetrics, RunResults, read_results
from vitft.metrics.summary import Results
from vitft.predict.validation import (
    accuracy_without_copies,
    read_groups,
    read_validation_predictions,
)
from vitft.system.run_content import read_run_json
from vitft.system.text import (
    count,
    interval,
    is_measurable,
    not_calibrated,
    percent,
    percent_or_bound,
    shell_join,
    shell_quote,
)


def print_summary(
    run: Path, metrics: RunResults | None, config: Config, *, status: str, is_latest: bool
) -> None:
    """Print the metrics of a run, if it has any, and suggest the next command.

    The suggested command includes the run directory unless the run is the latest one in `runs`.
    """
    folder = shell_quote(str(run))
    if status != "finished":
        output.warn(f"{status}; resume with: vitft finetune --resume {folder}")
    if not metrics:
        return
    output.rule()
    results = Results.of(metrics)
    print_estimates(metrics, results)
    print_selection(metrics, config)
    if (calibration := metrics["calibration"]) and calibration["temperature"] != 1:
        output.result(not_calibrated(metrics) or calibration_text(calibration))
    print_further(metrics, results)
    print_copies(run)
    output.result(f"run: {run}")
    output.rule()
    if status == "finished":
        suggest_next_steps(run, config, which="" if is_latest else f" --run {folder}")


def print_estimates(metrics: RunResults, results: Results) -> None:
    """Print every estimate, in bold the one to quote, and what it means."""
    for one in results.estimates:
        text = estimate_text(one)
        style = "bold" if one is results.headline else ""
        output.result(f"{text[0].upper()}{text[1:]}", style=style)
    output.result(verdict(results))
    if results.headline:
        output.result(baseline_text(results.headline))
    test = metrics.get("test")
    if test and test["left_out"]:
        output.note(
            f"excluded from the test set: {count(test['left_out'], 'image')} identical to a "
            "training or validation image"
        )
    if "labels" in metrics:
        found = metrics["labels"]
        output.result(
            f"mean F1 of the labels {percent(found['macro_f1'])} (95% CI "
            f"{interval(found['macro_f1_interval'])})"
        )


def print_further(metrics: RunResults, results: Results) -> None:
    """Print what else the run measured: other models, more images and the weakest classes."""
    more = metrics.get("cross_validation")
    if more and not (results.exact or results.estimate("cross-validation")):
        output.result(
            "the head alone, before further training, in cross-validation: "
            f"{percent(more['top1'])} ({interval(more['top1_interval'])})"
        )
    if "knn_top1" in metrics and not results.exact:
        known = percent(metrics["knn_top1"])
        output.result(f"nearest neighbours on the validation images: {known}")
    if gain := growth_text(results.growth) if not results.exact else "":
        output.result(f"with twice as many images: {gain}")
    ranks = ("weakest", "second-weakest") if not results.at_chance else ()
    for rank, weak in zip(ranks, results.weakest, strict=False):
        kind = "class" if weak.measure == "recall" else "label"
        output.result(f"{rank} {kind}: {weak.name}, {weak_text(weak)}")


def print_copies(run: Path) -> None:
    """Print the accuracy without copies across the split, if the audit found some."""
    audit = read_run_json(run / "audit.json", AuditResults)
    found = read_validation_predictions(run)
    if audit and (known := accuracy_without_copies(found, audit, read_groups(run, len(found)))):
        output.result(f"accuracy {known}")


def suggest_next_steps(run: Path, config: Config, *, which: str) -> None:
    """Print what to do after a run: undecided findings first, then the commands that use it.

    `which` is the option that selects the run; empty if it is the latest one.
    """
    from vitft.data.fixes import settled_paths
    from vitft.report.decisions import undecided_findings

    results = read_results(run / "eval.json")
    head = results.get("head") if results else None
    comment = ""
    if head and head["last_block_top1"] is not None:
        comment = f"  # --onnx keeps the head on {head['blocks']} blocks"
    steps = [f"vitft predict{which} IMAGE ...", f"vitft export --safetensors{which}{comment}"]
    if config.data.like:
        steps.insert(0, shell_join(["vitft", "compare", config.data.like, str(run)]))
    audit = read_run_json(run / "audit.json", AuditResults)
    if audit and (found := undecided_findings(audit, settled_paths(config.data))):
        verb = "look at" if results and "labels" in results else "decide on"
        steps.insert(0, f"{verb} {found} in {run / 'report.html'}")
    for number, step in enumerate(steps):
        output.note(f"{'       ' if number else 'next:  '}{step}")


def print_selection(metrics: RunResults, config: Config) -> None:
    """Print how the epoch was selected and, for a run with a time budget, its trials."""
    if metrics["selected_on_validation"]:
        selected = selected_epoch(metrics, config.train.layers, config.optim.epochs)
        output.note(
            f"the validation {'results are' if 'labels' in metrics else 'accuracy is'} slightly "
            f"optimistic: {selected} was selected on the same images"
        )
        if metrics["best_epoch"] == 1 and config.train.layers.startswith("head,"):
            output.note(
                "the saved model is the fitted head alone: on the validation images, no epoch of "
                "training further layers was better"
            )
    if budget := metrics.get("budget"):
        print_budget(budget)


def print_budget(budget: BudgetResults) -> None:
    """Print which layers a run with a time budget tried, which it trained, and which it skipped."""
    for start in start_trials(budget):
        show = output.note if "seconds_needed" in start else output.result
        show(describe_start(start))
    for trial in budget["trials"]:
        part = describe_interpolation(trial)
        output.result(
            f"trial: after training {layers_text(trial['layers'])} for "
            f"{count(trial['epochs'], 'epoch')}{f' and {part}' if part else ''}, "
            f"{percent(trial['top1'])} of {trial['held_out']:,} held-out training images are "
            f"classified correctly (with the head alone: {percent(trial['head_top1'])}), mean loss "
            f"{trial['loss']:.3f} ({trial['head_loss']:.3f})"
        )
    if budget["chosen"] == "head":
        why = ": no trial was clearly better than the head" if budget["trials"] else ""
        output.result(f"only the head was trained{why}")
    elif budget["chosen"]:
        part = describe_interpolation(budget)
        output.result(
            f"after fitting the head, the run trained {layers_text(budget['chosen'])} for "
            f"{count(budget['epochs'], 'epoch')}{f', {part}' if part else ''}"
        )
    for skipped in budget["skipped"]:
        output.note(describe_skipped(skipped))


def calibration_text(calibration: CalibrationMetrics) -> str:
    """Return the calibration error; one that is too small to be measured has no interval."""
    bounds = calibration["ece_interval"]
    error = f"calibration error {percent_or_bound(calibration['ece'], bounds)}"
    if not is_measurable(calibration["ece"]):
        return f"{error} (too small to be measured on these images)"
    before, shown = calibration["ece_before"], f"{error} (95% interval {interval(bounds)})"
    if before is not None and bounds and bounds[0] <= before < calibration["ece"]:
        return f"{shown}, not measurably different before calibration"
    return f"{shown}, {percent(before)} before calibration"
