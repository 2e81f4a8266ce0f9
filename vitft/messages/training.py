"""What `vitft finetune` prints about a run: epochs, layers, trials and the final screen."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vitft.config.sections import layers_text
from vitft.messages.results import (
    WIDE,
    Rows,
    baseline_text,
    calibration_text,
    chance_clause,
    difference_text,
    estimate_text,
    how_measured,
    rough_digits,
    rough_percent,
    sentence,
    within,
)
from vitft.metrics.results import (
    BudgetResults,
    ClassEstimate,
    Estimate,
    HeadCandidate,
    Results,
    RunResults,
    SkippedTrial,
    StartTrial,
    TrialResults,
)
from vitft.system.text import count, format_size, listing, percent

BEST_RULE = (
    "the lowest loss among the epochs whose accuracy is at most one standard error below the "
    "highest"
)
"""How the best epoch is selected; the rule is that of `training.fitted.BestWeights`."""


def selected_epoch(results: RunResults, layers: str, planned: int = 0) -> str:
    """Return the epoch of the saved weights in words, e.g. `epoch 3 of 20`.

    A head that was fitted before the first epoch is not counted. `planned` is the number of epochs
    of each stage, or 0 to leave out the total.
    """
    number, stages, after = results["best_epoch"], len(layers.split(",")), ""
    if layers.startswith("head,"):
        number, stages, after = number - 1, stages - 1, " after fitting the head"
    if not number:
        return "the fitted head"
    return f"epoch {number}{f' of {planned * stages}' if planned else ''}{after}"


EPOCH_COLUMNS = "epoch      train loss  train accuracy  val. loss  val. accuracy      time"


def epoch_row(entry: Mapping[str, Any], planned: int, when: str, *, is_best: bool) -> str:
    """Return the metrics of an epoch below `EPOCH_COLUMNS`."""
    number = f"{entry['epoch']:.0f}/{planned}"
    return (
        f"{number:>9}  {entry['train_loss']:>10.4f}  {percent(entry['train_top1']):>14}  "
        f"{entry['val_loss']:>9.4f}  {percent(entry['val_top1']):>13}  {when:>8}"
        f"{'  best' * is_best}"
    )


def stopped_early(
    epochs: int, planned: int, patience: int, best: Mapping[str, Any] | None = None
) -> str:
    """Return a note that a run stopped early, with the metrics of its best epoch."""
    shown = best and f". Best: validation accuracy {percent(best['top1'])}, loss {best['loss']:.4f}"
    return (
        f"stopped early after {epochs} of {planned} epochs: no improvement in the last "
        f"{count(patience, 'epoch')} (optim.patience){shown or ''}"
    )


def needed_budget(seconds: float) -> str:
    """Return the option with a budget of about `seconds`, e.g. `about --budget 16m`."""
    return f"about --budget {math.ceil(seconds / 60)}m"


def _describe_interpolation(found: TrialResults | BudgetResults) -> str:
    """Return e.g. `keeping 50% of the change in the weights`, or "" if all of it was kept."""
    fraction = found.get("interpolation", 1.0)
    return "" if fraction == 1 else f"keeping {percent(fraction, 0)} of the change in the weights"


def _describe_skipped(skipped: SkippedTrial) -> str:
    """Return a sentence about layers that were not tried, with the budget that they need."""
    layers, needed = layers_text(skipped["layers"]), needed_budget(skipped["seconds_needed"])
    return f"training {layers} was not tried: this needs {needed}"


def describe_start(found: StartTrial) -> str:
    """Return a sentence about a trial of another start: a larger input or other weights."""
    height, width = found["image_size"]
    name = found.get("weights")
    text = f"an input of {format_size((height, width))} pixels"
    if "seconds_needed" in found:
        text, verb = (f"the weights {name}", "were") if name else (text, "was")
        return f"{text} {verb} not tried: this needs {needed_budget(found['seconds_needed'])}"
    if name:
        gain, (low, high) = found["top1"] - found["usual_top1"], found["gain_interval"]
        points = f"{100 * gain:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})"
        evidence = f"{points} on {found['images']:,} training images in cross-validation"
        times = f"{found['relative_time']:.2g} times as long"
        if low > 0:
            return (
                f"the weights {name} would gain about {evidence} and take about {times}: "
                f"--weights {name}"
            )
        return f"the weights {name} would give no clear gain: {evidence}, {times}"
    tall, wide = found["usual_size"]
    return (
        f"{text} was {'chosen' if found['chosen'] else 'tried, but not chosen'}: a head classifies "
        f"{percent(found['top1'])} of {found['images']:,} training images correctly in "
        f"cross-validation (at {format_size((tall, wide))} pixels: {percent(found['usual_top1'])})"
    )


def confirmed_in_float32(after: float, during: float, precision: str) -> str:
    """Return the accuracy of a final validation in float32, or "" if it did not change."""
    if percent(after) == percent(during):
        return ""
    return (
        f"validated again in float32, the accuracy is {percent(after)} ({percent(during)} in "
        f"{precision} during training)"
    )


def already_trained(weights: str, images: int, validation: int, run: str) -> str:
    """Return a warning that the weights were trained on this run's images.

    `run` is the run that trained them, as a word of a command.
    """
    where = f"the weights {weights} were trained on {images:,} of these images"
    if validation:
        return (
            f"{where}, {validation:,} of them for validation, so the accuracy on them says nothing "
            f"about new images. --like {run} holds out the images of that run"
        )
    more = ", so cross-validation would say nothing about new images"
    return f"{where}{more}"


def divided_groups(classes: Sequence[str]) -> str:
    """Return a warning that cross-validation divides the groups of these classes."""
    return (
        "the cross-validated accuracy may be too high: all training images of a class are in one "
        "group, or in groups joined by copies, which cross-validation has to divide "
        f"({listing(classes)})"
    )


def describe_head(chosen: HeadCandidate, last: HeadCandidate, blocks: int) -> str:
    """Return which blocks a head uses, and the cross-validated accuracies that decided it."""
    own, other = percent(chosen["cv_top1"]), percent(last["cv_top1"])
    if chosen is last:
        return f"the head uses the last block (cross-validated on the training images: {own})"
    reads = f"the head uses the last {count(blocks, 'block')}"
    if chosen["cv_top1"] > last["cv_top1"]:
        found = f"cross-validated on the training images: {own}, the last block alone: {other}"
        return f"{reads} ({found})"
    error = chosen.get("cv_gain_error")
    doubt = "" if error is None else f", standard error of the difference {error:.3f}"
    return (
        f"{reads}, because its probabilities are better: cross-validated loss "
        f"{chosen['cv_loss']:.3f}, of the last block alone {last['cv_loss']:.3f}{doubt} (accuracy "
        f"{own} and {other})"
    )


# what `vitft finetune` shows at the end of a run: labelled rows, and the details of -v ------------


def result_rows(results: Results, budget: BudgetResults | None = None, *, remedy: str = "") -> Rows:
    """Return the numbers of a run that everybody needs: one to quote, one to support it, findings.

    `remedy` is the advice for a model at chance level.
    """
    one, clause = results.headline, chance_clause(results)
    if one is None:
        return []
    texts = [f"at chance level: the model {clause}. {sentence(remedy)}"] if clause else []
    bounds = within(one.interval, rough_digits(one))
    texts.append(f"{rough_percent(one)}{bounds}{_on(one)}")
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
        rows.append(("Trained", chosen_layers(budget)))
    if results.weakest and not clause:
        rows.append(("Weakest", _weakest(results.weakest[0], results)))
    if results.growth:
        low, high = (100 * end for end in results.growth)
        digits = 0 if high - low > 100 * WIDE else 1
        gain = f"{low:.{digits}f} to {high:.{digits}f} points"
        rows.append(("More data", f"twice as many would add {gain}"))
    return rows


def detail_lines(results: Results, found: RunResults, layers: str, planned: int) -> list[str]:
    """Return everything in the report about the accuracy of a run, one fact per line.

    `found` are the contents of eval.json, and `planned` the number of epochs of each stage.
    """
    lines = [estimate_text(one) for one in results.estimates]
    if results.headline and (text := baseline_text(results.headline)):
        lines.append(text)
    if labels := found.get("labels"):
        ends = within(labels["macro_f1_interval"])
        lines.append(f"mean F1 of the labels {percent(labels['macro_f1'])}{ends}")
    if (top1 := found.get("knn_top1")) is not None:
        lines.append(f"nearest neighbours on the validation images: accuracy {percent(top1)}")
    if found["selected_on_validation"]:
        lines.append(f"saved: {selected_epoch(found, layers, planned)}")
    if (calibration := found["calibration"]) and calibration["temperature"] != 1:
        lines.append(calibration_text(found))
    lines += [f"weak: {_weakest(one, results)}" for one in results.weakest[1:]]
    test = found.get("test")
    if test and test["left_out"]:
        lines.append(
            f"excluded from the test set: {count(test['left_out'], 'image')} identical to a "
            "training or validation image"
        )
    if (own := found.get("cross_validation")) and not results.estimate("cross-validation"):
        lines.append(f"the head alone, cross-validated: accuracy {percent(own['top1'])}")
    return [*lines, *budget_lines(found.get("budget"))]


def _on(one: Estimate) -> str:
    return how_measured(one).removesuffix(", evaluated once")


def _weakest(one: ClassEstimate, results: Results) -> str:
    """Return e.g. `tulips: 88% recall, mostly predicted as roses`."""
    measure = "average precision" if results.exact else "recall"
    also = f", mostly predicted as {one.taken_for}" if one.taken_for else ""
    return f"{one.name}: {percent(one.value, 0)} {measure}{also}"


def chosen_layers(budget: BudgetResults) -> str:
    """Return which layers a run with a time budget trained."""
    if budget["chosen"] == "head":
        if budget["trials"]:
            return "only the head, because no trial of more layers was clearly better"
        if skipped := budget["skipped"]:
            needed = needed_budget(min(one["seconds_needed"] for one in skipped))
            return f"only the head, because training more layers needs {needed}"
        return "only the head, because there are too few images for a trial of more layers"
    part = _describe_interpolation(budget)
    return (
        f"{layers_text(budget['chosen'] or 'head')} for {count(budget['epochs'], 'epoch')}"
        f"{f', {part}' if part else ''}"
    )


def budget_lines(budget: BudgetResults | None) -> list[str]:
    """Return what a run with a time budget tried and skipped."""
    if budget is None:
        return []
    starts = [trial for trial in (budget.get("size"), budget.get("weights")) if trial]
    return [
        *map(describe_start, starts),
        *map(describe_trial, budget["trials"]),
        *map(_describe_skipped, budget["skipped"]),
    ]


def describe_trial(found: TrialResults) -> str:
    """Return the layers of a trial, and its held-out results next to those of a head."""
    folds, part = found["folds"], _describe_interpolation(found)
    again = f", {folds} times, each with other images held out" if folds > 1 else ""
    return (
        f"a trial trained {layers_text(found['layers'])} for {count(found['epochs'], 'epoch')} on "
        f"{found['images']:,} of the training images{again}{f', {part}' if part else ''}: "
        f"accuracy {percent(found['top1'])} on {count(found['held_out'], 'held-out image')} (head "
        f"alone: {percent(found['head_top1'])}), mean loss (the criterion) {found['loss']:.3f} "
        f"(head alone: {found['head_loss']:.3f})"
    )
