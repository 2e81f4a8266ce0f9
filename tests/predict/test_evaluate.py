"""Evaluation of a trained model, its expected accuracy, and counts of several processes."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.training.test_run import run_it
from vitft.cli.main import main
from vitft.data import draw_demo, find_labelled
from vitft.messages import class_table
from vitft.metrics import Outputs, classification_metrics
from vitft.predict import evaluate


def test_the_error_before_calibration_is_that_of_the_logits_times_the_temperature(
    image_folder: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    run = run_it(image_folder, tiny_weights, tmp_path / "run", optim={"solver": "lbfgs"}).run
    kept = json.loads((run / "eval.json").read_text())
    kept["calibration"]["temperature"] = 0.02  # before, every class was nearly as likely
    (run / "eval.json").write_text(json.dumps(kept))

    found = evaluate(find_labelled(image_folder), str(run), device="cpu").results

    calibration = found["calibration"]
    assert calibration is not None
    assert calibration["temperature"] == 0.02
    assert calibration["ece_before"] is not None
    assert calibration["ece_before"] > calibration["ece"] + 0.3


def test_of_many_classes_those_of_lowest_recall_are_listed() -> None:
    labels = torch.arange(40)
    logits = torch.randn(40, 40, generator=torch.Generator().manual_seed(0))
    logits[5:15, 5:15] += 100 * torch.eye(10)
    found = classification_metrics(logits, labels, Outputs.of(f"class{i}" for i in range(40)))

    headings, rows = class_table(found, details=False)

    assert headings[-1] == "mostly predicted as"
    assert len(rows) == 30
    assert not {f"class{i}" for i in range(5, 15)} & {row[0] for row in rows}
    assert all(row[-1] for row in rows if row[2] == "0.0%")


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


UNLIKE = "unlike the training images"


def predicted(images: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, list[float], float]:
    """Predict a folder; return the line on the accuracy, the probabilities and the part unlike."""
    assert main(["predict", images, "--out", f"{images}.csv"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("expected:")]
    rows = list(csv.DictReader(Path(f"{images}.csv").read_text("utf-8").splitlines()))
    unlike = [UNLIKE in row["notes"] for row in rows]
    return "".join(lines), [float(row["probability"]) for row in rows], sum(unlike) / len(unlike)


def test_the_mean_probability_is_stated_and_foreign_images_count_as_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    draw_demo(Path("flowers"), size=64)
    train = ["finetune", "--data", "flowers", "--weights", "demo", "--cache", "none"]
    assert main(train) == 0
    noise = np.random.default_rng(0).integers(0, 256, (30, 64, 64, 3), np.uint8)
    for folder, number in (("noise", 30), ("few", 19)):
        Path(folder).mkdir()
        for i, pixels in enumerate(noise[:number]):
            Image.fromarray(pixels).save(f"{folder}/{i}.png")

    known, probabilities, unlike = predicted("flowers", capsys)
    excess = max(0.0, unlike - 0.02) * len(probabilities)
    foreign, *_ = predicted("noise", capsys)
    few, *_ = predicted("few", capsys)

    assert excess < 1
    found = re.search(r"about (\d+)% of these answers to be right \(accuracy of the run: ", known)
    assert found
    assert int(found[1]) == pytest.approx(100 * np.mean(probabilities), abs=1)
    assert UNLIKE not in known
    assert re.match(r"expected: about [12] to \d\d% of these answers to be right", foreign)
    assert f"100% are {UNLIKE}, usually 2%, and the lower number counts" in foreign
    assert few == ""
