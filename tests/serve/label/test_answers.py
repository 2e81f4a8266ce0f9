"""The file of answers: appending, undoing, recovery after a crash, and files of other programs."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vitft.serve.label.answers import Answer, AnswerFile, lock_holder
from vitft.system.errors import DataError, LockedError, ResourceError, RunError

HEADER = b"path,label,chosen\n"
ROSE, TULIP = Answer("a.jpg", "rose", "picked"), Answer("b,1.jpg", "tulip", "audit")
SKIP = Answer("c.jpg", "", "skipped")


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


def test_the_file_has_the_usual_permissions(tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    usual.write_bytes(b"")

    with AnswerFile(tmp_path / "labels.csv"):
        pass

    assert (tmp_path / "labels.csv").stat().st_mode == usual.stat().st_mode


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
    answers = [Answer(name, "klass ä", "picked") for name in names]
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"path,label\na.jpg,rose\n", "its columns are path, label instead of path, label, chosen"),
        (b"path;label;chosen\n", "its columns are path;label;chosen instead"),
        (HEADER + b"a.jpg,rose\nb.jpg,tulip,picked\n", "line 2: found 2 cells instead of 3"),
        (
            HEADER + b"a.jpg,rose,guessed\n",
            "line 2: the column chosen contains 'guessed' instead of",
        ),
        (HEADER + b"a.jpg,,picked\n", "line 2: the label is empty"),
        (HEADER + b"a.jpg,rose,skipped\n", "line 2: a skipped picture has a label"),
        (HEADER + b",rose,picked\n", "line 2: the path is empty"),
        (HEADER + b'"a"b.jpg,rose,picked\n', "line 2: found 1 cell instead of 3"),
        (
            HEADER + b'"a\nb.jpg",rose,picked\n' + b"c.jpg,,picked\n",
            "line 4: the label is empty",
        ),
        (
            HEADER + b"a.jpg,rose,picked\na.jpg,,skipped\n",
            "line 3: a.jpg has two labels: rose in an earlier line, skipped in this one",
        ),
        (
            HEADER + b"\na.jpg,rose,picked\na.jpg,tulip,picked\n",
            "line 4: a.jpg has two labels: rose in an earlier line, tulip in this one",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_its_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(content)

    with pytest.raises(DataError) as caught:
        AnswerFile(path)

    assert message in str(caught.value)
    assert path.read_bytes() == content


def test_a_file_saved_by_a_spreadsheet_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(b"\xef\xbb\xbfpath,label,chosen\r\na.jpg,rose,picked\r\n")

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


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux lists locks")
def test_the_process_that_uses_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"

    with AnswerFile(path), pytest.raises(LockedError) as caught:
        AnswerFile(path)

    assert caught.value.problem == f"another vitft label process ({os.getpid()}) is using {path}"
    assert caught.value.fix.startswith(f"stop process {os.getpid()}, or ")


@pytest.mark.parametrize(
    "listed", [None, "", "1: -> FLOCK", "1: FLOCK  ADVISORY  WRITE 0 {} 0 EOF"]
)
def test_a_process_that_is_not_listed_is_found_with_lsof(
    tmp_path: Path, listed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, locks = tmp_path / "labels.csv", tmp_path / "locks"

    with AnswerFile(path) as file:
        status = os.fstat(file.descriptor)
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        if listed is not None:
            locks.write_text(listed.format(f"{device}:{status.st_ino}"))
        assert lock_holder(file.descriptor, locks) == ""
        monkeypatch.setattr("vitft.serve.label.answers.lock_holder", lambda _: "")
        with pytest.raises(LockedError, match=r"stop the process that `lsof .*` lists, or "):
            AnswerFile(path)


def test_a_path_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot write .*missing/labels.csv"):
        AnswerFile(tmp_path / "missing" / "labels.csv")


def test_a_disk_that_takes_parts_of_a_line_gets_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "labels.csv", os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))

    with AnswerFile(path) as file:
        file.append([ROSE])

    assert path.read_bytes() == HEADER + b"a.jpg,rose,picked\n"


def test_an_answer_that_cannot_be_written_is_removed_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "labels.csv", os.write

    def fail(descriptor: int, data: bytes) -> int:
        if path.stat().st_size > size:
            raise OSError(errno.ENOSPC, "no space")
        return write(descriptor, data[:5])

    with AnswerFile(path) as file:
        file.append([ROSE])
        size = path.stat().st_size
        with monkeypatch.context() as context:
            context.setattr(os, "write", fail)
            with pytest.raises(ResourceError, match="disk full while writing"):
                file.append([TULIP])
        assert path.stat().st_size == size
        assert file.answers == [ROSE]
        file.append([SKIP])
        assert file.undo() == [SKIP]

    assert path.read_bytes() == HEADER + b"a.jpg,rose,picked\n"


FULL = """
import resource, sys
from pathlib import Path
from vitft.serve.label.answers import Answer, AnswerFile, lock_holder
from vitft.system.errors import ResourceError
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
with AnswerFile(path) as file:
    file.append([Answer("a.jpg", "rose", "picked")])
    size = path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, resource.RLIM_INFINITY))
    try:
        file.append([Answer("b.jpg", "tulip", "picked")])
    except ResourceError as error:
        print(error.problem)
    print(path.stat().st_size == size)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    file.append([Answer("c.jpg", "tulip", "picked")])
"""


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"

    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines() == [f"disk full while writing {path}", "True"]
    assert path.read_bytes() == HEADER + b"a.jpg,rose,picked\nc.jpg,tulip,picked\n"
    assert ResourceError.exit_code == 6


KILLED = """
import sys
from pathlib import Path
from vitft.serve.label.answers import Answer, AnswerFile, lock_holder
with AnswerFile(Path(sys.argv[1])) as file:
    for i in range(100_000):
        file.append([Answer(f"{i}.jpg", "rose", "picked")])
        print(i, flush=True)
"""


def test_a_killed_process_loses_no_confirmed_answer(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for _ in range(20):
            child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
        confirmed = 20 + len(child.stdout.readlines())

    with AnswerFile(path) as file:
        paths = [answer.path for answer in file.answers]

    assert paths[:confirmed] == [f"{i}.jpg" for i in range(confirmed)]
    assert len(paths) <= confirmed + 1
