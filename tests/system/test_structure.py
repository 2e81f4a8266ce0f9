"""JSON values against annotated types."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from vitft.system.errors import UsageError
from vitft.system.structure import (
    AtLeastOne,
    Natural,
    Range,
    Share,
    StructureError,
    check_ranges,
    is_encodable,
    parse_json,
    structured,
)


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


@dataclass(frozen=True, kw_only=True)
class Checked:
    size: Annotated[int, Range(ge=1)]
    shares: Annotated[tuple[float, ...], Range(gt=0, lt=1)] = ()
    name: str = ""

    def __post_init__(self) -> None:
        if self.name == "odd":
            raise UsageError("the name is odd", fix="use another")


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (int, [0, -(2**53), 2**53], [2**53 + 1, -(2**53) - 1, 1.0, True, "1", None]),
        (float, [0, 1.5, 2**53, float(2**53) ** 19], [10**400, True, "1", None]),
        (bool, [True, False], [0, 1, None, "true"]),
        (str, ["", "\u00e4", "raw\udcff"], ["\ud800", 1, None, b""]),
        (None.__class__, [None], [0, False, ""]),
        (int | None, [None, 3], ["x", 1.5]),
        (int | str, [3, "x"], [1.5, None]),
        (Literal["a", 1], ["a", 1], ["b", 2, None, 1.5, ["a"]]),
        (Share, [0, 1, 1 + 1e-10], [-1e-6, 1 + 1e-6]),
        (Natural, [0, 5], [-1]),
        (Annotated[list[float], Range(ge=0)], [[0, 1.5], []], [[0, -1]]),
        (Annotated[float | None, Range(ge=0)], [None, 0], [-1]),
        (tuple[int, ...], [[], [1, 2, 3]], [["x"], {}, 1, "12"]),
        (list[int], [[], [1, 2]], [[1.5], {}, None]),
        (dict[str, int], [{}, {"a": 1}], [[], {"a": "x"}, None]),
        (Any, [None, {"a": [float("inf")]}], []),
    ],
)
def test_each_kind_of_value_is_accepted_and_others_are_not(
    kind: Any, good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        found = structured(value, kind)
        assert found == (tuple(value) if kind == tuple[int, ...] else value)
    for value in bad:
        with pytest.raises(StructureError):
            structured(value, kind)


def test_the_last_of_several_types_is_named_in_the_error() -> None:
    with pytest.raises(StructureError, match=r"^x is 1\.5 instead of text$"):
        structured(1.5, int | str, "x")
    with pytest.raises(StructureError, match=r"^x is 'a' instead of an integer$"):
        structured("a", int | None, "x")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("x" * 50, "'" + "x" * 39),
        ({"a": 1}, "an object"),
        ([1], "a list"),
        (None, "None"),
        (True, "True"),
    ],
)
def test_the_wrong_value_is_shown_as_far_as_it_is_short(value: Any, found: str) -> None:
    with pytest.raises(StructureError) as refused:
        structured(value, int, "a")

    assert str(refused.value) == f"a is {found} instead of an integer"


def test_a_long_key_is_cut() -> None:
    with pytest.raises(StructureError) as refused:
        structured({"k" * 100: "x"}, dict[str, int])

    assert str(refused.value).startswith("k" * 60 + " is 'x'")
    with pytest.raises(StructureError, match=rf"^a\.{'k' * 60} is 'x'"):
        structured({"a": {"k" * 100: "x"}}, dict[str, dict[str, int]])


def test_checks_of_a_class_are_reported_at_their_place() -> None:
    assert structured({"size": 1}, Checked) == Checked(size=1)
    assert structured(Checked(size=1), Checked) == Checked(size=1)
    with pytest.raises(StructureError, match=r"^the name is odd$"):
        structured({"size": 1, "name": "odd"}, Checked)
    with pytest.raises(StructureError, match=r"^\[0\]: the name is odd$"):
        structured([{"size": 1, "name": "odd"}], list[Checked])
    with pytest.raises(StructureError, match=r"^Checked is incomplete$"):
        structured({}, Checked)
    with pytest.raises(StructureError, match=r"^\[0\] is incomplete$"):
        structured([{}], list[Checked])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size is 0 instead of a number of 1 or more"),
        ({"size": 1, "shares": (0.5, 1.0)}, "shares is 1.0 instead of a number above 0 and below"),
    ],
)
def test_numbers_of_an_instance_are_checked_like_those_of_a_file(
    settings: dict[str, Any], message: str
) -> None:
    check_ranges(Checked(size=1, shares=(0.5,)))
    with pytest.raises(UsageError, match=f"^{message}") as refused:
        check_ranges(Checked(**settings))
    assert refused.value.fix.startswith("use a number ")


def test_bytes_of_file_names_can_be_encoded_and_other_surrogates_cannot() -> None:
    assert is_encodable("a\udcff")
    assert not is_encodable("a\ud800")


def test_the_first_key_that_appears_twice_is_named() -> None:
    with pytest.raises(ValueError, match="the key 'b' appears twice"):
        parse_json('{"a": 1, "b": 2, "c": 3, "b": 4, "c": 5}')
    assert parse_json(b'{"a": [1, null]}') == {"a": [1, None]}


def test_infinity_is_in_no_range() -> None:
    assert math.inf not in Range()
    assert -math.inf not in Range()
    assert 1e300 in Range()


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [
        (Share, [0, 1, 1 + 5e-10], [-1e-12, 1 + 2e-9]),
        (Natural, [0, 1], [-1]),
        (AtLeastOne, [1, 2], [0]),
    ],
)
def test_fractions_and_counts_have_their_bounds(
    kind: Any, inside: list[float], outside: list[float]
) -> None:
    for value in inside:
        assert structured(value, kind) == value
    for value in outside:
        with pytest.raises(StructureError, match="instead of a number"):
            structured(value, kind)
