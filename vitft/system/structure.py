"""Validation of JSON values against annotated types: dataclasses, TypedDicts, lists and ranges.

The types are the only definition of what a file may contain. JSON itself is read strictly: no
duplicate keys, no NaN, no unencodable text, and a limited depth.
"""

import contextlib
import dataclasses
import json
import math
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, NotRequired, Union

from vitft.system.errors import UsageError

_LARGEST = 2**53
"""Largest integer that every JSON reader represents exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
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


Share = Annotated[float, Range(ge=0, le=1 + 1e-9)]  # a mean of ones may be rounded up
Natural = Annotated[int, Range(ge=0)]
AtLeastOne = Annotated[int, Range(ge=1)]


class StructureError(ValueError):
    """A value of the wrong type or out of range; the message begins with its location."""


def parse_json(data: str | bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Parse strict JSON text and return its value.

    Raises:
        ValueError: The text is not strict JSON in UTF-8, or is nested too deeply.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        return json.loads(text, object_pairs_hook=unique_keys, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dict, or raise ValueError for a duplicate key."""
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} appears twice")
    return table


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def is_encodable(text: str) -> bool:
    """Return whether text is UTF-8, apart from the invalid bytes of file names (surrogates)."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def structured(value: Any, kind: Any, place: str = "") -> Any:  # noqa: ANN401 - any type
    """Convert a JSON value to an instance of `kind`, which may be a nested type.

    Lists become tuples and objects become dataclasses where `kind` requires this. Keys that a
    TypedDict does not define are kept unchecked; keys that a dataclass does not define are errors.

    Raises:
        StructureError: The value does not conform to `kind`. The message begins with `place`, the
            location of the value.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        found, limits = structured(value, arguments[0], place), arguments[1]
        for number in found if isinstance(found, list | tuple) else (found,):
            if number is not None and number not in limits:
                raise _mismatch(number, f"a number {limits}", place)
        return found
    if origin in (Union, types.UnionType):
        return _one_of(value, arguments, place)
    if origin is Literal:
        if not isinstance(value, str | int) or value not in arguments:
            raise _mismatch(value, f"one of {', '.join(map(str, arguments))}", place)
        return value
    if origin in (list, tuple):
        return _sequence(value, origin, arguments, place)
    if origin or typing.is_typeddict(kind) or dataclasses.is_dataclass(kind):
        return _object(value, kind, place)
    return _scalar(value, kind, place)


def _scalar(value: Any, kind: Any, place: str) -> Any:  # noqa: ANN401
    """Return a string, number, boolean or None of type `kind`; integers may become floats."""
    if kind is float and type(value) in (int, float) and abs(value) <= float(_LARGEST) ** 19:
        return float(value)
    if kind is str and isinstance(value, str) and not is_encodable(value):
        raise _mismatch(value, "valid Unicode text", place)
    if kind is float or type(value) is not kind or (kind is int and abs(value) > _LARGEST):
        names = {float: "a number", int: "an integer", str: "text", bool: "true or false"}
        raise _mismatch(value, names.get(kind, "null"), place)
    return value


def _one_of(value: Any, kinds: Sequence[Any], place: str) -> Any:  # noqa: ANN401
    """Convert a value to the first of several types that it conforms to."""
    if value is None and types.NoneType in kinds:
        return None
    *others, last = (kind for kind in kinds if kind is not types.NoneType)
    for kind in others:
        with contextlib.suppress(StructureError):
            return structured(value, kind, place)
    return structured(value, last, place)


def _sequence(value: Any, origin: Any, arguments: Any, place: str) -> Any:  # noqa: ANN401
    """Return a list or tuple whose items conform to the type arguments."""
    if not isinstance(value, list | tuple):
        raise _mismatch(value, "a list", place)
    is_open = origin is list or Ellipsis in arguments
    kinds = [arguments[0]] * len(value) if is_open else arguments
    if len(kinds) != len(value):
        raise _mismatch(value, f"a list of {len(kinds)} items", place)
    numbered = enumerate(zip(value, kinds, strict=True))
    return origin(structured(item, kind, f"{place}[{i}]") for i, (item, kind) in numbered)


def _object(value: Any, kind: Any, place: str) -> Any:  # noqa: ANN401
    """Convert an object to a mapping, a TypedDict or a dataclass, which may check itself."""
    is_class = dataclasses.is_dataclass(kind)
    if is_class and isinstance(value, kind):
        return value
    if not isinstance(value, dict):
        raise _mismatch(value, "an object", place)
    arguments = typing.get_args(kind)
    hints, required = ({}, ()) if arguments else _keys_of(kind)
    if arguments:
        hints = {structured(key, str, place): arguments[1] for key in value}
    unknown = [name for name in value if is_class and name not in hints]
    missing = [name for name in required if name not in value]
    for name in (*unknown, *missing):
        is_what = "unknown" if name in unknown else "missing"
        raise StructureError(f"{_joined(place, name)} is {is_what}")
    found = {k: structured(v, hints.get(k, Any), _joined(place, k)) for k, v in value.items()}
    try:
        return kind(**found) if is_class else found
    except UsageError as error:
        raise StructureError(f"{place}: {error.problem}".removeprefix(": ")) from error


@cache
def _keys_of(kind: Any) -> tuple[dict[str, Any], Sequence[str]]:  # noqa: ANN401
    """Return the types of the keys of a TypedDict or dataclass, and the names of required keys."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for name, hint in hints.items():
        hints[name] = typing.get_args(hint)[0] if typing.get_origin(hint) is NotRequired else hint
    if not dataclasses.is_dataclass(kind):
        return hints, [*kind.__required_keys__]
    fields, none = dataclasses.fields(kind), dataclasses.MISSING
    required = [f.name for f in fields if f.default is f.default_factory is none]
    return {field.name: hints[field.name] for field in fields}, required


def _joined(place: str, name: str) -> str:
    """Return the location of a key inside an object, such as `architecture.width`."""
    return f"{place}.{name[:60]}" if place else name[:60]


def _mismatch(value: object, wanted: str, place: str) -> StructureError:
    """Return the error for an invalid value; `wanted` describes a valid one."""
    shown = ascii(value)[:40] if isinstance(value, str | int | float | None) else ""
    found = shown or ("an object" if isinstance(value, dict) else "a list")
    return StructureError(f"{place or 'the content'} is {found} instead of {wanted}")


def check_ranges(settings: object) -> None:
    """Check the values of a dataclass that have ranges; a wrong one is a UsageError.

    Call this function for dataclass instances that were not created by `structured`.
    """
    kind: Any = type(settings)
    for name, hint in _keys_of(kind)[0].items():
        if typing.get_origin(hint) is Annotated:
            try:
                structured(getattr(settings, name), hint, name)
            except StructureError as error:
                fix = f"use a number {typing.get_args(hint)[1]}"
                raise UsageError(str(error), fix=fix) from error
