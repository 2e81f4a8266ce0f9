"""Whether the fixes of a run helped, from a comparison with a run that did not apply them.

The runs are compared on images that have the same label in both. If both runs have cross-validated
predictions, these are all training and validation images, otherwise the validation images that both
runs hold out. Relabelled images are not used: they were found because a model disagreed with their
label, so they would favour that model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import NamedTuple

import numpy as np

from vitft.messages import comparison
from vitft.messages.comparison import excluded_images
from vitft.metrics.intervals import Flags, Groups, PairedDifference, holm
from vitft.metrics.results import Interval
from vitft.predict.validation import ValidationPrediction
from vitft.report.decisions import former_fixes
from vitft.report.reproduce import different_keys, effective_settings
from vitft.report.run_files import Run, groups_of
from vitft.system.text import count, shell_join

_LOST = 0.02  # maximum fraction of the smaller run's training images that the larger may lack
_FEW = 0.005  # minimum number of added images, as a fraction of the smaller run's training images
_FREE_SETTINGS = frozenset(
    {"data.path", "data.root", "data.like", "data.split", "data.label", "data.path_column"}
) | {"data.split_column", "data.group", "train.cache", "train.device", "train.tracker"}
"""Settings that describe where images come from, or that do not change results."""


class _AddedImages(NamedTuple):
    """Training images that occur in only one of two runs."""

    is_second: bool  # whether the second of the two runs has more images
    images: int
    settings: tuple[str, ...]  # settings outside `_FREE_SETTINGS` that differ between the runs


def find_added(first: Run, second: Run) -> _AddedImages | None:
    """Return the additional training images of one of the runs, if any.

    The result is None if the runs have almost the same training images, or if each run has images
    that the other lacks.
    """
    trained = [{row.sha256 for row in run.rows if row.split == "train"} for run in (first, second)]
    for is_second in (True, False):
        fewer, more = trained if is_second else reversed(trained)
        enough = len(more - fewer) >= max(1, _FEW * len(fewer))
        if fewer and enough and len(fewer - more) <= _LOST * len(fewer):
            keys = different_keys([effective_settings(run.config) for run in (first, second)])
            settings = tuple(key for key in keys if key not in _FREE_SETTINGS)
            return _AddedImages(is_second, len(more - fewer), settings)
    return None


# whether the fixes of a run helped, from a comparison with a run that did not apply them ----------


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Difference in accuracy between two runs, and its significance."""

    paired: PairedDifference
    p: float  # p-value of `paired`, Holm-corrected for the number of pairs

    @property
    def difference(self) -> float:
        """Accuracy of the second run (or the one with fixes) minus that of the other."""
        return self.paired.difference

    @property
    def interval(self) -> Interval:
        """95% interval of the difference."""
        return self.paired.interval(self.p)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixesEffect(Difference):
    """Difference in accuracy between a run with fixes and a run without, or with other fixes."""

    is_second: bool  # whether the fixes are those of the second run, also if both applied some
    relabelled: int  # number of distinct images whose label differs between the runs
    left_out: int  # number of distinct images that the fixes leave out and the run without them has
    added: int  # number of other distinct images that only one of the runs has
    settings: tuple[str, ...]  # other settings that differ and may change the accuracy
    is_cross_validated: bool
    both: bool = False  # whether the other run applied fixes, too

    @property
    def verdict(self) -> str:
        """`helped`, `hurt` or `no clear effect`; `mixed` if the runs also differ in other ways."""
        if self.added or self.settings:
            return "mixed"
        if self.p >= 0.05:
            return "no clear effect"
        return "helped" if self.difference > 0 else "hurt"


def fixes_effects(
    runs: Sequence[Run], pairs: Sequence[tuple[int, int, PairedDifference, float]]
) -> list[FixesEffect | None]:
    """Return the effect of the fixes for each pair of runs.

    A pair is given as two indices, the difference on the validation images that both share (second
    minus first) and its corrected p-value. The effect is None if the fixes are the same or changed
    no image.
    """
    found = [_fixes_effect(runs[i], runs[j], held_out, p) for i, j, held_out, p in pairs]
    corrected = iter(holm([one.p for one in found if one and one.is_cross_validated]))
    return [
        replace(one, p=next(corrected)) if one and one.is_cross_validated else one for one in found
    ]


def _fixes_effect(
    first: Run, second: Run, paired: PairedDifference, p: float
) -> FixesEffect | None:
    """Return the effect of the fixes of one of two runs, without a correction of its p-value."""
    tables = [effective_settings(run.config) for run in (first, second)]
    fixes = [(t.get("data.fixes") or "", t.get("data.fixes_digest") or "") for t in tables]
    if fixes[0] == fixes[1]:
        return None
    is_second = bool(fixes[1][0])
    without, fixed = (first, second) if is_second else (second, first)
    before, after = _labels_by_digest(without), _labels_by_digest(fixed)
    relabelled = sum(before[key] != after[key] for key in before.keys() & after.keys())
    missing, added = before.keys() - after.keys(), after.keys() - before.keys()
    # Missing images of which the fixes drop every file are left out by them. The others are images
    # that only `without` has. Its paths may begin with folders that the table does not have.
    applied, unknown = former_fixes(fixed)
    drops = {fix.path for fix in applied if fix.action == "drop"}
    kept = set[str]()
    for row in without.rows if not unknown else ():
        parts = row.path.split("/")
        if not any("/".join(parts[i:]) in drops for i in range(len(parts))):
            kept.add(row.sha256)
    left_out = len(missing - kept)
    if not relabelled and not left_out:
        return None
    if not is_second:
        paired = paired._replace(only_first=paired.only_second, only_second=paired.only_first)
    more = PairedDifference.of(*cross_validated_pairs(fixed, without))
    is_cross_validated = more.images > paired.images
    ignored = _FREE_SETTINGS | {"data.fixes", "data.fixes_digest", "data.group_duplicates"}
    return FixesEffect(
        is_second=is_second,
        relabelled=relabelled,
        left_out=left_out,
        added=len(added) + len(missing) - left_out,
        settings=tuple(key for key in different_keys(tables) if key not in ignored),
        is_cross_validated=is_cross_validated,
        paired=more if is_cross_validated else paired,
        p=more.p if is_cross_validated else p,
        both=all(name for name, _ in fixes),
    )


def cross_validated_pairs(first: Run, second: Run) -> tuple[Flags, Flags, Groups | None]:
    """Return whether each of two runs is right on images (n,), and the groups of the images.

    The images are those with the same single label in both runs that both cross-validated.
    """
    one, other = _labels_by_digest(first), _labels_by_digest(second)
    both = sorted(first.cross_validated.keys() & second.cross_validated.keys())
    keys = [key for key in both if len(one.get(key, ())) == 1 and one[key] == other.get(key)]
    right, also_right = (
        np.array([{run.cross_validated[key]} == one[key] for key in keys], bool)
        for run in (first, second)
    )
    return right, also_right, groups_of(keys, (first, second))


def _labels_by_digest(run: Run) -> dict[str, set[str]]:
    """Return the labels of each distinct image of a run; copies may have different labels."""
    labels: dict[str, set[str]] = {}
    for row in run.rows:
        labels.setdefault(row.sha256, set()).add(run.split.classes[row.label])
    return labels


def fixes_text(effect: FixesEffect, letters: tuple[str, str]) -> str:
    """Return whether the fixes of one of two runs helped, as a sentence without a full stop."""
    difference, (low, high) = effect.difference, effect.interval
    if not effect.is_second:
        difference, low, high = 0.0 - difference, -high, -low  # no negative zero
    images = f"the {count(effect.paired.images, 'image')} with the same label in both runs"
    images += ", cross-validated" if effect.is_cross_validated else " that both hold out"
    other = letters[not effect.is_second] * effect.both
    return comparison.effect(
        comparison.fixes_of(letters[effect.is_second], other, effect.relabelled, effect.left_out),
        effect.verdict,
        letters,
        (difference, (low, high), effect.p),
        images=images,
        others=[*effect.settings, *[count(effect.added, "added image")] * bool(effect.added)],
    )


def fixes_steps(
    runs: Sequence[Run], effects: Sequence[FixesEffect | None], letters: Sequence[tuple[str, str]]
) -> list[str]:
    """Return sentences on what the accuracies of runs with different fixes do not show.

    For pairs without cross-validated predictions, the commands that score both runs on the
    corrected labels are named. `effects` and `letters` describe each pair.
    """
    if not any(effects):
        return []
    notes = [comparison.OWN_LABELS]
    for effect, pair in zip(effects, letters, strict=True):
        if effect is None or effect.is_cross_validated:
            continue
        without, fixed = pair if effect.is_second else pair[::-1]
        before, after = (runs[ord(letter) - ord("A")] for letter in (without, fixed))
        if not after.root_uri:  # its image files are not in one folder
            continue
        words = ["--data", str(after.path / "split.csv"), "--set", f"data.root={after.root}"]
        command = f"vitft evaluate {shell_join([*words, '--run', str(before.path)])}"
        notes.append(comparison.accuracy_on_corrected_labels(without, fixed, command))
    return notes


def data_changes(runs: Sequence[Run]) -> list[tuple[int, int, int]]:
    """Return how many distinct images each run relabels, lacks and adds, compared with A."""
    first, *others = map(_labels_by_digest, runs)
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

    Fixes whose table has changed since the run or no longer exists are not mentioned. `by_digest`
    are the validation predictions of each run, by SHA-256 of the image, and `relabelled` the
    digests of the shared images whose label differs between runs.
    """
    notes, moved = list[str](), list[tuple[str, int]]()
    for letter, run, own in zip(ascii_uppercase, runs, by_digest, strict=False):
        actions = {fix.path: fix.action for fix in former_fixes(run)[0]}
        if changed := sum(  # relabelled, or a copy with another label was left out
            any(actions.get(table[sha256].path) in ("move", "drop") for table in by_digest)
            for sha256 in relabelled
        ):
            moved.append((letter, changed))
        every = {sha256: one.path for table in by_digest for sha256, one in table.items()}
        dropped = [key for key in every.keys() - own.keys() if actions.get(every[key]) == "drop"]
        if dropped:
            notes.append(
                f"The fixes of {letter} left out {count(len(dropped), 'validation image')} of the "
                f"other {'run' if len(runs) == 2 else 'runs'}, which the comparison excludes."
            )
    if relabelled:
        notes.insert(0, excluded_images(len(relabelled), moved))
    return notes
