"""Names of all settings, and suggestions for unknown names."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vitft.config.schema import setting_types
from vitft.config.sections import DataSpec, ModelSpec, OptimSpec, TrainSpec, WeightsSpec
from vitft.system.suggest import suggest

SECTIONS: Mapping[str, type] = {
    "data": DataSpec,
    "weights": WeightsSpec,
    "model": ModelSpec,
    "train": TrainSpec,
    "optim": OptimSpec,
}
SETTINGS = tuple(
    f"{name}.{key}" for name, section in SECTIONS.items() for key in setting_types(section)
)
"""Dotted names of all settings."""

ALIASES: Mapping[str, Sequence[str]] = {
    f"{name}.{key}": kind.named.aliases.split()
    for name, section in SECTIONS.items()
    for key, kind in setting_types(section).items()
    if kind.named.aliases
}
"""Names that other tools use for the settings."""

_FORMER_NAMES: Mapping[str, str] = {"train.freeze": "train.layers"}
"""Former names of settings, which still work."""


def current_setting(key: str, value: Any) -> tuple[str, Any]:  # noqa: ANN401
    """Return a setting under its current name, and with the current word for its value."""
    key = _FORMER_NAMES.get(key, key)
    if key == "train.layers" and isinstance(value, str):
        value = re.sub(r"\bnone\b", "all", value)
    return key, value


_SHORT_NAME = 3
"""Number of characters up to which a name is short, and similar to others by chance."""
_CLOSE = 0.8
"""Minimum similarity of short names, and of names of other sections."""


def find_setting(name: str, *, cutoff: float = 0.6) -> str | None:
    """Return the setting that an unknown name most likely means, or None if no name is similar.

    The last part of the name is matched first: `train.lr` means `optim.lr`, not `train.flip`. Then
    similar names of the same section are searched; those of other sections must be very similar.
    A name is similar if difflib's ratio is at least `cutoff`, and for short names `_CLOSE`.
    """
    section, _, last = name.lower().replace("-", "_").rpartition(".")
    known: dict[str, list[str]] = {}
    for setting in SETTINGS:
        known.setdefault(setting.partition(".")[2], []).append(setting)
    for setting, aliases in ALIASES.items():
        for alias in aliases:
            known.setdefault(alias, []).append(setting)
    begun = [name for name in SETTINGS if section and name.startswith(f"{section}.{last}")]
    if last not in known and len(begun) == 1:
        return begun[0]
    names = [key for key in known if len(key) > _SHORT_NAME or f"{section}.{key}" in SETTINGS]
    own = [key for key in names if any(n.startswith(f"{section}.") for n in known[key])]
    close = max(cutoff, _CLOSE)
    near = (
        suggest(last, known, cutoff=1)
        or suggest(last, own, cutoff=close if len(last) <= _SHORT_NAME else cutoff)
        or suggest(last, names, cutoff=close if section else cutoff)
    )
    candidates = known[near[0]] if near else []
    return min(candidates, key=lambda name: not name.startswith(f"{section}."), default=None)


def suggest_setting(key: str) -> str:
    """Return the suggested fix for an unknown setting."""
    if (found := find_setting(key)) is not None:
        return f"use {found}"
    section = key.partition(".")[0]
    names = [name for name in SETTINGS if name.startswith(f"{section}.")]
    return (
        f"use one of {', '.join(names)}"
        if names
        else f"use one of the sections {', '.join(SECTIONS)}"
    )
