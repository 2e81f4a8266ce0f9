"""First screen of a run's page: a verdict, one number, example images and the weakest class."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitft.metrics.chance import chance_level
from vitft.metrics.estimate import better_estimate, cross_validated_text, tested_number
from vitft.metrics.results import FinalTestResults, RunResults
from vitft.metrics.verdict import verdict, weakest_label
from vitft.predict.validation import (
    ValidationPrediction,
    least_confident,
    mistakes,
    most_confident,
)
from vitft.report import charts
from vitft.report.advice import (
    ClassRecall,
    cross_validated_recalls,
    training_images,
    validation_recalls,
)
from vitft.report.run_files import Run, Thumbnails
from vitft.system.text import count, interval, percent, scored_images

MAX_EXAMPLES = 4
"""Maximum number of example images in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The accuracy of a run, or the mean average precision of a multi-label run."""

    name: str
    value: str
    interval: str
    measured_on: str
    cross_validated: str
    """The cross-validated accuracy, where it tells more; otherwise empty."""
    validated: str
    """Result on the validation images, if there are test images; otherwise empty."""
    baseline: str
    """Name and value of the baseline."""
    bar: str
    """SVG of the value, its interval and the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakest:
    """The class with the lowest recall, or the label with the lowest average precision."""

    name: str
    measure: str
    """`recall` or `average precision`."""
    value: str
    interval: str
    detail: str
    """Images on which the value was measured, and the most frequent wrong prediction."""
    meaning: str
    """Sentence on what the measure means."""
    trained: str
    """Number of training images of the class."""
    is_clear: bool
    """Whether the interval of a recall is below the overall accuracy; always set for labels."""
    is_cross_validated: bool
    """Whether the recall was measured in cross-validation instead of on the validation images."""
    bar: str


@dataclass(frozen=True, slots=True)
class Example:
    """A validation image with its thumbnail, as a data URI."""

    prediction: ValidationPrediction
    thumbnail: str


@dataclass(frozen=True, slots=True)
class ExampleRow:
    """Example images of one kind: `right`, `wrong` or `doubtful`."""

    kind: str
    title: str
    examples: Sequence[Example]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstScreen:
    """Content of the first screen; parts without data are None or empty."""

    verdict: str
    is_at_chance: bool
    score: Score | None
    weakest: Weakest | None
    no_weakest: str
    """Reason why no weakest class is named; empty if one is named."""
    examples: Sequence[ExampleRow]


def first_screen(run: Run, thumbnails: Thumbnails) -> FirstScreen:
    """Return the content of the first screen of a run's page."""
    is_at_chance = bool(chance_level(run.results))
    weakest = None if is_at_chance else weakest_of(run)
    return FirstScreen(
        verdict=verdict(run.results),
        is_at_chance=is_at_chance,
        score=score_of(run),
        weakest=weakest,
        no_weakest="" if weakest else reason_without_weakest(run),
        examples=example_rows(run, thumbnails),
    )


def score_of(run: Run) -> Score | None:
    """Return the number that summarises a run, or None if the run has no results."""
    results = run.results
    if not results:
        return None
    shown: FinalTestResults | RunResults = results.get("test") or results
    kind = "validation image" if shown is results else "test image"
    name, baseline, baseline_name = "accuracy", shown["majority"], "always the largest class"
    if found := shown.get("labels"):
        name, baseline, baseline_name = (
            "mean average precision",
            found["chance_map"],
            "random scores",
        )
    (value, bounds), more = tested_number(shown), better_estimate(results)
    validated, within = tested_number(results)
    return Score(
        name=name,
        value=percent(value),
        interval=interval(bounds),
        measured_on=scored_images(shown, kind),
        cross_validated=cross_validated_text(more) if more else "",
        validated=f"on {scored_images(results, 'validation image')}: {percent(validated)} "
        f"({interval(within)})"
        if shown is not results
        else "",
        baseline=f"{baseline_name}: {percent(baseline)}",
        bar=charts.score_bar(name, value, bounds, baseline),
    )


def weakest_of(run: Run) -> Weakest | None:
    """Return the weakest class or label of a run, or None if none can be named."""
    if len(run.classes) < 2:
        return None
    return lowest_average_precision(run) if run.several else lowest_recall(run)


def lowest_average_precision(run: Run) -> Weakest | None:
    """Return the label with the lowest average precision, or None if that of all is 100%."""
    worst = weakest_label(run.results["labels"]) if "labels" in run.results else None
    if worst is None:
        return None
    return Weakest(
        name=worst.name,
        measure="average precision",
        value=percent(worst.value),
        interval=interval(worst.interval),
        detail=f"on {count(run.results['images'], 'validation image')}",
        meaning="It is 100% if all images with the label have a higher probability than all others",
        trained=count(training_images(run)[worst.name], "training image"),
        is_clear=True,
        is_cross_validated=False,
        bar=charts.score_bar("average precision", worst.value, worst.interval, None),
    )


def lowest_recall(run: Run) -> Weakest | None:
    """Return the class with the lowest recall, or None if no image was misclassified."""
    cross_validated = [one for one in cross_validated_recalls(run) if one.recall < 1]
    imperfect = cross_validated or [one for one in validation_recalls(run) if one.recall < 1]
    if not imperfect:
        return None
    worst = min(imperfect, key=lambda one: one.recall)
    return Weakest(
        name=worst.name,
        measure="recall",
        value=percent(worst.recall, 0),
        interval=interval(worst.interval, 0),
        detail=f"on {worst.measured_on}{taken_for(worst)}",
        meaning="Recall is the fraction of images of the class that are classified correctly",
        trained=count(training_images(run)[worst.name], "training image"),
        is_clear=worst.interval[1] < worst.accuracy,
        is_cross_validated=bool(cross_validated),
        bar=charts.score_bar("recall", worst.recall, worst.interval, None),
    )


def weakest_sentence(run: Run) -> str:
    """Return a sentence that names the weakest class or label, or "" if there is none."""
    worst = None if chance_level(run.results) else weakest_of(run)
    if worst is None:
        return reason_without_weakest(run)
    measure = "a recall" if worst.measure == "recall" else f"an {worst.measure}"
    return (
        f"The weakest {'label' if run.several else 'class'} is {worst.name}, with {measure} of "
        f"{worst.value} {worst.detail} (95% interval: {worst.interval})."
    )


def taken_for(one: ClassRecall) -> str:
    """Return a clause that names the most frequent wrong prediction, if it is known."""
    return f", most often mistaken for {one.taken_for}" if one.taken_for else ""


def reason_without_weakest(run: Run) -> str:
    """Return the reason why no class is called the weakest, or "" for a run without results."""
    if chance_level(run.results) or not validation_recalls(run):
        return ""
    if run.several:
        values = [row["ap"] for row in run.results["labels"]["per_label"].values()]
        if len(values) < 2 or any(value != 1 for value in values):
            return ""
        return "On the validation images, the average precision of each label is 100%."
    return (
        f"None of the {count(run.results['images'], 'validation image')} was misclassified, so no "
        "class is called the weakest."
    )


def example_rows(run: Run, thumbnails: Thumbnails) -> list[ExampleRow]:
    """Return rows of wrong, doubtful and right predictions; images without thumbnails are left out.

    The right predictions are the most confident ones, at most one per class, and the doubtful ones
    are right, but with the lowest confidence.
    """
    kinds = (
        ("wrong", "Wrong, most confident first", mistakes(run.predictions)),
        (
            "doubtful",
            "Right, but with the lowest confidence",
            least_confident(run.predictions, per_class=1, most=2 * MAX_EXAMPLES),
        ),
        ("right", "Right", most_confident(run.predictions, most=2 * MAX_EXAMPLES)),
    )
    rows = []
    for kind, title, predictions in kinds:
        shown = [one for one in predictions[:60] if run.thumbnail(one.sha256)][:MAX_EXAMPLES]
        examples = [Example(one, thumbnails.get(one.sha256)) for one in shown]
        if examples:
            rows.append(ExampleRow(kind, title, examples))
    return rows
