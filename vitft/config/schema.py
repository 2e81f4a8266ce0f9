"""Declaration of a setting: its default, allowed values, option, help, and names in other tools.

`setting(1e-3, "peak learning rate", gt=0)` in a dataclass is the only definition of a setting.
Values are checked against it and its annotation. The option of `vitft finetune`, its help, the help
of `vitft.finetune`, errors, docs/settings.md and docs/options.md are derived from it.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar

from vitft.system.errors import UsageError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """Bounds of a number or of each number in a list; infinity and NaN are always rejected."""

    ge: float = -math.inf
    gt: float = -math.inf
    le: float = math.inf
    lt: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.ge <= value <= self.le and self.gt < value < self.lt

    def __str__(self) -> str:
        """Describe the bounds in a phrase that can follow `a number`, e.g. `from 0 to 1`."""
        if self.ge > -math.inf:
            upper = {"to": self.le, "up to but not including": self.lt}
            ends = [f" {word} {n:.9g}" for word, n in upper.items() if n < math.inf]
            return f"from {self.ge:.9g}{ends[0]}" if ends else f"of {self.ge:.9g} or more"
        bounds = {"above": self.gt, "at most": self.le, "below": self.lt}
        return " and ".join(f"{word} {n:.9g}" for word, n in bounds.items() if math.isfinite(n))


def setting(default: _T, help: str = "", **known: Any) -> _T:  # noqa: ANN401
    """Declare a setting; with a `help`, it has an option of `vitft finetune`.

    `known` are further fields of `_Setting`, and the bounds of a number of `_Range`.
    """
    bounds = {name: known.pop(name) for name in ("ge", "gt", "le", "lt") if name in known}
    return field(default=default, metadata={"help": help, "limits": _Range(**bounds), **known})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What is known of a setting."""

    key: str  # dotted name, such as `optim.lr`
    default: Any
    type: type  # type of the value or of each list item: bool, int, float or str
    choices: tuple[str | int, ...] = ()
    length: int | None = None
    """Number of items in a list, or 0 for any number; None for a single value."""
    is_optional: bool = False
    limits: _Range = field(default_factory=_Range)
    help: str = ""
    metavar: str = ""  # placeholder for the value in the help, if the type alone is not informative
    shown: str = ""  # default shown in the help, if it differs from `default`; `-` to show none
    name: str = ""  # argument of `vitft.finetune`, if it differs from the setting's name
    common: bool = False  # whether the help shows the option first
    aliases: str = ""  # names that other tools use for the setting

    @property
    def keyword(self) -> str:
        """Argument of `vitft.finetune`, such as `batch_size`."""
        return self.name or self.key.partition(".")[2]

    @property
    def flag(self) -> str:
        """Command-line option, such as `--batch-size`."""
        return f"--{self.keyword.replace('_', '-')}"

    @property
    def group(self) -> str:
        """Group of the option in the help."""
        if self.common:
            return "common"
        if self.key == "train.device":
            return "run"
        return "data" if self.key.startswith("data.") else "advanced"

    @property
    def placeholder(self) -> str:
        """Placeholder for the value in the help text."""
        choices = "|".join(map(str, self.choices))
        return self.metavar or choices or ("N" if self.type is int else "X")

    @property
    def text(self) -> str:
        """Help text, with the default unless the option is a switch or `shown` is `-`."""
        if self.type is bool or self.shown == "-":
            return self.help
        return f"{self.help} (default: {self.shown or shown_value(self.default)})"

    def converted(self, value: Any) -> Any:  # noqa: ANN401
        """Convert a value from TOML or Python to the type of the setting, or raise a ValueError.

        If a list is expected, a single value is repeated for each item.
        """
        accepted = (int, float) if self.type is float else (self.type,)
        if value is None and self.is_optional:
            return None
        if hasattr(value, "tolist"):  # a number or an array of NumPy or torch
            value = value.tolist()
        if self.length is not None:
            items = [*value] if isinstance(value, (list, tuple)) else [value] * (self.length or 1)
            items = [item.tolist() if hasattr(item, "tolist") else item for item in items]
            fits = len(items) == self.length or not self.length
            if fits and all(type(item) in accepted for item in items):
                return tuple(items)
        elif type(value) in accepted:
            return float(value) if self.type is float else value
        raise ValueError(value)

    def allows(self, value: Any) -> bool:  # noqa: ANN401
        """Return whether a value of the right type is one of the choices or within the limits."""
        if value is None:
            return self.is_optional
        if self.choices:
            return value in self.choices
        items = value if self.length is not None else (value,)
        return self.type not in (int, float) or all(item in self.limits for item in items)

    def __str__(self) -> str:
        """Return a phrase for the allowed values, e.g. `a number above 0`."""
        if self.choices:
            *others, last = map(str, self.choices)
            return f"{', '.join(others)} or {last}"
        name = {bool: "true or false", int: "integer", float: "number", str: "string"}[self.type]
        if self.length == 0:
            return f"a list of {name}s" + f", each {self.limits}" * bool(str(self.limits))
        article = "an" if self.type is int else "a"
        text = name if self.type is bool else f"{article} {name} {self.limits}".rstrip()
        return f"{text}, or a list of {self.length} {name}s" if self.length else text


@cache
def settings_of(section: type[Any], title: str) -> Mapping[str, _Setting]:
    """Return the settings that the dataclass of a section declares, by name without the section."""
    hints, found = typing.get_type_hints(section), dict[str, _Setting]()
    for one in dataclasses.fields(section):
        hint, known = hints[one.name], dict[str, Any](one.metadata)
        if isinstance(hint, types.UnionType):
            hint, known["is_optional"] = typing.get_args(hint)[0], True
        arguments = typing.get_args(hint)
        if typing.get_origin(hint) is Literal:
            hint, known["choices"] = type(arguments[0]), arguments
        elif typing.get_origin(hint) is tuple:
            hint, known["length"] = arguments[0], 0 if Ellipsis in arguments else len(arguments)
        key = f"{title}.{one.name}"
        found[one.name] = _Setting(key=key, type=hint, default=one.default, **known)
    return found


def check_values(settings: object, section: str) -> None:
    """Check every value of a section against its annotation."""
    declared: Any = type(settings)  # mypy takes it for unhashable
    for name, kind in settings_of(declared, section).items():
        if not kind.allows(value := getattr(settings, name)):
            raise invalid(kind.key, value, kind)


def invalid(key: str, value: object, allowed: object) -> UsageError:
    """Return the error for a value that a setting does not accept."""
    text = str(allowed)
    if isinstance(value, float) and not math.isfinite(value):
        text = text.replace("a number", "a finite number")
    is_text = isinstance(value, str) and re.match(r"[+-]?[\d.]|true|false", value)
    if is_text and re.match("an? (finite )?(number|integer)|true", text):
        text += ", without quotes"
    return UsageError(f"invalid {key}={shown_value(value)}", fix=f"use {text}")


def require(ok: bool, problem: str, *, fix: str) -> None:
    """Raise a UsageError unless `ok`."""
    if not ok:
        raise UsageError(problem, fix=fix)


def shown_value(value: object) -> str:
    """Return a value in the notation that `--set` accepts."""
    if isinstance(value, bool):
        return str(value).lower()
    return str([*value] if isinstance(value, tuple) else value)
