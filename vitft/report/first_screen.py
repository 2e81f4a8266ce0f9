"""First screen of a run's page: one number, example images and the weakest class."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitft.messages.results import (
    baseline_text,
    chance_clause,
    difference_text,
    how_measured,
    measured_on,
    rough_interval,
    rough_percent,
    weak_text,
)
from vitft.metrics.summary import Results
from vitft.predict.validation import (
    ValidationPrediction,
    least_confident,
    mistakes,
)
from vitft.report import charts
from vitft.report.run_files import Run, Thumbnails

MAX_EXAMPLES = 8
"""Maximum number of example images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The accuracy of a run, or the mean average precision of a multi-label run."""

    value: str
    interval: str
    what: str
    """What the value is, e.g. `of new images are classified correctly`."""
    how: str
    """How it was measured, e.g. `, cross-validated on 36 images`."""
    bar: str
    """SVG of the value, its interval and the baseline."""


@dataclass(frozen=True, slots=True)
class Weakest:
    """The class with the lowest recall, or the label with the lowest average precision."""

    name: str
    text: str
    """The measure, its value, the images on which it was measured and the most frequent mistake."""
    is_cross_validated: bool
    """Whether the recall was measured in cross-validation instead of on the validation images."""


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

    chance: str
    """Clause on a model at chance level; otherwise empty."""
    score: Score | None
    weakest: Weakest | None
    no_weakest: str
    """Reason why no weakest class is named; empty if one is named."""
    difference: str
    """Sentence on images that are harder or easier than the others, or empty."""
    examples: Sequence[ExampleRow]


def first_screen(run: Run, thumbnails: Thumbnails) -> FirstScreen:
    """Return the content of the first screen of a run's page."""
    chance = chance_clause(run.results)
    weakest = None if chance else weakest_of(run)
    return FirstScreen(
        chance=chance,
        score=score_of(run.results),
        weakest=weakest,
        no_weakest="" if weakest else reason_without_weakest(run),
        difference=difference_text(run.results),
        examples=example_rows(run, thumbnails),
    )


def score_of(results: Results) -> Score | None:
    """Return the number that summarises a run, or None if the run has no results."""
    one = results.headline
    if one is None:
        return None
    what = "of new images are classified correctly" if one.measure == "accuracy" else one.measure
    return Score(
        value=rough_percent(one),
        interval=rough_interval(one),
        what=what,
        how=how_measured(one),
        bar=charts.score_bar(
            one.measure, one.value, one.interval, one.baseline, marks=baseline_text(one)
        ),
    )


def weakest_of(run: Run) -> Weakest | None:
    """Return the weakest class or label of a run, or None if none can be named."""
    if len(run.classes) < 2 or not run.results.weakest:
        return None
    worst = run.results.weakest[0]
    return Weakest(worst.name, weak_text(worst), worst.kind == "cross-validation")


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
    """Return the most confident mistakes, or else the right predictions of the lowest confidence.

    Images without thumbnails are left out.
    """
    kinds = (
        ("wrong", "Mistakes, most confident first", mistakes(run.predictions)),
        (
            "doubtful",
            "Right, but with the lowest confidence",
            least_confident(run.predictions, per_class=2, most=2 * MAX_EXAMPLES),
        ),
    )
    for kind, title, predictions in kinds:
        shown = [one for one in predictions[:60] if run.thumbnail(one.sha256)][:MAX_EXAMPLES]
        if shown:
            examples = [Example(one, thumbnails.get(one.sha256)) for one in shown]
            return [ExampleRow(kind, title, examples)]
    return []
