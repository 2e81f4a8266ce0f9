"""Strict JSON, and its values checked against annotated types (msgspec).

The types are the only definition of what a file may contain. JSON itself is read strictly: no
duplicate keys, no NaN and a limited depth.
"""

import dataclasses
import json
import re
import typing
from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from vitft.system.errors import UsageError

Share = Annotated[float, Meta(ge=0, le=1 + 1e-9)]  # a mean of ones may be rounded up
Natural = Annotated[int, Meta(ge=0, le=2**53)]  # every JSON reader represents these exactly
AtLeastOne = Annotated[int, Meta(ge=1, le=2**53)]


class StructureError(ValueError):
    """A value of the wrong type or out of range; the message begins with its location."""


def parse_json(data: str | bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Parse strict JSON text and return its value.

    Raises:
        ValueError: The text is not strict JSON in UTF-8, or is nested too deeply.
    """
    try:
        data = data if isinstance(data, str) else data.decode("utf-8")  # frees the bytes, if large
        return json.loads(data, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} appears twice")
    return table


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def structured(value: Any, kind: Any, place: str = "") -> Any:  # noqa: ANN401 - any type
    """Convert a JSON value to an instance of `kind`, which may be a nested type.

    Lists become tuples and objects become dataclasses where `kind` requires this. Keys that a
    TypedDict does not define are left out; keys that a dataclass does not define are errors.

    Raises:
        StructureError: The value does not conform to `kind`. The message begins with its location
            inside the value, which is at `place`.
    """
    try:  # neither infinity nor half of a surrogate pair, but invalid bytes of file names
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogateescape")
        found = msgspec.convert(value, kind)
    except UnicodeEncodeError as error:
        problem = f"{place or 'the content'}: a text contains half of a surrogate pair"
        raise StructureError(problem) from error
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$")
        where = f"{place}{where.rstrip('`')}".removeprefix(".")
        raise StructureError(f"{where or 'the content'}: {problem}") from error
    except ValueError as error:
        raise StructureError(f"{place or 'the content'}: {error}") from error
    except UsageError as error:  # of a dataclass that checks itself
        raise StructureError(f"{place}: {error.problem}".removeprefix(": ")) from error
    if unknown := _unknown_key(value, found):
        raise StructureError(f"{place}{unknown}".removeprefix(".") + " is unknown")
    return found


def _unknown_key(value: Any, found: Any) -> str:  # noqa: ANN401
    """Return the place of a key that is not a field of the dataclass made of it, or ""."""
    if isinstance(found, tuple) and dataclasses.is_dataclass(next(iter(found), None)):
        inner = ((f"[{i}]", *pair) for i, pair in enumerate(zip(value, found, strict=True)))
    elif dataclasses.is_dataclass(found):
        known = found.__dataclass_fields__
        inner = ((f".{n[:60]}", one, getattr(found, n)) for n, one in value.items() if n in known)
        if odd := [name for name in value if name not in known]:
            return f".{odd[0][:60]}"
    elif isinstance(found, dict):
        inner = ((f".{n}", value[n], f) for n, f in found.items() if dataclasses.is_dataclass(f))
    else:
        return ""
    return next((f"{at}{more}" for at, *pair in inner if (more := _unknown_key(*pair))), "")


_hints = cache(typing.get_type_hints)
_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def check_ranges(settings: object) -> None:
    """Check the values of a dataclass that have bounds (`Meta`); a wrong one is a UsageError.

    Call this function in `__post_init__`, for instances that `structured` does not create.
    """
    kind: Any = type(settings)  # mypy takes it for unhashable
    for name, hint in _hints(kind, include_extras=True).items():
        bounds = dict.fromkeys(re.findall(r"\b(g[et]|l[et])=([^,)]+)", repr(hint)))
        if bounds and not dataclasses.is_dataclass(value := getattr(settings, name)):
            try:
                structured(value, hint, name)
            except StructureError as error:
                fix = " and ".join(f"{_SIGNS[sign]} {bound}" for sign, bound in bounds)
                raise UsageError(str(error), fix=f"use a value {fix}") from error
