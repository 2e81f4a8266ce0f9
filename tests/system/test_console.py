"""Log lines and progress on the terminal, with control characters escaped."""

import io
import logging
import sys
import time

import pytest
from rich.console import Console

from vitft.export.formats.graph import silenced
from vitft.system import console


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
    assert console.visible(text) == shown


def test_progress_without_a_terminal_is_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PLAIN_INTERVAL_S", 0.0)
    monkeypatch.setattr(console, "MEASURED_S", 0.0)
    with console.Progress("working", 4) as progress:
        progress.advance(1, loss="0.6")
        progress.advance(1, loss="0.5")
        progress.advance(2, loss="0.4")

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3  # two on the way, one at the end
    assert lines[1].startswith("working: 2/4  loss 0.5")
    assert lines[1].endswith(" left")
    assert "working: 4/4  loss 0.4" in lines[-1]
    assert all("\x1b" not in line for line in lines)


def test_the_rate_counts_what_was_done_since_the_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("vitft.system.console.time.monotonic", lambda: clock[0])
    with console.Progress("training", 1000, done=900) as progress:
        progress.advance(10)
        clock[0] = 20.0
        progress.advance(40)

    assert "950/1000  2.5 images/s  about 25 s left" in capsys.readouterr().err


def test_the_rate_does_not_count_skipped_units(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("vitft.system.console.time.monotonic", lambda: clock[0])
    with console.Progress("extracting features", 250) as progress:
        progress.advance(200)
        clock[0] = 2.0
        progress.advance(50)
        progress.skip(200)

    assert "250/250, 50 of them new  25 images/s  in 2.0 s" in capsys.readouterr().err


def test_no_time_left_is_stated_before_it_has_been_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("vitft.system.console.time.monotonic", lambda: clock[0])
    with console.Progress("training", 1000) as progress:
        for clock[0] in (30.0, 31.0, 36.0):  # the first batch takes 30 s, the others 1 and 5 s
            progress.advance(10)

    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "training: 10/1000  0.3 images/s"
    assert lines[1] == "training: 30/1000  0.8 images/s  about 5 min left"


def test_progress_towards_an_unknown_total_has_no_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("vitft.system.console.time.monotonic", lambda: clock[0])
    with console.Progress("predicting", None) as progress:
        for clock[0] in (4.0, 8.0, 10.0):
            progress.advance(20)

    lines = capsys.readouterr().err.splitlines()
    assert lines == ["predicting: 40  5.0 images/s", "predicting: 60  6.0 images/s  in 10.0 s"]


def test_a_step_without_a_count_is_never_silent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PLAIN_INTERVAL_S", 0.02)
    with console.timed_step("tracing"):
        time.sleep(0.2)

    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tracing"
    assert "tracing: still running after 0 s" in lines[1:-1]
    assert lines[-1].startswith("tracing: done in 0.")
    time.sleep(0.1)
    assert capsys.readouterr().err == ""

    with pytest.raises(ZeroDivisionError), console.timed_step("tracing"):
        1 / 0  # noqa: B018
    assert "done" not in capsys.readouterr().err


def test_a_step_without_a_count_spins_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=80, highlight=False)
    monkeypatch.setattr(console, "stderr", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(shown, "isatty", lambda: True)

    with console.timed_step("writing [onnx]"):
        time.sleep(0.3)

    frames = [frame for frame in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏" if frame in shown.getvalue()]
    assert len(frames) > 1
    assert "writing [onnx]" in shown.getvalue()
    assert "done in 0." in shown.getvalue()


@pytest.mark.parametrize(("seconds", "is_named"), [(0.0, False), (0.2, True)])
def test_a_quiet_step_is_logged_only_if_it_takes_long(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    is_named: bool,
) -> None:
    monkeypatch.setattr(console, "QUIET_S", 0.05)
    monkeypatch.setattr(console, "PLAIN_INTERVAL_S", 60.0)

    with console.quiet_step("fitting the head"):
        time.sleep(seconds)

    assert capsys.readouterr().err == "fitting the head\n" * is_named
    assert console.RUNNING == []


def test_a_progress_bar_replaces_the_spinner_of_a_quiet_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=80, highlight=False)
    monkeypatch.setattr(console, "stderr", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(console, "QUIET_S", 0.0)

    with console.quiet_step("fitting the head"):
        time.sleep(0.3)
        before = len(shown.getvalue())
        with console.Progress("training", 2) as progress:  # Rich allows one live display
            progress.advance(2)
            time.sleep(0.3)

    assert "fitting the head" in shown.getvalue()[:before]
    assert "fitting the head" not in shown.getvalue()[before:].partition("training")[2]
    assert "training: 2/2" in shown.getvalue()


def test_a_step_is_logged_while_the_output_of_a_library_is_suppressed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PLAIN_INTERVAL_S", 0.02)
    with console.timed_step("tracing"), silenced():
        print("progress of the exporter", file=sys.stderr)
        time.sleep(0.2)

    lines = capsys.readouterr().err.splitlines()
    assert "tracing: still running after 0 s" in lines
    assert "progress of the exporter" not in lines


def test_a_step_spins_while_the_output_of_a_library_is_suppressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = io.StringIO()
    terminal = Console(stderr=True, force_terminal=True, width=80, highlight=False)
    monkeypatch.setattr(console, "stderr", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(shown, "isatty", lambda: True)

    with console.timed_step("tracing"), silenced():
        before = len(shown.getvalue())
        print("progress of the exporter", file=sys.stderr)
        time.sleep(0.4)
        drawn = shown.getvalue()[before:]

    frames = [frame for frame in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏" if frame in drawn]
    assert len(frames) > 1
    assert "progress of the exporter" not in shown.getvalue()


@pytest.mark.parametrize(("width", "shows_speed"), [(80, False), (120, True)])
def test_progress_with_metrics_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, width: int, shows_speed: bool
) -> None:
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=width, highlight=False)
    monkeypatch.setattr(console, "stderr", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(shown, "isatty", lambda: True)

    monkeypatch.setattr(console, "MEASURED_S", 0.0)
    with console.Progress("training", 48_000) as progress:
        progress.advance(12_345, loss="0.010", accuracy="100.0%")
        time.sleep(0.3)
        first = shown.getvalue()
        progress.advance(64)
        time.sleep(0.3)
        drawn = shown.getvalue()

    assert " left" not in first
    assert " min left" in drawn
    assert "loss 0.010  accuracy 100.0%" in drawn
    assert ("images/s" in drawn) is shows_speed
    assert "…" not in drawn


def test_a_log_that_cannot_be_written_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class FullDisk(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, f"No space left on device for {text}")

    monkeypatch.setattr(sys, "stderr", FullDisk())

    logging.getLogger("vitft.training").warning("a batch was halved")
    with console.Progress("working", 1) as progress:
        progress.advance()


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

    assert console.between_words(text, terminal).split("\n") == lines
    assert console.between_words(text, pipe) == text
