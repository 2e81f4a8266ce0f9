"""First screen of a run's page: a verdict, one number, example images and the weakest class."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitft.messages.results import (
    baseline_text,
    estimate_text,
    how_measured,
    measured_on,
    verdict,
    weak_text,
)
from vitft.metrics.summary import Results
from vitft.predict.validation import (
    ValidationPrediction,
    least_confident,
    mistakes,
    most_confident,
)
from vitft.report import charts
from vitft.report.advice import training_images
from vitft.report.run_files import Run, Thumbnails
from vitft.system.text import count, interval, percent

MAX_EXAMPLES = 4
"""Maximum number of example images in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The accuracy of a run, or the mean average precision of a multi-label run."""

    name: str
    value: str
    interval: str
    how: str
    """How it was measured, e.g. `, cross-validated on 36 images`."""
    others: Sequence[str]
    """The supporting estimates."""
    baseline: str
    """Name and value of the baseline."""
    bar: str
    """SVG of the value, its interval and the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakest:
    """The class with the lowest recall, or the label with the lowest average precision."""

    name: str
    text: str
    """The measure, its value, the images on which it was measured and the most frequent mistake."""
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
    is_at_chance = run.results.at_chance is not None
    weakest = None if is_at_chance else weakest_of(run)
    return FirstScreen(
        verdict=verdict(run.results),
        is_at_chance=is_at_chance,
        score=score_of(run.results),
        weakest=weakest,
        no_weakest="" if weakest else reason_without_weakest(run),
        examples=example_rows(run, thumbnails),
    )


def score_of(results: Results) -> Score | None:
    """Return the number that summarises a run, or None if the run has no results."""
    one = results.headline
    if one is None:
        return None
    return Score(
        name=one.measure,
        value=percent(one.value),
        interval=interval(one.interval),
        how=how_measured(one),
        others=[*map(estimate_text, results.supporting)],
        baseline=baseline_text(one),
        bar=charts.score_bar(one.measure, one.value, one.interval, one.baseline),
    )


def weakest_of(run: Run) -> Weakest | None:
    """Return the weakest class or label of a run, or None if none can be named."""
    accuracy = run.results.estimate(run.results.weakest[0].kind) if run.results.weakest else None
    if len(run.classes) < 2 or accuracy is None:
        return None
    worst = run.results.weakest[0]
    meaning = "Recall is the fraction of images of the class that are classified correctly"
    if worst.measure == "average precision":
        meaning = (
            "It is 100% if all images with the label have a higher probability than all others"
        )
    return Weakest(
        name=worst.name,
        text=weak_text(worst),
        meaning=meaning,
        trained=count(training_images(run)[worst.name], "training image"),
        is_clear=worst.measure == "average precision"
        or bool(worst.interval and worst.interval[1] < accuracy.value),
        is_cross_validated=worst.kind == "cross-validation",
        bar=charts.score_bar(worst.measure, worst.value, worst.interval, None),
    )


def weakest_sentence(run: Run) -> str:
    """Return a sentence that names the weakest class or label, or "" if there is none."""
    worst = None if run.results.at_chance else weakest_of(run)
    if worst is None:
        return reason_without_weakest(run)
    kind = "label" if run.several else "class"
    return f"The weakest {kind} is {worst.name}: {worst.text}."


def reason_without_weakest(run: Run) -> str:
    """Return the reason why no class is called the weakest, or "" for a run without results."""
    one = run.results.estimate("validation")
    if one is None or run.results.at_chance or run.results.weakest or len(run.classes) < 2:
        return ""
    if run.several:
        return "On the validation images, the average precision of each label is 100%."
    return f"None of the {measured_on(one)} was misclassified, so no class is called the weakest."


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
