"""Numbers, lists, rows and errors as text, without passwords and tokens."""

import logging

import pytest

from vitft.cli.main import main
from vitft.system import (
    DataError,
    ImageError,
    duration,
    escape_formula,
    listing,
    redacted,
    visible,
    whole_percent,
)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (list("abcdefg"), "a, b, c, d, e, f and g"),
        (list("abcdefgh"), "a, b, c, d, e, f and 2 more"),
    ],
)
def test_long_lists_are_cut_short(names: list[str], text: str) -> None:
    assert listing(names) == text


@pytest.mark.parametrize(
    ("probability", "text"),
    [
        (0.934, "93%"), (0.004, "< 1%"), (0.006, "1%"), (0.994, "99%"), (0.996, "> 99%"),
        (0.999, "> 99%"), (0.0, "< 1%"), (1.0, "> 99%"), (None, "–"),
    ],
)  # fmt: skip
def test_probabilities_are_never_rounded_to_certainty(probability: float | None, text: str) -> None:
    assert whole_percent(probability) == text


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@x", "\tx", "\rx"])
def test_a_formula_is_escaped(name: str) -> None:
    cells = [escape_formula(cell) for cell in (name, "-0.5", "plain, or not")]

    assert cells == [f"'{name}", "-0.5", "plain, or not"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (40, "40 s"), (89.6, "90 s"), (90, "2 min"), (700, "12 min"),
        (5399, "90 min"), (5400, "1.5 h"), (9000, "2.5 h"),
    ],
)  # fmt: skip
def test_a_duration_has_a_suitable_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:secret@host/x.tar", "https://***@host/x.tar"),
        ("https://secret@host", "https://***@host"),
        ("s3+HTTPS://me:se@cret@host:81/x?a=1#b", "s3+HTTPS://***@host:81/x?a=1#b"),
        ("https://me:sec/ret@host/x", "https://***@host/x"),
        ("two: http://a:b@c/ and http://d:e@f/", "two: http://***@c/ and http://***@f/"),
        ("https://h/x?X-Amz-Signature=ab12&y=2", "https://h/x?X-Amz-Signature=***&y=2"),
        ("https://h/x?access_token=ab&api_key=c", "https://h/x?access_token=***&api_key=***"),
        ("https://host:8080/a@b.jpg", "https://host:8080/a@b.jpg"),
        ("https://medium.com/@someone/x.jpg?page=2", "https://medium.com/@someone/x.jpg?page=2"),
        ("sqlite:///a@b.db", "sqlite:///a@b.db"),
        ("a@b.example, c:d@e", "a@b.example, c:d@e"),
    ],
)
def test_what_is_secret_in_a_url_is_replaced(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert visible(text) == shown


def test_errors_are_redacted_whoever_shows_them() -> None:
    error = DataError("no https://me:secret@h/x", fix="use https://me:secret@h/y")
    image = ImageError("https://me:secret@h/x", "moved to https://me:secret@h/y")

    shown = f"{error} {error.problem} {error.fix} {image} {image.path} {image.reason}"
    assert "secret" not in shown
    empty = ImageError("a.jpg", "empty file")
    assert str(empty) == "a.jpg: empty file\n  fix: replace or remove the file"


def test_the_log_and_the_traceback_of_a_bug_are_redacted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no https://me:secret@h/x")

    monkeypatch.setattr("vitft.predict.jobs.find_model", broken)
    logging.getLogger("vitft.data").warning("trying https://me:secret@h/x again")

    assert main(["predict", "x.jpg", "--top-k", "2"]) == 1
    assert main(["predict", "x.jpg", "--url=https://me:secret@h/x"]) == 2
    shown = "".join(capsys.readouterr())
    assert "secret" not in shown
    assert "RuntimeError: no https://***@h/x" in shown
    assert "Please report it" in shown
