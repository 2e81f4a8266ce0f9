"""Files of a run, which may be missing, damaged or edited."""

import os
from pathlib import Path
from typing import TypedDict

import pytest

from vitft.system import RunError, read_run_lines


class Line(TypedDict):
    epoch: int


def test_an_incomplete_last_line_and_empty_lines_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"

    path.write_text('{"epoch": 1}\n\n  \n{"epoch": 2}\n{"epo')
    assert read_run_lines(path, Line) == ({"epoch": 1}, {"epoch": 2})
    path.write_text('{"epoch": 1}\n{"epo\n')
    with pytest.raises(RunError, match="damaged run"):
        read_run_lines(path, Line)


def test_a_confusion_matrix_of_5000_classes_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", 4 * 5000**2)  # "0, " and more for each pair

    assert read_run_lines(tmp_path / "a", Line) == ()
    os.truncate(tmp_path / "a", 2**29)
    with pytest.raises(RunError, match="more than the limit"):
        read_run_lines(tmp_path / "a", Line)
