"""Comparison of several runs on the validation images that they share, its page and its figure.

Images are matched by the digest of their bytes, and classes by name. Each image is counted once,
and only if no run was trained on it, on a copy of it or on another image of its group. The
significance test compares these trained models, not their settings: another seed would result in a
different model.

Whether the fixes of a run helped is measured on images that have the same label in both runs. If
both have cross-validated predictions, these are all training and validation images, otherwise the
validation images that both hold out. Relabelled images are not used: they were found because a
model disagreed with their label, so they would favour that model.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from string import ascii_uppercase
from typing import Any, cast

import numpy as np

from vitft.config.schema import shown_value
from vitft.messages import results as messages
from vitft.messages.results import INTERVAL
from vitft.metrics.intervals import (
    Flags,
    Groups,
    Interval,
    PairedDifference,
    accuracy_interval,
    holm,
    mcnemar,
)
from vitft.metrics.results import EvaluationResults, own_cross_validation
from vitft.models.pretrained.catalog import weights_name
from vitft.predict.validation import ValidationPrediction
from vitft.report.charts import Axis, Chart, Series, axis_of, charted, epoch_numbers
from vitft.report.decisions import former_fixes
from vitft.report.html import filled, render
from vitft.report.run_files import (
    Run,
    Thumbnails,
    different_settings,
    effective_settings,
    groups_of,
    shown_settings,
)
from vitft.system.console import visible
from vitft.system.errors import RunError, UsageError
from vitft.system.files import write_atomically
from vitft.system.rundir import resume_command
from vitft.system.text import count, interval, listing, p_equation, percent, points, shell_join

_Proportion = tuple[float, Interval]
_Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # headings and rows
_SharedImage = tuple[ValidationPrediction, ...]  # the prediction of each run for the same image
_LOST = 0.02  # maximum fraction of the smaller run's training images that the larger may lack
_FEW = 0.005  # minimum number of added images, as a fraction of the smaller run's training images
_FREE_SETTINGS = frozenset(
    {"data.path", "data.root", "data.like", "data.split", "data.label", "data.path_column"}
) | {"data.split_column", "data.group", "data.time", "train.cache", "train.device", "train.tracker"}
"""Settings that describe where images come from, or that do not change results."""
_AUTOMATIC = (
    "model.channels", "optim.l2", "optim.micro_batch", "train.padding", "train.head_blocks"
)  # fmt: skip
"""Settings for which 0 means that the value is chosen for the data."""
_RUN_LOOKS = (
    ("accent", ""), ("second", "7 4"), ("muted", "2 3"), ("accent", "2 3"), ("second", "")
)  # fmt: skip
"""Colour and dashes of each run in the charts; further runs repeat them."""
_BY_EPOCH = "Validation accuracy by epoch"
_MAX_DISPUTED = 60  # maximum number of disputed images on the page
_MAX_CURVES = 6  # maximum number of runs whose curves are overlaid; colours and dashes would repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class _DataEffect:
    """What the fixes, or the added training images, of one of two runs do to the accuracy."""

    is_second: bool  # whether the second run has them; if both applied fixes, it counts
    paired: PairedDifference  # the run with them minus the other one
    p: float  # p-value of `paired`, Holm-corrected for the number of pairs
    settings: tuple[str, ...]  # settings and labels that differ, too, and may change the accuracy
    added: int  # number of distinct images that only one of the runs has, not left out by fixes
    relabelled: int = 0  # number of distinct images whose label differs between the runs
    left_out: int = 0  # number of distinct images that the fixes leave out
    both: bool = False  # whether the other run applied fixes, too
    is_cross_validated: bool = False

    @property
    def verdict(self) -> str:
        """`helped`, `hurt` or `no clear effect`; `mixed` if the runs also differ in other ways."""
        if self.settings or (self.added and (self.relabelled or self.left_out)):
            return "mixed"
        if self.p >= 0.05:
            return "no clear effect"
        return "helped" if self.paired.difference > 0 else "hurt"

    def text(self, letters: tuple[str, str]) -> str:
        """Return whether it helped, as a sentence without a full stop."""
        difference, (low, high) = self.paired.difference, self.paired.interval(self.p)
        if not self.is_second:
            difference, low, high = 0.0 - difference, -high, -low  # no negative zero
        other, own = letters if self.is_second else letters[::-1]
        images, others = "the shared images", list(self.settings)
        cause = f"the {count(self.added, 'training image')} that {own} adds to those of {other}"
        if self.relabelled or self.left_out:
            numbers = ((self.relabelled, "with other labels"), (self.left_out, "left out"))
            (first, what), *more = [(number, text) for number, text in numbers if number]
            changes = [f"{count(first, 'distinct image')} {what}", *(f"{n:,} {t}" for n, t in more)]
            instead = f" instead of the fixes of {other}" * self.both
            cause = f"the fixes of {own}{instead} ({', '.join(changes)})"
            images = f"the {count(self.paired.images, 'image')} with the same label in both runs"
            images += ", cross-validated" if self.is_cross_validated else " that both hold out"
            others += [count(self.added, "added image")] * bool(self.added)
        claim = {
            "mixed": f"The effect of {cause} cannot be separated from that of {listing(others)}",
            "no clear effect": f"No clear effect of {cause}",
        }.get(self.verdict, f"T{cause[1:]} {self.verdict}")
        bounds = f"{points(low)} to {points(high)} points, {p_equation(self.p)}"
        return (
            f"{claim}: {letters[1]} - {letters[0]} = {points(difference)} points on {images} "
            f"(95% CI {bounds})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunPair:
    """Comparison of the runs with indices `first` and `second` on the shared images."""

    first: int
    second: int
    paired: PairedDifference  # the second run minus the first
    p: float  # p-value of `paired`, Holm-corrected for the number of pairs
    fixes: _DataEffect | None
    added: _DataEffect | None

    @property
    def interval(self) -> Interval:
        return self.paired.interval(self.p)

    @property
    def letters(self) -> tuple[str, str]:
        return ascii_uppercase[self.first], ascii_uppercase[self.second]


def _added_images(
    first: Run, second: Run, paired: PairedDifference, p: float
) -> _DataEffect | None:
    """Return the effect of training images, if one run has almost all those of the other."""
    trained = [{row.sha256 for row in run.rows if row.split == "train"} for run in (first, second)]
    ((relabelled, _, _),) = _data_changes((first, second))
    others = _other_settings(first, second, _FREE_SETTINGS)
    others += (f"{relabelled:,} changed labels",) * bool(relabelled)
    for is_second in (True, False):
        fewer, more = trained if is_second else reversed(trained)
        enough = len(more - fewer) >= max(1, _FEW * len(fewer))
        if fewer and enough and len(fewer - more) <= _LOST * len(fewer):
            return _DataEffect(
                is_second=is_second,
                paired=_oriented(paired, is_second=is_second),
                p=p,
                settings=others,
                added=len(more - fewer),
            )
    return None


def _other_settings(first: Run, second: Run, ignored: frozenset[str]) -> tuple[str, ...]:
    return tuple(key for key, _ in different_settings([first, second]) if key not in ignored)


def _oriented(paired: PairedDifference, *, is_second: bool) -> PairedDifference:
    """Return a difference (the second run minus the first) as that of the run in question."""
    if is_second:
        return paired
    return paired._replace(only_first=paired.only_second, only_second=paired.only_first)


def _fixes_effect(
    first: Run, second: Run, paired: PairedDifference, p: float
) -> _DataEffect | None:
    """Return the effect of the fixes of one of two runs, without a correction of its p-value.

    It is None if the fixes are the same or changed no image.
    """
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
    more = PairedDifference.of(*_cross_validated_pairs(fixed, without))
    is_cross_validated = more.images > paired.images
    ignored = _FREE_SETTINGS | {"data.fixes", "data.fixes_digest", "data.group_duplicates"}
    return _DataEffect(
        is_second=is_second,
        paired=more if is_cross_validated else _oriented(paired, is_second=is_second),
        p=more.p if is_cross_validated else p,
        settings=_other_settings(first, second, ignored),
        added=len(added) + len(missing) - left_out,
        relabelled=relabelled,
        left_out=left_out,
        both=all(name for name, _ in fixes),
        is_cross_validated=is_cross_validated,
    )


def _cross_validated_pairs(first: Run, second: Run) -> tuple[Flags, Flags, Groups | None]:
    """Return whether each of two runs is right on images (n,), and the groups of the images.

    The images are those with the same single label in both runs that both cross-validated. There
    are none if their groups differ, because only one of the runs kept these in one fold.
    """
    one, other = _labels_by_digest(first), _labels_by_digest(second)
    both = sorted(first.cross_validated.keys() & second.cross_validated.keys())
    keys = [key for key in both if len(one.get(key, ())) == 1 and one[key] == other.get(key)]
    known = [{row.sha256: row.group for row in run.rows} for run in (first, second)]
    keys = keys if all(known[0][key] == known[1][key] for key in keys) else []
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
    letters: str  # one for each run, starting with A
    images: Sequence[_SharedImage]  # those with the same label in all runs
    flags: Sequence[Flags]  # which of the images each run classifies correctly
    groups: Groups | None  # groups of the images, or None if the runs have none
    accuracies: Sequence[_Proportion]  # of each run on the images; empty if there are none
    cross_validated: Sequence[_Proportion | None]  # of each run; empty if no run has it
    test: str  # name of the significance test of each pair
    units: str  # what the test counts, e.g. `40 shared images` or `12 groups`
    pairs: Sequence[_RunPair]
    conclusions: Sequence[str]
    """A sentence without a full stop for each pair: about the runs, or about the fixes or
    additional images by which they differ."""
    winner: int | None  # the run that is significantly more accurate than every other run
    limits: Sequence[str]  # sentences on what the comparison does not show
    power: str  # a sentence on differences that so few shared images cannot show, or ""
    next_step: str  # a sentence with the commands that compare the runs most reliably, or ""

    @property
    def is_same_images(self) -> bool:
        """Whether each run has only the shared images, so that one accuracy per run is enough."""
        return all(len(run.predictions) == len(self.images) for run in self.runs)

    @property
    def disputed(self) -> list[_SharedImage]:
        """The shared images for which the predictions differ."""
        return [image for image in self.images if len({one.predicted for one in image}) > 1]

    @cached_property
    def recalls(self) -> list[tuple[str, int, list[_Proportion], float, int | None]]:
        """A row for each class, widest range of recalls first.

        A row consists of the name, the number of images, the recall of each run, the range of the
        recalls, and the run whose recall is clearly the highest, its interval above all others.
        """
        rows, labels = [], np.array([image[0].label for image in self.images])
        for name in np.unique(labels).tolist():
            own = labels == name
            groups = None if self.groups is None else self.groups[own]
            recalls = [_proportion(flags[own], groups) for flags in self.flags]
            values = [value for value, _ in recalls]
            best = values.index(max(values))
            others = [high for i, (_, (_, high)) in enumerate(recalls) if i != best]
            winner = best if recalls[best][1][0] > max(others) else None
            rows.append((name, int(own.sum()), recalls, max(values) - min(values), winner))
        return sorted(rows, key=lambda row: (-row[3], row[0]))

    def accuracy_table(self) -> _Table:
        """Return each run's name, accuracy, interval, and accuracy on shared and in all folds."""

        def cells(found: tuple[float, Interval | None] | None) -> tuple[str, str]:
            return (percent(found[0]), interval(found[1])) if found else ("–", "")

        is_same, crossed, rows = self.is_same_images, bool(self.cross_validated), []
        for i, run in enumerate(self.runs):
            row: tuple[str, ...] = cells(self.accuracies[i] if self.images else None)
            if not is_same:
                own = run.accuracy
                row = (*cells((own.value, own.interval) if own else None), row[0])
            row += cells(self.cross_validated[i]) if crossed else ()
            rows.append((f"{self.letters[i]} {self.names[i]}", *row))
        shared = () if is_same else ("accuracy on shared images",)
        more = ("cross-validated", INTERVAL) * crossed
        return ("run", "accuracy", INTERVAL, *shared, *more), rows

    def pair_table(self) -> _Table:
        """Return a row, as text, for each pair of runs, e.g. "B - A"."""
        rows: list[tuple[str, ...]] = [
            (
                " - ".join(reversed(p.letters)),
                f"{points(p.paired.difference)} points",
                " to ".join(map(points, p.interval)),
                f"{p.paired.only_first:,}",
                f"{p.paired.only_second:,}",
                p_equation(p.p).removeprefix("p ").removeprefix("= "),
            )
            for p in self.pairs
        ]
        first, second = reversed(self.letters) if len(self.runs) == 2 else ("first", "second")
        counts = f"only {first} correct", f"only {second} correct"
        return ("pair", "difference", INTERVAL, *counts, "p"), rows

    def setting_rows(self) -> list[tuple[str, ...]]:
        """Return a table row, as text, for each setting in which the runs differ."""
        shapes = [run.card and run.card.architecture for run in self.runs]
        read = [count(one.read_blocks, "block") if one and one.depth else "–" for one in shapes]
        rows = [("read by the head", *read)] if len({*read} - {"–"}) > 1 else []
        for key, values in shown_settings(self.runs):
            texts = ["–" if value in (None, "") else shown_value(value) for value in values]
            is_chosen = [key in _AUTOMATIC and value == 0 for value in values]
            pairs = zip(is_chosen, texts, strict=True)
            rows.append((key, *("auto" if chosen else text for chosen, text in pairs)))
        return rows


def _proportion(flags: Flags, groups: Groups | None) -> _Proportion:
    return float(flags.mean()), accuracy_interval(flags, groups)


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
    known = _known_images(runs)
    every = [tuple(table[one] for table in by_digest) for one in common if one not in known]
    if not every:
        raise _nothing_new(runs)
    images = [image for image in every if len({one.label for one in image}) == 1]
    names, letters = [run.name for run in runs], ascii_uppercase[: len(runs)]
    flags = [np.array([one[i].is_correct for one in images], bool) for i in range(len(runs))]

    # Each pair is tested on the images, or on their groups
    groups = groups_of([image[0].sha256 for image in images], runs)
    number = len(images if groups is None else np.unique(groups))
    units = count(number, "shared image" if groups is None else "group")
    pairs = _run_pairs(runs, flags, groups) if images else []
    clear = [pair for pair in pairs if pair.p < 0.05]
    wins = Counter(pair.second if pair.paired.difference > 0 else pair.first for pair in clear)
    # In McNemar's test, the p-value is smallest if all of them favour the same run.
    needed = next(k for k in range(100) if len(pairs) * mcnemar(k, 0) < 0.05)
    power = ""
    is_crossed = all(pair.fixes and pair.fixes.is_cross_validated for pair in pairs)
    if pairs and not is_crossed and needed / len(images) >= 0.02:
        if needed > number:
            power = f"With only {units}, no difference can be significant."
        elif groups is None:
            smallest = f"{100 * (needed / len(images)):.1f} points"
            power = f"With {units}, a difference of less than {smallest} cannot be significant."

    found = [run.results.estimate("cross-validation") for run in runs]
    crossed = [(one.value, one.interval) if one and one.interval else None for one in found]
    step = (
        f"The surest answer comes from labelled photos that no run has seen: "
        f"{_evaluate_commands(runs)}{' for each run' * (len(runs) != 2)}, with --out DIR for "
        "`vitft compare`"
    )
    sizes = [len(table) for table in by_digest]
    return RunComparison(
        runs=runs,
        names=names if len({*names}) == len(names) else [str(run.path) for run in runs],
        letters=letters,
        images=images,
        flags=flags,
        groups=groups,
        accuracies=[_proportion(own, groups) for own in flags] if images else [],
        cross_validated=crossed if any(crossed) else [],
        test="mid-p McNemar test" if groups is None else f"sign-flip test of {units}",
        units=units,
        pairs=pairs,
        conclusions=[_conclusion(pair, units, len(images), needed > number) for pair in pairs],
        winner=next((run for run, won in wins.items() if won == len(runs) - 1), None),
        limits=[
            *[_OWN_LABELS] * any(pair.fixes for pair in pairs),
            *_comparison_notes(runs, sizes, len(common), len(every), len(images)),
        ],
        power=power,
        next_step="" if runs[0].is_evaluation else step,
    )


def _known_images(runs: Sequence[Run]) -> set[str]:
    """Return the digests of the images that a run was trained on, or on others of their groups."""
    known = trained = set[str]().union(*(run.seen for run in runs))
    for run in runs:
        groups = {row.unit for row in run.rows if row.unit and row.sha256 in trained}
        known = known | {row.sha256 for row in run.rows if row.unit in groups}
    return known


_KNOWN = (
    "known from training: the same image or another image of its group trained a run, its initial "
    "weights or its teacher"
)
_OWN_LABELS = (
    "Runs with different fixes are each scored with their own labels, so their accuracies in "
    "the table cannot be compared."
)


def _conclusion(pair: _RunPair, units: str, images: int, too_few: bool) -> str:
    if pair.fixes:
        return pair.fixes.text(pair.letters)
    if pair.added and not pair.added.settings:
        return pair.added.text(pair.letters)
    if too_few:
        verb = "is" if units.startswith("1 ") else "are"
        return (
            f"{units} {verb} too few to tell whether {' or '.join(pair.letters)} is more accurate"
        )
    difference = pair.paired.difference
    worse, better = pair.letters if difference >= 0 else reversed(pair.letters)
    by = f"by {100 * abs(difference):.1f} points ({p_equation(pair.p)})"
    if pair.p < 0.05:
        return f"{better} is more accurate than {worse} on these images, {by}"
    if difference == 0:
        same = f"{worse} and {better} classify the same number correctly"
        return f"No difference on these {count(images, 'image')}: {same}"
    return f"No significant difference on these images: {better} is ahead of {worse} {by}"


def _run_pairs(
    runs: Sequence[Run], flags: Sequence[Flags], groups: Groups | None
) -> list[_RunPair]:
    chosen = list(itertools.combinations(range(len(runs)), 2))
    found = [PairedDifference.of(flags[second], flags[first], groups) for first, second in chosen]
    p_values, pairs = holm([paired.p for paired in found]), list[_RunPair]()
    for (first, second), paired, p in zip(chosen, found, p_values, strict=True):
        both = runs[first], runs[second]
        fixes, added = _fixes_effect(*both, paired, p), _added_images(*both, paired, p)
        pairs.append(
            _RunPair(first=first, second=second, paired=paired, p=p, fixes=fixes, added=added)
        )
    crossed = [one.fixes.p for one in pairs if one.fixes and one.fixes.is_cross_validated]
    corrected = iter(holm(crossed))
    return [
        replace(one, fixes=replace(one.fixes, p=next(corrected)))
        if one.fixes and one.fixes.is_cross_validated
        else one
        for one in pairs
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
    keys = [key for key, _ in different_settings(runs) if key.startswith("data.")]
    keys += ["classes"] * (len({run.classes for run in runs}) > 1)
    differ = f". The runs differ in {listing(keys)}" if keys else ""
    if not set.intersection(*(set(run.classes) for run in runs)):
        return UsageError(
            f"cannot compare: the runs have no class in common{differ}",
            fix="compare runs that were trained on the same data",
        )
    return UsageError(
        f"cannot compare: no validation image is shared by all runs{differ}",
        fix=_evaluate_fix(runs),
    )


def _nothing_new(runs: Sequence[Run]) -> UsageError:
    """Return the error for runs whose shared validation images are all known from training."""
    return UsageError(
        f"cannot compare: all validation images that the runs share are {_KNOWN}",
        fix=_evaluate_fix(runs),
    )


def _evaluate_fix(runs: Sequence[Run]) -> str:
    commands = _evaluate_commands(runs)
    return f"evaluate each run on the same labelled photos, which no run has seen: {commands}"


def _evaluate_commands(runs: Sequence[Run]) -> str:
    """Return the commands that evaluate two runs on new images, or one with RUN for more runs."""
    names = [str(run.path) for run in runs] if len(runs) == 2 else ["RUN"]
    words = [["vitft", "evaluate", "--data", "NEW", "--run", name] for name in names]
    return " and ".join(f"`{shell_join(each)}`" for each in words)


def _comparison_notes(
    runs: Sequence[Run], sizes: Sequence[int], common: int, new: int, same: int
) -> list[str]:
    """Return sentences about the limits of the comparison, and of the numbers of each run.

    `sizes` are the numbers of validation images of each run, `common` is that of shared images,
    `new` that of those that are not known from training, and `same` that of those of them with the
    same label.
    """
    results = [(letter, run.results) for letter, run in zip(ascii_uppercase, runs, strict=False)]
    kinds = ("relabelled", "left out", "added")
    changes = [
        [f"{number:,} {kind}" for number, kind in zip(found, kinds, strict=True) if number]
        for found in _data_changes(runs)
    ]
    # The effect of fixes on two heads that were both cross-validated has its own test
    crossed, has_fixes = None, any(run.setting("data", "fixes") for run in runs)
    is_crossed = all(found.estimate("cross-validation") for _, found in results)
    if len(runs) == 2 and is_crossed and not has_fixes:
        right, also_right, groups = _cross_validated_pairs(*runs)
        if len(right) > new:
            first, second = (int(flags.sum()) / len(flags) for flags in (right, also_right))
            p = p_equation(PairedDifference.of(right, also_right, groups).p)
            crossed = {"images": len(right), "first": first, "second": second, "p": p}
    text = filled(
        "comparison.j2",
        messages=messages,
        listing=listing,
        visible=visible,
        sizes=sizes,
        shown_sizes=[f"{size:,}" for size in sizes],
        common=common,
        known=_KNOWN,
        new=new,
        same=same,
        data_changes=[*zip(ascii_uppercase[1:], changes, strict=False)],
        crossed=crossed,
        has_other_classes=len({run.classes for run in runs}) > 1,
        results=results,
        head_only=[
            letter
            for (letter, found), run in zip(results, runs, strict=True)
            if "cross_validation" in run.measured and not found.estimate("cross-validation")
        ],
        exact=[f"{x} has {percent(one.exact.value)}" for x, one in results if one.exact],
        is_evaluation=runs[0].is_evaluation,
        selected=[letter for letter, found in results if found.selected_on_validation],
    )
    return [line for line in text.split("\n") if line]


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


def comparison_results(comparison: RunComparison) -> dict[str, Any]:
    """Return a comparison as a JSON object; `docs/schemas/comparison.json` describes it."""
    runs, names, winner = comparison.runs, comparison.names, comparison.winner
    changes = zip(names[1:], _data_changes(runs), strict=True)
    recalls = sorted(comparison.recalls, key=lambda row: row[0])
    return {
        "shared_images": len(comparison.images),
        "notes": comparison.limits,
        "limit": comparison.power or None,
        "winner": None if winner is None else names[winner],
        "runs": [
            {
                "name": names[i],
                "letter": comparison.letters[i],
                "path": str(run.path),
                "results": run.results.to_json(),
                "shared_right": int(comparison.flags[i].sum()),
                "shared_interval": comparison.accuracies[i][1] if comparison.images else None,
                "recall": {label: values[i][0] for label, _, values, _, _ in recalls},
            }
            for i, run in enumerate(runs)
        ],
        "pairs": [
            {
                "runs": (own := (names[pair.first], names[pair.second])),
                "test": "mid-p McNemar" if comparison.groups is None else "sign flips of groups",
                "only_first_right": pair.paired.only_second,
                "only_second_right": pair.paired.only_first,
                "difference": pair.paired.difference,
                "interval": pair.interval,
                "p_holm": pair.p,
                "significant": pair.p < 0.05,
                "more_accurate": own[pair.paired.difference > 0] if pair.p < 0.05 else None,
                "conclusion": conclusion,
                "added": {
                    "run": own[added.is_second],
                    "images": added.added,
                    "settings": list(added.settings),
                }
                if (added := pair.added) and not pair.fixes
                else None,
                "fixes": {
                    "run": own[effect.is_second],
                    "verdict": effect.verdict,
                    "relabelled": effect.relabelled,
                    "left_out": effect.left_out,
                    "added": effect.added,
                    "settings": list(effect.settings),
                    "cross_validated": effect.is_cross_validated,
                    "images": effect.paired.images,
                    "only_with_right": effect.paired.only_first,
                    "only_without_right": effect.paired.only_second,
                    "difference": effect.paired.difference,
                    "interval": effect.paired.interval(effect.p),
                    "p_holm": effect.p,
                }
                if (effect := pair.fixes)
                else None,
            }
            for pair, conclusion in zip(comparison.pairs, comparison.conclusions, strict=True)
        ],
        "settings": dict(different_settings(runs)),
        "data": [
            {"run": name, "labels_changed": changed, "left_out": left_out, "added": added}
            for name, (changed, left_out, added) in changes
        ],
        "disagree": [image[0].path for image in comparison.disputed],
    }


# page of a comparison, and its figure as a PNG ----------------------------------------------------


def write_comparison(comparison: RunComparison, out: Path) -> Path:
    """Write a comparison as an HTML page and return the path of the page."""
    runs, accuracies, several = comparison.runs, comparison.accuracies, len(comparison.runs)
    data, descriptions = _data_names(runs), _run_descriptions(runs)
    # Images with different predictions in groups: those that some run classifies correctly come
    # first. Of two runs, each has a group of its own
    groups = dict[int, list[_SharedImage]]()
    for image in sorted(
        comparison.disputed, key=lambda one: (-max(each.probability for each in one), one[0].path)
    ):
        right = [run for run, one in enumerate(image) if one.is_correct]
        group = several + 1 if not right else right[0] if several == 2 else several
        groups.setdefault(group, []).append(image)
    titles = [f"Only {letter} is right" for letter in comparison.letters]
    titles += ["Some are right", "All are wrong, in different ways"]
    most = -(-_MAX_DISPUTED // max(1, len(groups)))
    view = {
        "title": f"{data}: {listing(descriptions, most=3)}",
        "data": data,
        "root": runs[0].root_uri,
        "comparison": comparison,
        "descriptions": descriptions,
        "accuracies": accuracies,
        "chart": _accuracy_chart(comparison, comparison.letters).markup() if accuracies else "",
        "curves": [(title, chart.markup()) for title, chart in _curve_charts(comparison)],
        "settings": comparison.setting_rows(),
        "fixes": any(pair.fixes for pair in comparison.pairs),
        "disputed": [
            {"title": titles[group], "images": images[:most], "number": len(images)}
            for group, images in sorted(groups.items())
        ],
        "thumbnails": Thumbnails(runs),
    }
    write_atomically(out, render("compare.html.j2", view))
    return out


def _data_names(runs: Sequence[Run]) -> str:
    return listing(dict.fromkeys(run.data_name or "unknown data" for run in runs))


def _run_descriptions(runs: Sequence[Run]) -> list[str]:
    """Describe each run by its data, weights and trained layers, as far as these differ.

    A run without pretrained weights is `from scratch`. Runs whose descriptions would be equal are
    described by their names.
    """
    facts = []
    for run in runs:
        start, layers = weights_name(str(run.setting("weights", "name") or "")), run.layers
        if start == "none":
            start, layers = "from scratch", ""
        fixes = "with fixes" if run.setting("data", "fixes") else ""
        facts.append((run.data_name, start, "all layers" if layers == "all" else layers, fixes))
    differs = [len({*values}) > 1 for values in zip(*facts, strict=True)]
    described = [", ".join(filter(None, itertools.compress(row, differs))) for row in facts]
    with_fixes = [text or "without fixes" for text in described]
    return with_fixes if len({*with_fixes}) == len(runs) else [run.name for run in runs]


def draw_comparison(comparison: RunComparison, out: Path) -> Path:
    """Draw the accuracies of the runs as a PNG, and their accuracy by epoch if two have any."""
    from vitft.report.plots import charts_png, last_part

    runs, letters = comparison.runs, comparison.letters
    texts = map(last_part, map(visible, _run_descriptions(runs)))
    names = [f"{letter}  {text}" for letter, text in zip(letters, texts, strict=True)]
    curves = [chart for title, chart in _curve_charts(comparison) if title.startswith(_BY_EPOCH)]
    size = 10.5 if curves else 6.4, max(3.2 if curves else 1.8, 1.2 + 0.4 * len(runs))
    images = count(len(comparison.images), "shared validation image")
    charts = [_accuracy_chart(comparison, names), *curves]
    write_atomically(
        out,
        charts_png(charts, size, _data_names(runs), f"accuracy on {images}, with 95% intervals"),
    )
    return out


def _accuracy_chart(comparison: RunComparison, names: Sequence[str]) -> Chart:
    """Return a chart of accuracies and intervals, with one row per run."""
    series = []
    for row, (accuracy, ends) in enumerate(comparison.accuracies):
        colour, _ = _RUN_LOOKS[row % len(_RUN_LOOKS)]
        series += [
            Series(colour=colour, xs=ends, ys=[row, row], width=1.6, markers=()),
            Series(colour=colour, xs=[accuracy], ys=[row], width=0, radius=4),
        ]
    values = [value for one in series for value in one.xs] or [0.0, 1.0]
    x_axis = axis_of(values, "accuracy on the shared images", "percent")
    y_axis = Axis(low=len(names) - 0.5, high=-0.5, ticks=[*enumerate(names)])
    return Chart(
        label="Accuracy of each run with its 95% interval", x=x_axis, y=y_axis, series=series
    )


def _curve_charts(comparison: RunComparison) -> list[tuple[str, Chart]]:
    """Return the title and the chart of each kind of curve that at least two runs have."""
    every, drawn = list(map(_curves_of, comparison.runs)), list[tuple[str, Chart]]()
    for title, x in every[0]:
        found = zip(comparison.letters, (curves[title, x] for curves in every), strict=True)
        curves = [(letter, curve) for letter, curve in found if len(curve) > 1]
        if len(curves) < 2:
            continue
        series = []
        for letter, curve in curves[:_MAX_CURVES]:
            colour, dashes = _RUN_LOOKS[comparison.letters.index(letter) % len(_RUN_LOOKS)]
            xs, ys = zip(*curve, strict=True)
            series.append(Series(name=letter, colour=colour, dashes=dashes, xs=xs, ys=ys))
        places = [place for one in series for place in one.xs]
        axis = axis_of(places, x, "epoch" if x == "epoch" else "log")
        y = "accuracy" if "accuracy" in title else "loss (nats)"
        more = f" ({', '.join(letter for letter, _ in curves[_MAX_CURVES:])} not shown)"
        name = title + more * (len(curves) > _MAX_CURVES)
        drawn.append((name, charted(title, axis, series, title=y)))
    return drawn


def _curves_of(run: Run) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Return the points of each curve of a run, by the titles of its chart and of its x-axis.

    Accuracies in cross-validation are those of the model itself, measured on all classes.
    """

    def by_epoch(key: str) -> list[tuple[float, float]]:
        log = [line for line in run.log if "epoch" in line and line.get(key) is not None]
        values = [float(str(line.get(key))) for line in log]
        return list(zip(epoch_numbers(log), values, strict=True))

    own = own_cross_validation(run.measured)
    penalties = [one for one in run.log if {"l2", "cv_top1"} <= {*one} and "cv_classes" not in one]
    return {
        (_BY_EPOCH, "epoch"): by_epoch("val_top1"),
        ("Validation loss by epoch", "epoch"): by_epoch("val_loss"),
        ("Cross-validated accuracy by training images", "training images"): [
            (point["images"], point["top1"]) for point in (own["curve"] if own else ())
        ],
        ("Cross-validated accuracy by L2 penalty", "L2 penalty"): sorted(
            (line["l2"], line["cv_top1"]) for line in (penalties if own else ())
        ),
    }
