"""The accuracy that answers are expected to have, from their probabilities."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitft.cli.main import main

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
    assert main(["finetune", "--data", "demo", "--set", "train.cache=none"]) == 0
    noise = np.random.default_rng(0).integers(0, 256, (30, 64, 64, 3), np.uint8)
    for folder, number in (("noise", 30), ("few", 19)):
        Path(folder).mkdir()
        for i, pixels in enumerate(noise[:number]):
            Image.fromarray(pixels).save(f"{folder}/{i}.png")

    known, probabilities, unlike = predicted("demo_flowers", capsys)
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
