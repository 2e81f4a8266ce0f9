"""Log lines and progress on the terminal, with control characters escaped."""

import io
import logging

import pytest
from rich.console import Console

from vitft.system import LogHandler, between_words, show_log, shows_notes, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("rosé 🌹", "rosé 🌹", id="letters stay"),
        pytest.param("a\x1b]0;x\x07b", r"a\x1b]0;x\x07b", id="terminal commands"),
        pytest.param("two\nlines", r"two\nlines", id="line break"),
        pytest.param("gpj.\u202eexe", r"gpj.\u202eexe", id="right-to-left override"),
        pytest.param("raw\udcff", r"raw\udcff", id="undecodable bytes"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param("one two three", ["one two", "  three"], id="between words"),
        pytest.param("see /a/long/path", ["see", "  /a/long/path"], id="a path stays whole"),
        pytest.param("next: vitft predict", ["next: vitft predict"], id="a command stays one line"),
        pytest.param(
            "one two three vitft predict x",
            ["one two", "  three", "  vitft predict x"],
            id="a command after text has a line of its own",
        ),
        pytest.param(
            "run `vitft demo x` or wait",
            ["run", "  `vitft demo x`", "  or wait"],
            id="a command in backquotes is one word",
        ),
        pytest.param("short", ["short"], id="a line that fits"),
    ],
)
def test_lines_on_a_terminal_are_broken_between_words(text: str, lines: list[str]) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=10)
    pipe = Console(file=io.StringIO(), width=10)

    assert between_words(text, terminal).split("\n") == lines
    assert between_words(text, pipe) == text


def test_messages_are_shown_from_the_level_that_was_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = logging.getLogger("vitft.data")

    shown = {}
    for level in (logging.DEBUG, logging.INFO, logging.WARNING):
        show_log(level)
        log.debug("detail")
        log.info("note\x1b")
        log.warning("warned")
        shown[level] = capsys.readouterr().err.splitlines()
        assert shows_notes() is (level <= logging.INFO)

    warned = "warning: warned"
    assert shown == {
        logging.DEBUG: ["detail", r"note\x1b", warned],
        logging.INFO: [r"note\x1b", warned],
        logging.WARNING: [warned],
    }
    handlers = logging.getLogger("vitft").handlers
    assert sum(isinstance(one, LogHandler) for one in handlers) == 1
    assert not logging.getLogger("vitft").propagate
