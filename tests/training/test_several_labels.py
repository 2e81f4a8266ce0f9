"""Runs on images with several labels, or none: from training to exports and refusals."""

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitft
from tests.conftest import COLOURS, tiny_home
from tests.support.chromium import Chromium
from vitft.cli.main import main
from vitft.predict import HeldOut

LABELS = ("blue", "green", "red")


def draw_patches(root: Path, images: int = 60) -> Path:
    """Draw noise with a patch of each of up to three colours, and a table of the colours."""
    random = np.random.default_rng(0)
    root.mkdir()
    rows = ["path,labels"]
    for i in range(images):
        own = [name for name in LABELS if random.random() < 0.45]
        pixels = random.normal(120, 20, (16, 16, 3))
        for name in own:
            left = 5 * LABELS.index(name)
            pixels[:, left : left + 5] = np.array(COLOURS[name]) + random.normal(0, 15, (16, 5, 3))
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(root / f"{i:02}.png")
        rows.append(f"{i:02}.png,{'|'.join(own)}")
    (root / "labels.csv").write_text("\n".join(rows) + "\n")
    return root / "labels.csv"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, weights and a run with a solved head."""
    home = tiny_home(tmp_path_factory.mktemp("several"), per_class=2)
    draw_patches(home / "patches")
    finetune(home, "run")
    return home


def finetune(home: Path, name: str, *options: str) -> dict[str, Any]:
    words = ["finetune", "--data", str(home / "patches" / "labels.csv"), "--out", str(home / name)]
    words += ["--weights", str(home / "w.safetensors"), "--device", "cpu", *options]
    assert main([*words, "--set", f"train.cache={home / 'cache'}"]) == 0
    return dict(json.loads((home / name / "eval.json").read_text()))


def test_every_engine_and_format_gives_the_same_labels(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = [str(home / "patches" / f"{i:02}.png") for i in range(5)]

    def predict(*options: str) -> str:
        capsys.readouterr()
        assert main(["predict", *images, "--run", str(home / "run"), *options]) == 0
        return capsys.readouterr().out

    table = list(csv.DictReader(io.StringIO(predict("--format", "csv"))))
    found = json.loads(predict("--format", "json", "--engine", "torch"))
    trained = vitft.load(home / "run", device="cpu")

    assert [name for name in table[0] if name.startswith("prob")] == [
        f"probability_{name}" for name in LABELS
    ]
    for row, one, prediction in zip(table, found, trained.predict(images), strict=True):
        chances = {c["class"]: c["probability"] for c in one["classes"]}
        limits = zip(LABELS, trained.thresholds, strict=True)
        assert row["labels"] == "|".join(sorted(one["labels"])) == prediction.answer
        assert {*one["labels"]} == {name for name, limit in limits if chances[name] >= limit}
        for name in LABELS:  # two roundings to six digits, and those of logits in float32
            assert float(row[f"probability_{name}"]) == pytest.approx(chances[name], abs=4e-6)
    sure = trained.predict(images[0], threshold=1.0)
    assert sure[0].labels == ()


def test_evaluation_of_the_run_agrees_with_its_validation(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", str(home / "patches" / "labels.csv"), "--run", str(home / "run")]
    assert main(["evaluate", *words, "--format", "json", "--out", str(home / "evaluated")]) == 0

    results = json.loads(capsys.readouterr().out)
    validation = HeldOut.read(home / "run").validation
    assert results["images"] == len(validation)
    assert results["top1"] == sum(p.is_correct for p in validation) / len(validation)
    assert results["labels"]["map"] == pytest.approx(
        json.loads((home / "run" / "eval.json").read_text())["labels"]["map"]
    )
    assert main(["evaluate", *words]) == 0
    assert "Mean AP" in capsys.readouterr().out


def test_transformers_opens_the_export_as_a_multi_label_model(home: Path) -> None:
    transformers = pytest.importorskip("transformers")
    out = home / "transformers"

    assert main(["export", "--run", str(home / "run"), "--transformers", "--out", str(out)]) == 0

    model = transformers.AutoModelForImageClassification.from_pretrained(out)
    assert model.config.problem_type == "multi_label_classification"
    ours = vitft.load(home / "run", device="cpu")
    assert vitft.load(out, device="cpu").thresholds == pytest.approx(ours.thresholds)
    image = Image.open(home / "patches" / "03.png")
    theirs = vitft.load(out, device="cpu").predict(image)[0]
    assert theirs.labels == ours.predict(image)[0].labels


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_the_page_in_a_browser_gives_the_labels_of_predict(home: Path) -> None:
    page = home / "page"
    assert main(["export", "--run", str(home / "run"), "--html", "--out", str(page)]) == 0
    images = [home / "patches" / f"{i:02}.png" for i in range(12)]
    expected = [one.labels for one in vitft.load(home / "run", device="cpu").predict(images)]

    with Chromium(str(shutil.which("chromium")), home / "profile", page / "index.html") as browser:
        browser.choose("#files", *images)
        browser.wait_for("document.querySelectorAll('#cards .classes').length === 12")
        shown = browser.evaluate(
            "Array.from(document.querySelectorAll('.card'),"
            " (card) => JSON.parse(card.dataset.prediction).labels)"
        )
        first = browser.evaluate("document.querySelector('.card .labels').textContent")

    assert [sorted(labels) for labels in shown] == [sorted(labels or ()) for labels in expected]
    assert () in expected  # an image without labels
    assert first == ("labels: " + ", ".join(shown[0]) if shown[0] else "no label")
