"""A comparison of runs as JSON."""

from typing import cast

from vitft.metrics.comparison_results import (
    AddedResults,
    ComparedPair,
    ComparedRun,
    ComparisonResults,
    DataChanges,
    FixesVerdict,
)
from vitft.report.added_images import find_added
from vitft.report.comparison import RunComparison, RunPair
from vitft.report.fixed_images import data_changes
from vitft.report.fixes_effect import FixesEffect
from vitft.report.reproduce import different_settings


def comparison_results(comparison: RunComparison) -> ComparisonResults:
    """Return a comparison as an object that can be written as JSON."""
    runs, names, winner = comparison.runs, comparison.names, comparison.winner
    changes = zip(names[1:], data_changes(runs), strict=True)
    return {
        "shared_images": comparison.shared,
        "notes": comparison.limits,
        "limit": comparison.power_text() or None,
        "winner": None if winner is None else names[winner],
        "runs": [_run_results(comparison, i) for i in range(len(runs))],
        "pairs": [
            _pair_results(comparison, pair, effect)
            for pair, effect in zip(comparison.pairs, comparison.fixes, strict=True)
        ],
        "settings": dict(different_settings(runs)),
        "data": [
            DataChanges(run=name, labels_changed=changed, left_out=left_out, added=added)
            for name, (changed, left_out, added) in changes
        ],
        "disagree": [image.path for image in comparison.images if image.disputed],
    }


def _run_results(comparison: RunComparison, i: int) -> ComparedRun:
    """Return the accuracies of the run with index `i`."""
    run = comparison.runs[i]
    recall = {name: right[i] / of for name, (right, of) in comparison.recall_counts.items()}
    return {
        "name": comparison.names[i],
        "letter": comparison.letters[i],
        "path": str(run.path),
        "results": run.results.to_json(),
        "shared_right": comparison.rights[i],
        "shared_interval": comparison.accuracies[i][1] if comparison.shared else None,
        "recall": recall,
    }


def _pair_results(
    comparison: RunComparison, pair: RunPair, effect: FixesEffect | None
) -> ComparedPair:
    """Return the test of a pair of runs and what follows from it."""
    names = comparison.names[pair.first], comparison.names[pair.second]
    is_significant = pair.p < 0.05
    found = find_added(comparison.runs[pair.first], comparison.runs[pair.second])
    added: AddedResults | None = None
    if found and not effect:
        run = names[found.is_second]
        added = {"run": run, "images": found.images, "settings": list(found.settings)}
    return {
        "runs": names,
        "test": "mid-p McNemar" if comparison.groups is None else "sign flips of groups",
        "only_first_right": pair.paired.only_second,
        "only_second_right": pair.paired.only_first,
        "difference": pair.difference,
        "interval": pair.interval,
        "p_holm": pair.p,
        "significant": is_significant,
        "more_accurate": names[pair.difference > 0] if is_significant else None,
        "conclusion": comparison.conclusion(pair),
        "added": added,
        "fixes": None
        if effect is None
        else {
            "run": names[effect.is_second],
            "verdict": cast("FixesVerdict", effect.verdict),
            "relabelled": effect.relabelled,
            "left_out": effect.left_out,
            "added": effect.added,
            "settings": list(effect.settings),
            "cross_validated": effect.is_cross_validated,
            "images": effect.paired.images,
            "only_with_right": effect.paired.only_first,
            "only_without_right": effect.paired.only_second,
            "difference": effect.difference,
            "interval": effect.interval,
            "p_holm": effect.p,
        },
    }
