"""Sentences about the numbers of a run (`metrics.Results`)."""

import contextlib
import time
from collections.abc import Sequence
from datetime import datetime

from vitft.metrics.results import Interval
from vitft.metrics.summary import AtChance, ClassEstimate, Estimate, Results
from vitft.system.text import count, days_and_hours, interval, percent, scored_images

WIDE = 0.05
"""Length of an interval from which a value has no decimals where space is scarce."""


def measured_on(one: Estimate) -> str:
    """Return e.g. `240 validation images of 12 groups`."""
    kind = "image" if one.kind == "cross-validation" else f"{one.kind} image"
    return scored_images({"images": one.images, "groups": one.groups}, kind)


def estimate_text(one: Estimate) -> str:
    """Return e.g. `accuracy 94.3% (95% CI 92.9 to 95.5%), cross-validated on 1,200 images`."""
    within = f" (95% CI {interval(one.interval)})" if one.interval else ""
    return f"{one.measure} {percent(one.value)}{within}{how_measured(one)}"


def how_measured(one: Estimate) -> str:
    """Return e.g. `, cross-validated on 1,200 images`, which can follow a value."""
    return {
        "test": f" on {measured_on(one)}, evaluated once",
        "cross-validation": f", cross-validated on {measured_on(one)}",
        "validation": f" on {measured_on(one)}",
    }[one.kind]


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
    within = f" (95% CI {rough_interval(one)})" if one.interval else ""
    what = "of new images are classified correctly" if not results.exact else one.measure
    text = f"{rough_percent(one)} {what}{within}{how_measured(one)}."
    return f"{text} {difference_text(results)}".strip()


def growth_text(gain: Interval | None) -> str:
    """Return e.g. `0.2 to 1.1 points higher (95% CI, extrapolated)`, or "" if unknown.

    This is the accuracy with twice as many images. It is given even if the interval contains 0:
    otherwise, only gains that seem large by chance would be shown.
    """
    if gain is None:
        return ""
    low, high = (100 * max(0.0, end) for end in gain)  # more images do no harm
    return f"{low:.1f} to {high:.1f} points higher (95% CI, extrapolated)"


def weak_text(one: ClassEstimate) -> str:
    """Return e.g. `recall 75.0% (95% CI 44 to 92%) on 12 images, mostly taken for dog`."""
    on = count(one.images, "validation image")
    if one.kind == "cross-validation":
        on = f"{count(one.images, 'image')} in cross-validation"
    also = f", mostly taken for {one.taken_for}" if one.taken_for else ""
    within = f" (95% CI {interval(one.interval, 0)})" if one.interval else ""
    return f"{one.measure} {percent(one.value)}{within} on {on}{also}"


def rough_percent(one: Estimate) -> str:
    """Return the value, without decimals if its interval is wide."""
    low, high = one.interval or (0.0, 1.0)
    return percent(one.value, 0 if high - low > WIDE else 1)


def rough_interval(one: Estimate) -> str:
    """Return the interval with as many decimals as `rough_percent`."""
    return interval(one.interval, int("." in rough_percent(one)))


def chance_clause(results: Results) -> str:
    """Return e.g. `always predicts 7` for a model at chance level, which can follow `the model`.

    The result is empty for any other model.
    """
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
    """Return a sentence if test or validation images are harder or easier than the others, or "".

    Test images are compared with the cross-validation, or else with the validation images.
    """
    if results.difference is None:
        return ""
    held, other = results.difference
    how = "harder" if held.value < other.value else "easier"
    wrong = percent(1 - other.value)
    than = f"the validation images, of which {wrong} are misclassified"
    if other.kind == "cross-validation":
        than = f"the training images, of which {wrong} are misclassified in cross-validation"
    return f"The {held.kind} images are {how} than {than}."


def accuracy_text(results: Results) -> str:
    """Return all estimates as sentences, with the baseline, or "" if nothing was measured."""
    if not (one := results.headline):
        return ""
    sentences = [f"{text[0].upper()}{text[1:]}." for text in map(estimate_text, results.estimates)]
    if text := baseline_text(one):
        sentences.append(f"{text[0].upper()}{text[1:]}.")
    if results.selected_on_validation:
        sentences.append(
            "The epoch was selected on the validation images, so their result is slightly "
            "optimistic."
        )
    return " ".join(filter(None, [*sentences, difference_text(results)]))


def distinguishes(model: str, classes: str, clause: str) -> str:
    """Return what a model distinguishes, or what a model at chance level was trained for.

    Args:
        model: Subject of the sentence, e.g. `This model`.
        classes: Number and names of the classes, e.g. `3 classes`.
        clause: Result of `chance_clause`.
    """
    if clause:
        return f"{model} was trained to distinguish {classes}, but it {clause}"
    return f"{model} distinguishes {classes}"


def chance_remedy(
    weights: str, solver: str, *, mirrored: bool = False, too_few: bool = False
) -> str:
    """Return advice for a model at chance level, given its initial weights and its solver.

    `too_few` is that of `AtChance`: more training could not show that the model is better.
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

    Args:
        results: Numbers of the run.
        place: Where the model was found, as the user wrote it.
        file_time: Time of its file in seconds since 1970, for a run whose end is unknown.
    """
    ended: float | None = None
    with contextlib.suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(results.ended)
        if 1970 < moment.year < 9999:  # not every time zone can represent other years
            ended = moment.timestamp()
    age = days_and_hours(max(0.0, time.time() - (file_time if ended is None else ended)))
    accuracy = "accuracy unknown"
    if one := results.headline:
        before = " before rounding to 8 bits" if results.rounded else ""
        accuracy = f"{one.measure} {rough_percent(one)}{before}"
    when = f"file {age} old" if ended is None else f"trained {age} ago"
    text = f"Using {place} ({', '.join(filter(None, [results.data, when, accuracy]))})"
    if results.status:
        text += f". The run has not finished (status: {results.status})"
    if clause := chance_clause(results):
        text += f". The model is at chance level: it {clause}"
    return text


def run_details(results: Results) -> str:
    """Return the name of a run and all its estimates, e.g. for `-v`."""
    return "; ".join([f"run {results.name}", *map(estimate_text, results.estimates)])


def accuracy_without_copies(value: float, bounds: Interval, images: str) -> str:
    """Return the accuracy on validation images that have no copies among the training images."""
    where = f"{images} without copies among the training images"
    return f"{percent(value)} (95% CI {interval(bounds)}) on the {where}"


def threshold_text(
    value: float, precision: float, bounds: Interval, *, covered: int, images: str, expected: float
) -> str:
    """Return a threshold and the precision that it reaches.

    Args:
        value: The threshold.
        precision: Fraction of correct predictions at or above the threshold.
        bounds: 95% interval of the precision.
        covered: Number of predictions at or above the threshold.
        images: All images as text, e.g. `40 validation images`.
        expected: The precision that the probabilities promise, which is given if it is higher.
    """
    also = f", {percent(expected)} expected from the probabilities" if expected > precision else ""
    return (
        f"threshold {percent(value)}: precision {percent(precision)} "
        f"(95% CI {interval(bounds)}) on {covered:,} of {images}{also}"
    )


# sentences that advise on an accuracy: whether to trust it, and what would raise it ---------------

COPIES_WARNING = "Duplicates across training and validation can make the accuracy too high. "
TEST_COPIES_WARNING = "Near-duplicates of test images can make the test accuracy too high. "


def chance_reason(results: Results, found: AtChance) -> str:
    """Return why a model must not be used yet."""
    bounds, guessing = interval(found.interval), percent(found.guessing)
    if results.exact:
        return (
            f"The 95% CI of its mean average precision ({bounds}) is not entirely above "
            f"{guessing}, the value for random scores."
        )
    clause = f"It {chance_clause(results)}. " * bool(found.predicts)
    where = " in cross-validation" if found.kind == "cross-validation" else ""
    return (
        f"{clause}The 95% CI of its balanced accuracy{where} ({bounds}) is not clearly above "
        f"{guessing}, that of guessing."
    )


def copies_reason(groups: int, without: str, *, own_split: bool) -> str:
    """Return why and how to remove duplicates across training and validation.

    Args:
        groups: Number of groups of duplicates.
        without: Accuracy without them as text; empty if unknown.
        own_split: Whether the split is that of the data.
    """
    remedy = "the option --group-duplicates keeps each group on one side of the split."
    if own_split:
        remedy = (
            "the split is that of your data: drop the copies on one side, or correct the split."
        )
    known = f" It is {without}." if without else ""
    return (
        f"{count(groups, 'group')} of identical or nearly identical images "
        f"{'contains' if groups == 1 else 'contain'} both training and validation images, so the "
        f"accuracy may be too high.{known} vitft check lists them, and {remedy}"
    )


def growth_advice(gain: str) -> str:
    """Return what twice as many images would bring, given the result of `growth_text`."""
    return f"With twice as many images, the accuracy would be {gain}."


def more_validation_images(needed: int) -> str:
    """Return how many validation images a usual precision needs."""
    return f"To measure the accuracy to within ±4 points, use about {needed:,} validation images."


# sentences about the accuracy of exported models --------------------------------------------------


def export_accuracy(
    before: float, after: float, bounds: Interval, images: str, *, several_labels: bool = False
) -> str:
    """Return a clause about the accuracy of an export on images, given that of the original."""
    measure = "the fraction of images with all labels right" if several_labels else "the accuracy"
    return (
        f"{measure} is {percent(after)} (95% CI {interval(bounds)}) on {images}, compared with "
        f"{percent(before)} for the original"
    )


def fewer_blocks(blocks: int, last: float | None, whole: float) -> str:
    """Return why the head of an export reads only the last block, and what that costs.

    Args:
        blocks: Number of blocks that the head of the run reads; 0 if unknown.
        last: Validation accuracy of the exported head; None if unknown.
        whole: Validation accuracy of the run's head.
    """
    if last is None:
        return "because timm and transformers cannot load a head that reads several blocks"
    cost = f"{percent(last)} instead of {percent(whole)}"
    if percent(last) == percent(whole):
        cost = f"{percent(last)}, as with the run's head"
    return (
        "because timm and transformers cannot load the run's head, which reads the last "
        f"{blocks} blocks (validation accuracy {cost})"
    )


def few_images_accuracy(images: int, accuracies: Sequence[float]) -> str:
    """Return the accuracy on few images, and that with 8-bit weights if it differs."""
    own, other = map(percent, accuracies)
    also = f", and {other} with 8 bits" * (own != other)
    return f"(on only {count(images, 'validation image')}, the model's accuracy is {own}{also})"
