"""Numbers and rows as text."""

import csv
import io

import pytest

from vitft.system.text import csv_line, duration


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@x", "\tx", "\rx"])
def test_a_formula_is_escaped(name: str) -> None:
    (row,) = csv.reader(io.StringIO(csv_line([name, "-0.5", "plain, or not"]), newline=""))

    assert row == [f"'{name}", "-0.5", "plain, or not"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(40, "40 s"), (89.6, "90 s"), (700, "12 min"), (9000, "2.5 h")]
)
def test_a_duration_has_a_suitable_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text
