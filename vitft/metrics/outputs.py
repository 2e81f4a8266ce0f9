"""What the outputs of a model mean: the classes or labels, and how logits become answers.

An image has exactly one class, whose probabilities sum to 1 (softmax), or any number of labels,
each with a probability of its own (sigmoid).

Notation: n images, C classes or labels.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Self

import numpy as np
from msgspec import Meta

from vitft.metrics.calibration import logit_of, sigmoid, softmax
from vitft.metrics.intervals import Floats
from vitft.system.errors import UsageError
from vitft.system.structure import structured
from vitft.system.text import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The classes or labels that a model assigns, in the order of its outputs."""

    classes: tuple[str, ...] = ()  # none of a model without a head
    thresholds: tuple[Annotated[float, Meta(gt=0, lt=1)], ...] = ()
    """Minimum probability at which each label of a multi-label model is assigned; empty if each
    image has exactly one class."""

    @classmethod
    def of(cls, names: Iterable[str], *, several: bool = False) -> Self:
        """Return outputs with these names; `several` labels have thresholds of 0.5."""
        classes = tuple(names)
        return cls(classes=classes, thresholds=(0.5,) * (len(classes) if several else 0))

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Self:
        """Read outputs from metadata; a ValueError or KeyError says that they are invalid."""
        given = {one.name for one in fields(cls)} & {"classes", *table}
        found: Self = structured({name: table[name] for name in given}, cls)
        return found

    @property
    def several(self) -> bool:
        """Whether an image may have any number of labels."""
        return bool(self.thresholds)

    @property
    def nouns(self) -> tuple[str, str]:
        """What an output is, in the singular and the plural."""
        return ("label", "labels") if self.several else ("class", "classes")

    @property
    def counted(self) -> str:
        """Number of outputs, e.g. `3 classes`."""
        return count(len(self.classes), *self.nouns)

    @property
    def scope(self) -> str:
        """What images of these outputs are, e.g. `in 3 classes`."""
        return f"{'with' if self.several else 'in'} {self.counted}"

    def require_one_class(self, what: str) -> None:
        """Raise a UsageError if `what` does not support these outputs, because they are labels."""
        if self.several:
            remove = "" if what.startswith("vitft") else "remove it, or "  # a command stays
            raise UsageError(
                f"{what} does not support multi-label classification",
                fix=f"{remove}use data with exactly one class per image (data.labels=one)",
            )

    @property
    def table(self) -> dict[str, Any]:
        """Entries of the metadata of an exported model."""
        found = {one.name: getattr(self, one.name) for one in fields(Outputs)}
        return {name: value for name, value in found.items() if value}

    def probabilities(self, logits: np.ndarray[Any, Any]) -> Floats:
        """Return the probabilities of logits (n, C)."""
        return (sigmoid if self.several else softmax)(logits.astype(np.float64))

    def predicted(self, logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the most probable class (n, 1), or whether each label is assigned (n, C)."""
        if self.several:
            return np.asarray(logits >= logit_of(np.asarray(self.thresholds)))
        return np.asarray(logits.argmax(axis=1, keepdims=True))
