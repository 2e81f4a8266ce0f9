"""Whatever call to the disk is the last one, or fails: old files stay whole, no half one is named.

The whole commands are tried so by `python -m benchmarks.faults.fail_points`.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import save_model
from tests.support.fail_points import ERRORS, KILL, FailPoints, Killed
from tests.training.test_state import state
from vitft.cli.main import main
from vitft.features import Store, key_of
from vitft.models import VisionTransformer
from vitft.system import ResourceError, RunDir, RunError, atomic_folder, write_atomically
from vitft.training import newest_state, remove_states, save_state

HOWS = [KILL, *ERRORS]
Write = Callable[[Path], None]
Look = Callable[[Path], None]


def every_point(tmp_path: Path, how: str, before: Write, write: Write, look: Look) -> int:
    """Fail at each call of `write` in turn, in fresh folders; return the number of calls."""
    count = at = 0
    while at <= count:
        home = tmp_path / f"{how}-{at}"
        home.mkdir()
        before(home)
        failed, told = False, None
        with FailPoints(home, at, how) as points:
            try:
                write(home)
            except Killed:
                failed = True
            except (ResourceError, RunError) as error:
                failed = True
                told = error
        count = len(points.calls)
        if told is not None:
            assert isinstance(told, ResourceError) == (how != "EACCES")
            assert "\n" not in told.problem
        if failed or at < count:
            look(home)
        at += 1
    return count


def save(home: Path, step: int) -> None:
    save_state(home / "resume", state(step))


@pytest.mark.parametrize("how", HOWS)
def test_a_state_that_cannot_be_saved_leaves_one_that_can_be_resumed(
    tmp_path: Path, how: str
) -> None:
    def before(home: Path) -> None:
        save(home, 1)
        save(home, 2)

    def look(home: Path) -> None:
        found = newest_state(home / "resume")
        assert found is not None
        step = found.facts["step"]
        assert step in (2, 3)
        assert torch.equal(found.tensors["x"], torch.full((3,), float(step)))
        assert torch.equal(found.best["w"], state(step).best["w"])
        save(home, 4)
        assert len([*(home / "resume").glob("state-*")]) == 2
        remove_states(home / "resume")
        assert not (home / "resume").exists()

    points = every_point(tmp_path, how, before, lambda home: save(home, 3), look)

    assert points >= 8


@pytest.mark.parametrize("how", HOWS)
def test_a_file_is_the_old_one_or_the_new_one(tmp_path: Path, how: str) -> None:
    def before(home: Path) -> None:
        (home / "a.json").write_text("old")

    def look(home: Path) -> None:
        assert (home / "a.json").read_text() in ("old", "new")
        assert how == KILL or [path.name for path in home.iterdir()] == ["a.json"]

    points = every_point(
        tmp_path, how, before, lambda home: write_atomically(home / "a.json", "new"), look
    )

    assert points >= 4


@pytest.mark.parametrize("how", HOWS)
def test_a_folder_gets_its_name_when_all_of_it_is_there(tmp_path: Path, how: str) -> None:
    def write(home: Path) -> None:
        with atomic_folder(home / "export") as fresh:
            write_atomically(fresh / "config.json", "{}")
            write_atomically(fresh / "model", "weights")

    def look(home: Path) -> None:
        if (home / "export").exists():
            assert sorted(p.name for p in (home / "export").iterdir()) == ["config.json", "model"]
            assert (home / "export" / "model").read_text() == "weights"

    assert every_point(tmp_path, how, lambda _: None, write, look) > 10


@pytest.mark.parametrize("how", HOWS)
def test_rows_that_were_written_are_continued(
    tmp_path: Path, tiny_vit: VisionTransformer, how: str
) -> None:
    save_model(tmp_path / "m.safetensors", tiny_vit, "abc")
    names = [str(tmp_path / f"{i}.png") for i in range(3)]
    for name in names:
        Image.new("RGB", (16, 16), "red").save(name)

    def answer(home: Path) -> None:
        out = ["--out", str(home / "rows.csv"), "--resume"]
        code = main(["predict", *names, "--run", str(tmp_path / "m.safetensors"), *out])
        if code:
            raise (ResourceError if code == 6 else RunError)("rows are missing", fix="")

    def look(home: Path) -> None:
        answer(home)
        told = [line.split(",")[0] for line in (home / "rows.csv").read_text().splitlines()]
        assert told == ["path", *names]
        assert [path.name for path in home.iterdir()] == ["rows.csv"]

    assert every_point(tmp_path, how, lambda _: None, answer, look) > 8


@pytest.mark.parametrize("how", HOWS)
def test_the_cache_has_a_row_or_computes_it_again(tmp_path: Path, how: str) -> None:
    row, key = np.arange(3, dtype=np.float32), key_of("a")

    def opened(home: Path) -> Store:
        return Store(home / "cache", {"weights": "w"}, (3,), "float32")

    def write(home: Path) -> None:
        store = opened(home)
        store.add({key: row})
        store.flush()

    def look(home: Path) -> None:
        found = opened(home).get(key)
        assert found is None or np.array_equal(found, row)
        write(home)
        again = opened(home)
        assert np.array_equal(again.get(key), row)  # type: ignore[arg-type]
        assert again.damaged == 0

    assert every_point(tmp_path, how, lambda _: None, write, look) > 8


@pytest.mark.parametrize("how", HOWS)
def test_a_log_line_is_written_whole_or_truncated_to_the_size_in_the_state(
    tmp_path: Path, how: str
) -> None:
    first = '{"epoch": 1}\n'

    def look(home: Path) -> None:
        assert how not in ("ENOSPC", "EIO") or (home / "metrics.jsonl").read_text() == first
        RunDir(home).cut_log(len(first))
        assert (home / "metrics.jsonl").read_text() == first

    def log(home: Path, epoch: int = 2) -> None:
        RunDir(home).log({"epoch": epoch})

    assert every_point(tmp_path, how, lambda home: log(home, 1), log, look)


@pytest.mark.parametrize("how", [*ERRORS])
def test_states_that_cannot_be_removed_do_not_spoil_a_finished_run(
    tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 1)

    with FailPoints(tmp_path, 0, how) as points:
        remove_states(tmp_path / "resume")

    assert points.calls[0].startswith("unlink")
    assert "cannot remove" in capsys.readouterr().err
