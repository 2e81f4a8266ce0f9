"""Attribution methods of `vitft explain` and their options. Does not import torch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from vitft.system.errors import UsageError
from vitft.system.spelling import Spelling, option
from vitft.system.suggest import suggest
from vitft.system.text import percent

METHODS = ("relevance", "rollout", "attention")
FUSIONS = ("mean", "max", "min")
METHOD_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "fusion": ("rollout", "attention"),
    "discard": ("rollout",),
    "block": ("attention",),
    "head": ("attention",),
}
"""The methods on which each option has an effect."""
MIN_SIDE_PX, MAX_SIDE_PX = 224, 4096
"""Default of the minimum length of the shorter side of a picture, in pixels; its largest value."""
MEANINGS: Mapping[str, str] = {
    "relevance": "support the class more",
    "rollout": "receive more attention, counted through all blocks",
    "attention": "receive more attention",
}
"""What is true of the brighter parts of a map, by method."""
_OTHER_METHODS = {
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
                name = re.sub(r"\W+", "_", value.lower())
                near = _OTHER_METHODS.get(name) if kind == "method" else None
                closest = f" ({near} is the closest to {value})" if near else ""
                fix = f"use one of {', '.join(known)}{closest}"
                if not near and (similar := suggest(value, known)):
                    fix = f"did you mean {similar[0]}? {fix[0].upper()}{fix[1:]}"
                raise UsageError(f"unknown {kind} {value!r}", fix=fix)
        if not 0 <= self.discard < 1:
            raise UsageError(
                f"invalid discard {self.discard}",
                fix="use a number of at least 0 and less than 1, e.g. 0.9",
            )

    def title(self, depth: int, attention: str = "attention") -> str:
        """Return the name of the map of a model with `depth` blocks, such as "relevance".

        For rollout and attention it names what the map shows, e.g. "attention of the class token,
        block 11, head 2", where `attention` are its first words.
        """
        if self.name == "relevance":
            return self.name
        parts = [attention if self.name == "attention" else self.name]
        if self.name == "attention":
            parts.append(f"block {depth - 1 if self.block is None else self.block}")
        parts.append(f"{self.fusion} of heads" if self.head is None else f"head {self.head}")
        if self.discard:
            parts.append(f"{percent(self.discard, 0)} discarded")
        return ", ".join(parts)


class MethodOptions(TypedDict, total=False):
    """Options of a method, by the names of the fields of `Method`."""

    fusion: str
    discard: float
    block: int
    head: int


def chosen_method(
    name: str | None,
    options: Mapping[str, Any],
    *,
    about: str | None = None,
    spell: Spelling = option,
) -> Method:
    """Return the method with a name (default: relevance) and those options that are not None.

    `about` is the name of the class to explain, which only relevance uses; `spell` spells the
    options in errors.

    Raises:
        UsageError: The method is unknown, an option is unknown, invalid or has no effect, or two
            options contradict each other.
    """
    given = {key: value for key, value in options.items() if value is not None}
    method = Method(name=name or METHODS[0])
    if unknown := [key for key in given if key not in METHOD_OPTIONS]:
        near = suggest(unknown[0], METHOD_OPTIONS)
        names = near or [f"one of {', '.join(METHOD_OPTIONS)}"]
        raise UsageError(f"unknown option {unknown[0]!r}", fix=f"use {names[0]}")
    used = {**METHOD_OPTIONS, "class": ("relevance",)}
    for key in (*["class"] * (about is not None), *given):
        if method.name not in used[key]:
            raise UsageError(
                f"{spell(key)} has no effect with {spell('method', method.name)}",
                fix=f"remove it, or use {' or '.join(spell('method', m) for m in used[key])}",
            )
    if "fusion" in given and "head" in given:
        raise UsageError(
            f"{spell('fusion')} combines all heads, but {spell('head')} selects one",
            fix="use only one of them",
        )
    return replace(method, **given)


def check_picture_side(side_px: int | None, spell: Spelling = option) -> None:
    """Raise a UsageError unless a picture can have a shorter side of this length, or None."""
    if side_px is not None and not 1 <= side_px <= MAX_SIDE_PX:
        raise UsageError(
            f"invalid {spell('size')} {side_px}",
            fix=f"use an integer from 1 to {MAX_SIDE_PX}, e.g. 800",
        )
