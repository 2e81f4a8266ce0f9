"""Evaluation of a trained model on labelled images."""

import json
from pathlib import Path

import torch

from tests.training.test_run import run_it
from vitft.data import find_labelled
from vitft.messages import class_table
from vitft.metrics import classification_metrics
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
    found = classification_metrics(logits, labels, [f"class{i}" for i in range(40)])

    headings, rows = class_table(found, details=False)

    assert headings[-1] == "mostly mistaken for"
    assert len(rows) == 30
    assert not {f"class{i}" for i in range(5, 15)} & {row[0] for row in rows}
    assert all(row[-1] for row in rows if row[2] == "0.0%")
