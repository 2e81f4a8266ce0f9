"""What `vitft finetune` prints when the disk is full, followed to the letter."""

import re
import shlex
from pathlib import Path

import pytest

from tests.support.fail_points import FailPoints
from vitft.cli.main import main


@pytest.mark.parametrize(
    "at", ["write .config.toml", "write .split.csv", "write .model.safetensors"]
)
def test_the_fix_after_a_full_disk_works(
    few: Path, tiny_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], at: str
) -> None:
    command = ["finetune", "--data", str(few), "--weights", str(tiny_weights)]
    command += ["--cache", "none", "--out"]
    with FailPoints(tmp_path / "whole") as points:
        assert main([*command, str(tmp_path / "whole")]) == 0
    number = next(i for i, call in enumerate(points.calls) if call.startswith(at))

    with FailPoints(tmp_path / "run", number, "ENOSPC"):
        assert main([*command, str(tmp_path / "run")]) == 6

    fix = capsys.readouterr().err.rpartition("fix: ")[2]
    assert fix.startswith("free some space ")
    found = re.search("continue with `vitft (.*)`", fix)
    assert bool(found) == (at == "write .model.safetensors")
    assert main(shlex.split(found[1]) if found else [*command, str(tmp_path / "run")]) == 0


def test_demo_images_that_do_not_fit_on_the_disk_are_an_error_and_leave_nothing(
    tiny_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    command = ["finetune", "--data", "demo", "--weights", str(tiny_weights), "--cache", "none"]

    with FailPoints(here, 20, "ENOSPC"):
        assert main(command) == 6

    assert "disk full while writing demo_flowers" in capsys.readouterr().err
    assert not [*here.iterdir()]
    assert main([*command, "--dry-run"]) == 0
