"""Comparison of several runs on the validation images that they share.

Images are matched by the digest of their bytes, and classes by name. Each image is counted once,
and only if no run was trained on it. The significance test compares these trained models, not their
settings: another seed would result in a different model.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_uppercase

import numpy as np

from vitft.config.schema import shown_value
from vitft.messages.comparison import effect, more_accurate, smallest_difference
from vitft.metrics.intervals import (
    Flags,
    Groups,
    PairedDifference,
    accuracy_interval,
    holm,
    mcnemar,
)
from vitft.metrics.values import Interval
from vitft.report.added_images import find_added
from vitft.report.comparable import check_runs, evaluate_commands, nothing_shared
from vitft.report.comparison_notes import comparison_notes
from vitft.report.fixes_effect import (
    FixesEffect,
    fixes_effects,
    fixes_steps,
    fixes_text,
)
from vitft.report.reproduce import blocks_row, shown_settings
from vitft.report.run_files import Run, groups_of
from vitft.system.text import count, interval, p_text, percent, points

Proportion = tuple[float, Interval]
_AUTOMATIC = (
    "model.channels",
    "optim.l2",
    "optim.micro_batch",
    "train.padding",
    "train.head_blocks",
)
"""Settings for which 0 means that the value is chosen for the data."""


@dataclass(frozen=True, slots=True)
class SharedImage:
    """A validation image shared by all runs, with the prediction of each run."""

    sha256: str
    path: str
    label: str
    predicted: tuple[str, ...]
    probabilities: tuple[float, ...]

    @property
    def disputed(self) -> bool:
        """Whether the predictions of the runs differ."""
        return len(set(self.predicted)) > 1

    def is_correct(self, run: int) -> bool:
        return self.predicted[run] == self.label


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPair:
    """Comparison of the runs with indices `first` and `second` on the shared images."""

    first: int
    second: int
    paired: PairedDifference
    """Accuracy of the second run minus accuracy of the first."""
    p: float
    """p-value of `paired`, Holm-corrected for the number of pairs."""

    @property
    def difference(self) -> float:
        """Accuracy of the second run minus accuracy of the first."""
        return self.paired.difference

    @property
    def interval(self) -> Interval:
        """95% interval of the difference."""
        return self.paired.interval(self.p)


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Several runs, the images that they share, and a significance test for each pair of runs."""

    runs: Sequence[Run]
    names: Sequence[str]
    notes: Sequence[str]
    """Sentences on the limits of the comparison."""
    images: Sequence[SharedImage]
    pairs: Sequence[RunPair]
    groups: Groups | None = None
    """Groups of the shared images, or None if the runs have none."""

    @property
    def shared(self) -> int:
        return len(self.images)

    @property
    def is_same_images(self) -> bool:
        """Whether each run has only the shared images, so that one accuracy says all."""
        return all(len(run.predictions) == self.shared for run in self.runs)

    @property
    def letters(self) -> str:
        """One letter for each run, starting with A."""
        return ascii_uppercase[: len(self.runs)]

    @cached_property
    def flags(self) -> list[Flags]:
        """Which of the shared images each run classifies correctly."""
        return _correct_flags(self.images, len(self.runs))

    @property
    def rights(self) -> list[int]:
        """Number of shared images that each run classifies correctly."""
        return [int(flags.sum()) for flags in self.flags]

    @cached_property
    def accuracies(self) -> list[Proportion]:
        """Accuracy and interval of each run on the shared images; empty if no images are shared."""
        shared = self.shared
        return [
            (right / shared, accuracy_interval(flags, self.groups))
            for right, flags in zip(self.rights, self.flags, strict=True)
            if shared
        ]

    @cached_property
    def recall_counts(self) -> dict[str, tuple[list[int], int]]:
        """Each run's number of correct predictions and the number of images, by class."""
        counts = {}
        for name in sorted({image.label for image in self.images}):
            members = [image for image in self.images if image.label == name]
            right = [sum(m.is_correct(run) for m in members) for run in range(len(self.runs))]
            counts[name] = right, len(members)
        return counts

    def accuracy_rows(self) -> list[tuple[str, ...]]:
        """Return for each run: name, accuracy, interval, accuracy on shared and in all folds.

        If the runs have the same images, their accuracy on these is the only one (see
        `is_same_images`).
        """
        cells: list[tuple[str, ...]] = [
            (percent(value), interval(bounds)) for value, bounds in self.accuracies
        ]
        if not self.is_same_images:
            own = [run.accuracy for run in self.runs]
            shared = [cell[0] for cell in cells] or [percent(None)] * len(own)
            cells = [
                (percent(one.value), interval(one.interval), text) if one else ("–", "", text)
                for one, text in zip(own, shared, strict=True)
            ]
        rows = [
            (f"{letter} {name}", *c)
            for letter, name, c in zip(self.letters, self.names, cells, strict=True)
        ]
        more = [
            (percent(found[0]), interval(found[1])) if found else ("–", "")
            for found in self.cross_validated
        ]
        return [row + cells for row, cells in zip(rows, more, strict=True)] if more else rows

    @cached_property
    def cross_validated(self) -> list[Proportion | None]:
        """Cross-validated accuracy and interval of each run, or None; empty if no run has them.

        A run that trained further layers after the head has none: its cross-validation is that of
        the head alone.
        """
        found = [run.results.estimate("cross-validation") for run in self.runs]
        known = [(one.value, one.interval) if one and one.interval else None for one in found]
        return known if any(known) else []

    @property
    def test(self) -> str:
        """Name of the significance test of each pair."""
        return "mid-p McNemar test" if self.groups is None else f"sign-flip test of {self.units}"

    @property
    def units(self) -> str:
        """What the tests count as text, e.g. `40 shared images` or `12 groups`."""
        if self.groups is None:
            return count(self.shared, "shared image")
        return count(len(np.unique(self.groups)), "group")

    @property
    def are_too_few(self) -> bool:
        """Whether no difference could be significant."""
        number = self.shared if self.groups is None else len(np.unique(self.groups))
        return self.needed_disagreements > number

    @property
    def pair_columns(self) -> tuple[str, ...]:
        """Names of the columns of `pair_rows`."""
        first, second = reversed(self.letters) if len(self.runs) == 2 else ("first", "second")
        counts = f"only {first} correct", f"only {second} correct"
        return ("pair", "difference", "95% interval", *counts, "p")

    def pair_rows(self) -> list[tuple[str, ...]]:
        """Return a table row, as text, for each pair of runs, e.g. "B - A"."""
        return [
            (
                f"{self.letters[p.second]} - {self.letters[p.first]}",
                points(p.difference),
                f"{points(p.interval[0]).split()[0]} to {points(p.interval[1]).split()[0]}",
                f"{p.paired.only_first:,}",
                f"{p.paired.only_second:,}",
                p_text(p.p),
            )
            for p in self.pairs
        ]

    def setting_rows(self) -> list[tuple[str, ...]]:
        """Return a table row, as text, for each setting in which the runs differ."""
        return [
            *blocks_row(self.runs),
            *(
                (key, *(_shown_setting(key, value) for value in values))
                for key, values in shown_settings(self.runs)
            ),
        ]

    @cached_property
    def fixes(self) -> list[FixesEffect | None]:
        """Effect of the fixes for each pair of runs; None if it does not differ in them."""
        pairs = [(pair.first, pair.second, pair.paired, pair.p) for pair in self.pairs]
        return fixes_effects(self.runs, pairs)

    @property
    def limits(self) -> list[str]:
        """Sentences on what the comparison does not tell, the notes included."""
        letters = [(self.letters[p.first], self.letters[p.second]) for p in self.pairs]
        return [*fixes_steps(self.runs, self.fixes, letters), *self.notes]

    def conclusions(self) -> list[str]:
        """Return the conclusion for each pair of runs as a sentence without a full stop."""
        return [self.conclusion(pair) for pair in self.pairs]

    def conclusion(self, pair: RunPair) -> str:
        """Return a sentence that states which of two runs is more accurate, if either is.

        If one run applied fixes, the sentence states whether they helped. If the runs differ only
        in their training images, it states whether the additional images of one run helped.
        """
        letters = self.letters[pair.first], self.letters[pair.second]
        if fixes := self.fixes[self.pairs.index(pair)]:
            return fixes_text(fixes, letters)
        added = find_added(self.runs[pair.first], self.runs[pair.second])
        if added is None or added.settings:
            return self.difference_text(pair)
        fewer, more = letters if added.is_second else letters[::-1]
        verdict = "helped" if (pair.difference > 0) == added.is_second else "hurt"
        return effect(
            f"the {count(added.images, 'training image')} that {more} adds to those of {fewer}",
            verdict if pair.p < 0.05 else "no clear effect",
            letters,
            (pair.difference, pair.interval, pair.p),
            images="the shared images",
        )

    def difference_text(self, pair: RunPair) -> str:
        """Return a sentence that states which of two runs is more accurate, if either is."""
        letters = self.letters[pair.first], self.letters[pair.second]
        if self.are_too_few:
            verb = "is" if self.units.startswith("1 ") else "are"
            return (
                f"{self.units} {verb} too few to tell whether {letters[0]} or {letters[1]} is more "
                "accurate"
            )
        return more_accurate(letters, pair.difference, pair.p, self.shared)

    def next_step(self) -> str:
        """Return a sentence with the commands that compare the runs most reliably, if needed."""
        if self.runs[0].is_evaluation:
            return ""
        return (
            "The surest answer comes from labelled photos that no run has seen: "
            f"{' and '.join(evaluate_commands(self.runs))}{' for each run' * (len(self.runs) != 2)}"
            ", with --out DIR for `vitft compare`"
        )

    @property
    def winner(self) -> int | None:
        """The run that is significantly more accurate than every other run, or None."""
        for run in range(len(self.runs)):
            own = [pair for pair in self.pairs if run in (pair.first, pair.second)]
            ahead = [
                pair.difference > 0 if pair.second == run else pair.difference < 0 for pair in own
            ]
            if own and all(ahead) and all(pair.p < 0.05 for pair in own):
                return run
        return None

    @cached_property
    def needed_disagreements(self) -> int:
        """Smallest number of images (or groups) that differ and can be significant.

        In McNemar's test, the p-value is smallest if all of them favour the same run.
        """
        return next(k for k in range(100) if len(self.pairs) * mcnemar(k, 0) < 0.05)

    def power_text(self) -> str:
        """Return a sentence on differences that so few shared images cannot show; "" if many.

        The text is also empty if all conclusions rest on cross-validation.
        """
        needed = self.needed_disagreements
        is_cross_validated = all(one and one.is_cross_validated for one in self.fixes)
        if not self.pairs or is_cross_validated or needed / self.shared < 0.02:
            return ""
        if self.are_too_few:
            return f"With only {self.units}, no difference can be significant."
        return "" if self.groups is not None else smallest_difference(needed, self.shared)


def _shown_setting(key: str, value: object) -> str:
    """Return the value of a setting as text: a dash if it has none, `auto` if it is chosen."""
    if value in (None, ""):
        return "–"
    return "auto" if key in _AUTOMATIC and value == 0 else shown_value(value)


def compare_runs(runs: Sequence[Run]) -> RunComparison:
    """Compare runs on their shared validation images, except those with different labels.

    Raises:
        UsageError: A run is given twice, there are more than 26 runs, or no validation image is
            shared by all of them.
        RunError: A run has not finished, or has no validation predictions.
    """
    check_runs(runs)
    by_digest = [{one.sha256: one for one in run.predictions} for run in runs]
    common = [sha256 for sha256 in by_digest[0] if all(sha256 in other for other in by_digest[1:])]
    if not common:
        raise nothing_shared(runs)
    images, relabelled = list[SharedImage](), list[str]()
    for sha256 in common:
        predictions = [table[sha256] for table in by_digest]
        if len({one.label for one in predictions}) == 1:
            predicted = tuple(one.predicted for one in predictions)
            probabilities = tuple(one.probability for one in predictions)
            first = predictions[0]
            images.append(SharedImage(sha256, first.path, first.label, predicted, probabilities))
        else:
            relabelled.append(sha256)
    names = [run.name for run in runs]
    groups = groups_of([image.sha256 for image in images], runs)
    return RunComparison(
        runs=runs,
        names=names if len({*names}) == len(names) else [str(run.path) for run in runs],
        notes=comparison_notes(runs, by_digest, len(common), relabelled),
        images=images,
        pairs=run_pairs(images, len(runs), groups) if images else [],
        groups=groups,
    )


def _correct_flags(images: Sequence[SharedImage], runs: int) -> list[Flags]:
    """Return which of the images (n,) each run classifies correctly."""
    return [np.array([image.is_correct(i) for image in images], bool) for i in range(runs)]


def run_pairs(
    images: Sequence[SharedImage], runs: int, groups: Groups | None = None
) -> list[RunPair]:
    """Compare each pair of runs on the shared images; there must be at least one image."""
    flags, pairs = _correct_flags(images, runs), list(itertools.combinations(range(runs), 2))
    found = [PairedDifference.of(flags[second], flags[first], groups) for first, second in pairs]
    return [
        RunPair(first=first, second=second, paired=paired, p=p)
        for (first, second), paired, p in zip(pairs, found, holm([f.p for f in found]), strict=True)
    ]
