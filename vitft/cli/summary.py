"""The result that `vitft finetune` prints: accuracy, selection, calibration, weakest classes."""

from collections.abc import Mapping
from pathlib import Path

from vitft.cli import output
from vitft.config.run import Config
from vitft.config.sections import layers_text
from vitft.metrics.budget_results import BudgetResults
from vitft.metrics.chance import chance_level
from vitft.metrics.estimate import growth_text, model_cross_validation
from vitft.metrics.results import (
    AuditResults,
    CalibrationMetrics,
    ClassMetrics,
    CrossValidation,
    LabelResults,
    Metrics,
    RunResults,
    read_results,
)
from vitft.metrics.verdict import (
    describe_interpolation,
    describe_skipped,
    describe_start,
    selected_epoch,
    start_trials,
    verdict,
    weakest_label,
)
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
    scored_images,
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
    print_test(metrics)
    if "labels" in metrics:
        print_label_metrics(metrics["labels"], metrics, "validation image")
    else:
        output.result(
            f"accuracy {percent(metrics['top1'])} (95% interval "
            f"{interval(metrics['top1_interval'])}) on "
            f"{scored_images(metrics, 'validation image')}",
            style="" if "test" in metrics else "bold",
        )
        output.result(verdict(metrics))
        output.result(f"baseline (largest class): {percent(metrics['majority'])}")
    print_selection(metrics, config)
    if (calibration := metrics["calibration"]) and calibration["temperature"] != 1:
        output.result(not_calibrated(metrics) or calibration_text(calibration))
    if "labels" in metrics:
        print_weakest_label(metrics["labels"], metrics["images"])
    elif own := model_cross_validation(metrics):
        output.result(cross_validation_text(own, knn_top1=metrics["knn_top1"]))
        print_growth(own, with_weakest=not chance_level(metrics))
    else:
        if earlier := metrics.get("cross_validation"):
            text = cross_validation_text(earlier, knn_top1=metrics["knn_top1"])
            output.result(f"the head alone, before further training: {text}")
        if not chance_level(metrics):
            print_weakest(metrics["per_class"])
    print_copies(run)
    output.result(f"run: {run}")
    output.rule()
    if status == "finished":
        suggest_next_steps(run, config, which="" if is_latest else f" --run {folder}")


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


def print_label_metrics(found: LabelResults, metrics: Metrics, kind: str) -> None:
    """Print the metrics of a multi-label model; `kind` is e.g. `validation image`."""
    output.result(
        f"mean average precision {percent(found['map'])} (95% interval "
        f"{interval(found['map_interval'])}) on {scored_images(metrics, kind)}; random scores: "
        f"{percent(found['chance_map'])}"
    )
    output.result(
        f"mean F1 of the labels {percent(found['macro_f1'])} (95% interval "
        f"{interval(found['macro_f1_interval'])}); all labels are right for "
        f"{percent(metrics['top1'])} of the images"
    )


def print_weakest_label(found: LabelResults, images: int) -> None:
    """Print the label with the lowest average precision on this number of validation images."""
    if worst := weakest_label(found):
        output.result(
            f"weakest label: {worst.name}, average precision {percent(worst.value)} on "
            f"{count(images, 'validation image')}"
        )


def print_test(metrics: RunResults) -> None:
    """Print the metrics on the test images, if there are any."""
    test = metrics.get("test")
    if test is None:
        return
    if "labels" in test:
        print_label_metrics(test["labels"], test, "test image")
    else:
        output.result(
            f"test accuracy {percent(test['top1'])} (95% interval "
            f"{interval(test['top1_interval'])}) on {scored_images(test, 'test image')}, "
            "evaluated once",
            style="bold",
        )
    if test["left_out"]:
        output.note(
            f"excluded from the test set: {count(test['left_out'], 'image')} identical to a "
            "training or validation image"
        )


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


def cross_validation_text(results: CrossValidation, *, knn_top1: float) -> str:
    """Describe the cross-validated accuracy of a head, and that of nearest neighbours."""
    scored, total = results["images"], results["of"]
    some = "all" if scored == total else f"{scored:,} of"
    images = f"{total:,} {scored_images(results).partition(' ')[2]}"
    return (
        f"cross-validated accuracy on {some} {images}: {percent(results['top1'])} "
        f"({interval(results['top1_interval'])}); nearest neighbours on the "
        f"validation images: {percent(knn_top1)}"
    )


def print_growth(results: CrossValidation, *, with_weakest: bool) -> None:
    """Print the expected gain from more images, and the weakest classes in cross-validation."""
    if gain := growth_text(results):
        output.result(f"with twice as many images: {gain}")
    ranks = ("weakest class", "second-weakest class") if with_weakest else ()
    for rank, weak in zip(ranks, results["weak_spots"], strict=False):
        if weak["recall"] < 1:
            confused = weak["taken_for"]
            also = f", most often predicted as {confused}" if confused else ""
            output.result(
                f"{rank}: {weak['class']}, recall {percent(weak['recall'])} on "
                f"{count(weak['images'], 'image')} in cross-validation{also}"
            )


def print_weakest(per_class: Mapping[str, ClassMetrics]) -> None:
    """Print the class with the lowest recall on the validation images, unless the recall is 1."""
    recalls = {name: row["recall"] for name, row in per_class.items() if row["images"]}
    name = min(recalls, key=lambda name: recalls[name] or 0.0, default=None)
    if name is not None and (recall := recalls[name]) is not None and recall < 1:
        on = count(per_class[name]["images"], "validation image")
        output.result(f"weakest class: {name}, recall {percent(recall)} on {on}")
