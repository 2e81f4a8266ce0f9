"""Attribution methods of `vitft explain` and their options. Does not import torch."""

from dataclasses import dataclass

from vitft.system.errors import UsageError

METHODS = ("relevance", "rollout", "attention")
FUSIONS = ("mean", "max", "min")


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """An attribution method, which reduces a model's attention to one value per patch."""

    name: str = "relevance"
    """Name: `relevance` (to a class), `rollout` (all blocks) or `attention` (one block)."""
    fusion: str = "mean"
    """Function that combines the heads of a block in rollout and attention."""
    discard: float = 0.0
    """Fraction in [0, 1) of each block's connections that rollout discards, weakest first."""
    block: int | None = None
    """Block of the attention map, counting from 0; None for the last block."""
    head: int | None = None
    """Head of the attention map, counting from 0; None for all heads combined."""

    def __post_init__(self) -> None:
        choices = {"method": (self.name, METHODS), "fusion": (self.fusion, FUSIONS)}
        for kind, (value, known) in choices.items():
            if value not in known:
                raise UsageError(f"unknown {kind} {value!r}", fix=f"use one of {', '.join(known)}")
        if not 0 <= self.discard < 1:
            raise UsageError(
                f"invalid --discard {self.discard}",
                fix="use a number of at least 0 and less than 1, e.g. --discard 0.9",
            )
