"""Section "Intended use and limits" of a model card, written from the results of the run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from vitft.config.run import checked_run_config
from vitft.data.fixes import settled_paths
from vitft.data.proposals import is_leak
from vitft.export.snippets import program
from vitft.export.trained import TrainedRun
from vitft.features.reference import REFERENCE_FILE
from vitft.messages.results import weak_text
from vitft.metrics.confusions import class_pair_counts
from vitft.metrics.results import AuditResults, RunResults
from vitft.system.run_content import read_run_json
from vitft.system.text import is_measurable, not_calibrated

_FEW_PER_CLASS = 10
"""Number of validation images below which the recall of a class is unreliable."""
_MOST_MENTIONED = 3
"""Maximum number of confusions in the text."""


class _ClassPair(NamedTuple):
    """A true class, the class predicted instead, and the number of images confused in this way."""

    true: int
    predicted: int
    images: int
    of: int
    """Number of validation images of the true class."""


def _most_confused(results: RunResults) -> list[_ClassPair]:
    """Return the most frequent confusions, of at least two images each, in descending order."""
    counts, totals = class_pair_counts(results), Counter[int]()
    for (true, _), number in counts.items():
        totals[true] += number
    pairs = [
        _ClassPair(i, j, number, totals[i])
        for (i, j), number in counts.items()
        if i != j and number > 1
    ]
    return sorted(pairs, key=lambda pair: -pair.images)[:_MOST_MENTIONED]


def limits_of(trained: TrainedRun, names: Sequence[str]) -> list[str]:
    """Return Markdown sentences about the intended use of the model and its limits.

    Problems of the data are those that the audit of the run found, without the labels that its
    fixes keep.

    Args:
        trained: The exported run. With a head that reads fewer blocks than the run's head, the
            results by class, the confusions and the calibration are left out.
        names: Class names, escaped for Markdown, in the order of the model's outputs.

    Raises:
        RunError: A file of the run is damaged.
    """
    run, results, by_class = trained.run, trained.measured, not trained.is_narrow
    audit = read_run_json(run / "audit.json", AuditResults) if results else None
    leaks = wrong = few = 0
    if audit:
        has_settings = (run / "config.toml").is_file()
        kept = settled_paths(checked_run_config(run).data) if has_settings else ()
        leaks = sum(map(is_leak, audit["duplicates"]))
        wrong = sum(item["path"] not in kept for item in audit["mislabels"])
    at_chance = trained.results.at_chance
    literal = dict(zip(trained.card.classes, names, strict=True))
    if results and by_class:
        few = sum(row["images"] < _FEW_PER_CLASS for row in results["per_class"].values())
    text = program(
        "limits",
        names=names,
        results=results,
        own_split=audit and audit.get("own_split"),
        flags_unlike=(run / REFERENCE_FILE).is_file(),
        at_chance=at_chance,
        by_class=by_class,
        weak=[
            replace(one, name=literal[one.name], taken_for=literal.get(one.taken_for, ""))
            for one in trained.results.weakest
        ],
        weak_text=weak_text,
        few=few,
        few_per_class=_FEW_PER_CLASS,
        confused=_most_confused(results) if results else [],
        too_few=not_calibrated(results) if results and results.get("calibration") else "",
        is_measurable=is_measurable,
        leaks=leaks,
        wrong=wrong,
    )
    return [line for line in text.split("\n") if line]
