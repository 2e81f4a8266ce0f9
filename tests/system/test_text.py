"""Numbers and lists as text."""

import pytest

from vitft.system.text import listing, whole_percent


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
    [(0.934, "93 %"), (0.004, "< 1 %"), (0.999, "> 99 %"), (None, "–")],
)
def test_probabilities_are_never_rounded_to_certainty(probability: float | None, text: str) -> None:
    assert whole_percent(probability) == text
