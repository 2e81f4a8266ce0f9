"""Comparison of several runs on the validation images that they share.

Images are matched by the digest of their bytes, and classes by name. Each image is counted once,
and only if no run was trained on it. The significance test compares these trained models, not their
settings: another seed would result in a different model.

Whether the fixes of a run helped is measured on images that have the same label in both runs. If
both have cross-validated predictions, these are all training and validation images, otherwise the
validation images that both hold out. Relabelled images are not used: they were found because a
model disagreed with their label, so they would favour that model.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from string import ascii_uppercase
from typing import Any, NamedTuple, cast

import numpy as np

from vitft.config.schema import shown_value
from vitft.messages import comparison as messages
from vitft.metrics.intervals import (
    Flags,
    Groups,
    PairedDifference,
    accuracy_interval,
    holm,
    mcnemar,
)
from vitft.metrics.results import EvaluationResults, Interval
from vitft.predict.validation import ValidationPrediction
from vitft.report.decisions import former_fixes
from vitft.report.reproduce import (
    blocks_row,
    different_keys,
    different_settings,
    effective_settings,
    shown_settings,
)
from vitft.report.run_files import Run, groups_of
from vitft.system.errors import RunError, UsageError
from vitft.system.rundir import resume_command
from vitft.system.text import (
    count,
    interval,
    listing,
    p_equation,
    percent,
    points,
    shell_join,
    shell_quote,
)

Proportion = tuple[float, Interval]
_Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # headings and rows
_LOST = 0.02  # maximum fraction of the smaller run's training images that the larger may lack
_FEW = 0.005  # minimum number of added images, as a fraction of the smaller run's training images
_FREE_SETTINGS = frozenset(
    {"data.path", "data.root", "data.like", "data.split", "data.label", "data.path_column"}
) | {"data.split_column", "data.group", "train.cache", "train.device", "train.tracker"}
"""Settings that describe where images come from, or that do not change results."""
_AUTOMATIC = (
    "model.channels", "optim.l2", "optim.micro_batch", "train.padding", "train.head_blocks"
)  # fmt: skip
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
class _Difference:
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
class _RunPair(_Difference):
    """Comparison of the runs with indices `first` and `second` on the shared images."""

    first: int
    second: int

    @property
    def letters(self) -> tuple[str, str]:
        return ascii_uppercase[self.first], ascii_uppercase[self.second]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixesEffect(_Difference):
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

    def text(self, letters: tuple[str, str]) -> str:
        """Return whether the fixes of one of two runs helped, as a sentence without a stop."""
        difference, (low, high) = self.difference, self.interval
        if not self.is_second:
            difference, low, high = 0.0 - difference, -high, -low  # no negative zero
        images = f"the {count(self.paired.images, 'image')} with the same label in both runs"
        images += ", cross-validated" if self.is_cross_validated else " that both hold out"
        other = letters[not self.is_second] * self.both
        return messages.effect(
            messages.fixes_of(letters[self.is_second], other, self.relabelled, self.left_out),
            self.verdict,
            letters,
            (difference, (low, high), self.p),
            images=images,
            others=[*self.settings, *[count(self.added, "added image")] * bool(self.added)],
        )


class _AddedImages(NamedTuple):
    """Training images that occur in only one of two runs."""

    is_second: bool  # whether the second of the two runs has more images
    images: int
    settings: tuple[str, ...]  # settings outside `_FREE_SETTINGS` that differ between the runs


def _find_added(first: Run, second: Run) -> _AddedImages | None:
    """Return the added training images of a run that has almost all those of the other run."""
    trained = [{row.sha256 for row in run.rows if row.split == "train"} for run in (first, second)]
    for is_second in (True, False):
        fewer, more = trained if is_second else reversed(trained)
        enough = len(more - fewer) >= max(1, _FEW * len(fewer))
        if fewer and enough and len(fewer - more) <= _LOST * len(fewer):
            keys = different_keys([effective_settings(run.config) for run in (first, second)])
            settings = tuple(key for key in keys if key not in _FREE_SETTINGS)
            return _AddedImages(is_second, len(more - fewer), settings)
    return None


def _fixes_effect(runs: Sequence[Run], pair: _RunPair) -> FixesEffect | None:
    """Return the effect of the fixes of one of two runs, without a correction of its p-value.

    It is None if the fixes are the same or changed no image.
    """
    first, second, paired = runs[pair.first], runs[pair.second], pair.paired
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
    more = PairedDifference.of(*_cross_validated_pairs(fixed, without))
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
        p=more.p if is_cross_validated else pair.p,
        both=all(name for name, _ in fixes),
    )


def _cross_validated_pairs(first: Run, second: Run) -> tuple[Flags, Flags, Groups | None]:
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


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Several runs, the images that they share, and a significance test for each pair of runs."""

    runs: Sequence[Run]
    names: Sequence[str]
    notes: Sequence[str]  # sentences on the limits of the comparison
    images: Sequence[SharedImage]
    pairs: Sequence[_RunPair]
    groups: Groups | None = None  # groups of the shared images, or None if the runs have none

    @property
    def shared(self) -> int:
        return len(self.images)

    @property
    def is_same_images(self) -> bool:
        """Whether each run has only the shared images, so that one accuracy per run is enough."""
        return all(len(run.predictions) == self.shared for run in self.runs)

    @property
    def letters(self) -> str:
        """One letter for each run, starting with A."""
        return ascii_uppercase[: len(self.runs)]

    @cached_property
    def flags(self) -> list[Flags]:
        """Which of the shared images each run classifies correctly."""
        return _right(self.images, len(self.runs))

    @cached_property
    def accuracies(self) -> list[Proportion]:
        """Accuracy and interval of each run on the shared images; empty if no images are shared."""
        flags = self.flags if self.images else []
        return [(float(own.mean()), accuracy_interval(own, self.groups)) for own in flags]

    @cached_property
    def recall_counts(self) -> dict[str, tuple[list[int], int]]:
        """Each run's number of correct predictions and the number of images, by class."""
        labels = np.array([image.label for image in self.images])
        own = {name: labels == name for name in np.unique(labels).tolist()}
        return {
            name: ([int(right[members].sum()) for right in self.flags], int(members.sum()))
            for name, members in own.items()
        }

    @cached_property
    def cross_validated(self) -> list[Proportion | None]:
        """Cross-validated accuracy and interval of each run, or None; empty if no run has them."""
        found = [run.results.estimate("cross-validation") for run in self.runs]
        known = [(one.value, one.interval) if one and one.interval else None for one in found]
        return known if any(known) else []

    def accuracy_table(self) -> _Table:
        """Return each run's name, accuracy, interval, and accuracy on shared and in all folds."""
        rows = []
        for i, run in enumerate(self.runs):
            cells: tuple[str, ...] = _cells(self.accuracies[i] if self.images else None)
            if not self.is_same_images:
                own = run.accuracy
                cells = (*_cells((own.value, own.interval) if own else None), cells[0])
            if self.cross_validated:
                cells += _cells(self.cross_validated[i])
            rows.append((f"{self.letters[i]} {self.names[i]}", *cells))
        is_same, crossed = self.is_same_images, bool(self.cross_validated)
        return messages.accuracy_columns(same_images=is_same, cross_validated=crossed), rows

    def pair_table(self) -> _Table:
        """Return a row, as text, for each pair of runs, e.g. "B - A"."""
        rows: list[tuple[str, ...]] = [
            (
                " - ".join(reversed(p.letters)),
                points(p.difference),
                f"{points(p.interval[0]).split()[0]} to {points(p.interval[1]).split()[0]}",
                f"{p.paired.only_first:,}",
                f"{p.paired.only_second:,}",
                p_equation(p.p).removeprefix("p ").removeprefix("= "),
            )
            for p in self.pairs
        ]
        return messages.pair_columns(self.letters), rows

    def setting_rows(self) -> list[tuple[str, ...]]:
        """Return a table row, as text, for each setting in which the runs differ."""
        rows = blocks_row(self.runs)
        for key, values in shown_settings(self.runs):
            texts = ["–" if value in (None, "") else shown_value(value) for value in values]
            is_chosen = [key in _AUTOMATIC and value == 0 for value in values]
            pairs = zip(is_chosen, texts, strict=True)
            rows.append((key, *("auto" if chosen else text for chosen, text in pairs)))
        return rows

    @property
    def test(self) -> str:
        """Name of the significance test of each pair."""
        return "mid-p McNemar test" if self.groups is None else f"sign-flip test of {self.units}"

    @property
    def num_units(self) -> int:
        """Number of images, or of their groups, that the tests count."""
        return self.shared if self.groups is None else len(np.unique(self.groups))

    @property
    def units(self) -> str:
        """What the tests count as text, e.g. `40 shared images` or `12 groups`."""
        return count(self.num_units, "shared image" if self.groups is None else "group")

    @cached_property
    def fixes(self) -> list[FixesEffect | None]:
        """Effect of the fixes for each pair of runs; None if it does not differ in them."""
        found = [_fixes_effect(self.runs, pair) for pair in self.pairs]
        corrected = iter(holm([one.p for one in found if one and one.is_cross_validated]))
        return [
            replace(one, p=next(corrected)) if one and one.is_cross_validated else one
            for one in found
        ]

    @property
    def limits(self) -> list[str]:
        """Sentences on what the comparison does not show, including the notes."""
        notes = [messages.OWN_LABELS] * any(self.fixes)
        for effect, pair in zip(self.fixes, self.pairs, strict=True):
            if effect is None or effect.is_cross_validated:
                continue
            order = (pair.first, pair.second)[:: 1 if effect.is_second else -1]
            before, after = (self.runs[i] for i in order)
            if after.root_uri:  # its image files are in one folder
                words = [
                    "--data",
                    str(after.path / "split.csv"),
                    "--set",
                    f"data.root={after.root}",
                ]
                command = f"vitft evaluate {shell_join([*words, '--run', str(before.path)])}"
                run, fixed = (self.letters[i] for i in order)
                notes.append(messages.accuracy_on_corrected_labels(run, fixed, command))
        return [*notes, *self.notes]

    def conclusions(self) -> list[str]:
        """Return the conclusion for each pair of runs as a sentence without a full stop.

        It is about the runs, or about the fixes or additional images by which they differ.
        """
        return [
            fixes.text(pair.letters) if fixes else self._conclusion(pair)
            for pair, fixes in zip(self.pairs, self.fixes, strict=True)
        ]

    def _conclusion(self, pair: _RunPair) -> str:
        added = _find_added(self.runs[pair.first], self.runs[pair.second])
        if added and not added.settings:
            fewer, more = pair.letters if added.is_second else pair.letters[::-1]
            verdict = "helped" if (pair.difference > 0) == added.is_second else "hurt"
            return messages.effect(
                f"the {count(added.images, 'training image')} that {more} adds to those of {fewer}",
                verdict if pair.p < 0.05 else "no clear effect",
                pair.letters,
                (pair.difference, pair.interval, pair.p),
                images="the shared images",
            )
        if self.needed_disagreements > self.num_units:
            return messages.too_few(self.units, pair.letters)
        return messages.more_accurate(pair.letters, pair.difference, pair.p, self.shared)

    def next_step(self) -> str:
        """Return a sentence with the commands that compare the runs most reliably, if needed."""
        if self.runs[0].is_evaluation:
            return ""
        return (
            "The surest answer comes from labelled photos that no run has seen: "
            f"{' and '.join(_evaluate_commands(self.runs))}"
            f"{' for each run' * (len(self.runs) != 2)}, with --out DIR for `vitft compare`"
        )

    @property
    def winner(self) -> int | None:
        """The run that is significantly more accurate than every other run, or None."""
        wins = Counter(p.second if p.difference > 0 else p.first for p in self.pairs if p.p < 0.05)
        return next((run for run, won in wins.items() if won == len(self.runs) - 1), None)

    @cached_property
    def needed_disagreements(self) -> int:
        """Smallest number of differing images (or groups) that can be significant.

        In McNemar's test, the p-value is smallest if all of them favour the same run.
        """
        return next(k for k in range(100) if len(self.pairs) * mcnemar(k, 0) < 0.05)

    def power_text(self) -> str:
        """Return a sentence on differences that so few shared images cannot show, or ""."""
        needed = self.needed_disagreements
        is_cross_validated = all(one and one.is_cross_validated for one in self.fixes)
        if not self.pairs or is_cross_validated or needed / self.shared < 0.02:
            return ""
        if needed > self.num_units:
            return f"With only {self.units}, no difference can be significant."
        return "" if self.groups is not None else messages.smallest_difference(needed, self.shared)


def _cells(found: tuple[float, Interval | None] | None) -> tuple[str, str]:
    return (percent(found[0]), interval(found[1])) if found else ("–", "")


def _right(images: Sequence[SharedImage], runs: int) -> list[Flags]:
    return [np.array([one.is_correct(run) for one in images], bool) for run in range(runs)]


def compare_runs(runs: Sequence[Run]) -> RunComparison:
    """Compare runs on their shared validation images, except those with different labels.

    Raises:
        UsageError: There are more than 26 runs, only some of them are evaluations, or no validation
            image is shared by all of them.
        RunError: A run has not finished, or has no validation predictions.
    """
    _check_runs(runs)
    by_digest = [{one.sha256: one for one in run.predictions} for run in runs]
    common = [sha256 for sha256 in by_digest[0] if all(sha256 in other for other in by_digest[1:])]
    if not common:
        raise _nothing_shared(runs)
    images, relabelled = list[SharedImage](), list[str]()
    for sha256 in common:
        predictions = [table[sha256] for table in by_digest]
        if len({one.label for one in predictions}) > 1:
            relabelled.append(sha256)
            continue
        first, predicted = predictions[0], tuple(one.predicted for one in predictions)
        probabilities = tuple(one.probability for one in predictions)
        images.append(SharedImage(sha256, first.path, first.label, predicted, probabilities))
    names = [run.name for run in runs]
    groups = groups_of([image.sha256 for image in images], runs)
    return RunComparison(
        runs=runs,
        names=names if len({*names}) == len(names) else [str(run.path) for run in runs],
        notes=_comparison_notes(runs, by_digest, len(common), relabelled),
        images=images,
        pairs=run_pairs(images, len(runs), groups) if images else [],
        groups=groups,
    )


def run_pairs(
    images: Sequence[SharedImage], runs: int, groups: Groups | None = None
) -> list[_RunPair]:
    """Compare each pair of runs on the shared images; there must be at least one image."""
    flags, pairs = _right(images, runs), list(itertools.combinations(range(runs), 2))
    found = [PairedDifference.of(flags[second], flags[first], groups) for first, second in pairs]
    return [
        _RunPair(first=first, second=second, paired=paired, p=p)
        for (first, second), paired, p in zip(pairs, found, holm([f.p for f in found]), strict=True)
    ]


def _check_runs(runs: Sequence[Run]) -> None:
    if len(runs) > len(ascii_uppercase):
        fix = f"compare at most {len(ascii_uppercase)} runs at a time"
        raise UsageError(f"cannot compare {len(runs)} runs", fix=fix)
    evaluated = [run.is_evaluation for run in runs]
    if any(evaluated) and not all(evaluated):
        own, other = str(runs[evaluated.index(False)].path), runs[evaluated.index(True)]
        data = cast("EvaluationResults", other.measured)["data"]["path"]
        words = ["--data", data, "--run", own, "--out", f"{own}_evaluated"]
        raise UsageError(
            f"cannot compare the run {own} with {other.path}, an evaluation of other images",
            fix=f"evaluate the run too: `vitft evaluate {shell_join(words)}`",
        )
    for run in runs:
        if not run.predictions:
            why = "validation.npz, which contains the validation predictions, is missing"
            fix = "repeat the run with this version of vitft"
            if (status := run.environment.get("status", "finished")) != "finished":
                why = f"the run has not finished (status: {status})"
                fix = f"finish it with `{resume_command(run.path)}`"
            raise RunError(f"cannot compare {run.path}: {why}", fix=fix)


def _nothing_shared(runs: Sequence[Run]) -> UsageError:
    """Return the error for runs without a common validation image, naming what differs."""
    names = [*dict.fromkeys(run.data_name for run in runs if run.data_name)]
    differences = [f"data ({listing(names)})"] * (len(names) > 1)
    differences += ["classes"] * (len({run.classes for run in runs}) > 1)
    seeds = [*dict.fromkeys(str(run.setting("data", "seed")) for run in runs)]
    differences += [f"data.seed ({listing(seeds)})"] * (len(seeds) > 1)
    differ = f". The runs differ in {listing(differences)}" if differences else ""
    problem = f"cannot compare: no validation image is shared by all runs{differ}"
    fix = "evaluate each run on the same labelled photos, which no run has seen: "
    fix += " and ".join(_evaluate_commands(runs))
    if not set.intersection(*(set(run.classes) for run in runs)):
        problem = f"cannot compare: the runs have no class in common{differ}"
        fix = "compare runs that were trained on the same data"
    return UsageError(problem, fix=fix)


def _evaluate_commands(runs: Sequence[Run]) -> list[str]:
    """Return the commands that evaluate two runs on new images, or one with RUN for more runs."""
    names = [str(run.path) for run in runs] if len(runs) == 2 else ["RUN"]
    return [f"`vitft evaluate --data NEW --run {shell_quote(name)}`" for name in names]


def _comparison_notes(
    runs: Sequence[Run],
    by_digest: Sequence[Mapping[str, ValidationPrediction]],
    common: int,
    relabelled: Sequence[str],
) -> list[str]:
    """Return sentences about the limits of the comparison.

    `by_digest` are the validation predictions of each run, by SHA-256 of the image, `common` is the
    number of shared images, and `relabelled` are the digests of those whose labels differ.
    """
    notes, sizes = list[str](), [len(table) for table in by_digest]
    if any(size != common for size in sizes):
        shared = common - len(relabelled)
        notes.append(messages.split_difference(sizes, shared, relabelled=bool(relabelled)))
    notes += _fixes_notes(runs, by_digest, relabelled)
    for letter, changes in zip(ascii_uppercase[1:], _data_changes(runs), strict=False):
        notes.append(messages.data_difference(letter, *changes))
    # The effect of fixes on two heads that were both cross-validated has its own test.
    has_fixes = any(run.setting("data", "fixes") for run in runs)
    cross_validated = [run for run in runs if run.results.estimate("cross-validation")]
    if len(runs) == len(cross_validated) == 2 and not has_fixes:
        right, also_right, groups = _cross_validated_pairs(*runs)
        if len(right) > common:
            p = PairedDifference.of(right, also_right, groups).p
            accuracies = [int(flags.sum()) / len(flags) for flags in (right, also_right)]
            notes.append(messages.cross_validated_difference(len(right), accuracies, p))
    if len({run.classes for run in runs}) > 1:
        notes.append("The runs have different classes, so they solve different tasks.")
    notes += messages.result_notes(
        [run.results for run in runs],
        head_only=[
            "cross_validation" in run.measured and not run.results.estimate("cross-validation")
            for run in runs
        ],
        compared=common > len(relabelled),
        fitted=common > len(relabelled) and not runs[0].is_evaluation,
    )
    return [*filter(None, notes)]


def _data_changes(runs: Sequence[Run]) -> list[tuple[int, int, int]]:
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


def _fixes_notes(
    runs: Sequence[Run],
    by_digest: Sequence[Mapping[str, ValidationPrediction]],
    relabelled: Sequence[str],
) -> list[str]:
    """Return sentences about validation images that are excluded because of known fixes."""
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
        notes.insert(0, messages.excluded_images(len(relabelled), moved))
    return notes


def comparison_results(comparison: RunComparison) -> dict[str, Any]:
    """Return a comparison as a JSON object; `docs/schemas/comparison.json` describes it."""
    runs, names, winner = comparison.runs, comparison.names, comparison.winner
    changes = zip(names[1:], _data_changes(runs), strict=True)
    return {
        "shared_images": comparison.shared,
        "notes": comparison.limits,
        "limit": comparison.power_text() or None,
        "winner": None if winner is None else names[winner],
        "runs": [
            {
                "name": names[i],
                "letter": comparison.letters[i],
                "path": str(run.path),
                "results": run.results.to_json(),
                "shared_right": int(comparison.flags[i].sum()),
                "shared_interval": comparison.accuracies[i][1] if comparison.shared else None,
                "recall": {
                    label: right[i] / of for label, (right, of) in comparison.recall_counts.items()
                },
            }
            for i, run in enumerate(runs)
        ],
        "pairs": [
            _pair_results(comparison, *found)
            for found in zip(
                comparison.pairs, comparison.fixes, comparison.conclusions(), strict=True
            )
        ],
        "settings": dict(different_settings(runs)),
        "data": [
            {"run": name, "labels_changed": changed, "left_out": left_out, "added": added}
            for name, (changed, left_out, added) in changes
        ],
        "disagree": [image.path for image in comparison.images if image.disputed],
    }


def _pair_results(
    comparison: RunComparison,
    pair: _RunPair,
    effect: FixesEffect | None,
    conclusion: str,
) -> dict[str, Any]:
    names = comparison.names[pair.first], comparison.names[pair.second]
    is_significant = pair.p < 0.05
    added = _find_added(comparison.runs[pair.first], comparison.runs[pair.second])
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
        "conclusion": conclusion,
        "added": None
        if effect or added is None
        else {
            "run": names[added.is_second],
            "images": added.images,
            "settings": list(added.settings),
        },
        "fixes": None
        if effect is None
        else {
            "run": names[effect.is_second],
            "verdict": effect.verdict,
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
