"""What is printed, and how it is kept harmless."""

import csv
import io

import pytest

from vitft.system import console
from vitft.system.errors import DataError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("rosé 🌹", "rosé 🌹", id="letters stay"),
        pytest.param("a\x1b]0;x\x07b", r"a\x1b]0;x\x07b", id="terminal commands"),
        pytest.param("two\nlines", r"two\nlines", id="line break"),
        pytest.param("gpj.\u202eexe", r"gpj.\u202eexe", id="right-to-left override"),
        pytest.param("raw\udcff", r"raw\udcff", id="bytes that are no text"),
    ],
)
def test_names_cannot_command_the_terminal(text: str, shown: str) -> None:
    assert console.visible(text) == shown


def test_an_error_is_two_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    console.fail(DataError("bad\nfolder\x1b", fix="another one"))

    captured = capsys.readouterr()
    assert captured.err == "vitft: error: bad folder\\x1b\n  fix: another one\n"
    assert captured.out == ""


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@x", "\tx", "\rx"])
def test_no_cell_is_a_formula(name: str) -> None:
    (row,) = csv.reader(io.StringIO(console.csv_line([name, "-0.5", "plain, or not"]), newline=""))

    assert row == [f"'{name}", "-0.5", "plain, or not"]


def test_progress_elsewhere_than_a_terminal_is_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PLAIN_INTERVAL_S", 0.0)
    with console.Progress("working", 4) as progress:
        progress.advance(2, loss="0.5")
        progress.advance(2, loss="0.4")

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3  # two on the way, one at the end
    assert lines[0].startswith("working: 2/4  loss 0.5")
    assert "left" in lines[0]
    assert "working: 4/4  loss 0.4" in lines[-1]
    assert all("\x1b" not in line for line in lines)


def test_the_chart_has_a_bar_per_class(capsys: pytest.CaptureFixture[str]) -> None:
    console.chart("6 images", {"cat": [3, 1], "a\nb": [2, 0]}, ("training", "validation"))

    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "6 images (█ training, ░ validation)"
    assert lines[1].startswith("  cat ")
    assert lines[1].endswith("3 + 1")
    assert "a\\nb" in lines[2]


@pytest.mark.parametrize(
    ("seconds", "text"), [(40, "40 s"), (89.6, "90 s"), (700, "12 min"), (9000, "2.5 h")]
)
def test_durations_are_told_in_a_fitting_unit(seconds: float, text: str) -> None:
    assert console.duration(seconds) == text
