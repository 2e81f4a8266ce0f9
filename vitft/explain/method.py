"""Attribution methods of `vitft explain` and their options. Does not import torch."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from vitft.system.errors import UsageError

METHODS = ("relevance", "rollout", "attention")
FUSIONS = ("mean", "max", "min")
OTHER_METHODS = {
    **dict.fromkeys(
        ("gradcam", "grad_cam", "cam", "lrp", "chefer", "gradient", "saliency"), "relevance"
    ),
    **dict.fromkeys(("attention_rollout", "attn_rollout", "abnar", "flow"), "rollout"),
    **dict.fromkeys(("attn", "attention_map", "attention_maps", "raw_attention"), "attention"),
}
"""Mapping from names in other tools to the method that is closest to them."""


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
                raise unknown_choice(kind, value, known)
        if not 0 <= self.discard < 1:
            raise UsageError(
                f"invalid --discard {self.discard}",
                fix="use a number of at least 0 and less than 1, e.g. --discard 0.9",
            )


def unknown_choice(kind: str, value: str, known: Sequence[str]) -> UsageError:
    """Return the error for an unknown method or fusion, which suggests the closest method."""
    near = OTHER_METHODS.get(re.sub(r"\W+", "_", value.lower())) if kind == "method" else None
    closest = f" ({near} is the closest to {value})" if near else ""
    fix = f"use one of {', '.join(known)}{closest}"
    if not near and (similar := get_close_matches(value.lower(), known, n=1, cutoff=0.7)):
        fix = f"did you mean {similar[0]}? {fix[0].upper()}{fix[1:]}"
    return UsageError(f"unknown {kind} {value!r}", fix=fix)
