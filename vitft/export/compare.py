"""An export beside the original: the same images through both, each with its own preprocessing.

Letters: n images, C classes. The original and the exports take turns, batch by batch, so that a
busy machine slows all of them alike.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from PIL import Image

from vitft.export.trained import Sample
from vitft.metrics.intervals import wilson
from vitft.system.errors import RunError

Array = np.ndarray[Any, np.dtype[Any]]

BATCH = 8
"""Images per batch, of which the first is not timed."""
EXACT = 1e-4
"""Largest difference of a logit in float32, as a share of the largest logit or of 1."""
RESIZED = 1e-2
"""The same where the graph resizes, and single values of a view differ by a grey level."""
CHANGED = 0.05
"""Largest share of images whose best class int8 may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A model as the tool that it is for sees it."""

    by: str
    """The tool, for people."""
    classes: tuple[str, ...]
    prepare: Callable[[Image.Image], Array]
    """An RGB image to the model's input, by the tool's own preprocessing where it has one."""
    logits: Callable[[Array], Array]
    """Stacked inputs to logits, float32 (B, C)."""
    one_by_one: bool = False
    """Whether inputs are of any size, so that they cannot be stacked."""

    def answer(self, inputs: Sequence[Array]) -> Array:
        """Logits (B, C) of prepared images."""
        if not self.one_by_one:
            return self.logits(np.stack(inputs))
        return np.concatenate([self.logits(each[None]) for each in inputs])


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """How an export differs from the original."""

    name: str
    by: str
    images: int
    """Validation images compared; 0 if there were none and noise stood in for them."""
    difference: float
    """Largest difference of a logit."""
    largest: float
    """Largest logit of the original, in size."""
    changed: int
    """Images with another best class."""
    right: tuple[int, int]
    """Images whose class the original names, and the export."""
    size: int
    """Bytes of all files."""
    speed: float
    """Images per second, preprocessing not counted."""
    original_speed: float
    """The same of the original, in turns with the export."""

    @property
    def cost(self) -> str:
        """What the export costs in accuracy, in words, where it changes any answer."""
        if not self.images or not self.changed:
            return ""
        before, after = (count / self.images for count in self.right)
        low, high = wilson(self.right[1], self.images)
        return (
            f"--{self.name} names {after:.1%} of {self.images} validation images rightly (95 % "
            f"interval {low:.1%} to {high:.1%}), the original {before:.1%}"
        )


@dataclass
class Answers:
    """What one model said so far."""

    logits: list[Array] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Per image, of each batch but the first."""


def compare(
    original: Opened,
    exports: Mapping[str, Opened],
    samples: Iterable[Sample],
    sizes: Mapping[str, int],
) -> list[Compared]:
    """One row per export, in their order.

    Args:
        original: The run itself.
        exports: By the name of the format.
        samples: Images to answer, read as they are needed.
        sizes: Bytes of each export's files.

    Raises:
        RunError: An export names other classes than the run.
    """
    models = {"": original, **exports}
    answers = {name: Answers() for name in models}
    labels: list[int] = []
    images = iter(samples)
    turns = [*models]
    while batch := list(islice(images, BATCH)):
        labels += [sample.label for sample in batch]
        for name in turns:
            answer(models[name], batch, answers[name])
        turns = [*turns[1:], turns[0]]  # nobody always comes after the same one
    for name, model in exports.items():
        if model.classes != original.classes:
            raise RunError(
                f"the --{name} export names other classes than the run",
                fix="this should not happen; keep the run folder and report it",
            )
    return [
        row_of(name, exports[name].by, answers[name], answers[""], labels, sizes[name])
        for name in exports
    ]


def answer(model: Opened, batch: list[Sample], kept: Answers) -> None:
    """Let a model answer a batch, and time it; a first batch is answered twice."""
    inputs = [model.prepare(sample.image) for sample in batch]
    if not kept.logits:
        model.answer(inputs)  # whatever is set up at the first call is not timed
    started = time.perf_counter()
    kept.logits.append(model.answer(inputs))
    kept.seconds.append((time.perf_counter() - started) / len(batch))


def row_of(
    name: str, by: str, export: Answers, original: Answers, labels: list[int], size: int
) -> Compared:
    """The figures of one export."""
    before, after = np.concatenate(original.logits), np.concatenate(export.logits)  # (n, C)
    truth = np.array(labels)
    said = before.argmax(axis=1), after.argmax(axis=1)
    is_finite = before.shape == after.shape and bool(np.isfinite(after).all())
    return Compared(
        name=name,
        by=by,
        images=len(truth) if (truth >= 0).all() else 0,
        difference=float(np.abs(before - after).max()) if is_finite else float("inf"),
        largest=float(np.abs(before).max()),
        changed=int((said[0] != said[1]).sum()),
        right=(int((said[0] == truth).sum()), int((said[1] == truth).sum())),
        size=size,
        speed=1 / statistics.median(export.seconds),
        original_speed=1 / statistics.median(original.seconds),
    )


def check(row: Compared, *, exact: float = EXACT) -> None:
    """Refuse an export that answers otherwise than the run.

    Args:
        row: The comparison.
        exact: Largest difference of a logit, as a share of the largest logit or of 1.

    Raises:
        RunError: Above its tolerance.
    """
    on = f"{row.images} validation images" if row.images else "noise"
    said = (
        f"the --{row.name} export answers differently: logits by up to {row.difference:.2g}, "
        f"{row.changed} changed classes on {on}; nothing was kept"
    )
    if row.name == "int8":
        if not row.images:
            raise RunError(
                "nothing tells what 8 bits cost in accuracy: the run's validation images are gone",
                fix="put them back where the run's config.toml says, or export without --int8",
            )
        if row.changed > max(1, CHANGED * row.images) or not np.isfinite(row.difference):
            raise RunError(said, fix="8 bits are too few for this model: export without --int8")
    elif row.difference > exact * max(1.0, row.largest):
        raise RunError(said, fix="this should not happen; keep the run folder and report it")
