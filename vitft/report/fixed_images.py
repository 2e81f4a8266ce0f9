"""Validation images that the fixes of some of the compared runs relabelled or left out."""

from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from vitft.messages.comparison import excluded_images
from vitft.predict.validation import ValidationPrediction
from vitft.report.fixes_effect import labels_by_digest
from vitft.report.run_decisions import former_fixes
from vitft.report.run_files import Run
from vitft.system.text import count


def data_changes(runs: Sequence[Run]) -> list[tuple[int, int, int]]:
    """Return how many distinct images each run relabels, lacks and adds, compared with A."""
    first, *others = map(labels_by_digest, runs)
    return [
        (
            sum(first[key] != table[key] for key in first.keys() & table),
            len(first.keys() - table.keys()),
            len(table.keys() - first.keys()),
        )
        for table in others
    ]


def fixes_notes(
    runs: Sequence[Run],
    by_digest: Sequence[Mapping[str, ValidationPrediction]],
    relabelled: Sequence[str],
) -> list[str]:
    """Return sentences about validation images that a comparison excludes because of fixes.

    Fixes whose table has changed since the run or no longer exists are not mentioned.

    Args:
        runs: Runs to compare.
        by_digest: Validation predictions of each run, by SHA-256 of the image.
        relabelled: Digests of the shared images whose label differs between runs.
    """
    notes, moved = list[str](), list[tuple[str, int]]()
    for letter, run, own in zip(ascii_uppercase, runs, by_digest, strict=False):
        actions = {fix.path: fix.action for fix in former_fixes(run)[0]}
        changed = sum(
            any(actions.get(table[sha256].path) in ("move", "drop") for table in by_digest)
            for sha256 in relabelled
        )  # relabelled, or a copy with another label was left out
        if changed:
            moved.append((letter, changed))
        others = {
            sha256: one.path for table in by_digest for sha256, one in table.items()
        }  # of all runs; those that this run left out are not in its own table
        dropped = sum(
            actions.get(path) == "drop" for sha256, path in others.items() if sha256 not in own
        )
        if dropped:
            notes.append(
                f"The fixes of {letter} left out {count(dropped, 'validation image')} of the other "
                f"{'run' if len(runs) == 2 else 'runs'}, which the comparison excludes."
            )
    if relabelled:
        notes.insert(0, excluded_images(len(relabelled), moved))
    return notes
