"""One answer per group of images, beside an independent computation from the images' answers."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitft
from tests.conftest import save_model
from vitft.cli.main import main
from vitft.config import DataSpec
from vitft.data import find_labelled
from vitft.models import VisionTransformer
from vitft.predict import evaluate

CLASSES = ("a", "b", "c")
BURSTS = {"one": "abab", "two": "aaaa", "three": "b", "four": "ccc"}
"""Classes of the images by burst."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_vit: VisionTransformer) -> Path:
    """A current folder with a random model, bursts of images, one of them damaged, and a list."""
    monkeypatch.chdir(tmp_path)
    tiny_vit.head.weight.data.normal_(std=3, generator=torch.Generator().manual_seed(0))
    save_model(tmp_path / "m.safetensors", tiny_vit, CLASSES)
    random, lines = np.random.default_rng(0), list[str]()
    for burst, labels in BURSTS.items():
        for number, label in enumerate(labels):
            path = Path(f"images/{label}/{burst}/{burst}_{number}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8)).save(path)
            lines.append(f"{path},{label},{burst},{'north' if number % 2 else 'south'}")
    Path("images/c/four/four_1.png").write_bytes(b"text")
    Path("list.csv").write_text("\n".join(["path,label,Burst,site", *lines]) + "\n")
    return tmp_path


def table() -> list[dict[str, str]]:
    return [*csv.DictReader(Path("list.csv").read_text().splitlines())]


def wanted() -> dict[str, tuple[np.ndarray, int]]:
    """Return the probabilities (C,) of each burst and its number of unreadable images."""
    model, logs = vitft.load("m.safetensors", device="cpu"), dict[str, list[Any]]()
    for row in table():
        (answer,) = model.predict(row["path"], top_k=3)
        found = dict(zip(answer.classes, answer.probabilities, strict=True))
        logs.setdefault(row["Burst"], []).append(
            None if answer.error else np.log([found[name] for name in CLASSES])
        )
    means = dict[str, tuple[np.ndarray, int]]()
    for burst, values in logs.items():
        mean = np.exp(np.mean([value for value in values if value is not None], axis=0))
        means[burst] = mean / mean.sum(), sum(value is None for value in values)
    return means


def predict(*options: str) -> int:
    return main(["predict", "--run", "m.safetensors", "--device", "cpu", *options])


@pytest.mark.parametrize("by", ["burst", r"/(\w+)_\d"])
@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_probabilities_of_a_group_are_the_normalised_geometric_means(
    by: str, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--top-k", "3", "--format", "json", "--engine", engine)

    assert predict("list.csv", "--group-by", by, *options) == 3

    rows, probabilities = json.loads(capsys.readouterr().out), wanted()
    assert [row["group"] for row in rows] == [*BURSTS]
    for row in rows:
        expected, unreadable = probabilities[row["group"]]
        found = {one["class"]: one["probability"] for one in row["classes"]}
        assert [found[name] for name in CLASSES] == pytest.approx(expected, abs=2e-6)
        assert (row["images"], row["unreadable"]) == (len(BURSTS[row["group"]]), unreadable)


def test_folders_are_groups(capsys: pytest.CaptureFixture[str]) -> None:
    Path("alone.png").write_bytes(Path("images/a/two/two_0.png").read_bytes())
    Path("images/c/four/four_0.png").unlink()
    Path("images/c/four/four_2.png").unlink()

    predict("images", "alone.png", "--group-by", "folder", "--format", "csv")

    rows = {row["group"]: row for row in csv.DictReader(capsys.readouterr().out.splitlines())}
    assert [*rows] == [
        "images/a/one", "images/a/two", "images/b/one", "images/b/three", "images/c/four",
        ".",
    ]  # fmt: skip
    assert rows["images/a/two"]["images"] == "4"
    assert rows["."]["images"] == "1"
    lost = [rows["images/c/four"][name] for name in ("class", "unreadable", "error")]
    assert lost == ["", "1", "no readable image"]


def test_the_group_is_not_sure_below_the_threshold_of_its_own_probability(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chances = {burst: chance.max() for burst, (chance, _) in wanted().items()}
    threshold = float(np.mean(sorted(chances.values())[1:3]))

    predict("list.csv", "--group-by", "burst", "--threshold", f"{threshold}", "--format", "json")

    rows = json.loads(capsys.readouterr().out)
    marked = {row["group"] for row in rows if "not sure" in row.get("notes", ())}
    assert marked == {burst for burst, chance in chances.items() if chance < threshold}
    assert 0 < len(marked) < len(chances)


@pytest.mark.parametrize("style", ["jsonl", "csv", "parquet"])
def test_processes_and_interrupted_jobs_give_the_same_groups(
    style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ["list.csv", "--group-by", "burst", "--engine", "torch", "--top-k", "2"]
    assert predict(*job, "--out", f"whole.{style}") == 3
    whole = Path(f"whole.{style}").read_bytes()
    assert predict(*job, "--out", f"whole.{style}", "--resume") == 3  # it is complete
    monkeypatch.setenv("WORLD_SIZE", "2")

    monkeypatch.setenv("RANK", "1")
    assert predict(*job, "--out", f"o.{style}") == 0
    other = Path(f"o.{style}.part-1-of-2.done")
    assert other.exists()
    monkeypatch.setenv("RANK", "0")
    assert (
        predict("list.csv", "--group-by", "site", *job[3:], "--out", f"o.{style}", "--resume") == 5
    )
    assert predict(*job, "--out", f"o.{style}", "--resume") == 0

    assert Path(f"o.{style}").read_bytes() == whole


def test_a_job_whose_images_have_other_groups_now_is_not_resumed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    header, *lines = Path("list.csv").read_text().splitlines()
    Path("list.csv").write_text("\n".join([header, *lines, *lines]))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    job = ["list.csv", "--group-by", "burst", "--out", "o.csv"]
    predict(*job)
    Path("list.csv").write_text(Path("list.csv").read_text().replace(",two,", ",2,"))

    assert predict(*job, "--resume") == 5

    assert "in the group two, but should be for" in capsys.readouterr().err


def test_the_accuracy_of_groups_is_that_of_their_answers_if_they_have_one_label() -> None:
    data = find_labelled(Path("list.csv"), spec=DataSpec(group_by="burst"))

    found: Any = evaluate(data, "m.safetensors", device="cpu").results["by_group"]

    chances = {burst: chance for burst, (chance, _) in wanted().items() if burst != "one"}
    right = [CLASSES[chance.argmax()] == BURSTS[burst][0] for burst, chance in chances.items()]
    assert (found["groups"], found["several"]) == (3, 1)
    assert found["top1"] == pytest.approx(np.mean(right))
    assert found["confidence"] == pytest.approx(np.mean([c.max() for c in chances.values()]))
