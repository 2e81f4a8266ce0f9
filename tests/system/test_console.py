"""Log lines and progress on the terminal, with control characters escaped."""

import io
import logging
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console
from rich.text import Text

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


def test_lines_are_broken_only_if_they_are_longer_than_the_terminal() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=10)

    assert console.between_words("12345 7890", terminal) == "12345 7890"
    assert console.between_words("12345 78901", terminal) == "12345\n  78901"
    assert console.between_words("12345 78901", terminal, indent="    ") == "12345\n    78901"
    assert console.between_words("a-b-c d-e-f", terminal) == "a-b-c\n  d-e-f"
    one_word = "next: vitft a b and more words that follow"
    assert console.between_words(one_word, terminal) == one_word
    assert console.between_words("or next: vitft a b", terminal) == "or next:\n  vitft a b"


def test_messages_are_shown_from_the_level_that_was_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = logging.getLogger("vitft.data")

    shown = {}
    for level in (logging.DEBUG, logging.INFO, logging.WARNING):
        console.show_log(level)
        log.debug("detail")
        log.info("note\x1b")
        log.warning("warned")
        shown[level] = capsys.readouterr().err.splitlines()
        assert console.shows_notes() is (level <= logging.INFO)

    warned = "warning: warned"
    assert shown == {
        logging.DEBUG: ["detail", r"note\x1b", warned],
        logging.INFO: [r"note\x1b", warned],
        logging.WARNING: [warned],
    }
    handlers = logging.getLogger("vitft").handlers
    assert sum(isinstance(one, console.LogHandler) for one in handlers) == 1
    assert not logging.getLogger("vitft").propagate


def test_the_library_alone_shows_no_notes() -> None:
    logger = logging.getLogger("vitft")
    for handler in [h for h in logger.handlers if isinstance(h, console.LogHandler)]:
        logger.removeHandler(handler)

    assert not console.is_shown()
    assert not console.shows_notes()
    console.show_log()
    assert console.is_shown()


def test_a_silent_process_logs_nothing_but_on_a_terminal_rich_is_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results, messages = Console(file=io.StringIO()), Console(file=io.StringIO())
    monkeypatch.setattr(console, "stdout", lambda: results)
    monkeypatch.setattr(console, "stderr", lambda: messages)
    monkeypatch.setattr(console.LogHandler, "is_silent", False)

    console.silence()
    logging.getLogger("vitft.data").warning("not shown")

    assert (results.quiet, messages.quiet) == (True, True)
    assert capsys.readouterr().err == ""


def test_results_in_a_pipe_are_not_wrapped_and_have_no_emoji() -> None:
    found = console.stdout.__wrapped__()

    assert found.width == 4096  # the output of a test is no terminal
    with found.capture() as capture:
        found.print(f":smile: {'x ' * 100}")
    assert capture.get() == f":smile: {'x ' * 100}\n"
    assert console.stderr.__wrapped__().stderr


def terminal_of(monkeypatch: pytest.MonkeyPatch, width: int = 120) -> io.StringIO:
    """Make stderr a terminal, and return what is shown on it."""
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=width, highlight=False)
    monkeypatch.setattr(console, "stderr", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(shown, "isatty", lambda: True)
    return shown


def test_warnings_on_a_terminal_are_yellow_and_markup_is_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = terminal_of(monkeypatch)

    logging.getLogger("vitft.data").info("a [b]note[/b]")
    plain = shown.getvalue()
    logging.getLogger("vitft.data").warning("a [b]problem[/b]")

    assert plain == "a [b]note[/b]\n"
    assert "\x1b[33m" in shown.getvalue()[len(plain) :]
    assert "a [b]problem[/b]" in shown.getvalue()


def test_without_stderr_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)

    assert not console.has_terminal()
    logging.getLogger("vitft.data").warning("lost")


def test_a_bar_shows_the_count_and_the_last_line_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = terminal_of(monkeypatch)

    with console.Progress("training", 8, done=2) as progress:
        progress.advance(3)
        time.sleep(0.3)
        drawn = shown.getvalue()

    assert progress.live
    assert "training" in drawn
    assert "5/8" in drawn
    assert "images/s" in drawn
    assert "training: 5/8" in shown.getvalue()
    monkeypatch.setattr(console, "shows_notes", lambda: False)
    assert not console.Progress("training", 8).live


def test_no_line_is_logged_at_the_end_if_nothing_was_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with console.Progress("training", 8, done=2):
        pass

    assert capsys.readouterr().err == ""


def clocked(
    monkeypatch: pytest.MonkeyPatch, total: int | None, steps: list[tuple[float, int]]
) -> console.Progress:
    """Return progress after steps, given as times and numbers of units."""
    clock = [0.0]
    monkeypatch.setattr("vitft.system.console.time.monotonic", lambda: clock[0])
    progress = console.Progress("training", total)
    for clock[0], units in steps:
        progress.advance(units)
    return progress


def test_lines_are_at_least_five_seconds_apart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clocked(monkeypatch, 100, [(4.9, 1), (5.0, 1), (9.9, 1), (10.0, 1), (15.0, 96)])

    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == [
        "2/100",
        "4/100",
    ]  # the last one comes at the end


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ([], ""),
        ([(0.0, 10)], ""),
        ([(0.0, 10), (2.9, 10)], ""),
        ([(0.0, 10), (3.0, 10)], "24 s left"),
        ([(0.0, 10), (4.0, 0)], ""),
        ([(50.0, 10), (54.0, 40)], "5 s left"),
        ([(0.0, 10), (4.0, 90)], "0 s left"),
    ],
)
def test_the_time_left_rests_on_three_seconds_after_the_first_units(
    monkeypatch: pytest.MonkeyPatch, steps: list[tuple[float, int]], left: str
) -> None:
    assert clocked(monkeypatch, 100, steps).time_left() == left
    assert clocked(monkeypatch, None, steps).time_left() == ""


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([(1.0, 0)], "0 images/s"),
        ([(2.0, 19)], "9.5 images/s"),
        ([(2.0, 20)], "10 images/s"),
        ([(1.0, 12_345)], "12,345 images/s"),
    ],
)
def test_a_speed_below_ten_has_a_decimal_place(
    monkeypatch: pytest.MonkeyPatch, steps: list[tuple[float, int]], text: str
) -> None:
    assert clocked(monkeypatch, 100, steps).metrics_text() == text


def test_progress_is_complete_once_the_known_total_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress = clocked(monkeypatch, 3, [(0.0, 2)])
    assert not progress.is_complete
    progress.advance()
    assert progress.is_complete
    progress.advance()
    assert progress.is_complete
    assert not clocked(monkeypatch, None, [(0.0, 2)]).is_complete


def test_skipped_units_do_not_make_the_rate_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = clocked(monkeypatch, 10, [(0.0, 2), (1.0, 1)])

    progress.skip(5)

    assert (progress.before, progress.skipped) == (3, 5)
    assert "0 of them new" in progress.line(final=True)
    assert "of them new" not in clocked(monkeypatch, 10, [(0.0, 2)]).line(final=True)


@pytest.mark.parametrize(("width", "shows_speed"), [(99, False), (100, True)])
def test_the_speed_is_beside_the_metrics_from_100_columns_on(
    monkeypatch: pytest.MonkeyPatch, width: int, shows_speed: bool
) -> None:
    terminal_of(monkeypatch, width)
    progress = console.Progress("training", 8)
    assert "images/s" in progress.metrics_beside_bar()

    progress.metrics = {"loss": "0.5", "accuracy": "90%"}

    assert progress.metrics_beside_bar().startswith("loss 0.5  accuracy 90%")
    assert ("images/s" in progress.metrics_beside_bar()) is shows_speed


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_long_quiet_step_is_shown_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    shown: list[str] = []
    begun = threading.Event()

    @contextmanager
    def display(kind: str) -> Iterator[None]:
        shown.append(f"{kind} begins")
        begun.set()
        yield
        shown.append(f"{kind} ends")

    monkeypatch.setattr(console, "QUIET_S", 0.0)
    monkeypatch.setattr(console, "shows_notes", lambda: True)
    monkeypatch.setattr(console, "has_terminal", lambda: is_terminal)
    monkeypatch.setattr(console, "spinner", lambda _: display("spinner"))
    monkeypatch.setattr(console, "logged_step", lambda _: display("log"))
    kind = "spinner" if is_terminal else "log"

    with console.quiet_step("fitting"):
        assert begun.wait(10)
        time.sleep(0.05)
        assert shown == [f"{kind} begins"]

    assert shown == [f"{kind} begins", f"{kind} ends"]


def test_spinners_have_ended_before_a_bar_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    is_gone: list[bool] = []

    def spin() -> None:
        ended.wait(10)
        time.sleep(0.05)
        is_gone.append(True)

    thread = threading.Thread(target=spin)
    thread.start()
    monkeypatch.setattr(console, "RUNNING", [(ended, thread)])

    console.end_spinners()

    assert is_gone == [True]


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (30, "extracting fea"),
        (44, "extracting featur… 12346/480"),
        (50, "extracting features "),
        (120, "12346/48000"),
    ],
)
def test_a_bar_is_one_line_as_wide_as_the_terminal_and_ends_with_its_step(
    monkeypatch: pytest.MonkeyPatch, width: int, text: str
) -> None:
    shown = terminal_of(monkeypatch, width)

    with console.Progress("extracting features", 48_000) as progress:
        progress.advance(12_345)
        progress.first = (time.monotonic() - 100, progress.done)
        progress.advance(1, loss="0.010", accuracy="100.0%")  # 990 hours left
        start = len(shown.getvalue())
        progress.bar.refresh()
        drawn = shown.getvalue()[start:]

    lines = [Text.from_ansi(line).plain for line in re.split(r"[\r\n]", drawn)]
    (line,) = filter(None, lines)
    assert len(line) == width
    assert text in line
    assert not progress.bar.live.is_started


@pytest.mark.parametrize(
    ("width", "drawn"),
    [
        (28, "[b] ━━━━━━━━ 12000/48000 5 s"),
        (44, "[b] ━━━━━ 12000/48000 5 s left  loss 0.010 …"),
        (80, f"[b] {'━' * 17} 12000/48000 5 s left  loss 0.010  accuracy 100.0%{' ' * 9}"),
        (110, f"[b] {'━' * 27} 12000/48000 5 s left  loss 0.010  accuracy 100.0%{' ' * 29}"),
    ],
)
def test_a_third_of_the_columns_left_are_for_the_bar_and_eight_if_there_are_none(
    monkeypatch: pytest.MonkeyPatch, width: int, drawn: str
) -> None:
    shown = terminal_of(monkeypatch, width)
    monkeypatch.setattr(console, "WIDE_COLUMNS", 200)
    monkeypatch.setattr(console.Progress, "time_left", lambda _: "5 s left")

    with console.Progress("[b]", 48_000) as progress:
        progress.advance(12_000, loss="0.010", accuracy="100.0%")
        start = len(shown.getvalue())
        progress.bar.refresh()
        text = Text.from_ansi(shown.getvalue()[start:].strip("\r\n")).plain

    assert re.sub("[╸╺]", "━", text) == drawn
