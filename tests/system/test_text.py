"""Numbers, lists, rows and errors as text."""

import csv
import io

import pytest

from vitft.system import (
    csv_line,
    days_and_hours,
    duration,
    duration_fix,
    listing,
    parse_duration,
    whole_percent,
)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (list("abcdefg"), "a, b, c, d, e, f and g"),
        (list("abcdefgh"), "a, b, c, d, e, f and 2 more"),
    ],
)
def test_long_lists_are_cut_short(names: list[str], text: str) -> None:
    assert listing(names) == text


@pytest.mark.parametrize(
    ("probability", "text"),
    [
        (0.934, "93%"), (0.004, "< 1%"), (0.006, "1%"), (0.994, "99%"), (0.996, "> 99%"),
        (0.999, "> 99%"), (0.0, "< 1%"), (1.0, "> 99%"), (None, "–"),
    ],
)  # fmt: skip
def test_probabilities_are_never_rounded_to_certainty(probability: float | None, text: str) -> None:
    assert whole_percent(probability) == text


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@x", "\tx", "\rx"])
def test_a_formula_is_escaped(name: str) -> None:
    (row,) = csv.reader(io.StringIO(csv_line([name, "-0.5", "plain, or not"]), newline=""))

    assert row == [f"'{name}", "-0.5", "plain, or not"]


@pytest.mark.parametrize(
    ("text", "seconds", "fix"),
    [
        ("90s", 90, ""),
        (" 2m ", 120, ""),
        ("0s", 0, ""),
        ("1.5h", 5400, ""),
        (" 3", None, "3m for minutes, or e.g. 90s or 2h"),
        ("0.5", None, "0.5m for minutes, or e.g. 90s or 2h"),
        ("0", None, "e.g. 90s, 10m or 2h"),
        ("soon", None, "e.g. 90s, 10m or 2h"),
    ],
)
def test_a_duration_needs_a_unit(text: str, seconds: float | None, fix: str) -> None:
    assert parse_duration(text) == seconds
    assert not fix or duration_fix(text) == fix


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (40, "40 s"), (89.6, "90 s"), (90, "2 min"), (700, "12 min"),
        (5399, "90 min"), (5400, "1.5 h"), (9000, "2.5 h"),
    ],
)  # fmt: skip
def test_a_duration_has_a_suitable_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59, "less than a minute"), (60, "1 minute"), (7199, "119 minutes"), (7200, "2 hours"),
     (172_799, "47 hours"), (172_800, "2 days"), (8_640_000, "100 days")],
)  # fmt: skip
def test_an_age_has_one_unit_of_which_there_are_at_least_two(seconds: float, text: str) -> None:
    assert days_and_hours(seconds) == text
