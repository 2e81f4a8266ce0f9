"""Types and allowed values of settings, and the errors for other values."""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from vitft.config.schema import (
    SettingType,
    check_pattern,
    check_values,
    invalid,
    is_several,
    multiples,
    one_class_only,
    parse_annotation,
    require,
    setting_types,
    shown_value,
)
from vitft.system.errors import UsageError
from vitft.system.structure import NO_LIMITS, Range

FROM_ONE = Range(ge=1)
HALF = Range(gt=0, le=0.5)
LIST = SettingType(type=int, length=0, limits=FROM_ONE)
PAIR = SettingType(type=int, length=2, is_optional=True, limits=FROM_ONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section with one setting of each kind."""

    name: str = "x"
    number: Annotated[float, HALF] = 0.25
    sides: Annotated[tuple[int, int] | None, FROM_ONE] = None
    many: tuple[float, ...] = ()
    kind: Literal["a", "b"] = "a"
    choice: Literal[0, 3] = 0
    on: bool = False


def test_the_annotations_of_a_section_are_the_types_of_its_settings() -> None:
    assert dict(setting_types(Section)) == {
        "name": SettingType(type=str),
        "number": SettingType(type=float, limits=HALF),
        "sides": PAIR,
        "many": SettingType(type=float, length=0),
        "kind": SettingType(type=str, choices=("a", "b")),
        "choice": SettingType(type=int, choices=(0, 3)),
        "on": SettingType(type=bool),
    }
    assert parse_annotation(int) == SettingType(
        type=int, choices=(), length=None, is_optional=False, limits=NO_LIMITS
    )


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (SettingType(type=float), 3, 3.0),
        (SettingType(type=float), 0.5, 0.5),
        (SettingType(type=int), 3, 3),
        (SettingType(type=str), "", ""),
        (SettingType(type=bool), False, False),
        (SettingType(type=int, is_optional=True), None, None),
        (PAIR, None, None),
        (PAIR, 7, (7, 7)),
        (PAIR, [7, 8], (7, 8)),
        (PAIR, (7, 8), (7, 8)),
        (LIST, 7, (7,)),
        (LIST, [], ()),
        (LIST, [7, 8, 9], (7, 8, 9)),
        (SettingType(type=float, length=0), [1, 0.5], (1, 0.5)),
    ],
)
def test_a_value_is_converted_to_the_type_of_its_setting(
    kind: SettingType, value: Any, found: Any
) -> None:
    converted = kind.converted(value)

    assert converted == found
    assert type(converted) is type(found)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (SettingType(type=float), "0.5"),
        (SettingType(type=float), True),
        (SettingType(type=int), 3.0),
        (SettingType(type=int), True),
        (SettingType(type=int), None),
        (SettingType(type=int), [3]),
        (SettingType(type=bool), 1),
        (SettingType(type=str), 3),
        (PAIR, [7]),
        (PAIR, [7, 8, 9]),
        (PAIR, [7, 8.0]),
        (PAIR, "7"),
        (LIST, [7, "8"]),
        (LIST, None),
    ],
)
def test_a_value_of_another_type_is_refused(kind: SettingType, value: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(str(value))):
        kind.converted(value)


@pytest.mark.parametrize(
    ("kind", "value", "is_allowed"),
    [
        (SettingType(type=float, limits=HALF), 0.5, True),
        (SettingType(type=float, limits=HALF), 0.51, False),
        (SettingType(type=float, limits=HALF), 0.0, False),
        (SettingType(type=int, limits=FROM_ONE), 1, True),
        (SettingType(type=int, limits=FROM_ONE), 0, False),
        (SettingType(type=float), math.inf, False),
        (SettingType(type=str, limits=FROM_ONE), "x", True),
        (SettingType(type=bool, limits=FROM_ONE), False, True),
        (SettingType(type=str, choices=("a", "b")), "b", True),
        (SettingType(type=str, choices=("a", "b")), "c", False),
        (SettingType(type=int), None, False),
        (PAIR, None, True),
        (PAIR, (1, 1), True),
        (PAIR, (1, 0), False),
        (LIST, (), True),
        (LIST, (3, 0), False),
    ],
)
def test_every_item_is_within_the_limits_or_one_of_the_choices(
    kind: SettingType, value: Any, is_allowed: bool
) -> None:
    assert kind.allows(value) is is_allowed


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (SettingType(type=bool), "true or false"),
        (SettingType(type=str), "a string"),
        (SettingType(type=int), "an integer"),
        (SettingType(type=float), "a number"),
        (SettingType(type=float, limits=HALF), f"a number {HALF}"),
        (SettingType(type=int, limits=FROM_ONE), f"an integer {FROM_ONE}"),
        (SettingType(type=str, choices=("a", "b", "c")), "a, b or c"),
        (SettingType(type=int, choices=(0, 3)), "0 or 3"),
        (PAIR, f"an integer {FROM_ONE}, or a list of 2 integers"),
        (LIST, f"a list of integers, each {FROM_ONE}"),
        (SettingType(type=float, length=0), "a list of numbers"),
    ],
)
def test_allowed_values_are_described_in_words(kind: SettingType, text: str) -> None:
    assert str(kind) == text


def test_the_first_value_that_is_not_allowed_is_named_with_its_section() -> None:
    check_values(Section(), "part")

    with pytest.raises(UsageError, match=r"invalid part\.number=0\.75") as refused:
        check_values(Section(number=0.75, sides=(0, 1)), "part")
    assert refused.value.fix == f"use a number {HALF}"
    with pytest.raises(UsageError, match=r"invalid part\.sides=\[0, 1\]"):
        check_values(Section(sides=(0, 1)), "part")
    with pytest.raises(UsageError, match=r"invalid part\.choice=1") as refused:
        check_values(Section(choice=1), "part")  # type: ignore[arg-type]
    assert refused.value.fix == "use 0 or 3"


@pytest.mark.parametrize(
    ("value", "allowed", "fix"),
    [
        (2.0, "a number from 0 to 1", "use a number from 0 to 1"),
        (math.nan, "a number above 0", "use a finite number above 0"),
        (math.inf, "a list of numbers", "use a list of numbers"),
        ("3", "an integer from 1", "use an integer from 1, without quotes"),
        ("-0.5", "a number", "use a number, without quotes"),
        (".5", "a finite number", "use a finite number, without quotes"),
        ("true", "true or false", "use true or false, without quotes"),
        ("x", "a number", "use a number"),
        ("3", "a string", "use a string"),
        (3, "an integer from 4", "use an integer from 4"),
    ],
)
def test_the_fix_names_what_is_wrong_with_the_value(value: Any, allowed: str, fix: str) -> None:
    error = invalid("a.b", value, allowed)

    assert error.problem == f"invalid a.b={shown_value(value)}"
    assert error.fix == fix


def test_values_are_shown_as_they_are_typed() -> None:
    shown = [shown_value(value) for value in (True, False, 3, 0.5, "text", (1, 2), None)]

    assert shown == ["true", "false", "3", "0.5", "text", "[1, 2]", "None"]


def test_a_requirement_that_is_not_met_is_an_error() -> None:
    require(True, "a", fix="b")
    with pytest.raises(UsageError, match="a problem") as refused:
        require(False, "a problem", fix="a fix")
    assert refused.value.fix == "a fix"
    error = one_class_only("vitft x")
    assert error.problem == "vitft x does not support multi-label classification"
    assert error.fix == "use it with data and models that have exactly one class per image"


def test_several_columns_are_a_star_or_have_a_comma() -> None:
    found = [is_several(text) for text in ("*", "a,b", "a", "", "a*")]

    assert found == [True, True, False, False, False]


def test_a_pattern_has_one_capturing_group() -> None:
    check_pattern("a.b", "p([0-9]+)")
    check_pattern("a.b", "(?:p|q)(.)")
    for pattern, groups in (("p.", 0), ("(p)(.)", 2)):
        with pytest.raises(UsageError, match=f"has {groups} capturing groups instead of one"):
            check_pattern("a.b", pattern)
    for pattern in ("p(", "(.){9999999999}"):
        with pytest.raises(UsageError, match=r"invalid a\.b=") as refused:
            check_pattern("a.b", pattern)
        assert refused.value.fix == "use a regular expression, e.g. patient([0-9]+)"


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [
        (50, 20, "a.b=40 or a.b=60"),
        (60, 20, "a.b=60"),
        (3, 20, "a.b=20"),
        (21, 20, "a.b=20 or a.b=40"),
    ],
)
def test_the_nearest_multiples_are_positive(value: int, step: int, text: str) -> None:
    assert multiples("a.b", value, step) == text
