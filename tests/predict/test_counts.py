"""Counts of several processes."""

import json
from pathlib import Path

import pytest

from vitft.cli.main import main


@pytest.mark.long
def test_several_processes_count_the_images_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["finetune", "--data", "demo", "--set", "train.cache=none"]) == 0
    counting = ["predict", "demo_flowers", "--counts", "--format", "json"]
    capsys.readouterr()
    assert main([*counting, "--engine", "torch", "--dtype", "fp32"]) == 0
    alone = json.loads(capsys.readouterr().out)
    monkeypatch.setenv("WORLD_SIZE", "2")  # what torchrun sets

    for rank in ("1", "0"):
        assert capsys.readouterr().out == ""
        monkeypatch.setenv("RANK", rank)
        assert main([*counting, "--dtype", "fp32", "--out", "rows.csv"]) == 0

    assert json.loads(capsys.readouterr().out) == alone
    assert alone["images"] + alone["unlike"] == len(Path("rows.csv").read_text().splitlines()) - 1
