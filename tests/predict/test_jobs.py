"""Records of long prediction jobs."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from vitft.predict import jobs


def records(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    seconds: int,
    shown: bool,
) -> list[str]:
    """Return the records of a job with one prediction per second."""
    clock = iter(range(seconds + 1))
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    predictions: Any = iter(range(seconds))
    written: Any = []
    rows: Any = SimpleNamespace(add=written.append)
    with caplog.at_level(logging.INFO):
        jobs.add_rows(rows, predictions, shown=shown)
    assert written == [*range(seconds)]
    return caplog.messages


def test_a_long_job_says_how_far_it_is_ever_less_often(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = records(caplog, monkeypatch, seconds=200, shown=True)

    numbers = [5, 10, 20, 40, 80, 140, 200]
    assert found == [f"predicted {n} images so far, 1 images/s" for n in numbers]


def test_rows_on_the_terminal_need_no_records(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert records(caplog, monkeypatch, seconds=20, shown=False) == []
