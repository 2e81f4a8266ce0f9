"""Printing results and errors."""

import logging

import pytest

from vitft.cli.output import bug, interrupted, note, result, show_traceback, version, warn
from vitft.system import show_log


def test_control_characters_of_file_names_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    result("a\x1b[2Jb.jpg")
    note("two\nlines")

    captured = capsys.readouterr()
    assert captured.out == "a\\x1b[2Jb.jpg\n"
    assert captured.err == "two\\nlines\n"


def test_notes_are_not_shown_with_quiet_but_warnings_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_log(logging.WARNING)

    note("a note")
    warn("a problem\x1b")

    assert capsys.readouterr().err == "warning: a problem\\x1b\n"


def test_a_bug_is_reported_with_a_redacted_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise RuntimeError("no https://me:secret@h/x")
    except RuntimeError:
        show_traceback()
    bug()
    interrupted()

    shown = capsys.readouterr().err
    assert "RuntimeError: no https://***@h/x" in shown
    assert f"this is a bug in vitft {version()}; please report it" in shown
    assert shown.endswith("vitft: interrupted\n")
