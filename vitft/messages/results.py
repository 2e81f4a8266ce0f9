"""Sentences about the numbers of a run (`metrics.Results`), an evaluation or an export."""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from vitft.config.sections import layers_text
from vitft.metrics.intervals import Interval, binomial_tail
from vitft.metrics.results import (
    BudgetResults,
    ClassEstimate,
    Estimate,
    Results,
    RunResults,
    StartTrial,
    TrialResults,
    mostly_taken_for,
)
from vitft.system.text import (
    count,
    format_size,
    interval,
    is_measurable,
    is_scaled,
    not_calibrated,
    percent,
    percent_or_bound,
    points,
    scored_images,
)

_WIDE = 0.05  # length of an interval from which a value has no decimals where space is scarce
# headings and labels
INTERVAL = "95% interval"
TOP5 = "top-5 accuracy"
CROSS_VALIDATED = "cross-validated accuracy"
EXACT_LABELS = "An image counts as correct only if exactly its labels are predicted."
Rows = list[tuple[str, str]]  # labels and texts; an empty label continues the row before


def sentence(text: str) -> str:
    """Return a clause as a sentence, with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def within(bounds: Interval | None, digits: int = 1) -> str:
    """Return e.g. ` (95% CI 92.9 to 95.5%)`, which can follow a value, or "" without bounds."""
    return f" (95% CI {interval(bounds, digits)})" if bounds else ""


def _with_interval(found: Mapping[str, Any], name: str) -> str:
    """Return e.g. `94.3% (95% CI 92.9 to 95.5%)`."""
    return percent(found[name]) + within(found[f"{name}_interval"])


def measured_on(one: Estimate) -> str:
    """Return e.g. `240 validation images of 12 groups`."""
    kind = f"{one.kind} image" if one.kind in ("test", "validation") else "image"
    return scored_images({"images": one.images, "groups": one.groups}, kind)


def estimate_text(one: Estimate) -> str:
    """Return e.g. `accuracy 94.3% (95% CI 92.9 to 95.5%), cross-validated on 1,200 images`."""
    return f"{one.measure} {percent(one.value)}{within(one.interval)}{how_measured(one)}"


def how_measured(one: Estimate) -> str:
    """Return e.g. `, cross-validated on 1,200 images`, which can follow a value."""
    crossed, known = ", cross-validated" * (one.kind == "cross-validation"), one.known_to_weights
    trained = ", some of which may be known from training" * (known is None)
    if known:
        trained = f", {known:,} of which {'is' if known == 1 else 'are'} known from training"
    once = ", evaluated once" * (one.kind == "test")
    return f"{crossed} on {measured_on(one)}{trained}{once}"


def baseline_text(one: Estimate) -> str:
    """Return e.g. `always the largest class: 20.0%`, or "" if it is unknown."""
    name = (
        "random scores" if one.measure == "mean average precision" else "always the largest class"
    )
    return "" if one.baseline is None else f"{name}: {percent(one.baseline)}"


def headline_text(results: Results) -> str:
    """Return the number to quote in a sentence, or that the model is at chance level."""
    one = results.headline
    if one is None or (clause := chance_clause(results)):
        return f"At chance level: this model {clause}." if one else ""
    bounds = within(one.interval, rough_digits(one))
    text = f"{rough_percent(one)} {quoted_measure(one)}{bounds}{how_measured(one)}."
    return f"{text} {difference_text(results)}".strip()


def quoted_measure(one: Estimate) -> str:
    """Return what follows the value of the number to quote."""
    is_new = one.measure == "accuracy" and one.known_to_weights == 0
    return "of new images are classified correctly" if is_new else one.measure


def weak_text(one: ClassEstimate) -> str:
    """Return e.g. `recall 75.0% (95% CI 44 to 92%) on 12 images, mostly predicted as dog`."""
    on = count(one.images, "validation image")
    if one.kind == "cross-validation":
        on = f"{count(one.images, 'image')} in cross-validation"
    also = f", mostly predicted as {one.taken_for}" if one.taken_for else ""
    return f"{one.measure} {percent(one.value)}{within(one.interval, 0)} on {on}{also}"


def weakest_sentence(results: Results, classes: int) -> str:
    """Return a sentence that names the weakest of the classes, or why there is none, or ""."""
    one = results.estimate("validation")
    if one is None or results.at_chance or classes < 2:
        return ""
    if results.weakest:
        kind, worst = "label" if results.exact else "class", results.weakest[0]
        return f"The weakest {kind} is {worst.name}: {weak_text(worst)}."
    if results.exact:
        return "On the validation images, the average precision of each label is 100%."
    return f"None of the {measured_on(one)} was misclassified, so no class is called the weakest."


def rough_digits(one: Estimate) -> int:
    """Return the number of decimals of a value: none in a run if its interval is wide.

    There are more if the value would be rounded to 0 or 100%.
    """
    (low, high), value = one.interval or (0.0, 1.0), round(one.value, 6)
    digits = int(one.kind == "evaluation" or high - low <= _WIDE)
    while 0 < value < 1 and round(value, digits + 2) in (0, 1):
        digits += 1
    return digits


def rough_percent(one: Estimate) -> str:
    """Return the value with `rough_digits`."""
    return percent(one.value, rough_digits(one))


def chance_clause(results: Results) -> str:
    """Return e.g. `always predicts 7`, which can follow `the model`, or "" for a better model."""
    found = results.at_chance
    if found is None:
        return ""
    if results.exact:
        return "does not rank images measurably better than random scores"
    if found.predicts and found.fraction == 1:
        return f"always predicts {found.predicts}"
    if found.predicts:
        return (
            f"predicts {found.predicts} for {percent(found.fraction, 0)} of the validation images"
        )
    where = " in cross-validation" if found.kind == "cross-validation" else ""
    clause = f"is not measurably better than guessing{where}"
    if found.too_few:
        was = "was" if found.images == 1 else "were"
        clause += f", because only {count(found.images, 'image')} {was} scored"
    return clause


def difference_text(results: Results) -> str:
    """Return a sentence if test or validation images are harder or easier than others, or ""."""
    if results.difference is None:
        return ""
    held, other = results.difference
    how = "harder" if held.value < other.value else "easier"
    wrong = percent(1 - other.value)
    than = f"the validation images, of which {wrong} are misclassified"
    if other.kind == "cross-validation":
        than = f"all images, of which {wrong} are misclassified in cross-validation"
    return f"The {held.kind} images are {how} than {than}."


def accuracy_text(results: Results) -> str:
    """Return all estimates as sentences, with the baseline, or "" if nothing was measured."""
    if not (one := results.headline):
        return ""
    sentences = [sentence(text) for text in map(estimate_text, results.estimates)]
    if text := baseline_text(one):
        sentences.append(sentence(text))
    if results.selected_on_validation:
        sentences.append(selection_note("the epoch"))
    return " ".join(filter(None, [*sentences, difference_text(results)]))


def selection_note(epoch: str) -> str:
    """Return a note that the result on the images that selected the epoch is optimistic."""
    text = "was selected on the validation images, so their result is slightly optimistic"
    return sentence(f"{epoch} {text}")


def distinguishes(model: str, classes: str, clause: str) -> str:
    """Return a clause on what a model distinguishes, or was trained to if it is at chance level."""
    if clause:
        return f"{model} was trained to distinguish {classes}, but it {clause}"
    return f"{model} distinguishes {classes}"


def chance_remedy(
    weights: str, solver: str, *, mirrored: bool = False, too_few: bool = False
) -> str:
    """Return advice for a model at chance level, given its initial weights and its solver.

    With `too_few` (see `AtChance`), more training could not show that the model is better.
    """
    if too_few:
        return "use more validation images"
    if mirrored:
        found = chance_remedy(weights, solver)
        return f"{found}. If left and right differ in meaning, add --set train.flip=0"
    if weights == "none" or weights.startswith("random:"):
        return "train longer or start from pretrained weights"
    if solver == "lbfgs":
        return "use more images or other weights, or train more layers, e.g. with --train blocks:2"
    return "train longer, with another learning rate, or on more images"


def using(results: Results, place: str, file_time: float) -> str:
    """Return e.g. `Using runs/latest (flower_photos, trained 4 minutes ago, accuracy 94%)`.

    `file_time` is the time of the model file in seconds since 1970, for a run whose end is unknown.
    """
    ended: float | None = None
    with contextlib.suppress(ValueError, OverflowError, OSError):
        ended = datetime.fromisoformat(results.ended).timestamp()
    seconds = max(0.0, time.time() - (file_time if ended is None else ended))
    age = "less than a minute"  # in whole units
    for unit, size, least in (("day", 86400, 2), ("hour", 3600, 2), ("minute", 60, 1)):
        if seconds >= least * size:
            age = count(int(seconds / size), unit)
            break
    accuracy = "accuracy unknown"
    if one := results.headline:
        before = " before rounding to 8 bits" if results.rounded else ""
        known = how_measured(one) * (one in results.on_known_images)
        accuracy = f"{one.measure} {rough_percent(one)}{before}{known}"
    when = f"file {age} old" if ended is None else f"trained {age} ago"
    text = f"Using {place} ({', '.join(filter(None, [results.data, when, accuracy]))})"
    if results.status:
        text += f". The run has not finished (status: {results.status})"
    if clause := chance_clause(results):
        text += f". The model is at chance level: it {clause}"
    return text


_FEW_ANSWERS = 20  # below which the accuracy that they are expected to have is not stated
USUALLY_UNLIKE = 0.02  # fraction of images like the training images that is flagged
_SIGNIFICANCE = 0.01


def expected_accuracy(
    results: Results, images: int, right: float, *, unlike: int, right_of_unlike: float
) -> str:
    """Return how many of a model's answers are probably right, or "" if they are few.

    `right` is the sum of their calibrated probabilities, whose mean is the expected accuracy
    ("average confidence" in Garg et al. 2022, https://arxiv.org/abs/2201.04234). If more images
    than usual are `unlike` the training images, a second number counts those in excess as wrong.
    """
    one = results.headline
    if one is None or not results.is_calibrated or images < _FEW_ANSWERS:
        return ""
    share, explained = right / images, ""
    text = percent(share, 0)
    if binomial_tail(unlike, images, USUALLY_UNLIKE) < _SIGNIFICANCE:
        excess = unlike - USUALLY_UNLIKE * images
        text = interval((share - excess / images * right_of_unlike / unlike, share), 0)
        explained = (
            f". {percent(unlike / images, 0)} are unlike the training images, usually "
            f"{percent(USUALLY_UNLIKE, 0)}, and the lower number counts the additional ones as "
            "wrong"
        )
    accuracy = f"accuracy of the run: {rough_percent(one)}"
    return f"about {text} of these answers to be right ({accuracy}){explained}"


def _calibration_text(found: Mapping[str, Any]) -> str:
    """Return the calibration error in eval.json; one too small to be measured has no interval."""
    if doubt := not_calibrated(found):
        return doubt
    calibration = found["calibration"]
    bounds, before = calibration["ece_interval"], calibration["ece_before"]
    error = f"calibration error {percent_or_bound(calibration['ece'], bounds)}"
    if not is_measurable(calibration["ece"]):
        return f"{error} (too small to be measured on these images)"
    if before is None or not is_scaled(calibration["temperature"]):
        return error + within(bounds)
    shown = f"{percent(before)} before calibration"
    if bounds[0] <= before < calibration["ece"]:
        shown = "not measurably different before calibration"
    return f"{error}{within(bounds)}, {shown}"


ONLY_COPIES = (
    "all validation images are copies of training images, so the accuracy on them says nothing "
    "about new images"
)


def left_out(found: RunResults) -> dict[str, int]:
    """Return the numbers of validation and test images that do not count, as copies of others."""
    test = found.get("test")
    return {"validation": found.get("left_out", 0), "test": test["left_out"] if test else 0}


def copies_rows(found: RunResults) -> list[tuple[str, str]]:
    """Return a row on the images that do not count, if there are any."""
    numbers = left_out(found).items()
    texts = [count(number, f"{kind} image") for kind, number in numbers if number]
    text = f"{' and '.join(texts)} excluded, as copies of other images"
    return [("Copies", text)] if texts else []


# what only the page of a run shows: what its numbers rest on, and what would raise them -----------

COPIES_WARNING = "Validation images that copy training images say little about new images. "
TEST_COPIES_WARNING = "Test images that copy other images say little about new images. "


def growth_sentence(gain: Interval | None) -> str:
    """Return the gain in accuracy from twice as many images, or "" if unknown."""
    if gain is None:
        return ""
    # Without the intervals that contain 0, only gains that seem large by chance would be shown.
    low, high = (100 * max(0.0, end) for end in gain)  # more images do no harm
    return (
        f"With twice as many images, the accuracy would be {low:.1f} to {high:.1f} points higher "
        "(95% CI, extrapolated)."
    )


def compared_with_accuracy(worst: ClassEstimate, accuracy: float, classes: int) -> str:
    """Return a sentence on whether the lowest recall is more than bad luck.

    With many classes, one of them has a low recall by chance. The exact probability of a recall as
    low as this at the overall accuracy is therefore multiplied by the number of classes
    (Bonferroni's correction).
    """
    if worst.interval is None or worst.interval[1] >= accuracy:
        return "Its interval is so wide that this may be due to chance."
    wrong = worst.images - round(worst.value * worst.images)
    if classes * binomial_tail(wrong, worst.images, 1 - accuracy) < 0.05:
        return "This is clearly below the overall accuracy."
    return f"The lowest of {classes} recalls can be as low as this by chance."


# what `vitft finetune` prints about a run: epochs, layers, trials and the final screen ------------

BEST_RULE = (
    "the lowest loss among the epochs whose accuracy is at most one standard error below the "
    "highest"
)
"""How the best epoch is selected; the rule is that of `training.record.BestWeights`."""


def selected_epoch(results: RunResults, layers: str, planned: int = 0) -> str:
    """Return e.g. `epoch 3 of 20`, which does not count a head fitted before the first epoch.

    `planned` is the number of epochs of each stage, or 0 to leave out the total.
    """
    number, stages, after = results["best_epoch"], len(layers.split(",")), ""
    if layers.startswith("head,"):
        number, stages, after = number - 1, stages - 1, " after fitting the head"
    if not number:
        return "the fitted head"
    return f"epoch {number}{f' of {planned * stages}' if planned else ''}{after}"


EPOCH_COLUMNS = "epoch      train loss  train accuracy  val. loss  val. accuracy      time"


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
        gained = f"{100 * gain:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})"
        evidence = f"{gained} on {found['images']:,} training images in cross-validation"
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


def already_trained(model: str, images: int, held_out: int, run: str) -> str:
    """Return a warning that a model, named with its kind, has been trained on this run's images.

    `run` is the run that trained it, as a word of a command.
    """
    verb = "were" if "weights " in model else "was"
    where = f"{model} {verb} trained on {images:,} of these images"
    if held_out:
        return (
            f"{where}, {held_out:,} of them held out, so the accuracy on them says nothing about "
            f"new images. --like {run} holds out the images of that run"
        )
    return f"{where}, so cross-validation would say nothing about new images"


def known_images_note(name: str, trained: int | None, images: int) -> str:
    """Return the note on weights that were trained on some of the images, or on unknown images."""
    if trained is None:
        return (
            f"it is not known which images were used to train {name}: if any are held out, the "
            "accuracy on them says nothing about new images. To find out, pass the directory of "
            "the run, with its split.csv"
        )
    return (
        f"{name} was trained on {trained:,} of these {count(images, 'image')}, so its accuracies "
        "here say nothing about new images"
    )


# what `vitft finetune` shows at the end of a run: labelled rows, and the details of -v ------------


def result_rows(results: Results, budget: BudgetResults | None = None, *, remedy: str = "") -> Rows:
    """Return the numbers that everybody needs: one to quote, one to support it, findings.

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
        rows.append(("Weakest", _weakest(results.weakest[0])))
    if results.growth:
        low, high = (100 * end for end in results.growth)
        digits = 0 if high - low > 100 * _WIDE else 1
        gain = f"{low:.{digits}f} to {high:.{digits}f} points"
        what = " to the images whose labels are all right" * bool(results.exact)
        rows.append(("More data", f"twice as many images would add {gain}{what}"))
    return rows


def metric_lines(results: Results, found: Mapping[str, Any]) -> list[str]:
    """Return the baseline and the main metrics of only this kind of labels, one per line."""
    texts = [
        f"{text} {one.measure}" for one in results.estimates[:1] if (text := baseline_text(one))
    ]
    if labels := found.get("labels"):
        texts.append(f"mean F1 of the labels: {_with_interval(labels, 'macro_f1')}")
    return texts


def detail_lines(results: Results, found: RunResults, layers: str, planned: int) -> list[str]:
    """Return everything in the report about the accuracy of a run, one fact per line.

    `found` are the contents of eval.json, and `planned` the number of epochs of each stage.
    """
    lines = [*map(estimate_text, results.estimates), *metric_lines(results, found)]
    if (top1 := found.get("knn_top1")) is not None:
        lines.append(f"nearest neighbours on the validation images: accuracy {percent(top1)}")
    if found["selected_on_validation"]:
        lines.append(f"saved: {selected_epoch(found, layers, planned)}")
    if (calibration := found["calibration"]) and calibration["temperature"] != 1:
        lines.append(_calibration_text(found))
    lines += [f"weak: {_weakest(one)}" for one in results.weakest[1:]]
    if (own := found.get("cross_validation")) and not results.estimate("cross-validation"):
        lines.append(f"the head alone, cross-validated: accuracy {percent(own['top1'])}")
    return [*lines, *budget_lines(found.get("budget"))]


def _on(one: Estimate) -> str:
    return how_measured(one).removesuffix(", evaluated once")


def _weakest(one: ClassEstimate) -> str:
    """Return e.g. `tulips: 88% recall, mostly predicted as roses`."""
    also = f", mostly predicted as {one.taken_for}" if one.taken_for else ""
    return f"{one.name}: {percent(one.value, 0)} {one.measure}{also}"


def chosen_layers(budget: BudgetResults) -> str:
    """Return which layers a run with a time budget trained."""
    if budget["chosen"] == "head":
        if budget["trials"]:
            return "only the head, because no trial of more layers was clearly better"
        if skipped := budget["skipped"]:
            needed = needed_budget(min(one["seconds_needed"] for one in skipped))
            return f"only the head, because training more layers needs {needed}"
        return "only the head: there are too few images or seconds for a trial of more layers"
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
        *(
            f"training {layers_text(one['layers'])} was not tried: this needs "
            f"{needed_budget(one['seconds_needed'])}"
            for one in budget["skipped"]
        ),
    ]


def describe_trial(found: TrialResults) -> str:
    """Return the layers of a trial, and its held-out results next to those of a head."""
    folds, part = found.get("folds", 1), _describe_interpolation(found)
    again = f", {folds} times, each with other images held out" if folds > 1 else ""
    return (
        f"a trial trained {layers_text(found['layers'])} for {count(found['epochs'], 'epoch')} on "
        f"{found['images']:,} of the training images{again}{f', {part}' if part else ''}: "
        f"accuracy {percent(found['top1'])} on {count(found['held_out'], 'held-out image')} (head "
        f"alone: {percent(found['head_top1'])}), mean loss (the criterion) {found['loss']:.3f} "
        f"(head alone: {found['head_loss']:.3f})"
    )


# what `vitft evaluate` shows: labelled rows, the details of -v, tables, and rows of CSV -----------

_MOST_LISTED = 30  # maximum number of classes in the table
_CLASS_METRICS = ("recall", "precision", "f1")
_BOUNDS = "95% CI"


def evaluation_rows(results: Results, found: Mapping[str, Any]) -> Rows:
    """Return the accuracy of an evaluation, and what was measured besides."""
    rows, sizes = result_rows(results), {row["images"] for row in found["per_class"].values()}
    if "labels" not in found and len(sizes - {0}) > 1:
        rows.append(("Balanced", f"{_with_interval(found, 'balanced')}, mean of the recalls"))
    if two := found.get("two_classes"):
        rows.append(("AUROC", _with_interval(two, "auroc")))
    if by_group := found.get("by_group"):
        rows.append(("Groups", _groups_text(by_group)))
    if kept := found.get("kept"):
        part = f"{percent(kept['fraction'])} are kept at threshold {percent(kept['threshold'])}"
        right = f", {_with_interval(kept, 'top1')} of them are right" if kept["images"] else ""
        rows.append(("Kept", part + right))
    return rows


def _groups_text(found: Mapping[str, Any]) -> str:
    """Return the accuracy of the answers for groups, or why there is none."""
    groups, several, without = (found[name] for name in ("groups", "several", "ungrouped"))
    left = ""
    if groups:
        text = f"{_with_interval(found, 'top1')} of {count(groups, 'group')}, one answer each"
        verb = "has" if several == 1 else "have"
        left = f"{count(several, 'group')} {verb} several labels" * bool(several)
    elif several:
        which = "the only group" if several == 1 else f"all {several:,} groups"
        text = f"not measured: the images of {which} have different labels"
    else:
        text = "not measured: every group has one image"
    ungrouped = f"{count(without, 'image')} without a group" * bool(without)
    return ". ".join(filter(None, (text, ", ".join(filter(None, (left, ungrouped))))))


def evaluation_details(results: Results, found: Mapping[str, Any]) -> list[str]:
    """Return the other metrics of an evaluation, one per line."""
    lines, labels = metric_lines(results, found), found.get("labels")
    if labels:
        lines.append(f"F1 over all decisions: {_with_interval(labels, 'micro_f1')}")
    elif found["top5"] is not None:
        lines.append(f"{TOP5}: {_with_interval(found, 'top5')}")
    two = found.get("two_classes") or {"classes": {}}
    for name, row in two["classes"].items():
        lines.append(f"average precision of {name}: {_with_interval(row, 'ap')}")
        rate = f"sensitivity for {name} at {percent(two['specificity'])} specificity"
        lines.append(f"{rate}: {_with_interval(row, 'sensitivity')}")
    bounds = found["loss_interval"]
    ends = f"{_BOUNDS} {bounds[0]:.3f} to {bounds[1]:.3f}" if bounds else "too few groups for a CI"
    lines.append(f"log-loss: {found['loss']:.3f} nats ({ends})")
    return [*lines, _calibration_text(found)]


def class_table(
    found: Mapping[str, Any], *, details: bool
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the headings and rows of a table of up to `_MOST_LISTED` classes of the lowest recall.

    With `details`, each metric has its interval, otherwise each class its most frequent mistake.
    """
    occurring = [(name, row) for name, row in found["per_class"].items() if row["images"]]
    if len(occurring) > _MOST_LISTED:
        occurring = sorted(occurring, key=lambda pair: pair[1]["recall"])[:_MOST_LISTED]
    others, with_others = mostly_taken_for(found), not details and not found.get("labels")
    headings, rows = ["class", "images"], []
    for heading in ("recall", "precision", "F1"):
        headings += [heading, _BOUNDS] if details else [heading]
    for name, row in occurring:
        cells = [name, str(row["images"])]
        for metric in _CLASS_METRICS:
            value, bounds = row[metric], row[f"{metric}_interval"]
            cells.append("" if value is None else percent(value))
            cells += ["" if value is None else interval(bounds)] * details
        rows.append((*cells, *[others.get(name, "")] * with_others))
    return (*headings, *["mostly predicted as"] * with_others), rows


def by_table(found: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the headings and rows of a table of up to `_MOST_LISTED` values of lowest accuracy."""
    values = sorted(found["values"].items(), key=lambda pair: pair[1]["top1"])[:_MOST_LISTED]
    rows = []
    for value, row in values:
        cells = [
            value or "(none)",
            f"{row['images']:,}",
            percent(row["top1"]),
            interval(row["top1_interval"]),
        ]
        if row["p_holm"] is not None:
            p = f"{row['p_holm']:.3f}" if row["p_holm"] >= 0.001 else "< 0.001"
            bounds = " to ".join(map(points, row["difference_interval"]))
            cells += [points(row["difference"]), bounds, p]
        rows.append(tuple(cells))
    headings = (found["column"], "images", "accuracy", _BOUNDS, "minus others", _BOUNDS, "p (Holm)")
    return headings[: len(rows[0])], rows


def long_table(results: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    """Yield rows: a header, then the overall and per-class metrics; undefined values are empty."""
    several, kept = results.get("labels") or {}, results.get("kept") or {}
    by_group, by = results.get("by_group") or {}, results.get("by") or {"values": {}}
    two = results.get("two_classes") or {"classes": {}}
    groups: list[tuple[str, str, Mapping[str, Any], Sequence[str]]] = [
        ("", "", results, ("images", "top1", "top5", "balanced", "loss")),
        ("", "", several, ("map", "macro_f1", "micro_f1") if "map" in several else ()),
        ("", "", kept, ("threshold",)),
        ("kept_", "", kept, ("images", "fraction", "top1")),
        ("", "", results["calibration"], ("ece", "ece_before")),
        ("group_", "", by_group, ("groups", "several", "ungrouped", "top1", "confidence")),
        ("", "", two, ("auroc", "specificity") if "auroc" in two else ()),
    ]
    for label, row in results["per_class"].items():
        groups.append(("", label, row, ("images", *_CLASS_METRICS)))
        groups.append(("", label, several.get("per_label", {}).get(label, {}), ("ap",)))
        groups.append(("", label, two["classes"].get(label, {}), ("ap", "sensitivity")))
    for row in results.get("levels") or ():
        name, kept = str(row["level"]), row["kept"] or {}
        groups.append(("level_", name, row, ("classes", "top1")))
        groups.append(("level_kept_", name, kept, ("threshold", "images", "fraction", "top1")))
    for value, row in by["values"].items():
        groups.append(("by_", value, row, ("images", "top1", "difference", "p_holm")))
    yield "figure", "class", "value", "low", "high"
    for prefix, label, found, names in groups:
        for name in names if found else ():
            bounds = found.get(f"{name}_interval") or ("", "")
            yield f"{prefix}{name}", label, "" if found[name] is None else found[name], *bounds
