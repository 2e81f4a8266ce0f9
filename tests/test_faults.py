"""The table of faults: every row names a test or a table that exists, or says why there is none."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "maintainers" / "faults.md").read_text()
ROWS = re.findall(r"^\| (\d+\.\d+) \| (.+?) \| (.+?) \| (.+) \|$", PAGE, flags=re.MULTILINE)


def test_the_table_has_every_row_in_order() -> None:
    sections = [34, 15, 27, 17, 12, 9, 10, 19, 28]

    expected = [f"{s}.{i}" for s, number in enumerate(sections, 1) for i in range(1, number + 1)]

    assert [row[0] for row in ROWS] == expected


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_a_test_or_the_reason_why_there_is_none(row: tuple[str, ...]) -> None:
    proof = row[3]
    tests = re.findall(r"`([\w/]+\.py)::(\w+)`", proof)

    tables = re.findall(r"`(contract/[\w/]+\.toml)`", proof)

    assert tests or tables or "no test: " in proof
    for path, name in tests:
        assert f"def {name}(" in (ROOT / "tests" / path).read_text(), name
    for table in tables:
        assert (ROOT / "tests" / table).is_file()
    for campaign in re.findall(r"`(benchmarks/[\w/]+\.py)`", proof):
        assert (ROOT / campaign).is_file()
