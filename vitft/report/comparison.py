"""Several runs on the images that they all held back: who is right where, and is it chance.

Images are told by the digest of their bytes, classes by their names. Only images that no run
trained on are compared, each picture once. What is tested is these trained models, not the
settings that made them: another seed makes another model.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vitft.metrics.intervals import wilson
from vitft.metrics.significance import holm, mcnemar, paired_interval
from vitft.report.run_files import Run
from vitft.system.errors import RunError, UsageError
from vitft.system.text import count, interval, percent, points

CERTAIN = 0.05
"""A corrected p-value under this is called a difference."""
MOST_RUNS = 26
"""Runs are called A to Z."""


@dataclass(frozen=True, slots=True)
class Shared:
    """An image that every run held back."""

    sha256: str
    path: str
    label: str
    guesses: tuple[str, ...]
    """By run."""
    confidences: tuple[float, ...]

    @property
    def disputed(self) -> bool:
        """Whether the runs do not all say the same."""
        return len(set(self.guesses)) > 1

    def right(self, run: int) -> bool:
        return self.guesses[run] == self.label


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two runs on the shared images."""

    one: int
    other: int
    only_one: int
    """Images that only the first names right."""
    only_other: int
    difference: float
    """Accuracy of the first less that of the second."""
    interval: tuple[float, float]
    p: float
    """Two-sided, exact McNemar test, corrected by Holm for the number of pairs."""

    @property
    def certain(self) -> bool:
        return self.p < CERTAIN


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What several runs come to side by side."""

    runs: Sequence[Run]
    names: Sequence[str]
    notes: Sequence[str]
    """What a reader must know of how the comparison was made."""
    images: Sequence[Shared]
    pairs: Sequence[Pair]

    @property
    def shared(self) -> int:
        return len(self.images)

    @cached_property
    def letters(self) -> list[str]:
        """A short name for each run."""
        return [chr(ord("A") + i) for i in range(len(self.runs))]

    @cached_property
    def rights(self) -> list[int]:
        """How many shared images each run names right."""
        return [sum(image.right(i) for image in self.images) for i in range(len(self.runs))]

    @cached_property
    def classes(self) -> list[str]:
        """Every class of the shared images, sorted."""
        return sorted({image.label for image in self.images})

    def found(self, name: str, run: int) -> tuple[int, int]:
        """Of a class: how many shared images a run names right, and of how many."""
        members = [image for image in self.images if image.label == name]
        return sum(image.right(run) for image in members), len(members)

    def accuracy_rows(self) -> list[tuple[str, str, str, str]]:
        """Name, accuracy, its interval and accuracy on the shared images, as text."""
        rows = []
        for i, run in enumerate(self.runs):
            shared = percent(self.rights[i] / self.shared) if self.shared else percent(None)
            rows.append(
                (
                    f"{self.letters[i]} {self.names[i]}",
                    percent(run.figures.get("top1")),
                    interval(run.figures.get("top1_interval")),
                    shared,
                )
            )
        return rows

    def pair_rows(self) -> list[tuple[str, ...]]:
        """Each pair as text."""
        return [
            (
                f"{self.letters[p.one]} - {self.letters[p.other]}",
                points(p.difference),
                f"{points(p.interval[0]).split()[0]} to {points(p.interval[1]).split()[0]}",
                f"{p.only_one:,}",
                f"{p.only_other:,}",
                p_text(p.p),
            )
            for p in self.pairs
        ]

    def verdict_lines(self) -> list[str]:
        """One sentence for each pair."""
        return [self.verdict(pair) for pair in self.pairs]

    def verdict(self, pair: Pair) -> str:
        """Which of two runs is better, or that chance could have made the difference."""
        ahead, behind = (pair.one, pair.other) if pair.difference >= 0 else (pair.other, pair.one)
        one, other = self.letters[ahead], self.letters[behind]
        by = points(abs(pair.difference)).lstrip("+")
        if pair.certain:
            return f"{one} is better than {other} on these images: by {by} (p {p_text(pair.p)})"
        if pair.difference == 0:
            return f"{one} and {other} are right equally often on these images"
        return (
            f"{one} is ahead of {other} by {by}, which chance could have made (p {p_text(pair.p)})"
        )

    def to_json(self) -> dict[str, Any]:
        """The figures for machines."""
        return {
            "shared_images": self.shared,
            "notes": list(self.notes),
            "runs": [
                {
                    "name": self.names[i],
                    "path": str(run.path),
                    "images": run.figures.get("images"),
                    "top1": run.figures.get("top1"),
                    "top1_interval": run.figures.get("top1_interval"),
                    "shared_right": self.rights[i],
                    "shared_interval": wilson(self.rights[i], self.shared) if self.shared else None,
                    "recall": {
                        name: self.found(name, i)[0] / self.found(name, i)[1]
                        for name in self.classes
                    },
                }
                for i, run in enumerate(self.runs)
            ],
            "pairs": [
                {
                    "runs": [self.names[p.one], self.names[p.other]],
                    "only_first_right": p.only_one,
                    "only_second_right": p.only_other,
                    "difference": p.difference,
                    "interval": p.interval,
                    "p_holm": p.p,
                }
                for p in self.pairs
            ],
            "disagree": [image.path for image in self.images if image.disputed],
        }


def p_text(p: float) -> str:
    """A p-value as text."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def compare(runs: Sequence[Run]) -> Comparison:
    """Put runs side by side.

    Raises:
        UsageError: A run is named twice, or there are more than 26.
        RunError: A run did not keep what it answered.
    """
    check_runs(runs)
    by_digest = [{verdict.sha256: verdict for verdict in run.verdicts} for run in runs]
    common = [sha256 for sha256 in by_digest[0] if all(sha256 in other for other in by_digest[1:])]
    images, relabelled = [], 0
    for sha256 in common:
        verdicts = [table[sha256] for table in by_digest]
        if len({verdict.label for verdict in verdicts}) > 1:
            relabelled += 1
            continue
        images.append(
            Shared(
                sha256,
                verdicts[0].path,
                verdicts[0].label,
                tuple(v.predicted for v in verdicts),
                tuple(v.probability for v in verdicts),
            )
        )
    return Comparison(
        runs=runs,
        names=names_of(runs),
        notes=notes_of(runs, by_digest, len(common), relabelled),
        images=images,
        pairs=pairs_of(images, len(runs)) if images else [],
    )


def check_runs(runs: Sequence[Run]) -> None:
    """Refuse what cannot be compared."""
    if len(runs) > MOST_RUNS:
        raise UsageError(f"{len(runs)} runs are too many", fix=f"compare up to {MOST_RUNS}")
    paths = [run.path.resolve() for run in runs]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is named twice", fix="name each run once")
    for run in runs:
        if not run.verdicts:
            raise RunError(
                f"{run.path} did not keep what it answered (no validation.npz)",
                fix="make the run again with this vitft, to its end",
            )


def names_of(runs: Sequence[Run]) -> list[str]:
    """The folder names, or the paths where those are not enough."""
    names = [run.name for run in runs]
    return names if len({*names}) == len(names) else [str(run.path) for run in runs]


def notes_of(
    runs: Sequence[Run], by_digest: Sequence[Mapping[str, Any]], common: int, relabelled: int
) -> list[str]:
    """How far the runs can be compared."""
    notes = []
    sizes = [len(table) for table in by_digest]
    if common == 0:
        notes.append(
            "The runs held back different images: no image was held back by all of them, so "
            "nothing can be tested. Give them the same data and --seed."
        )
    elif any(size != common for size in sizes):
        held_back = ", ".join(f"{size:,}" for size in sizes)
        notes.append(
            f"The splits differ: the runs held back {held_back} images; only the "
            f"{count(common, 'image')} that all of them held back "
            f"{'is' if common == 1 else 'are'} compared."
        )
    if relabelled:
        notes.append(
            f"{count(relabelled, 'shared image')} carried different labels and "
            f"{'is' if relabelled == 1 else 'are'} left out."
        )
    if len({run.classes for run in runs}) > 1:
        notes.append("The runs do not know the same classes, so they did not do the same task.")
    chosen = [i for i, run in enumerate(runs) if run.figures.get("selected_on_validation")]
    if chosen:
        letters = ", ".join(chr(ord("A") + i) for i in chosen)
        notes.append(
            f"The best epoch of {letters} was chosen on the images that are counted here, which "
            "favours it slightly."
        )
    return notes


def pairs_of(images: Sequence[Shared], runs: int) -> list[Pair]:
    """Every two runs tested against each other."""
    places = list(itertools.combinations(range(runs), 2))
    counts = [
        (
            sum(image.right(one) and not image.right(other) for image in images),
            sum(image.right(other) and not image.right(one) for image in images),
        )
        for one, other in places
    ]
    corrected = holm([mcnemar(*pair) for pair in counts])
    return [
        Pair(
            one=one,
            other=other,
            only_one=only_one,
            only_other=only_other,
            difference=(only_one - only_other) / len(images),
            interval=paired_interval(only_one, only_other, len(images)),
            p=p,
        )
        for (one, other), (only_one, only_other), p in zip(places, counts, corrected, strict=True)
    ]
