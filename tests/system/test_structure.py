"""JSON values against annotated types."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from vitft.system import Range, StructureError, parse_json, structured


class Inner(TypedDict):
    name: str
    rate: Annotated[float | None, Range(ge=0, le=1)]
    note: NotRequired[Literal["a", "b"]]


@dataclass(frozen=True, kw_only=True)
class Outer:
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
        parts=(GOOD["parts"][0], GOOD["parts"][1]), pair=(1, 2.0), table={"a": [1, 2]}
    )
    assert type(found.pair[1]) is float


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "the content is 5 instead of an object"),
        ({"parts": {}}, "parts is an object instead of a list"),
        ({"parts": [1]}, r"parts\[0\] is 1 instead of an object"),
        ({"parts": [{"name": "x"}]}, r"parts\[0\]\.rate is missing"),
        ({"parts": [{"name": 1, "rate": 0}]}, r"parts\[0\]\.name is 1 instead of text"),
        ({"parts": [{"name": "x", "rate": 1.5}]}, "1.5 instead of a number from 0 to 1"),
        ({"parts": [{"name": "x", "rate": True}]}, "True instead of a number"),
        ({"parts": [{"name": "x", "rate": 0, "note": "c"}]}, "instead of one of a, b"),
        ({"parts": [{"name": "x", "rate": 0, "note": []}]}, "instead of one of a, b"),
        ({"pair": [1]}, "pair is a list instead of a list of 2"),
        ({"pair": [1.0, 1]}, "instead of an integer"),
        ({"pair": [2**60, 1]}, "instead of an integer"),
        ({"pair": [1, 10**400]}, "instead of a number"),
        ({"table": {"a": [None]}}, r"table\.a\[0\] is None instead of an integer"),
        ({"table": {"a\ud800": []}}, "valid Unicode text"),
        ({"odd": 1}, "odd is unknown"),
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


@pytest.mark.parametrize(
    ("limits", "words", "inside", "outside"),
    [
        pytest.param(Range(ge=0, le=1), "from 0 to 1", [0, 1], [-0.1, 1.1], id="closed"),
        pytest.param(
            Range(ge=0, lt=1), "from 0 up to but not including 1", [0, 0.9], [-1, 1], id="half open"
        ),
        pytest.param(Range(ge=1), "of 1 or more", [1, 1e9], [0.9, math.inf], id="from"),
        pytest.param(Range(gt=0, le=1), "above 0 and at most 1", [0.1, 1], [0, 1.1], id="above"),
        pytest.param(Range(lt=5), "below 5", [4.9, -9], [5, -math.inf, math.nan], id="below"),
    ],
)
def test_a_range_is_described_as_it_is_checked(
    limits: Range, words: str, inside: list[float], outside: list[float]
) -> None:
    assert str(limits) == words
    assert all(value in limits for value in inside)
    assert not any(value in limits for value in outside)
