"""Sentences on the limits of a comparison of runs."""

from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from vitft.messages.comparison import (
    cross_validated_difference,
    data_difference,
    result_notes,
    split_difference,
)
from vitft.metrics.intervals import PairedDifference
from vitft.predict.validation import ValidationPrediction
from vitft.report.fixed_images import data_changes, fixes_notes
from vitft.report.fixes_effect import cross_validated_pairs
from vitft.report.run_files import Run


def comparison_notes(
    runs: Sequence[Run],
    by_digest: Sequence[Mapping[str, ValidationPrediction]],
    common: int,
    relabelled: Sequence[str],
) -> list[str]:
    """Return sentences about the limits of the comparison.

    Args:
        runs: Runs to compare.
        by_digest: Validation predictions of each run, by SHA-256 of the image.
        common: Number of validation images that all runs share.
        relabelled: Digests of the shared images whose label differs between runs.
    """
    notes, sizes = list[str](), [len(table) for table in by_digest]
    if any(size != common for size in sizes):
        shared = common - len(relabelled)
        notes.append(split_difference(sizes, shared, relabelled=bool(relabelled)))
    notes += fixes_notes(runs, by_digest, relabelled)
    for letter, changes in zip(ascii_uppercase[1:], data_changes(runs), strict=False):
        notes.append(data_difference(letter, *changes))
    # The effect of fixes on two heads that were both cross-validated is tested in `fixes_effect`.
    has_fixes = any(run.setting("data", "fixes") for run in runs)
    cross_validated = [run for run in runs if run.results.estimate("cross-validation")]
    if len(runs) == len(cross_validated) == 2 and not has_fixes:
        right, also_right, groups = cross_validated_pairs(*runs)
        if len(right) > common:
            p = PairedDifference.of(right, also_right, groups).p
            accuracies = [int(flags.sum()) / len(flags) for flags in (right, also_right)]
            notes.append(cross_validated_difference(len(right), accuracies, p))
    if len({run.classes for run in runs}) > 1:
        notes.append("The runs have different classes, so they solve different tasks.")
    notes += result_notes(
        [run.results for run in runs],
        head_only=[
            "cross_validation" in run.measured and not run.results.estimate("cross-validation")
            for run in runs
        ],
        compared=common > len(relabelled),
        fitted=common > len(relabelled) and not runs[0].is_evaluation,
    )
    return [*filter(None, notes)]
