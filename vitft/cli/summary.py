"""Summary of a run, as `vitft finetune` prints it at the end."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from vitft.cli import output
from vitft.metrics.results import CalibrationMetrics, ClassMetrics, CrossValidation, RunResults
from vitft.system.text import interval, percent


def print_summary(
    run: Path, metrics: RunResults | None, *, status: str = "finished", is_latest: bool = True
) -> None:
    """Print the metrics of a run and the next command.

    Args:
        run: The run directory.
        metrics: Contents of its eval.json; None if there are none.
        status: As in environment.json.
        is_latest: Whether `runs/latest` points to the run, so that commands need not name it.
    """
    folder = shlex.quote(str(run))
    if status != "finished":
        output.warn(f"{status}; continue with: vitft finetune --resume {folder}")
    if not metrics:
        return
    output.result(
        f"accuracy {percent(metrics['top1'])} (95 % interval {interval(metrics['top1_interval'])}) "
        f"on {metrics['images']} validation images; baseline (largest class): "
        f"{percent(metrics['majority'])}"
    )
    if metrics["selected_on_validation"]:
        output.note(
            f"slightly optimistic: epoch {metrics['best_epoch']} of {metrics['epochs']} was "
            "selected on the same images"
        )
    print_calibration(metrics["calibration"])
    cross_validation = metrics.get("cross_validation")
    if cross_validation:
        print_cross_validation(cross_validation, knn_top1=metrics["knn_top1"])
    else:
        print_weakest(metrics["per_class"])
    output.result(f"run: {run}")
    if status == "finished":
        which = "" if is_latest else f" --run {folder}"
        output.note(
            f"next: vitft predict{which} IMAGE ...   or   vitft export --safetensors{which}"
        )


def print_calibration(calibration: CalibrationMetrics | None) -> None:
    """Print the calibration error, if a temperature was fitted."""
    if calibration and calibration["temperature"] != 1:
        output.result(
            f"calibration error {percent(calibration['ece'])} (95 % interval "
            f"{interval(calibration['ece_interval'])}), {percent(calibration['ece_before'])} "
            "before calibration"
        )


def print_cross_validation(results: CrossValidation, *, knn_top1: float) -> None:
    """Print cross-validated accuracy, the gain from more images, and the weakest two classes."""
    scored, total = results["images"], results["of"]
    images = f"all {total:,}" if scored == total else f"{scored:,} of {total:,}"
    output.result(
        f"cross-validation on {images} images: {percent(results['top1'])} "
        f"({interval(results['top1_interval'])}); nearest neighbours: {percent(knn_top1)}"
    )
    if (gain := results["gain_from_twice"]) is not None:
        output.result(f"with twice the images: about {100 * gain:+.1f} points (extrapolated)")
    for weak in results["weak_spots"][:2]:
        if weak["recall"] < 1:
            confused = weak["taken_for"]
            also = f", most often predicted as {confused}" if confused else ""
            output.result(f"weakest class: {weak['class']}, recall {percent(weak['recall'])}{also}")


def print_weakest(per_class: Mapping[str, ClassMetrics]) -> None:
    """Print the class with the lowest recall on the validation images."""
    recalls = {name: row["recall"] for name, row in per_class.items() if row["images"]}
    name = min(recalls, key=lambda name: recalls[name] or 0.0, default=None)
    if name is not None and (recall := recalls[name]) is not None and recall < 1:
        output.result(f"weakest class: {name}, recall {percent(recall)}")
