"""Comparison of several runs on the validation images that they share.

Images are matched by the digest of their bytes, and classes by name. Each image is counted once,
and only if no run was trained on it. The significance test compares these trained models, not their
settings: another seed would result in a different model.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_uppercase
from typing import Any, cast

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
from vitft.report import fixes_effect
from vitft.report.reproduce import blocks_row, different_settings, shown_settings
from vitft.report.run_files import Run, groups_of
from vitft.system.errors import RunError, UsageError
from vitft.system.rundir import resume_command
from vitft.system.text import count, interval, listing, p_text, percent, points, shell_join


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
    command = ["vitft", "evaluate", "--data", "NEW", "--run"]
    return [f"`{shell_join([*command, name])}`" for name in names]


def _comparison_notes(
    runs: Sequence[Run],
    by_digest: Sequence[Mapping[str, ValidationPrediction]],
    common: int,
    relabelled: Sequence[str],
) -> list[str]:
    """Return sentences about the limits of the comparison; `common` counts the shared images.

    `by_digest` are the validation predictions of each run, by SHA-256 of the image, and
    `relabelled` the digests of the shared images whose label differs between runs.
    """
    notes, sizes = list[str](), [len(table) for table in by_digest]
    if any(size != common for size in sizes):
        shared = common - len(relabelled)
        notes.append(messages.split_difference(sizes, shared, relabelled=bool(relabelled)))
    notes += fixes_effect.fixes_notes(runs, by_digest, relabelled)
    for letter, changes in zip(ascii_uppercase[1:], fixes_effect.data_changes(runs), strict=False):
        notes.append(messages.data_difference(letter, *changes))
    # The effect of fixes on two heads that were both cross-validated is tested in `fixes_effect`.
    has_fixes = any(run.setting("data", "fixes") for run in runs)
    cross_validated = [run for run in runs if run.results.estimate("cross-validation")]
    if len(runs) == len(cross_validated) == 2 and not has_fixes:
        right, also_right, groups = fixes_effect.cross_validated_pairs(*runs)
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
class _RunPair(fixes_effect.Difference):
    """Comparison of the runs with indices `first` and `second` on the shared images."""

    first: int
    second: int

    @property
    def letters(self) -> tuple[str, str]:
        return ascii_uppercase[self.first], ascii_uppercase[self.second]


def _cells(found: tuple[float, Interval | None] | None) -> tuple[str, str]:
    return (percent(found[0]), interval(found[1])) if found else ("–", "")


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
        runs = range(len(self.runs))
        return [np.array([one.is_correct(run) for one in self.images], bool) for run in runs]

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

    def accuracy_rows(self) -> list[tuple[str, ...]]:
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
        return rows

    @cached_property
    def cross_validated(self) -> list[Proportion | None]:
        """Cross-validated accuracy and interval of each run, or None; empty if no run has them."""
        found = [run.results.estimate("cross-validation") for run in self.runs]
        known = [(one.value, one.interval) if one and one.interval else None for one in found]
        return known if any(known) else []

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

    @property
    def columns(self) -> tuple[str, ...]:
        """Headings of `accuracy_rows`."""
        is_same, crossed = self.is_same_images, bool(self.cross_validated)
        return messages.accuracy_columns(same_images=is_same, cross_validated=crossed)

    @property
    def pair_columns(self) -> tuple[str, ...]:
        """Headings of `pair_rows`."""
        return messages.pair_columns(self.letters)

    def pair_rows(self) -> list[tuple[str, ...]]:
        """Return a table row, as text, for each pair of runs, e.g. "B - A"."""
        return [
            (
                " - ".join(reversed(p.letters)),
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
        rows = blocks_row(self.runs)
        for key, values in shown_settings(self.runs):
            is_chosen = [key in _AUTOMATIC and value == 0 for value in values]
            texts = ["–" if value in (None, "") else shown_value(value) for value in values]
            pairs = zip(is_chosen, texts, strict=True)
            rows.append((key, *("auto" if chosen else text for chosen, text in pairs)))
        return rows

    @cached_property
    def fixes(self) -> list[fixes_effect.FixesEffect | None]:
        """Effect of the fixes for each pair of runs; None if it does not differ in them."""
        pairs = [(pair.first, pair.second, pair.paired, pair.p) for pair in self.pairs]
        return fixes_effect.fixes_effects(self.runs, pairs)

    @property
    def limits(self) -> list[str]:
        """Sentences on what the comparison does not show, including the notes."""
        letters = [pair.letters for pair in self.pairs]
        return [*fixes_effect.fixes_steps(self.runs, self.fixes, letters), *self.notes]

    def conclusions(self) -> list[str]:
        """Return the conclusion for each pair of runs as a sentence without a full stop.

        It states which of two runs is more accurate, if either is. If one run applied fixes, it
        states whether they helped. If the runs differ only in their training images, it states
        whether the additional images of one run helped.
        """
        return [
            fixes_effect.fixes_text(fixes, pair.letters) if fixes else self._conclusion(pair)
            for pair, fixes in zip(self.pairs, self.fixes, strict=True)
        ]

    def _conclusion(self, pair: _RunPair) -> str:
        added = fixes_effect.find_added(self.runs[pair.first], self.runs[pair.second])
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
        """Smallest number of differing images (or groups) that can be significant.

        In McNemar's test, the p-value is smallest if all of them favour the same run.
        """
        return next(k for k in range(100) if len(self.pairs) * mcnemar(k, 0) < 0.05)

    def power_text(self) -> str:
        """Return a sentence on differences that so few shared images cannot show, or "".

        It is not needed if all conclusions rest on cross-validation.
        """
        needed = self.needed_disagreements
        is_cross_validated = all(one and one.is_cross_validated for one in self.fixes)
        if not self.pairs or is_cross_validated or needed / self.shared < 0.02:
            return ""
        if needed > self.num_units:
            return f"With only {self.units}, no difference can be significant."
        return "" if self.groups is not None else messages.smallest_difference(needed, self.shared)


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
    flags = [np.array([image.is_correct(run) for image in images], bool) for run in range(runs)]
    pairs = list(itertools.combinations(range(runs), 2))
    found = [PairedDifference.of(flags[second], flags[first], groups) for first, second in pairs]
    return [
        _RunPair(first=first, second=second, paired=paired, p=p)
        for (first, second), paired, p in zip(pairs, found, holm([f.p for f in found]), strict=True)
    ]


# A comparison of runs as JSON ---------------------------------------------------------------------


def comparison_results(comparison: RunComparison) -> dict[str, Any]:
    """Return a comparison as a JSON object; `docs/schemas/comparison.json` describes it."""
    runs, names, winner = comparison.runs, comparison.names, comparison.winner
    changes = zip(names[1:], fixes_effect.data_changes(runs), strict=True)
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
    effect: fixes_effect.FixesEffect | None,
    conclusion: str,
) -> dict[str, Any]:
    names = comparison.names[pair.first], comparison.names[pair.second]
    is_significant = pair.p < 0.05
    added = fixes_effect.find_added(comparison.runs[pair.first], comparison.runs[pair.second])
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
