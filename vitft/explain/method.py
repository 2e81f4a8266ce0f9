"""The attribution methods of `vitft explain` and their options. Does not import torch."""

from dataclasses import dataclass

from vitft.system.errors import UsageError

METHODS = ("relevance", "rollout", "attention")
FUSIONS = ("mean", "max", "min")


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """An attribution method: how the attention of a model becomes one value per patch."""

    name: str = "relevance"
    """`relevance` for a class, `rollout` through all blocks, or the `attention` of one block."""
    fusion: str = "mean"
    """How rollout and attention combine the heads of a block."""
    discard: float = 0.0
    """Fraction of the weakest connections of each block that rollout discards, in [0, 1)."""
    block: int | None = None
    """Block whose attention is shown, counted from 0; None for the last one."""
    head: int | None = None
    """Head whose attention is shown, counted from 0; None for all heads, combined."""

    def __post_init__(self) -> None:
        choices = {"method": (self.name, METHODS), "fusion": (self.fusion, FUSIONS)}
        for kind, (value, known) in choices.items():
            if value not in known:
                raise UsageError(f"unknown {kind} {value!r}", fix=f"use one of {', '.join(known)}")
        if not 0 <= self.discard < 1:
            raise UsageError(
                f"invalid --discard {self.discard}: a fraction of the connections is needed",
                fix="use a number from 0 up to, but not including, 1, e.g. --discard 0.9",
            )
