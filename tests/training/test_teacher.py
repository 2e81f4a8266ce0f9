"""`--teacher RUN`: a student is fitted to the teacher's probabilities and to the labels."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, one_hot

import vitft
from tests.conftest import tiny_home
from tests.training.test_distributed import EXACT, check_same_run, launch, options_of
from tests.training.test_stages import outcome, stop_after
from vitft.cli.main import main
from vitft.data import Images
from vitft.models import load_checkpoint, save_checkpoint

STEPS = {"optim.epochs": 2, "optim.batch_size": 8, "optim.label_smoothing": 0.0}


def finetune(data: Path, weights: Path, out: Path, /, *, train: str = "head", **more: Any) -> Path:
    settings = more.pop("settings", {})
    options = {"data": data, "weights": weights, "out": out, "device": "cpu", **more}
    return vitft.finetune(train=train, settings=settings, **options).run


def tensors(run: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(run / "model.safetensors")[0]


@pytest.fixture
def teacher(few: Path, tiny_weights: Path, tmp_path: Path) -> Path:
    """A run that is right about all training images."""
    return finetune(few, tiny_weights, tmp_path / "teacher")


def scaled(run: Path, out: Path, factor: float) -> Path:
    """Write the model of a run with its head multiplied, and the classes in another order."""
    state, card = load_checkpoint(run / "model.safetensors")
    order = [2, 0, 1]
    head = {n: factor * state[n][order] for n in ("head.weight", "head.bias")}
    classes = tuple(card.classes[i] for i in order)
    out.parent.mkdir(exist_ok=True)
    save_checkpoint(out, {**state, **head}, replace(card, classes=classes))
    return out


@pytest.mark.parametrize("layers", ["head", "blocks:1", "lora", "all", "head,all"])
def test_a_teacher_without_doubts_teaches_the_labels(
    few: Path, tiny_weights: Path, teacher: Path, tmp_path: Path, layers: str
) -> None:
    certain = scaled(teacher, tmp_path / "certain" / "model.safetensors", 1e4)
    plain = finetune(few, tiny_weights, tmp_path / "a", train=layers, settings=STEPS)
    own: Any = {"teacher": certain, "settings": {**STEPS, "train.teacher_weight": 1}}
    taught = finetune(few, tiny_weights, tmp_path / "b", train=layers, **own)

    pairs = zip(tensors(plain).values(), tensors(taught).values(), strict=True)
    same = [cosine_similarity(a.flatten(), b.flatten(), dim=0) for a, b in pairs if a.norm()]
    assert min(same) > 0.9999


def test_the_loss_is_the_cross_entropy_with_labels_and_softened_probabilities(
    few: Path, tiny_weights: Path, teacher: Path, tmp_path: Path
) -> None:
    doubtful = scaled(teacher, tmp_path / "doubtful" / "model.safetensors", 0.1)
    settings = {**STEPS, "optim.lr": 1e-12, "train.precision": "fp32", "train.teacher_weight": 0.3}
    out = tmp_path / "student"
    finetune(few, tiny_weights, out, train="head,blocks:1", teacher=doubtful, settings=settings)
    manifest = Images.from_csv(out / "split.csv", few)
    paths = [few / row.path for row in manifest.train]

    def logits(run: Path) -> torch.Tensor:
        model = vitft.load(run, device="cpu")
        order = [model.classes.index(name) for name in manifest.classes]
        return torch.tensor(np.array([one.logits for one in model.predict(paths)]))[:, order]

    temperature = json.loads((out / "eval.json").read_text())["calibration"]["temperature"]
    student = (temperature * logits(out)).log_softmax(dim=1)
    labels = torch.tensor([row.label for row in manifest.train])
    targets = 0.7 * one_hot(labels, 3) + 0.3 * (logits(doubtful) / 2).softmax(dim=1)
    line = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    loss = -(targets * student).sum(dim=1).mean().item()
    assert line["train_loss"] == pytest.approx(loss, abs=1e-4)


def test_a_run_with_a_teacher_is_resumed_exactly_and_only_with_that_teacher(
    few: Path,
    tiny_weights: Path,
    teacher: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options: Any = {"train": "all", "teacher": teacher, "settings": {**STEPS, "train.mixup": 0.2}}
    whole = finetune(few, tiny_weights, tmp_path / "whole", **options)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        stopped = finetune(few, tiny_weights, tmp_path / "stopped", **options)
    moved = teacher.rename(tmp_path / "moved")
    resume = ["finetune", "--resume", str(stopped), "--teacher", str(moved)]
    original = (moved / "model.safetensors").read_bytes()
    scaled(moved, moved / "model.safetensors", 2.0)

    assert main(resume) == 5
    assert "has changed since the start of the run" in capsys.readouterr().err
    new = ["finetune", "--recipe", str(whole / "config.toml"), "--teacher", str(moved)]
    assert main([*new, "--dry-run"]) == 0
    (moved / "model.safetensors").write_bytes(original)
    assert main(resume) == 0
    assert outcome(stopped) == outcome(whole)


@pytest.mark.long
def test_two_processes_share_the_teacher(tmp_path: Path) -> None:
    home = tiny_home(tmp_path / "home")
    teacher = finetune(home / "data", home / "w.safetensors", tmp_path / "teacher")
    taught = [*EXACT, "--teacher", str(teacher)]

    assert main(["finetune", *options_of(home, tmp_path / "one"), *taught]) == 0
    two = launch(home, *options_of(home, tmp_path / "two"), *taught)

    assert two.returncode == 0, two.stderr
    assert two.stderr.count("Teacher   ") == 1
    check_same_run(tmp_path / "two", tmp_path / "one")
