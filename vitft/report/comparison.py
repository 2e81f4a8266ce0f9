"""Comparison of several runs on the images that all of them used for validation.

Images are matched by the digest of their bytes and classes by name. Only images that no run trained
on are compared, each once. The test is about these trained models, not about their settings:
another seed gives another model.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from vitft.metrics.intervals import holm, mcnemar, paired_interval, wilson_interval
from vitft.metrics.results import Interval
from vitft.predict.validation import ValidationPrediction
from vitft.report.run_files import Run
from vitft.system.errors import RunError, UsageError
from vitft.system.text import count, interval, percent, points

SIGNIFICANT = 0.05
"""A difference with a lower corrected p-value is significant."""
MAX_RUNS = 26
"""Runs are labelled A to Z."""


@dataclass(frozen=True, slots=True)
class SharedImage:
    """An image that every run used for validation."""

    sha256: str
    path: str
    label: str
    predicted: tuple[str, ...]
    """Predicted class of each run."""
    probabilities: tuple[float, ...]
    """Probability of the predicted class of each run."""

    @property
    def disputed(self) -> bool:
        """Whether the predictions differ."""
        return len(set(self.predicted)) > 1

    def is_correct(self, run: int) -> bool:
        return self.predicted[run] == self.label


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPair:
    """Two runs, by their numbers, compared on the shared images."""

    first: int
    second: int
    only_first: int
    """Number of images that only the first run classifies correctly."""
    only_second: int
    difference: float
    """Accuracy of the first minus accuracy of the second."""
    interval: Interval
    p: float
    """Two-sided p-value of the exact McNemar test, with Holm's correction for all pairs."""

    @property
    def is_significant(self) -> bool:
        return self.p < SIGNIFICANT


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Several runs with their shared images and the test of each pair."""

    runs: Sequence[Run]
    names: Sequence[str]
    notes: Sequence[str]
    """Limits of the comparison."""
    images: Sequence[SharedImage]
    pairs: Sequence[RunPair]

    @property
    def shared(self) -> int:
        return len(self.images)

    @cached_property
    def letters(self) -> list[str]:
        """A letter for each run."""
        return [letter(i) for i in range(len(self.runs))]

    @cached_property
    def rights(self) -> list[int]:
        """How many shared images each run classifies correctly."""
        return [sum(image.is_correct(i) for image in self.images) for i in range(len(self.runs))]

    @cached_property
    def classes(self) -> list[str]:
        """The classes of the shared images, sorted."""
        return sorted({image.label for image in self.images})

    def recall_counts(self, name: str, run: int) -> tuple[int, int]:
        """Return how many shared images of a class a run classifies correctly, and of how many."""
        members = [image for image in self.images if image.label == name]
        return sum(image.is_correct(run) for image in members), len(members)

    def accuracy_rows(self) -> list[tuple[str, str, str, str]]:
        """Return name, accuracy, interval, and accuracy on the shared images of each run."""
        rows = []
        for i, run in enumerate(self.runs):
            top1 = run.results.get("top1") if run.results else None
            bounds = run.results.get("top1_interval") if run.results else None
            shared = percent(self.rights[i] / self.shared if self.shared else None)
            name = f"{self.letters[i]} {self.names[i]}"
            rows.append((name, percent(top1), interval(bounds), shared))
        return rows

    def pair_rows(self) -> list[tuple[str, ...]]:
        """Return a row of text for each pair."""
        return [
            (
                f"{self.letters[p.first]} - {self.letters[p.second]}",
                points(p.difference),
                f"{points(p.interval[0]).split()[0]} to {points(p.interval[1]).split()[0]}",
                f"{p.only_first:,}",
                f"{p.only_second:,}",
                p_text(p.p),
            )
            for p in self.pairs
        ]

    def conclusions(self) -> list[str]:
        """Return one sentence for each pair, without a full stop."""
        return [self.conclusion(pair) for pair in self.pairs]

    def conclusion(self, pair: RunPair) -> str:
        """Return which of two runs is better, or that the difference is not significant."""
        ahead, behind = (pair.first, pair.second)
        if pair.difference < 0:
            ahead, behind = behind, ahead
        better, worse = self.letters[ahead], self.letters[behind]
        by = points(abs(pair.difference)).lstrip("+")
        if pair.is_significant:
            return f"{better} is better than {worse} on these images by {by} (p {p_text(pair.p)})"
        if pair.difference == 0:
            return f"{better} and {worse} are equally accurate on these images"
        return (
            f"{better} is ahead of {worse} by {by}, which is not significant (p {p_text(pair.p)})"
        )

    def to_json(self) -> dict[str, object]:
        """Return the comparison as JSON values."""
        return {
            "shared_images": self.shared,
            "notes": list(self.notes),
            "runs": [
                {
                    "name": self.names[i],
                    "path": str(run.path),
                    "images": run.results.get("images") if run.results else None,
                    "top1": run.results.get("top1") if run.results else None,
                    "top1_interval": run.results.get("top1_interval") if run.results else None,
                    "shared_right": self.rights[i],
                    "shared_interval": wilson_interval(self.rights[i], self.shared)
                    if self.shared
                    else None,
                    "recall": {
                        name: right / total
                        for name in self.classes
                        for right, total in [self.recall_counts(name, i)]
                    },
                }
                for i, run in enumerate(self.runs)
            ],
            "pairs": [
                {
                    "runs": [self.names[p.first], self.names[p.second]],
                    "only_first_right": p.only_first,
                    "only_second_right": p.only_second,
                    "difference": p.difference,
                    "interval": p.interval,
                    "p_holm": p.p,
                }
                for p in self.pairs
            ],
            "disagree": [image.path for image in self.images if image.disputed],
        }


def letter(run: int) -> str:
    """Return the letter of a run: A for 0."""
    return chr(ord("A") + run)


def p_text(p: float) -> str:
    """Return a p-value as text."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def compare_runs(runs: Sequence[Run]) -> RunComparison:
    """Compare runs on the validation images that they share.

    Raises:
        UsageError: A run is given twice, or there are more than 26.
        RunError: A run did not save its predictions.
    """
    check_runs(runs)
    by_digest = [{one.sha256: one for one in run.predictions} for run in runs]
    common = [sha256 for sha256 in by_digest[0] if all(sha256 in other for other in by_digest[1:])]
    images, relabelled = [], 0
    for sha256 in common:
        predictions = [table[sha256] for table in by_digest]
        if len({one.label for one in predictions}) > 1:
            relabelled += 1
            continue
        images.append(
            SharedImage(
                sha256,
                predictions[0].path,
                predictions[0].label,
                tuple(one.predicted for one in predictions),
                tuple(one.probability for one in predictions),
            )
        )
    return RunComparison(
        runs=runs,
        names=distinct_names(runs),
        notes=comparison_notes(runs, by_digest, len(common), relabelled),
        images=images,
        pairs=run_pairs(images, len(runs)) if images else [],
    )


def check_runs(runs: Sequence[Run]) -> None:
    """Check that the runs can be compared.

    Raises:
        UsageError: A run is given twice, or there are too many.
        RunError: A run did not save its predictions.
    """
    if len(runs) > MAX_RUNS:
        raise UsageError(
            f"cannot compare {len(runs)} runs", fix=f"compare at most {MAX_RUNS} at a time"
        )
    paths = [run.path.resolve() for run in runs]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is named twice", fix="name each run once")
    for run in runs:
        if not run.predictions:
            raise RunError(
                f"cannot compare {run.path}: it has no validation.npz with its predictions",
                fix="repeat the run with this version of vitft",
            )


def distinct_names(runs: Sequence[Run]) -> list[str]:
    """Return the names of the run folders, or their paths if two names are equal."""
    names = [run.name for run in runs]
    return names if len({*names}) == len(names) else [str(run.path) for run in runs]


def comparison_notes(
    runs: Sequence[Run],
    by_digest: Sequence[Mapping[str, ValidationPrediction]],
    common: int,
    relabelled: int,
) -> list[str]:
    """Return what limits the comparison.

    Args:
        runs: The runs.
        by_digest: Predictions of each run by the digest of the image.
        common: Number of validation images that all runs share.
        relabelled: How many of these have different labels.
    """
    notes = []
    sizes = [len(table) for table in by_digest]
    if common == 0:
        notes.append(
            "The runs have no validation image in common, so nothing can be tested. Train them on "
            "the same data with the same --seed."
        )
    elif any(size != common for size in sizes):
        numbers = ", ".join(f"{size:,}" for size in sizes)
        notes.append(
            f"The splits differ: the runs have {numbers} validation images, and only the "
            f"{count(common, 'image')} that all of them share {'is' if common == 1 else 'are'} "
            "compared."
        )
    if relabelled:
        one = relabelled == 1
        notes.append(
            f"{count(relabelled, 'shared image')} {'has' if one else 'have'} different labels and "
            f"{'is' if one else 'are'} left out."
        )
    if len({run.classes for run in runs}) > 1:
        notes.append("The runs have different classes, so they did not solve the same task.")
    chosen = [
        letter(i)
        for i, run in enumerate(runs)
        if run.results and run.results.get("selected_on_validation")
    ]
    if chosen:
        notes.append(
            f"The best epoch of {', '.join(chosen)} was selected on these images, which gives a "
            "slight advantage."
        )
    return notes


def run_pairs(images: Sequence[SharedImage], runs: int) -> list[RunPair]:
    """Test every pair of runs."""
    numbers = list(itertools.combinations(range(runs), 2))
    counts = [
        (
            sum(image.is_correct(first) and not image.is_correct(second) for image in images),
            sum(image.is_correct(second) and not image.is_correct(first) for image in images),
        )
        for first, second in numbers
    ]
    corrected = holm([mcnemar(*pair) for pair in counts])
    return [
        RunPair(
            first=first,
            second=second,
            only_first=only_first,
            only_second=only_second,
            difference=(only_first - only_second) / len(images),
            interval=paired_interval(only_first, only_second, len(images)),
            p=p,
        )
        for (first, second), (only_first, only_second), p in zip(
            numbers, counts, corrected, strict=True
        )
    ]
