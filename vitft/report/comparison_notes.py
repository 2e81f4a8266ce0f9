"""Sentences on the limits of a comparison of runs."""

from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from vitft.messages.results import chance_clause, estimate_text
from vitft.metrics.intervals import PairedDifference
from vitft.predict.validation import ValidationPrediction
from vitft.report.fixed_images import data_notes, fixes_notes
from vitft.report.fixes_effect import cross_validated_pairs
from vitft.report.run_files import Run
from vitft.system.text import count, listing, p_equation, percent


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
    notes, changed = [], bool(relabelled)
    sizes = [len(table) for table in by_digest]
    if any(size != common for size in sizes):
        numbers = listing((f"{size:,}" for size in sizes), most=len(sizes))
        number = common - len(relabelled)
        notes.append(
            f"The splits differ: the runs have {numbers} distinct validation images, and only the "
            f"{count(number, 'image')} that all of them share{', with the same label,' * changed} "
            f"{'is' if number == 1 else 'are'} compared."
        )
    notes += fixes_notes(runs, by_digest, relabelled)
    notes += data_notes(runs)
    further = [
        letter
        for letter, run in zip(ascii_uppercase, runs, strict=False)
        if run.measured.get("cross_validation") and not run.results.estimate("cross-validation")
    ]
    if further:
        notes.append(
            f"No cross-validated accuracy for {listing(further)}: layers were trained after the "
            "head, which alone was cross-validated."
        )
    notes += cross_validation_notes(runs, common)
    notes += test_notes(runs)
    if len({run.classes for run in runs}) > 1:
        notes.append("The runs have different classes, so they solve different tasks.")
    labelled = list(zip(ascii_uppercase, runs, strict=False))
    notes += label_notes(runs)
    chosen = [letter for letter, run in labelled if run.results.selected_on_validation]
    if chosen and common > len(relabelled):
        notes.append(
            f"The best epoch of {listing(chosen)} was selected on these images, which is a slight "
            "advantage."
        )
    clauses = {letter: chance_clause(run.results) for letter, run in labelled}
    notes += [
        f"{letter} is at chance level: it {clause}." for letter, clause in clauses.items() if clause
    ]
    return notes


def cross_validation_notes(runs: Sequence[Run], common: int) -> list[str]:
    """Return a sentence on two runs whose heads were cross-validated on more than `common` images.

    The images are those with the same label in both runs. It is left out if one of the runs applied
    fixes, because the effect of these is tested in the same way (`fixes_effect`).
    """
    if len(runs) != 2 or any(run.setting("data", "fixes") for run in runs):
        return []
    if not all(run.results.estimate("cross-validation") for run in runs):
        return []
    right, also_right, groups = cross_validated_pairs(*runs)
    if len(right) <= common:
        return []
    p = PairedDifference.of(right, also_right, groups).p
    first, second = (percent(int(flags.sum()) / len(flags)) for flags in (right, also_right))
    return [
        f"In cross-validation on {count(len(right), 'image')} of both runs, with heads not fitted "
        f"to the image, A classifies {first} correctly and B {second} ({p_equation(p)})."
    ]


def test_notes(runs: Sequence[Run]) -> list[str]:
    """Return a sentence with the accuracy of each run on its test images, if it has any."""
    found = [
        f"{letter} {estimate_text(test).removesuffix(', evaluated once')}"
        for letter, run in zip(ascii_uppercase, runs, strict=False)
        if (test := run.results.estimate("test"))
    ]
    return [f"On their test images, which are not compared: {'; '.join(found)}."] if found else []


def label_notes(runs: Sequence[Run]) -> list[str]:
    """Return sentences about multi-label runs; the list is empty if there are none."""
    if not any(run.several for run in runs):
        return []
    precisions = [
        f"{letter}: {estimate_text(one)}"
        for letter, run in zip(ascii_uppercase, runs, strict=False)
        if (one := run.results.estimate("validation"))
    ]
    return [
        "An image counts as correct only if exactly its labels are predicted.",
        f"{'; '.join(precisions)}.",
    ]
