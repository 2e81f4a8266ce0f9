"""What `vitft demo` prints."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from vitft.cli.main import main
from vitft.predict.prediction import Prediction


def test_the_demo_prints_predictions_accuracies_and_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prediction = Prediction(path="a.png", classes=("rose", "lily"), probabilities=(0.9, 0.1))
    done = SimpleNamespace(
        predictions=[prediction],
        pretrained={"top1": 0.95, "top1_interval": (0.9, 0.98)},
        random={"top1": 0.5, "top1_interval": (0.4, 0.6)},
        export_difference=1.2e-6,
        export_images=1,
        report=Path("r/report.html"),
        export=Path("r/export"),
    )
    monkeypatch.setattr("vitft.training.demo.run_demo", lambda: done)

    assert main(["demo"]) == 0

    printed = capsys.readouterr().out.splitlines()
    lines = [" ".join(line.split()) for line in printed]
    assert printed[5:7] == [
        "pretrained on generated images     95.0%  90.0 to 98.0%",
        "randomly initialised               50.0%  40.0 to 60.0%",
    ]
    assert lines[:2] == ["path prediction", "a.png rose 90.0%, lily 10.0%"]
    assert lines[3:7] == [
        "same images, split and training budget:",
        "backbone accuracy 95% interval",
        "pretrained on generated images 95.0% 90.0 to 98.0%",
        "randomly initialised 50.0% 40.0 to 60.0%",
    ]
    assert lines[7] == "largest logit difference between the export and the run: 1.2e-06 on 1 image"
    assert lines[8].endswith(", report: r/report.html, export: r/export/")
    assert lines[9].startswith("next: vitft finetune --data FOLDER")
