"""Sentences about the numbers of a run (`metrics.Results`)."""

import contextlib
import time
from datetime import datetime

from vitft.metrics.summary import Estimate, Results
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
    how = {
        "test": f" on {measured_on(one)}, evaluated once",
        "cross-validation": f", cross-validated on {measured_on(one)}",
        "validation": f" on {measured_on(one)}",
    }[one.kind]
    return f"{one.measure} {percent(one.value)}{within}{how}"


def rough_percent(one: Estimate) -> str:
    """Return the value, without decimals if its interval is wide."""
    low, high = one.interval or (0.0, 1.0)
    return percent(one.value, 0 if high - low > WIDE else 1)


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
    if one.baseline is not None:
        name = "Always predicting the largest class"
        name = "Random scores" if one.measure == "mean average precision" else name
        sentences.append(f"{name}: {percent(one.baseline)}.")
    if results.selected_on_validation:
        sentences.append(
            "The epoch was selected on the validation images, so their result is slightly "
            "optimistic."
        )
    return " ".join(filter(None, [*sentences, difference_text(results)]))


def using(results: Results, place: str, file_time: float, now: float | None = None) -> str:
    """Return e.g. `Using runs/latest (flower_photos, trained 4 minutes ago, accuracy 94%)`.

    Args:
        results: Numbers of the run.
        place: Where the model was found, as the user wrote it.
        file_time: Time of its file in seconds since 1970, for a run whose end is unknown.
        now: Time in seconds since 1970; by default, the current time.
    """
    ended = _seconds_since_1970(results.ended)
    age = days_and_hours(
        max(0.0, (time.time() if now is None else now) - (file_time if ended is None else ended))
    )
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


def _seconds_since_1970(time: str) -> float | None:
    """Return a time in ISO 8601 in seconds since 1970, or None if it is not such a time.

    Years up to 1970 and from 9999 on are rejected: not every time zone can represent them.
    """
    with contextlib.suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(time)
        if 1970 < moment.year < 9999:
            return moment.timestamp()
    return None
