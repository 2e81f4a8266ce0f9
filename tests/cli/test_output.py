"""Printing results and errors."""

import io
import sys

import pytest
from rich.console import Console

from vitft.cli import output
from vitft.system.errors import DataError


def test_an_error_is_two_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    output.fail(DataError("bad\nfolder\x1b", fix="another one"))

    captured = capsys.readouterr()
    assert captured.err == "vitft: error: bad folder\\x1b\n  fix: another one\n"
    assert captured.out == ""


def test_an_error_on_a_terminal_is_broken_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=30)
    monkeypatch.setattr(output, "stderr", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(shown, "isatty", lambda: True)

    output.fail(DataError("the weights are not in the cache", fix="run `vitft weights` online"))

    assert shown.getvalue().splitlines() == [
        "vitft: error: the weights are",
        "    not in the cache",
        "  fix: run `vitft weights`",
        "    online",
    ]


def test_control_characters_of_file_names_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    output.result("a\x1b[2Jb.jpg")
    output.note("two\nlines")

    captured = capsys.readouterr()
    assert captured.out == "a\\x1b[2Jb.jpg\n"
    assert captured.err == "two\\nlines\n"
