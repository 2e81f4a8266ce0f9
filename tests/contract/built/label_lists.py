"""Tables with lists of labels that are not text."""

from pathlib import Path

import pytest

from tests.contract.rows import draw

NAMES = [f"{letter}{number}.jpg" for letter in "dr" for number in range(3)]


def parquet(folder: Path) -> None:
    """Write six images, and t.parquet with a list of labels for each."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    for name in NAMES:
        draw(folder / name)
    labels = [["cat"], ["cat", "dog"], ["dog"]] * 2
    files.write_table(pa.table({"path": NAMES, "labels": labels}), folder / "t.parquet")
