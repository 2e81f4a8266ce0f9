"""JSON values against annotated types."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from msgspec import Meta

from vitft.system import StructureError, parse_json, structured


class Inner(TypedDict):
    name: str
    rate: Annotated[float, Meta(ge=0, le=1)] | None
    note: NotRequired[Literal["a", "b"]]


@dataclass(frozen=True, kw_only=True)
class Leaf:
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: dict[str, Leaf] | None = None
    parts: tuple[Inner, ...] = ()
    pair: tuple[int, float] = (0, 0.0)
    table: dict[str, list[int]] | None = None


GOOD: dict[str, Any] = {
    "parts": [{"name": "x", "rate": 0.5, "more": []}, {"name": "y", "rate": None, "note": "b"}],
    "pair": [1, 2],
    "table": {"a": [1, 2]},
}


def test_a_conforming_value_becomes_an_instance_with_tuples_for_lists() -> None:
    found = structured(GOOD, Outer)

    assert found == Outer(
        parts=({"name": "x", "rate": 0.5}, GOOD["parts"][1]), pair=(1, 2.0), table={"a": [1, 2]}
    )
    assert type(found.pair[1]) is float


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "the content: Expected `object`, got `int`"),
        ({"parts": {}}, "parts: Expected `array`"),
        ({"parts": [1]}, r"parts\[0\]: Expected `object`"),
        ({"parts": [{"name": "x"}]}, r"parts\[0\]: Object missing required field `rate`"),
        ({"parts": [{"name": 1, "rate": 0}]}, r"parts\[0\]\.name: Expected `str`, got `int`"),
        ({"parts": [{"name": "x", "rate": 1.5}]}, "Expected `float` <= 1.0"),
        ({"parts": [{"name": "x", "rate": True}]}, "Expected `float | null`, got `bool`"),
        ({"parts": [{"name": "x", "rate": 0, "note": "c"}]}, "Invalid enum value 'c'"),
        ({"parts": [{"name": "x", "rate": 0, "note": []}]}, "Expected `str`, got `array`"),
        ({"pair": [1]}, "pair: Expected `array` of length 2, got 1"),
        ({"pair": [1.0, 1]}, "Expected `int`, got `float`"),
        ({"pair": [1, 10**400]}, "Number out of range"),
        ({"table": {"a": [None]}}, r"Expected `int`, got `null`"),
        ({"odd": 1}, "odd is unknown"),
        ({"pair": [1, math.inf]}, "pair|the content: Out of range float values"),
        ({"table": {"\ud800": []}}, "half of a surrogate pair"),
        ({"inner": {"one": {"parts": [], "odd": 1}}}, r"inner\.one\.odd is unknown"),
    ],
)
def test_the_place_of_a_wrong_value_is_named(value: object, message: str) -> None:
    with pytest.raises(StructureError, match=message):
        structured(value, Outer)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"\xff", id="not UTF-8"),
        pytest.param("{", id="cut"),
        pytest.param('{"a": 1, "a": 2}', id="a duplicate key"),
        pytest.param("[NaN]", id="NaN"),
        pytest.param("[-Infinity]", id="infinity"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param("1" * 5000, id="more digits than Python converts"),
    ],
)
def test_what_is_not_strict_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
        parse_json(text)
