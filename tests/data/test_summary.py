"""Log output about a data folder."""

import logging

import pytest

from vitft.data.summary import log_bars


def test_the_chart_has_a_bar_per_class(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    log_bars("6 images", {"cat": [3, 1], "a\nb": [2, 0]}, ("training", "validation"))

    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "6 images (█ training, ░ validation)"
    assert lines[1].startswith("  cat ")
    assert lines[1].endswith("3 + 1")
    assert "a\\nb" in lines[2]
