"""Evaluation of a trained model on labelled images."""

import csv
import io
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import COLOURS, draw_folder
from tests.training.test_run import run_it
from vitft.cli.main import main
from vitft.data import EvalTransform, find_labelled
from vitft.messages import class_table
from vitft.metrics import classification_metrics
from vitft.models import Card, VisionTransformer, save_checkpoint
from vitft.predict import Evaluation, evaluate


@pytest.fixture
def model(tiny_vit: VisionTransformer, tmp_path: Path) -> Path:
    """A checkpoint without a run directory, whose predictions are random."""
    tiny_vit.head.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    card = Card(
        architecture=tiny_vit.config,
        transform=EvalTransform(image_size=(16, 16)),
        classes=tuple(sorted(COLOURS)),
    )
    (tmp_path / "bare").mkdir()
    save_checkpoint(tmp_path / "bare" / "m.safetensors", tiny_vit.state_dict(), card)
    return tmp_path / "bare" / "m.safetensors"


@pytest.fixture
def run(image_folder: Path, tiny_weights: Path, tmp_path: Path) -> Path:
    return run_it(image_folder, tiny_weights, tmp_path / "run", optim={"solver": "lbfgs"}).run


@pytest.fixture
def unseen(tmp_path: Path) -> Path:
    """Other images of the same three colours."""
    random = np.random.default_rng(9)
    for name, colour in COLOURS.items():
        (tmp_path / "unseen" / name).mkdir(parents=True)
        for i in range(4):
            pixels = np.clip(np.array(colour) + random.normal(0, 30, (20, 24, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "unseen" / name / f"{i}.png")
    return tmp_path / "unseen"


def judge(data: Path, run: Path) -> Evaluation:
    return evaluate(find_labelled(data), str(run), device="cpu")


def test_all_unseen_images_are_evaluated(run: Path, unseen: Path) -> None:
    done = judge(unseen, run)

    assert done.results["images"] == 12
    assert done.results["data"] | {"path": ""} == {
        "path": "",
        "unreadable": [],
        "trained": 0,
        "trained_copies": 0,
        "trained_paths": 0,
        "trained_groups": 0,
        "validated": 0,
        "copies": 0,
    }
    right = [row.is_correct for row in done.predictions]
    assert done.results["top1"] == sum(right) / 12


def test_training_images_are_left_out_wherever_they_are_stored(
    run: Path, image_folder: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere"
    for i, path in enumerate(sorted(image_folder.rglob("*.png"))):
        (moved / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, moved / path.parent.name / f"renamed{i}.png")

    done = judge(moved, run)

    assert done.results["data"]["trained"] == 24
    assert done.results["images"] == done.results["data"]["validated"] == 6
    note = "training image of this model"
    assert [row.prediction.notes for row in done.predictions].count((note,)) == 24
    assert done.results["confusion"] == json.loads((run / "eval.json").read_text())["confusion"]


def test_classes_are_matched_by_name_not_by_index(model: Path, unseen: Path) -> None:
    before = judge(unseen, model).results["per_class"]
    (unseen / "blue").rename(unseen / "aside")  # would be the first of the folders, too
    shutil.rmtree(unseen / "green")
    (unseen / "aside").rename(unseen / "blue")

    after = judge(unseen, model).results["per_class"]

    assert [after[name]["recall"] for name in ("blue", "red")] == [
        before[name]["recall"] for name in ("blue", "red")
    ]


def test_unreadable_images_are_listed_and_left_out(
    model: Path, unseen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (unseen / "red" / "torn\x1b[2J.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (unseen / "red" / "gone.png").symlink_to("nowhere")

    code = main(["evaluate", "--data", str(unseen), "--run", str(model), "--format", "json"])

    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert code == 3
    assert figures["images"] == 12
    assert {row["path"] for row in figures["data"]["unreadable"]} == {
        "red/torn\x1b[2J.png",
        "red/gone.png",
    }
    assert "skipped red/torn\\x1b[2J.png" in err
    assert "\x1b" not in err


def test_the_error_before_calibration_is_that_of_the_logits_times_the_temperature(
    run: Path, unseen: Path
) -> None:
    kept = json.loads((run / "eval.json").read_text())
    kept["calibration"]["temperature"] = 0.02  # before, every class was nearly as likely
    (run / "eval.json").write_text(json.dumps(kept))

    calibration = judge(unseen, run).results["calibration"]

    assert calibration is not None
    assert calibration["temperature"] == 0.02
    assert calibration["ece_before"] is not None
    assert calibration["ece_before"] > calibration["ece"] + 0.3


def evaluated(*options: str, data: Path, run: Path) -> int:
    return main(["evaluate", "--data", str(data), "--run", str(run), *options])


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


def test_out_has_metrics_and_one_row_per_image(
    model: Path, unseen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (unseen / "red" / "torn.png").write_bytes(b"")
    evaluated("--format", "json", "--out", str(tmp_path / "out"), data=unseen, run=model)

    with (tmp_path / "out" / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    figures: dict[str, Any] = json.loads((tmp_path / "out" / "eval.json").read_text())
    assert figures == json.loads(capsys.readouterr().out)
    assert sum(row["correct"] == "1" for row in rows) == round(12 * figures["top1"])
    assert [row["error"] for row in rows if row["error"]] == ["empty file"]
    assert len(rows) == 13


def test_out_never_overwrites_a_file(
    model: Path, unseen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "eval.json").write_text("mine")

    assert evaluated("--out", str(tmp_path / "out"), data=unseen, run=model) == 5
    assert evaluated("--out", str(unseen / "out"), data=unseen, run=model) == 2

    assert (tmp_path / "out" / "eval.json").read_text() == "mine"
    assert not (unseen / "out").exists()
    assert "choose a new or empty folder" in capsys.readouterr().err


def test_csv_cells_are_not_formulas(model: Path, unseen: Path, tmp_path: Path) -> None:
    names = ["=1+1.png", "@SUM(1).png", "+cmd|x.png", "-2.png", "\t=3.png", 'a",=1.png', "\r=2.png"]
    rows = ["path,label"]
    for i, name in enumerate(names):
        shutil.copy(unseen / "red" / f"{i % 4}.png", unseen / name)
        quoted = name.replace('"', '""')
        rows.append(f'"{quoted}",red')
    (unseen / "t.csv").write_text("\n".join(rows) + "\n", newline="")

    assert evaluated("--out", str(tmp_path / "out"), data=unseen / "t.csv", run=model) == 0

    with (tmp_path / "out" / "predictions.csv").open(newline="") as file:
        paths = [row["path"] for row in csv.DictReader(file)]
    assert [path.removeprefix("'") for path in paths] == names
    assert not any(path.startswith(("=", "+", "-", "@", "\t", "\r")) for path in paths)


def test_a_name_that_is_not_utf8_keeps_its_bytes(model: Path, unseen: Path, tmp_path: Path) -> None:
    shutil.copy(unseen / "red" / "0.png", unseen / "red" / "\udcff\udcfe.png")

    assert evaluated("--out", str(tmp_path / "out"), data=unseen, run=model) == 0

    assert b"red/\xff\xfe.png" in (tmp_path / "out" / "predictions.csv").read_bytes()


def test_a_folder_and_a_table_of_the_same_images_give_the_same_predictions(
    model: Path, tmp_path: Path
) -> None:
    root = draw_folder(tmp_path / "d", per_class=3)
    rows = [f"{p.relative_to(root)},{p.parent.name}" for p in sorted(root.rglob("*.png"))]
    (root / "labels.csv").write_text("\n".join(["path,label", *rows]) + "\n")

    folder, table = judge(root, model), judge(root / "labels.csv", model)

    assert folder.predictions == table.predictions


@pytest.mark.parametrize(
    ("columns", "corrected"),
    [
        pytest.param("path,class", False, id="other columns"),
        pytest.param("path,label,class,probability", False, id="labels of their own"),
        pytest.param("path,class,probability", True, id="a corrected label"),
    ],
)
def test_labels_that_equal_the_predictions_are_no_cause_for_a_warning(
    model: Path, unseen: Path, columns: str, corrected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [
        (row.prediction.path, row.prediction.answer) for row in judge(unseen, model).predictions
    ]
    if corrected:
        other = next(name for name in sorted(COLOURS) if name != rows[0][1])
        rows[0] = (rows[0][0], other)
    width = columns.count(",")
    lines = [",".join([path, *[answer] * width]) for path, answer in rows]
    (unseen / "table.csv").write_text("\n".join([columns, *lines]) + "\n")

    done = judge(unseen / "table.csv", model)

    assert done.results["top1"] == (11 / 12 if corrected else 1)
    assert "predictions of this model" not in caplog.text


def test_a_threshold_keeps_the_predictions_that_predict_does_not_mark(
    model: Path, unseen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(unseen), "--run", str(model), "--format", "csv"]) == 0
    rows = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
    middle = statistics.median(float(row["probability"]) for row in rows)  # between two of 12
    threshold = ("--threshold", f"{middle:.6f}")
    out = tmp_path / "out"

    assert evaluated("--format", "json", "--out", str(out), *threshold, data=unseen, run=model) == 0

    kept = json.loads(capsys.readouterr().out)["kept"]
    assert main(["predict", str(unseen), "--run", str(model), "--format", "csv", *threshold]) == 0
    rows = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
    marked = ["not sure" in row["notes"] for row in rows]
    right = [Path(row["path"]).parent.name == row["class"] for row in rows]
    assert kept["images"] == marked.count(False)
    assert kept["images"] == 6
    assert kept["fraction"] == 6 / 12
    assert kept["top1"] == sum(r for r, m in zip(right, marked, strict=True) if not m) / 6
    with (out / "predictions.csv").open(newline="") as file:
        assert ["not sure" in row["notes"] for row in csv.DictReader(file)] == marked
