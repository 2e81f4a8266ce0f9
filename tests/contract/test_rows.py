"""Every row of the tables in the folders here: what a command prints, or the error and its fix."""

from pathlib import Path

import pytest

from tests.contract.rows import Row, check_row, read_rows

HERE = Path(__file__).parent
TABLES = [path for path in sorted(HERE.glob("*/*.toml")) if path.parent.name != "golden"]
ROWS = [
    pytest.param(
        row, id=f"{t.parent.name}/{t.stem}: {row.name}", marks=[pytest.mark.long] * row.long
    )
    for t in TABLES
    for row in read_rows(t)
]


@pytest.mark.parametrize("row", ROWS)
def test_a_command_does_what_its_row_says(
    row: Row, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "T"
    folder.mkdir()
    monkeypatch.chdir(folder)

    check_row(row, tiny_weights)
