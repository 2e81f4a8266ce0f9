"""First screen of a run's page: one number, example images and the weakest class."""

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
from vitft.predict.validation import (
    least_confident,
    mistakes,
)
from vitft.report import charts
from vitft.report.run_files import Run, Thumbnails

_MAX_EXAMPLES = 8
"""Maximum number of example images."""


@dataclass(frozen=True, slots=True)
class _Weakest:
    """The class with the lowest recall, or the label with the lowest average precision."""

    name: str
    text: str
    """The measure, its value, the images on which it was measured and the most frequent mistake."""
    is_cross_validated: bool
    """Whether the recall was measured in cross-validation instead of on the validation images."""


def first_screen(run: Run, thumbnails: Thumbnails) -> dict[str, object]:
    """Return the content of the first screen of a run's page; parts without data are empty.

    `chance` is a clause on a model at chance level, and `score` the number that summarises the run.
    """
    chance, one = chance_clause(run.results), run.results.headline
    weakest = None if chance else _weakest_of(run)
    return {
        "chance": chance,
        "score": one
        and {
            "value": rough_percent(one),
            "interval": rough_interval(one),
            "what": "of new images are classified correctly"
            if one.measure == "accuracy"
            else one.measure,
            "how": how_measured(one),
            "bar": charts.score_bar(
                one.measure, one.value, one.interval, one.baseline, marks=baseline_text(one)
            ),
        },
        "weakest": weakest,
        "no_weakest": "" if weakest else _reason_without_weakest(run),
        "difference": difference_text(run.results),
        "examples": _example_rows(run, thumbnails),
    }


def _weakest_of(run: Run) -> _Weakest | None:
    """Return the weakest class or label of a run, or None if none can be named."""
    if len(run.classes) < 2 or not run.results.weakest:
        return None
    worst = run.results.weakest[0]
    return _Weakest(worst.name, weak_text(worst), worst.kind == "cross-validation")


def weakest_sentence(run: Run) -> str:
    """Return a sentence that names the weakest class or label, or "" if there is none."""
    worst = None if run.results.at_chance else _weakest_of(run)
    if worst is None:
        return _reason_without_weakest(run)
    kind = "label" if run.several else "class"
    return f"The weakest {kind} is {worst.name}: {worst.text}."


def _reason_without_weakest(run: Run) -> str:
    """Return the reason why no class is called the weakest, or "" for a run without results."""
    one = run.results.estimate("validation")
    if one is None or run.results.at_chance or run.results.weakest or len(run.classes) < 2:
        return ""
    if run.several:
        return "On the validation images, the average precision of each label is 100%."
    return f"None of the {measured_on(one)} was misclassified, so no class is called the weakest."


def _example_rows(run: Run, thumbnails: Thumbnails) -> list[dict[str, object]]:
    """Return the most confident mistakes, or else the right predictions of the lowest confidence.

    Images without thumbnails are left out.
    """
    kinds = (
        ("wrong", "Mistakes, most confident first", mistakes(run.predictions)),
        (
            "doubtful",
            "Right, but with the lowest confidence",
            least_confident(run.predictions, per_class=2, most=2 * _MAX_EXAMPLES),
        ),
    )
    for kind, title, predictions in kinds:
        shown = [one for one in predictions[:60] if run.thumbnail(one.sha256)][:_MAX_EXAMPLES]
        if shown:
            examples = [
                {"prediction": one, "thumbnail": thumbnails.get(one.sha256)} for one in shown
            ]
            return [{"kind": kind, "title": title, "examples": examples}]
    return []
