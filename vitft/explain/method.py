"""What `vitft explain` can be asked for, checked before torch is imported."""

from dataclasses import dataclass

from vitft.system.errors import UsageError

METHODS = ("relevance", "rollout", "attention")
FUSIONS = ("mean", "max", "min")


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How a model's attention becomes one number per patch."""

    name: str = "relevance"
    """`relevance` for a class, `rollout` through all blocks, or the `attention` of one block."""
    fusion: str = "mean"
    """How the heads of a block become one map, in rollout and attention."""
    discard: float = 0.0
    """Share of the weakest connections of each block that rollout leaves out, from 0 to below 1."""
    block: int | None = None
    """Block whose attention is shown, counted from 0; None for the last."""
    head: int | None = None
    """Head whose attention is shown, counted from 0; None for all of them, fused."""

    def __post_init__(self) -> None:
        if self.name not in METHODS or self.fusion not in FUSIONS:
            raise UsageError(
                f"method {self.name!r} with fusion {self.fusion!r} is not known",
                fix=f"use one of {', '.join(METHODS)}, and {', '.join(FUSIONS)}",
            )
        if not 0 <= self.discard < 1:
            raise UsageError(
                f"discard is {self.discard}, but it is a share of the connections",
                fix="use a number from 0 up to, not including, 1, e.g. 0.9",
            )
