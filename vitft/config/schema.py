"""Frozen dataclasses from nested tables: kinds checked, keys by the dotted names users type."""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from vitft.system.errors import UsageError

T = TypeVar("T")


def check(ok: bool, key: str, value: object, allowed: str) -> None:
    """Refuse an impossible value by the dotted name that the user typed."""
    if not ok:
        raise UsageError(f"{key} is {value!r}, which is impossible", fix=f"{key} is {allowed}")


def build(
    kind: type[T], table: Mapping[str, Any], *, nearest: Callable[[str], str], prefix: str = ""
) -> T:
    """Fill one dataclass from one table; its fields' own checks run afterwards.

    Args:
        kind: A dataclass whose fields are plain values or dataclasses of such.
        table: What is named; the rest keeps its default.
        nearest: What to suggest for an unknown dotted key.
        prefix: Of the dotted keys, with its dot.

    Raises:
        UsageError: Unknown key, or a value of the wrong kind.
    """
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in hints:
            raise UsageError(f"{prefix}{key} is no setting", fix=nearest(f"{prefix}{key}"))
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise UsageError(f"{prefix}{key} is a table", fix=f"write [{prefix}{key}]")
            values[key] = build(hints[key], value, nearest=nearest, prefix=f"{key}.")
        else:
            values[key] = coerced(value, hints[key], f"{prefix}{key}")
    return kind(**values)


def coerced(value: Any, hint: Any, key: str) -> Any:  # noqa: ANN401
    """`value` as the field's type, where that loses nothing."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        origin = typing.get_origin(option)
        if origin is Literal and isinstance(value, str):
            return value  # the field's own check names the allowed words
        if origin is tuple and isinstance(value, (int, float, list, tuple)):
            kinds = numbers_of(option)
            items = list(value) if isinstance(value, (list, tuple)) else [value] * len(kinds)
            allowed = (int,) if kinds[0] is int else (int, float)
            fits = len(items) == len(kinds) or Ellipsis in typing.get_args(option)
            if fits and all(type(item) in allowed for item in items):
                return tuple(items)
        if option is float and type(value) in (int, float):
            return float(value)
        if option in (int, bool, str) and type(value) is option:
            return value
        if option is types.NoneType and value is None:
            return None
    raise UsageError(
        f"{key} is {value!r}, of the wrong kind", fix=f"{key} is {in_words(options[0])}"
    )


def in_words(option: Any) -> str:  # noqa: ANN401
    """What a field takes, for reading."""
    if typing.get_origin(option) is not tuple:
        words = {bool: "true or false", int: "a whole number", float: "a number"}
        return words.get(option, "a text")
    kinds = numbers_of(option)
    numbers = f"a list of {'whole ' * (kinds[0] is int)}numbers"
    return numbers + ", or one for both sides" * (len(kinds) == 2)


def numbers_of(option: Any) -> list[type]:  # noqa: ANN401
    """The kinds of a tuple's numbers; one for a tuple of any length."""
    return [kind for kind in typing.get_args(option) if kind is not Ellipsis]
