"""Validation images that the fixes of some of the compared runs relabelled or left out."""

from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from vitft.predict.validation import ValidationPrediction
from vitft.report.run_decisions import former_fixes
from vitft.report.run_files import Run
from vitft.system.text import count


def data_notes(runs: Sequence[Run]) -> list[str]:
    """Return sentences on the images and labels in which runs differ from the first one.

    If some of the runs applied fixes, the last sentence names the number that shows their effect.
    """
    tables = [{row.sha256: run.split.classes[row.label] for row in run.rows} for run in runs]
    notes, first = [], tables[0]
    for letter, table in zip(ascii_uppercase[1:], tables[1:], strict=False):
        changes = (
            ("labels changed", sum(first[key] != table[key] for key in first.keys() & table)),
            ("images left out", len(first.keys() - table.keys())),
            ("images added", len(table.keys() - first.keys())),
        )
        if any(number for _, number in changes):
            text = "; ".join(f"{what}: {number:,}" for what, number in changes)
            notes.append(f"Data of {letter} compared with A (distinct images): {text}.")
    fixes = {str(run.setting("data", "fixes") or "") for run in runs}
    if notes and len(fixes) > 1:
        scored = all(run.results.get("cross_validation") for run in runs)
        more = (
            " The cross-validated accuracy covers all images, but each run is scored with its own "
            "images and labels, so a gain is partly that wrong labels are no longer counted."
        )
        notes.append(
            "For the effect of the fixes on the model, read the accuracy on the shared images, "
            "whose labels are the same in all runs." + more * scored
        )
    return notes


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
    notes, moved = [], []
    for letter, run, own in zip(ascii_uppercase, runs, by_digest, strict=False):
        actions = {fix.path: fix.action for fix in former_fixes(run)[0]}
        changed = sum(
            any(actions.get(table[sha256].path) in ("move", "drop") for table in by_digest)
            for sha256 in relabelled
        )  # relabelled, or a copy with another label was left out
        if changed:
            moved.append(f"the fixes of {letter} changed {changed:,} of them")
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
        one = len(relabelled) == 1
        why = f": {' and '.join(moved)}" if moved else ""
        notes.insert(
            0,
            f"{count(len(relabelled), 'shared image')} {'has' if one else 'have'} different labels "
            f"in different runs and {'is' if one else 'are'} excluded{why}.",
        )
    return notes
