"""The file of answers: appending, undoing, recovery after a crash, and files of other programs."""

import errno
import os
import sys
from pathlib import Path

import pytest

from tests.support.children import python, started
from vitft.serve import AnswerFile
from vitft.system import DataError, LockedError, ResourceError

HEADER = b"path,label,chosen\n"
ROSE, TULIP = ("a.jpg", "rose", "picked"), ("b,1.jpg", "tulip", "audit")
SKIP = ("c.jpg", "", "skipped")


def test_each_answer_is_on_the_disk_when_append_returns(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"

    with AnswerFile(path) as file:
        assert path.read_bytes() == HEADER
        file.append([ROSE])
        assert path.read_bytes() == HEADER + b"a.jpg,rose,picked\n"
        file.append([TULIP, SKIP])

    assert (
        path.read_bytes() == HEADER + b'a.jpg,rose,picked\n"b,1.jpg",tulip,audit\nc.jpg,,skipped\n'
    )


def test_an_undo_that_fails_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    path = tmp_path / "labels.csv"
    with AnswerFile(path) as file:
        file.append([ROSE])
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", fails)
            with pytest.raises(ResourceError):
                file.undo()
        file.append([SKIP])

    assert path.read_bytes() == HEADER + b"a.jpg,rose,picked\nc.jpg,,skipped\n"


def test_a_restart_continues_and_undo_goes_back_beyond_it(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    with AnswerFile(path) as file:
        file.append([ROSE])
        file.append([TULIP, SKIP])
        assert file.undo() == [TULIP, SKIP]  # one step
        file.append([TULIP, SKIP])

    with AnswerFile(path) as file:
        assert file.answers == [ROSE, TULIP, SKIP]
        assert [file.undo() for _ in range(4)] == [[SKIP], [TULIP], [ROSE], []]

    assert path.read_bytes() == HEADER


def test_any_file_name_survives(tmp_path: Path) -> None:
    names = ["ü.jpg", 'quote".jpg', "line\nbreak.jpg", "return\r.jpg", "raw\udcff.jpg", " x .jpg"]
    answers = [(name, "klass ä", "picked") for name in names]
    with AnswerFile(tmp_path / "labels.csv") as file:
        for answer in answers:
            file.append([answer])

    with AnswerFile(tmp_path / "labels.csv") as file:
        assert file.answers == answers
        for answer in reversed(answers):
            assert file.undo() == [answer]


@pytest.mark.parametrize("cut", range(1, len('"b,1.jpg",tulip,audit\n') + 1))
def test_a_line_cut_anywhere_costs_no_other_answer(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "labels.csv"
    whole = HEADER + b'a.jpg,rose,picked\n"b,1.jpg",tulip,audit\n'
    path.write_bytes(whole[:-cut])

    with AnswerFile(path) as file:
        kept = [ROSE, TULIP] if cut == 1 else [ROSE]  # only the line break is missing
        assert file.answers == kept
        file.append([SKIP])

    with AnswerFile(path) as file:
        assert file.answers == [*kept, SKIP]


def test_a_file_saved_by_a_spreadsheet_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(b"\xef\xbb\xbfpath,label,chosen\r\n\r\na.jpg,rose,picked\r\n")

    with AnswerFile(path) as file:
        assert file.answers == [ROSE]


@pytest.mark.parametrize("change", ["write", "replace", "delete"])
def test_a_file_that_another_program_changes_is_not_overwritten(
    tmp_path: Path, change: str
) -> None:
    path = tmp_path / "labels.csv"
    with AnswerFile(path) as file:
        file.append([ROSE])
        if change == "delete":
            path.unlink()
        else:
            other = path if change == "write" else tmp_path / "other.csv"
            other.write_bytes(HEADER + b"edited.jpg,rose,picked\n")
            other.replace(path)

        for act in (lambda: file.append([TULIP]), file.undo):
            with pytest.raises(DataError, match="another program has changed"):
                act()

    assert not path.exists() or path.read_bytes() == HEADER + b"edited.jpg,rose,picked\n"


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"

    with AnswerFile(path), pytest.raises(LockedError, match="another vitft label process"):
        AnswerFile(path)

    AnswerFile(path).__exit__()  # the lock is released


FULL = """
import resource, sys
from pathlib import Path
from vitft.serve.label.answers import AnswerFile
from vitft.system.errors import ResourceError
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
with AnswerFile(path) as file:
    file.append([("a.jpg", "rose", "picked")])
    size = path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, resource.RLIM_INFINITY))
    try:
        file.append([("b.jpg", "tulip", "picked")])
    except ResourceError as error:
        print(error.problem)
    print(path.stat().st_size == size)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    file.append([("c.jpg", "tulip", "picked")])
"""


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"

    done = python(FULL, str(path), check=True)

    assert done.stdout.splitlines() == [f"disk full while writing {path}", "True"]
    assert path.read_bytes() == HEADER + b"a.jpg,rose,picked\nc.jpg,tulip,picked\n"
    assert ResourceError.exit_code == 6


KILLED = """
import sys
from pathlib import Path
from vitft.serve.label.answers import AnswerFile
with AnswerFile(Path(sys.argv[1])) as file:
    for i in range(100_000):
        file.append([(f"{i}.jpg", "rose", "picked")])
        print(i, flush=True)
"""


def test_a_killed_process_loses_no_confirmed_answer(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    with started([sys.executable, "-c", KILLED, str(path)], stderr=None) as child:
        assert child.stdout is not None
        for _ in range(20):
            child.stdout.readline()
        child.kill()
        confirmed = 20 + len(child.stdout.readlines())

    with AnswerFile(path) as file:
        paths = [path for path, *_ in file.answers]

    assert paths[:confirmed] == [f"{i}.jpg" for i in range(confirmed)]
    assert len(paths) <= confirmed + 1
