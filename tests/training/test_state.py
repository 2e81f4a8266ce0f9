"""Training states on disk."""

import os
import platform
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import tiny_home
from vitft.cli.main import main
from vitft.system.errors import ResourceError, RunError
from vitft.system.rundir import read_environment
from vitft.training.state import (
    State,
    list_states,
    newest_state,
    read_state,
    remove_states,
    remove_temporary_files,
    save_state,
    write_state,
)

WEIGHTS = {"w": torch.arange(6.0)}


def state(step: int, best_file: str = "") -> State:
    return State({"x": torch.full((3,), float(step))}, facts_of_step(step, best_file))


def facts_of_step(step: int, best_file: str = "") -> dict[str, Any]:
    tally = {"first_loss": 1.0, "steps": 1, "images": 8, "correct": 4, "total": 9.0, "lr": 0.1}
    best = {"epochs": 0, "since": 0, "figures": None, "extra": None}
    return {
        "step": step, "micro_batch": 4, "scaler": {}, "stage": 0, "epochs": 0, "tally": tally,
        "best": best, "best_file": best_file, "log_bytes": 0,
    }  # fmt: skip


def saved(folder: Path, *steps: int) -> None:
    for step in steps:
        save_state(folder, 0, step, state(step), WEIGHTS)


def test_the_newest_state_reads_back_with_its_best_weights(tmp_path: Path) -> None:
    saved(tmp_path / "resume", 9, 10, 100)

    found = newest_state(tmp_path / "resume")

    assert found is not None
    assert found[0].facts["step"] == 100
    assert torch.equal(found[0].tensors["x"], torch.full((3,), 100.0))
    assert torch.equal(found[1]["w"], WEIGHTS["w"])


def test_the_newest_state_is_that_of_the_last_step_whatever_the_clock_says(tmp_path: Path) -> None:
    saved(tmp_path, 9, 10)
    for step, name in enumerate(sorted(path.name for path in tmp_path.rglob("*"))):
        os.utime(tmp_path / name, (10**9 - step, 10**9 - step))  # later names, earlier times

    found = newest_state(tmp_path)
    saved(tmp_path, 11)  # the clock has been put back: its files are to be kept

    assert found is not None
    assert found[0].facts["step"] == 10
    kept = newest_state(tmp_path)
    assert kept is not None
    assert kept[0].facts["step"] == 11


def test_a_later_stage_is_newer_whatever_its_step(tmp_path: Path) -> None:
    save_state(tmp_path, 0, 500, state(500), WEIGHTS)
    save_state(tmp_path, 1, 2, state(2), None)

    found = newest_state(tmp_path)

    assert found is not None
    assert found[0].facts["step"] == 2


def test_two_states_are_kept_and_the_best_weights_that_they_name(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    for step in (3, 4, 5):
        save_state(tmp_path, 0, step, state(step, "best-0-00000002.safetensors"), None)

    assert [path.name for path in list_states(tmp_path)] == [
        "state-0-00000005.safetensors",
        "state-0-00000004.safetensors",
    ]
    assert [path.name for path in tmp_path.glob("best-*")] == ["best-0-00000002.safetensors"]


def test_only_unfinished_files_are_removed(tmp_path: Path) -> None:
    for name in (".model.safetensors.0123456789ab", ".lock", ".notes.txt", "x.0123456789ab"):
        (tmp_path / name).write_bytes(b"")

    remove_temporary_files(tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == {".lock", ".notes.txt", "x.0123456789ab"}


def test_a_folder_without_states_has_no_newest_state(tmp_path: Path) -> None:
    assert newest_state(tmp_path / "resume") is None


@pytest.mark.parametrize("kind", ["state", "best"])
def test_a_damaged_state_is_renamed_and_the_one_before_is_used(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(0)
    for round_ in range(60):
        folder = tmp_path / str(round_)
        saved(folder, 1, 2)
        path = folder / f"{kind}-0-00000002.safetensors"
        mutant = bytearray(path.read_bytes())
        if rng.random() < 0.3:
            del mutant[rng.randrange(len(mutant)) :]
        else:
            mutant[rng.randrange(len(mutant))] ^= 1 << rng.randrange(8)
        path.write_bytes(mutant)

        found = newest_state(folder)

        assert found is not None
        assert found[0].facts["step"] == 1
        assert path.with_name(path.name + ".damaged").exists()
        assert "damaged" in capsys.readouterr().err


def test_damaged_states_alone_are_an_error(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    for path in list_states(tmp_path):
        path.write_bytes(b"")

    with pytest.raises(RunError, match=r"all training states in .* are damaged"):
        newest_state(tmp_path)


def test_a_full_disk_leaves_the_older_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 1, 2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ResourceError, match="disk full"):
        saved(tmp_path, 3)

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_finished_run_keeps_only_damaged_states(tmp_path: Path) -> None:
    saved(tmp_path / "a", 1)
    saved(tmp_path / "b", 1)
    (tmp_path / "b" / "state-0-00000000.safetensors.damaged").write_bytes(b"")

    remove_states(tmp_path / "a")
    remove_states(tmp_path / "b")

    assert not (tmp_path / "a").exists()
    assert len(list((tmp_path / "b").iterdir())) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"best_file": "../../model.safetensors"},
        {"best_file": "/etc/passwd"},
        {"step": -1},
        {"step": "1"},
        {"stage": None},
        {"tally": {}},
        {"best": {"epochs": 1}},
        {"log_bytes": 10**30},
        {"scaler": 5},
    ],
    ids=str,
)
def test_facts_of_a_wrong_type_or_outside_the_folder_are_damage_despite_a_valid_digest(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "state-0-00000001.safetensors"

    write_state(path, {"x": torch.zeros(3)}, facts_of_step(1))
    assert read_state(path) is not None
    write_state(path, {"x": torch.zeros(3)}, facts_of_step(1) | change)

    assert read_state(path) is None


@pytest.mark.parametrize(("threads", "is_said"), [(1, False), (2, True)])
def test_a_resumed_run_says_if_another_number_of_threads_changes_its_rounding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], threads: int, is_said: bool
) -> None:
    home = tiny_home(tmp_path)
    out = tmp_path / "run"
    words = ["--data", str(home / "data"), "--weights", str(home / "w.safetensors")]
    words += ["--solver", "adamw", "--epochs", "3", "--out", str(out)]
    first = f"cpu ({platform.machine()}, 1 thread) in "
    assert main(["finetune", *words, "--max-time", "0.001s"]) == 0
    assert list_states(out / "resume")
    torch.set_num_threads(threads)

    assert main(["finetune", "--resume", str(out)]) == 0

    note = f"note:       earlier steps were computed on {first}"
    assert (note in capsys.readouterr().err) == is_said
    known = read_environment(out / "environment.json")
    assert known is not None
    assert [text.startswith(first) for text in known.get("earlier", [])] == [True] * is_said
    assert ("before it was resumed" in (out / "report.html").read_text()) == is_said
