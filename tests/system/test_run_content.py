"""Files of a run, which may be missing, damaged or edited."""

import json
import os
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pytest

from vitft.system.errors import RunError
from vitft.system.run_content import (
    damaged_file,
    read_run_arrays,
    read_run_bytes,
    read_run_json,
    read_run_lines,
)


class Line(TypedDict):
    epoch: int


def test_missing_files_are_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for path in (tmp_path / "none", tmp_path / "file" / "below"):
        assert read_run_bytes(path) is None
        assert read_run_json(path, Line) is None
        assert read_run_lines(path, Line) == ()
        assert read_run_arrays(path) is None


def test_json_is_read_as_the_type_that_it_must_have(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"epoch": 3, "more": []}')
    assert read_run_json(tmp_path / "a.json", Line) == {"epoch": 3, "more": []}

    for text in ('{"epoch": "x"}', "{}", "{", '{"epoch": NaN}'):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(RunError, match=r"damaged run: .*a\.json \("):
            read_run_json(tmp_path / "a.json", Line)


def test_an_incomplete_last_line_and_empty_lines_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"

    path.write_text('{"epoch": 1}\n\n  \n{"epoch": 2}\n{"epo')
    assert read_run_lines(path, Line) == ({"epoch": 1}, {"epoch": 2})
    path.write_text('{"epoch": 1}\n{"epo\n')
    with pytest.raises(RunError, match="damaged run"):
        read_run_lines(path, Line)


def test_a_file_that_is_not_regular_or_too_large_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"12345")

    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(RunError, match="damaged run"):
            read_run_bytes(path)
        with pytest.raises(RunError, match="damaged run"):
            read_run_arrays(path)
    assert read_run_bytes(tmp_path / "large", limit=5) == b"12345"
    with pytest.raises(RunError, match="more than the limit of 4"):
        read_run_bytes(tmp_path / "large", limit=4)


def test_a_confusion_matrix_of_5000_classes_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", 4 * 5000**2)  # "0, " and more for each pair

    data = read_run_bytes(tmp_path / "a")

    assert data is not None
    os.truncate(tmp_path / "a", 2**29)
    with pytest.raises(RunError, match="more than the limit"):
        read_run_bytes(tmp_path / "a")


def test_arrays_are_read_or_the_file_is_called_damaged(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    arrays = read_run_arrays(tmp_path / "a.npz")
    assert arrays is not None
    assert arrays["x"].tolist() == [0, 1, 2]

    (tmp_path / "a.npz").write_bytes(b"no archive")
    with pytest.raises(RunError, match=r"damaged run: .*a\.npz"):
        read_run_arrays(tmp_path / "a.npz")


@pytest.mark.parametrize("length", [300, 301])
def test_a_long_reason_is_cut(length: int) -> None:
    error: Any = damaged_file(Path("a"), "x" * length)

    assert error.problem == f"damaged run: a ({'x' * 300})"
    assert json.dumps(error.fix)
