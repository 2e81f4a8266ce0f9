"""Numbers, lists, rows and errors as text."""

import pytest

from vitft.system import duration, escape_formula, listing, whole_percent


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
    cells = [escape_formula(cell) for cell in (name, "-0.5", "plain, or not")]

    assert cells == [f"'{name}", "-0.5", "plain, or not"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (40, "40 s"), (89.6, "90 s"), (90, "2 min"), (700, "12 min"),
        (5399, "90 min"), (5400, "1.5 h"), (9000, "2.5 h"),
    ],
)  # fmt: skip
def test_a_duration_has_a_suitable_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text
