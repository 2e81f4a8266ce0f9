"""Defaults of commands, levels of the log, and exit codes of results that were lost."""

import argparse
import errno
import io
import logging
from pathlib import Path
from typing import Any

import pytest

from vitft.cli import explain, weights
from vitft.cli.main import build_parser, log_level, main, parse
from vitft.cli.predict import illustrate, predict_command, standard_input
from vitft.cli.streams import SafeStream, Stdout, replace_character
from vitft.system.errors import ResourceError, UsageError


def defaults(*words: str) -> dict[str, Any]:
    return vars(build_parser(words[0]).parse_args([*words]))


def test_predictions_are_a_table_of_one_class_by_default() -> None:
    assert defaults("predict") == {
        "images": [],
        "lists": [],
        "allow_private_addresses": False,
        "run": None,
        "device": "auto",
        "top_k": 1,
        "format": None,
        "bom": False,
        "out": None,
        "resume": False,
        "threshold": None,
        "precision": None,
        "tta": False,
        "explain": None,
        "dtype": "auto",
        "engine": "auto",
        "command": predict_command,
    }
    found = defaults("predict", "a", "--list", "b", "--list", "c", "--tta", "--bom", "--resume")
    assert (found["images"], found["lists"]) == (["a"], ["b", "c"])
    assert found["tta"] is found["bom"] is found["resume"] is True


def test_explanations_are_of_the_latest_run_by_default() -> None:
    found = defaults("explain")

    assert found.pop("command") is explain.explain_command
    assert found.pop("images") == []
    assert found.pop("device") == "auto"
    flags = {"allow_pickle", "arrays", "model", "patches", "legend"}
    assert {name for name, value in found.items() if value is False} == flags
    assert all(value is None for name, value in found.items() if name not in flags)


def test_pickles_are_refused_by_default() -> None:
    for action in ("show", "fetch", "inspect"):
        assert defaults("weights", action, "x")["allow_pickle"] is False
    found = defaults("weights", "inspect", "x", "--image-size", "48", "64", "--classes", "0")
    assert (found["image_size"], found["classes"]) == ([48, 64], 0)
    listed = defaults("weights", "list")
    assert listed.pop("command") is weights.list_weights
    assert listed == {"all": False, "size": None, "licence": None, "data": None}


@pytest.mark.parametrize(
    ("failed", "text", "code"),
    [
        (0, "", 0),
        (1, "1 image could not be explained: replace it, or leave it out\n", 3),
        (2, "2 images could not be explained: replace them, or leave them out\n", 3),
    ],
)
def test_images_that_were_not_explained_are_counted(
    capsys: pytest.CaptureFixture[str], failed: int, text: str, code: int
) -> None:
    assert explain.exit_code(failed) == code
    assert capsys.readouterr().err == text


@pytest.mark.parametrize(
    ("words", "unused", "figure"),
    [
        (["--model", "--patches"], "--patches", "--model"),
        (["--model", "--method", "rollout"], "--method", "--model"),
        (["--patches", "a.jpg", "--class", "x"], "--class", "--patches"),
        (["--patches", "a.jpg", "--head", "0"], "--head", "--patches"),
        (["--patches", "a.jpg", "--arrays"], "--arrays", "--patches"),
        (["--patches", "a.jpg", "--size", "99"], "--size", "--patches"),
        (["--model", "--legend"], "--legend", "--model"),
    ],
)
def test_options_of_explanations_have_no_effect_on_figures(
    capsys: pytest.CaptureFixture[str], words: list[str], unused: str, figure: str
) -> None:
    assert main(["explain", *words]) == 2

    assert f"{unused} has no effect with {figure}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--run", "a", "--weights", "b", "x"], "--run and --weights cannot be combined"),
        ([], "no images given"),
        (["--patches"], "no images given"),
    ],
)
def test_something_is_explained_by_one_model(
    capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert main(["explain", *words]) == 2

    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "level"),
    [
        ([], logging.INFO),
        (["check", "-v"], logging.DEBUG),
        (["--quiet", "check"], logging.WARNING),
        (["-q", "--verbose"], logging.DEBUG),
    ],
)
def test_more_detail_wins_over_less(words: list[str], level: int) -> None:
    assert log_level(words) == level


def test_a_file_whose_name_begins_with_a_hyphen_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-x.jpg").touch()
    parser = build_parser("predict")

    for words in (["predict", "-x.jpg"], ["predict", "--top-k", "-x.jpg"]):
        with pytest.raises(UsageError, match=r"-x\.jpg was taken for an option") as refused:
            parse(parser, words)
        assert refused.value.fix.endswith("write ./-x.jpg")
    with pytest.raises(UsageError, match="top-k"):
        parse(parser, ["predict", "--top-k", "y"])
    args, unknown = parse(parser, ["predict", "--odd"])
    assert isinstance(args, argparse.Namespace)
    assert unknown == ["--odd"]


def test_the_version_and_help_end_with_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("vitft ")
    for words in (["--help"], ["cache", "--help"]):
        assert main(words) == 0
        assert "usage: vitft" in capsys.readouterr().out
    assert main(["cache", "list", "--odd"]) == 2


def test_an_error_has_a_traceback_only_with_debug(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--run", "none"]) == 5
    assert "Traceback" not in capsys.readouterr().err
    assert main(["report", "--run", "none", "--debug"]) == 5
    assert "Traceback" in capsys.readouterr().err


def test_a_long_path_is_refused_and_other_errors_of_the_system_are_bugs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, code in ((errno.ENAMETOOLONG, 2), (errno.EPERM, 1)):

        def broken(_: object, number: int = number) -> int:
            raise OSError(number, "broken")

        monkeypatch.setattr("vitft.cli.cache.list_cache", broken)
        assert main(["cache", "list"]) == code
    shown = capsys.readouterr().err
    assert shown.count("a path is too long") == shown.count("this is a bug") == 1


def test_a_closed_stdin_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)

    assert standard_input().read() == b""
    assert callable(illustrate)


class Broken(io.StringIO):
    """A stream on which every write fails."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, _: str, /) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("code", "error", "expected"),
    [
        (0, BrokenPipeError(errno.EPIPE, "Broken pipe"), 141),
        (3, BrokenPipeError(errno.EPIPE, "Broken pipe"), 141),
        (5, BrokenPipeError(errno.EPIPE, "Broken pipe"), 5),
        (5, OSError(errno.ENOSPC, "No space left on device"), 5),
        (143, OSError(errno.ENOSPC, "No space left on device"), 143),
    ],
)
def test_a_command_that_succeeded_reports_lost_results(
    code: int, error: OSError, expected: int
) -> None:
    stdout = Stdout(Broken(error))

    assert stdout.write("lost") == 4

    assert stdout.exit_code(code) == expected
    assert Stdout(io.StringIO()).exit_code(code) == code


@pytest.mark.parametrize("code", [0, 3])
def test_results_that_do_not_fit_on_the_disk_are_an_error(code: int) -> None:
    stdout = Stdout(Broken(OSError(errno.ENOSPC, "No space left on device")))
    stdout.write("lost")

    with pytest.raises(ResourceError, match="cannot write the results to stdout: no space left"):
        stdout.exit_code(code)


def test_the_first_failure_of_a_stream_is_kept() -> None:
    inner = Broken(OSError(errno.ENOSPC, "first"))
    stream = SafeStream(inner)
    stream.write("x")
    inner.error = OSError(errno.EIO, "second")
    stream.write("x")
    assert stream.failure is not None
    assert stream.failure.errno == errno.ENOSPC
    closed = SafeStream(None)
    closed.write("x")
    assert closed.failure is not None
    assert closed.failure.errno == errno.EBADF
    closed.finish()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10\N{MULTIPLICATION SIGN}", b"10x"),
        ("a\N{EN DASH}b", b"a-b"),
        ("\N{FULL BLOCK}\N{LIGHT SHADE}", b"#."),
        ("\N{HORIZONTAL ELLIPSIS}", b"..."),
        ("caf\u00e9 \u4e2d", b"caf\\xe9 \\u4e2d"),
        ("\u4e2d\N{MINUS SIGN}1", b"\\u4e2d-1"),
    ],
)
def test_characters_that_a_terminal_lacks_are_replaced(text: str, shown: bytes) -> None:
    buffer = io.BytesIO()
    inner = io.TextIOWrapper(buffer, encoding="ascii", newline="")
    stream = SafeStream(inner)

    stream.write(text)
    stream.flush()

    assert buffer.getvalue() == shown
    assert stream.failure is None
    error = UnicodeEncodeError("ascii", "ab\u4e2d\u4e2d", 2, 4, "unknown")
    assert replace_character(error) == ("\\u4e2d", 3)
