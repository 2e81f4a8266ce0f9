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
from tests.support.export_run import make_run
from tests.training.test_run import run_it
from vitft.cli.main import main
from vitft.data.labelled import find_labelled
from vitft.data.split import Manifest
from vitft.data.transforms import EvalTransform
from vitft.models.card import Card
from vitft.models.checkpoint import save_checkpoint
from vitft.models.vit import VisionTransformer
from vitft.predict.evaluate import Evaluation, evaluate
from vitft.predict.threshold import choose_threshold
from vitft.system.errors import DataError, RunError
from vitft.system.text import percent


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


def test_data_of_training_images_only_is_refused(run: Path, image_folder: Path) -> None:
    for row in (run / "split.csv").read_text().splitlines()[1:]:
        path, _, part, _ = row.split(",")
        if part == "val":
            (image_folder / path).unlink()

    with pytest.raises(DataError, match=r"no images left .* trained on 24 of 24 images"):
        judge(image_folder, run)


def test_a_model_without_split_csv_warns_that_training_images_are_unknown(
    model: Path, unseen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--data", str(unseen), "--run", str(model)]) == 0

    assert "may have been trained on some of these images" in capsys.readouterr().err


def test_a_split_of_another_run_is_refused(run: Path, unseen: Path) -> None:
    text = (run / "split.csv").read_text()
    (run / "split.csv").write_text(text.replace(",train,", ",val,", 1))

    with pytest.raises(RunError, match="is not the split with which the model was trained"):
        judge(unseen, run)


def test_some_classes_of_the_model_may_be_missing(model: Path, unseen: Path) -> None:
    shutil.rmtree(unseen / "green")

    done = judge(unseen, model)

    assert done.results["images"] == 8
    assert done.results["per_class"]["green"]["recall"] is None


def test_classes_are_matched_by_name_not_by_index(model: Path, unseen: Path) -> None:
    before = judge(unseen, model).results["per_class"]
    (unseen / "blue").rename(unseen / "aside")  # would be the first of the folders, too
    shutil.rmtree(unseen / "green")
    (unseen / "aside").rename(unseen / "blue")

    after = judge(unseen, model).results["per_class"]

    assert [after[name]["recall"] for name in ("blue", "red")] == [
        before[name]["recall"] for name in ("blue", "red")
    ]


def test_unknown_classes_are_refused_with_both_differences(model: Path, unseen: Path) -> None:
    (unseen / "blue").rename(unseen / "blues")
    (unseen / "red").rename(unseen / "teapot")

    with pytest.raises(
        DataError,
        match=r"(?s)unknown to the model: blues and teapot; .*missing from the data: blue and red.*"
        r"rename blues to blue",
    ):
        judge(unseen, model)


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


def test_no_readable_image_is_an_error_with_examples(model: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label\nbad.jpg,red\n")
    (tmp_path / "bad.jpg").write_text("no image")

    with pytest.raises(DataError, match=r"cannot read any .* \(bad.jpg: not an image"):
        judge(tmp_path / "t.csv", model)


def test_duplicates_are_counted_and_reported(
    model: Path, unseen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(unseen / "red" / "0.png", unseen / "red" / "again.png")

    main(["evaluate", "--data", str(unseen), "--run", str(model)])

    assert "1 duplicate among the images, so" in capsys.readouterr().err


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


def test_the_table_has_every_metric(
    model: Path, unseen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluated(data=unseen, run=model) == 0

    shown, notes = capsys.readouterr()
    assert "too few images to measure the calibration error" in notes
    assert "calibration error" not in shown
    for text in (
        "accuracy",
        "95% interval",
        "log-loss",
        "blue",
        "F1",
        "true \\ predicted",
    ):
        assert text in shown


def test_of_many_classes_those_of_lowest_recall_are_listed(
    tiny_vit: VisionTransformer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from vitft.cli.evaluate import print_tables
    from vitft.metrics.classification import classification_metrics, probability_metrics

    labels = torch.arange(40)
    logits = torch.randn(40, 40, generator=torch.Generator().manual_seed(0))
    figures = {
        **classification_metrics(logits, labels, [f"class{i}" for i in range(40)]),
        **probability_metrics(logits.double().numpy(), labels),
    }

    print_tables(figures)

    shown, notes = capsys.readouterr()
    assert "calibration error" in shown
    assert "the 30 classes with the lowest recall" in notes
    assert "predicted as" in shown
    assert "top-5 accuracy" in shown


def test_csv_has_one_metric_per_row(
    model: Path, unseen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluated("--format", "csv", data=unseen, run=model) == 0

    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    top1 = next(row for row in rows if row["figure"] == "top1")
    assert float(top1["low"]) <= float(top1["value"]) <= float(top1["high"])
    assert {row["class"] for row in rows if row["figure"] == "f1"} == set(COLOURS)
    assert next(row for row in rows if row["figure"] == "top5")["value"] == ""  # three classes


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


def test_missing_data_and_a_missing_run_have_different_exit_codes(
    model: Path, unseen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluated(data=tmp_path / "nowhere", run=model) == 3
    assert evaluated(data=unseen, run=tmp_path / "nowhere") == 5
    assert evaluated("--subset", "val", data=unseen, run=model) == 2
    assert main(["evaluate", "--run", "x"]) == 2

    assert "Traceback" not in capsys.readouterr().err


def test_a_folder_and_a_table_of_the_same_images_give_the_same_predictions(
    model: Path, tmp_path: Path
) -> None:
    root = draw_folder(tmp_path / "d", per_class=3)
    rows = [f"{p.relative_to(root)},{p.parent.name}" for p in sorted(root.rglob("*.png"))]
    (root / "labels.csv").write_text("\n".join(["path,label", *rows]) + "\n")

    folder, table = judge(root, model), judge(root / "labels.csv", model)

    assert folder.predictions == table.predictions


@pytest.mark.parametrize("corrected", [0, 1, 2])
def test_training_images_with_another_label_are_counted(
    run: Path, unseen: Path, image_folder: Path, corrected: int, caplog: pytest.LogCaptureFixture
) -> None:
    trained = Manifest.read(run / "split.csv", image_folder)
    paths = [image_folder / row.path for row in trained.train[:3]]
    rows = [(path, path.parent.name) for path in [*paths, *unseen.rglob("*.png")]]
    rows[:corrected] = [
        (path, next(name for name in trained.classes if name != label))
        for path, label in rows[:corrected]
    ]
    table = image_folder.parent / "sheet.csv"
    lines = [f"{path.relative_to(table.parent)},{label}" for path, label in rows]
    table.write_text("\n".join(["path,label", *lines]))

    judge(table, run)

    found = [line for line in caplog.messages if "another label" in line]
    verb = "training image has" if corrected == 1 else "training images have"
    assert len(found) == (corrected > 0)
    assert all(line.startswith(f"{corrected} {verb} another label here than in") for line in found)


@pytest.mark.parametrize("name", ["new.xlsx", "new.csv"])
def test_an_untouched_table_of_predict_is_evaluated_with_a_warning(
    run: Path,
    unseen: Path,
    tmp_path: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = tmp_path / name
    words = ["predict", "--run", str(run), "--out", str(table), str(unseen)]
    assert main(words) == 0
    capsys.readouterr()

    assert evaluated("--set", "data.root=.", data=table, run=run) == 0

    printed = " ".join(capsys.readouterr().err.split())
    assert "equals the prediction of this model, and the table has the columns of" in printed
    assert "unless someone has corrected the column class, these results say nothing" in printed


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


def test_the_share_that_a_precision_keeps_is_in_the_table_and_in_csv(
    run: Path, unseen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = choose_threshold(run, 0.5)

    assert evaluated("--precision", "0.5", data=unseen, run=run) == 0
    printed = capsys.readouterr()
    assert evaluated("--precision", "0.5", "--format", "csv", data=unseen, run=run) == 0
    figures = {row["figure"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}

    assert str(chosen) in printed.err
    assert f"kept at threshold {percent(chosen.value)}" in printed.out
    assert "accuracy of these" in printed.out
    assert float(figures["threshold"]["value"]) == pytest.approx(chosen.value)
    assert {"kept_images", "kept_fraction", "kept_top1"} <= figures.keys()


def test_without_a_threshold_nothing_is_said_of_kept_predictions(model: Path, unseen: Path) -> None:
    assert judge(unseen, model).results["kept"] is None


def test_a_percentage_is_answered_with_the_fraction(
    model: Path, unseen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluated("--precision", "95", data=unseen, run=model) == 2

    assert "--precision 0.95" in capsys.readouterr().err


def test_several_labels_are_not_taken_for_misspelt_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "made")
    photo = next((run.parent / "photos").rglob("*.png"))
    table = tmp_path / "labels.csv"
    table.write_text(f"path,labels\n{photo},red|round\n")

    assert main(["evaluate", "--data", str(table), "--run", str(run)]) == 3

    assert "gives images several labels, but the model gives them one class" in (
        capsys.readouterr().err
    )
