"""A resumed run uses the weights that it began with, or is refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.training_data import file_digest
from tests.training.test_stages import outcome
from vitft.cli.main import main
from vitft.models import Provenance, load_checkpoint, save_checkpoint

pytestmark = pytest.mark.long

OLD, NEW = "0" * 39 + "1", "0" * 39 + "2"


@pytest.fixture
def words(few: Path) -> list[str]:
    trained = ["--train", "blocks:1", "--epochs", "2", "--batch-size", "8", "--lr", "0.01"]
    return ["finetune", "--data", str(few), *trained]


def change(weights: Path) -> None:
    """Write other numbers of the same names and shapes."""
    state, card = load_checkpoint(weights)
    save_checkpoint(weights, {k: v + 0.1 * torch.ones_like(v) for k, v in state.items()}, card)


def test_weights_that_were_replaced_since_the_start_are_refused(
    words: list[str], tiny_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, before = tmp_path / "run", file_digest(tiny_weights)
    words += ["--weights", str(tiny_weights), "--out", str(run)]
    assert main([*words, "--max-time", "0.001s"]) == 0
    kept = tiny_weights.read_bytes()
    change(tiny_weights)

    assert main(["finetune", "--resume", str(run)]) == 5

    assert capsys.readouterr().err.endswith(
        f"vitft: error: the weights {tiny_weights} have changed since the start of the run (sha256 "
        f"was {before[:12]} and is now {file_digest(tiny_weights)[:12]})\n"
        "  fix: restore the original weights, or start a new run\n"
    )
    tiny_weights.write_bytes(kept)
    assert main(["finetune", "--resume", str(run)]) == 0
    assert not (run / "resume").exists()


@pytest.mark.parametrize("name", ["hf:a/b", "hf:a/b@branch"])
def test_a_run_is_resumed_with_the_commit_that_it_began_with(
    words: list[str], tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    old, new = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    for path in (old, new):
        shutil.copy(tiny_weights, path)
    change(new)
    newest, asked = OLD, list[str]()

    def fetch(entry: Any, *, allow_pickle: bool) -> tuple[Path, Provenance]:
        assert not allow_pickle
        asked.append(entry.revision)
        commit = entry.revision if entry.revision in (OLD, NEW) else newest
        path = old if commit == OLD else new
        return path, {"name": name, "source": name, "revision": commit, "sha256": file_digest(path)}

    monkeypatch.setattr("vitft.models.pretrained.weights.fetch", fetch)
    words += ["--weights", name]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    assert main([*words, "--out", str(tmp_path / "run"), "--max-time", "0.001s"]) == 0
    newest = NEW
    assert main(["finetune", "--resume", str(tmp_path / "run"), "--weights", name]) == 0

    branch = name.partition("@")[2] or "main"
    assert asked == [branch, branch, OLD]
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    _, card = load_checkpoint(tmp_path / "run" / "model.safetensors")
    assert (card.weights["name"], card.weights["revision"]) == (name, OLD)


@pytest.mark.parametrize("content", [None, "{}", "[1]", '{"sha256": 1}'])
def test_a_run_without_a_record_of_its_weights_is_resumed_but_damage_is_refused(
    words: list[str], tiny_weights: Path, tmp_path: Path, capsys: Any, content: str | None
) -> None:
    run = tmp_path / "run"
    stop = ["--weights", str(tiny_weights), "--out", str(run), "--max-time", "0.001s"]
    assert main([*words, *stop]) == 0
    record = run / "resume" / "weights.json"
    record.unlink()  # as in a run of an earlier version
    if content is not None:
        record.write_text(content)

    is_damaged = content not in (None, "{}")
    assert main(["finetune", "--resume", str(run)]) == 5 * is_damaged
    assert ("damaged run: " in capsys.readouterr().err) == is_damaged
