"""Every row of the tables in this folder: what is read from an input, or the error and its fix."""

from pathlib import Path

import pytest

from tests.contract.rows import Row, check_row, read_rows

TABLES = sorted(Path(__file__).parent.glob("*.toml"))
ROWS = [(f"{table.stem}: {row.name}", row) for table in TABLES for row in read_rows(table)]


@pytest.mark.parametrize("row", [row for _, row in ROWS], ids=[name for name, _ in ROWS])
def test_an_input_is_read_as_its_row_says(
    row: Row, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "T"
    folder.mkdir()
    monkeypatch.chdir(folder)

    check_row(row, tiny_weights)
