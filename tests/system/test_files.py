"""Bundled files, bounded reads and atomic writes."""

import errno
import json
import os
from pathlib import Path

import pytest

from vitft.system import (
    ResourceError,
    RunError,
    atomic_folder,
    read_regular,
    write_atomically,
    write_json,
    writing,
)


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")

    assert read_regular(tmp_path / "a", limit=5) == b"12345"
    with pytest.raises(OSError, match="it has 5 bytes, more than the limit of 4") as refused:
        read_regular(tmp_path / "a", limit=4)
    assert refused.value.errno == errno.EFBIG


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(OSError, match="not a regular file"):
        read_regular(tmp_path / "pipe", limit=5)


@pytest.mark.parametrize("content", ["a\u00e4", b"a\xc3\xa4", [b"a", memoryview(b"\xc3\xa4")]])
def test_a_file_is_replaced_as_a_whole(
    tmp_path: Path, content: str | bytes | list[bytes | memoryview]
) -> None:
    (tmp_path / "a").write_text("old and longer")

    write_atomically(tmp_path / "a", content)

    assert (tmp_path / "a").read_bytes() == b"a\xc3\xa4"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_json_is_indented_strict_and_ends_with_a_line_break(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"x": [1], "y": "\u00e4"})

    text = (tmp_path / "a").read_text()
    assert text == '{\n  "x": [\n    1\n  ],\n  "y": "\\u00e4"\n}\n'
    assert json.loads(text) == {"x": [1], "y": "\u00e4"}
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(tmp_path / "a", {"x": float("nan")})
    assert (tmp_path / "a").read_text() == text


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.ENOSPC, ResourceError, "disk full while writing x\n"),
        (errno.EFBIG, ResourceError, "disk full while writing x\n"),
        (errno.EDQUOT, ResourceError, "disk full while writing x\n"),
        (errno.EIO, ResourceError, "I/O error while writing x\n"),
        (errno.EACCES, RunError, r"cannot write x: permission denied\n.*folder with --charts"),
    ],
)
def test_errors_of_writing_are_told_apart(number: int, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message), writing(Path("x"), option="--charts"):
        raise OSError(number, os.strerror(number))


def test_a_folder_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "a" / "new"

    with atomic_folder(out) as folder:
        (folder / "x").write_text("1")
        assert not out.exists()
    assert (out / "x").read_text() == "1"
    with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "b") as folder:
        (folder / "x").write_text(str(1 / 0))

    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["new"]


def test_an_empty_folder_is_replaced_and_one_that_is_or_gets_used_is_not(tmp_path: Path) -> None:
    def use(name: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch()

    (tmp_path / "empty").mkdir()
    use("used")
    errors: dict[str, str] = {}

    for name in ("empty", "used", "later"):
        try:
            with atomic_folder(tmp_path / name) as folder:
                (folder / "x").touch()
                if name == "later":
                    use(name)
        except RunError as error:
            errors[name] = str(error)

    assert [*errors] == ["used", "later"]
    assert all("cannot write" in text for text in errors.values())
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*/*"))
    assert found == ["empty/x", "later/mine", "used/mine"]
