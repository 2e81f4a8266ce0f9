"""Unusual environments, working directories and spellings of paths."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.export_run import make_run
from tests.support.limits import HANG_S
from vitft.cli.main import main

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with run/ and photos/, three images of each of three classes."""
    home = tmp_path_factory.mktemp("made")
    make_run(home)
    return home


def vitft(
    *arguments: str, cwd: Path, before: str = "", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    code = f"import sys\n{before}\nfrom vitft.__main__ import run\nsys.argv[0] = 'vitft'\nrun()"
    return subprocess.run(
        # -P: as for the installed command, the working directory is not in sys.path
        [sys.executable, "-P", "-c", code, *arguments],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        timeout=HANG_S,
        check=False,
    )


def predict(made: Path, folder: str = "photos", *, before: str = "", **environment: str) -> bytes:
    """Return the rows of a prediction, which must succeed without a traceback."""
    given = ["predict", str(made / folder), "--run", str(made / "run"), "--format", "csv"]
    done = vitft(*given, cwd=made, before=before, **environment)
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return done.stdout


@POSIX
@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="no home"),
        pytest.param({"HOME": "/proc/none"}, id="home not writable"),
        pytest.param({"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"}, id="no UTF-8"),
        pytest.param({"NO_COLOR": "1"}, id="no colour"),
        pytest.param({"TERM": "dumb"}, id="dumb terminal"),
        pytest.param({"PYTHONOPTIMIZE": "1"}, id="python -O"),
    ],
)
def test_the_environment_does_not_change_the_answers(
    made: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    rows = predict(made, **environment)

    assert rows == predict(made, HOME=str(tmp_path))
    assert rows.count(b"\n") == 10
    assert b"\x1b" not in rows


@POSIX
def test_a_deleted_working_directory_does_not_matter_to_absolute_paths(
    made: Path, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()

    before = f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r})"
    rows = predict(made, "photos/0", before=before)  # few images: oneMKL, in torch, needs a folder

    assert rows.count(b"\n") == 4


@POSIX
def test_few_open_files_are_enough(made: Path) -> None:
    rows = predict(made, before="import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (40, 40))")

    assert rows.count(b"\n") == 10


@pytest.fixture
def few_inodes(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory that has room for eight files and folders."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=9", "tmpfs", str(place)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a file system cannot be mounted here: {error}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("files", [0, 4, 7, 8])
def test_a_disk_without_inodes_ends_a_run_with_6_and_the_way_out(
    few_inodes: Path, few: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str], files: int
) -> None:
    for number in range(files):
        (few_inodes / f"{number}.txt").write_text("earlier")
    run = few_inodes / "run"
    options = ["--weights", str(tiny_weights), "--train", "all", "--epochs", "1"]

    code = main(["finetune", "--data", str(few), "--out", str(run), *options])

    *_, error, fix = capsys.readouterr().err.splitlines()
    assert code == 6
    assert error.startswith(f"vitft: error: disk full while writing {few_inodes}")
    assert "df -i" in fix
    assert all((few_inodes / f"{n}.txt").read_text() == "earlier" for n in range(files))


def predicted(capsys: pytest.CaptureFixture[str], run: str, *images: str) -> list[str]:
    capsys.readouterr()
    assert main(["predict", "--run", run, "--format", "jsonl", "--", *images]) == 0
    return [json.loads(line)["path"] for line in capsys.readouterr().out.splitlines()]


def test_a_tilde_in_the_path_of_data_and_run_is_the_home_folder(
    image_folder: Path, tiny_weights: Path, own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(image_folder, own_home / "photos")
    given = ["--data", "~/photos", "--weights", str(tiny_weights), "--cache", "none"]

    assert main(["finetune", *given, "--out", "~/run"]) == 0
    assert (own_home / "run" / "report.html").is_file()
    assert predicted(capsys, "~/run", str(image_folder / "red" / "000.png"))
