"""Printing results and errors."""

import io
import logging
import sys
from typing import Any

import pytest
from rich.console import Console

from vitft.cli import output
from vitft.cli.streams import Stdout, StdoutLostError
from vitft.system import console
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


def printed_table(
    monkeypatch: pytest.MonkeyPatch, width: int, *arguments: Any, **options: Any
) -> list[str]:
    shown = io.StringIO()
    terminal = Console(file=shown, width=width, highlight=False, soft_wrap=True, emoji=False)
    monkeypatch.setattr(output, "stdout", lambda: terminal)
    output.table(*arguments, **options)
    return [line.rstrip() for line in shown.getvalue().splitlines()]


def test_columns_of_numbers_are_aligned_on_the_right(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("a", "one", "5"), ("long name", "x\x1b", "1,234")]

    found = printed_table(monkeypatch, 80, ("name", "text", "n"), rows, title="all:", numbers=1)

    assert found == [
        "all:",
        "name       text       n",
        "a          one        5",
        "long name  x\\x1b  1,234",
    ]
    left = printed_table(monkeypatch, 80, ("name", "n"), [("a", "5"), ("b", "1,234")])
    assert left == ["name  n", "a     5", "b     1,234"]


def test_columns_that_were_left_out_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ("a" * 10, "b" * 10, "c" * 10)

    found = printed_table(monkeypatch, 24, ("one", "two", "three"), [row], drop=("three",))
    assert found == ["one         two", f"{row[0]}  {row[1]}"]
    assert "not shown, because the terminal is too narrow: three; `| cat` shows all" in (
        capsys.readouterr().err
    )
    found = printed_table(monkeypatch, 24, ("one", "two", "three"), [row], drop=(1,))
    assert found == ["one         three", f"{row[0]}  {row[2]}"]
    assert ": two; " in capsys.readouterr().err
    assert printed_table(monkeypatch, 34, ("one", "two", "three"), [row], drop=(1,))[1] == (
        "  ".join(row)
    )
    assert capsys.readouterr().err == ""


def test_long_texts_of_a_list_are_cut_in_their_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = ("name", "a text of more than twenty characters")

    found = printed_table(monkeypatch, 28, ("n", "text"), [row], shorten=("text",))

    assert found == ["n     text", "name  a text of more than t\N{HORIZONTAL ELLIPSIS}"]


def test_text_is_wrapped_between_words_where_rows_may_have_several_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = ("name", "a text of more than twenty characters", "5")

    found = printed_table(monkeypatch, 28, ("n", "text", "number"), [row], numbers=1)

    assert found == [
        "n     text            number",
        "name  a text of more       5",
        "      than twenty",
        "      characters",
    ]


def test_the_first_column_of_numbers_is_not_wrapped_if_the_text_can_give_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = ("name", "a text of more than twenty characters", "12.34 to 123.45 points", "5")

    found = printed_table(monkeypatch, 49, ("n", "text", "interval", "n"), [row], numbers=2)

    assert found == [
        "n     text                            interval  n",
        "name  a text of more    12.34 to 123.45 points  5",
        "      than twenty",
        "      characters",
    ]


def test_headings_and_titles_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(["true", "shoes [old]", "shoes [bold]"], [["a", "1", "2"]], title="run [new]")

    title, head, _ = capsys.readouterr().out.splitlines()
    assert title.strip() == "run [new]"
    assert head.split("  ") == ["true", "shoes [old]", "shoes [bold]"]


def test_a_table_without_rows_has_its_headings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed_table(monkeypatch, 80, ("one", "two"), []) == ["one  two"]


@pytest.mark.parametrize(("width", "fits"), [(12, True), (11, False)])
def test_a_table_fits_if_its_widest_cells_do(
    monkeypatch: pytest.MonkeyPatch, width: int, fits: bool
) -> None:
    monkeypatch.setattr(output, "stdout", lambda: Console(file=io.StringIO(), width=width))

    assert output.fits_terminal(("one", "heading"), [("a", "x"), ("bb", "y")]) is fits
    assert output.fits_terminal(("1", "2"), [("a", "12345678"), ("bb", "y")]) is fits


def test_wrapped_text_is_indented_after_its_first_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = io.StringIO()
    terminal = Console(file=shown, width=12, soft_wrap=True)
    monkeypatch.setattr(output, "stdout", lambda: terminal)

    output.wrapped("one two three ab-cd-efg", indent=3)

    assert shown.getvalue().splitlines() == ["one two", "   three", "   ab-cd-efg"]


def test_json_and_rows_are_printed_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    output.as_json({"a": [1, "\u00e4"]})
    output.exact("[b]x[/b]")
    output.row("y")

    assert capsys.readouterr().out == ('{\n  "a": [\n    1,\n    "\\u00e4"\n  ]\n}\n[b]x[/b]\ny\n')
    with pytest.raises(ValueError, match="Out of range float"):
        output.as_json({"a": float("nan")})


def test_a_row_ends_a_command_whose_output_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stdout(io.StringIO())
    monkeypatch.setattr(sys, "stdout", stream)
    output.row("x")
    stream.failure = BrokenPipeError(32, "Broken pipe")

    output.exact("x")
    with pytest.raises(StdoutLostError):
        output.row("x")


def test_notes_are_not_shown_with_quiet_but_warnings_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console.show_log(logging.WARNING)

    output.note("a note")
    output.warn("a problem\x1b")

    assert capsys.readouterr().err == "warning: a problem\\x1b\n"


def test_streams_are_replaced_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.stdout, sys.stderr

    with pytest.raises(ZeroDivisionError), output.safe_streams() as stdout:  # noqa: PT012
        assert sys.stdout is stdout
        assert sys.stderr is not before[1]
        raise ZeroDivisionError

    assert (sys.stdout, sys.stderr) == before


def test_a_rule_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(output, "stdout", lambda: Console(file=shown, width=10))
    monkeypatch.setattr(sys, "stdout", shown)

    output.rule()
    assert shown.getvalue() == ""
    monkeypatch.setattr(shown, "isatty", lambda: True)
    output.rule()
    assert "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * 10 in shown.getvalue()


def test_a_bug_is_reported_with_a_redacted_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise RuntimeError("no https://me:secret@h/x")
    except RuntimeError:
        output.show_traceback()
    output.bug()
    output.interrupted()

    shown = capsys.readouterr().err
    assert "RuntimeError: no https://***@h/x" in shown
    assert f"this is a bug in vitft {output.version()}; please report it" in shown
    assert shown.endswith("vitft: interrupted\n")
