"""Facts about a run inside its exports: predict says of an export what it says of the run."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import vitft
from tests.support.export_run import make_run, tiny
from tests.support.serving import serving
from vitft.cli.main import main
from vitft.export import export_run
from vitft.export.plan import plan_export
from vitft.metrics.intervals import wilson_interval
from vitft.models.run_facts import RUN_KEY, facts_beside
from vitft.models.vit_config import RopeConfig
from vitft.predict.onnx_engine import OnnxEngine
from vitft.predict.run_info import RunInfo
from vitft.predict.torch_engine import Predictor

FACTS = "3 classes, accuracy 50.0% (20.0 to 80.0%) on 6 validation images"
OPENED = ("safetensors", "timm", "transformers", "transformers-js", "onnx", "int8")
"""Formats that `vitft predict` opens."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended three days ago."""
    made = make_run(tmp_path_factory.mktemp("made"))
    ended = datetime.now(UTC) - timedelta(days=3, hours=1)
    environment = {"status": "finished", "device": "cpu", "precision": "fp32", "python": "3"}
    environment |= {"system": "Linux", "ended": ended.isoformat()}
    (made / "environment.json").write_text(json.dumps({**environment, "packages": {}}))
    return made


@pytest.fixture(scope="module")
def exports(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "all"
    return export_run(str(run), plan_export([*OPENED], str(out))).folder


def said_by_predict(model: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["predict", "--run", str(model), str(run.parent / "photos" / "0" / "0.png")]) == 0
    return capsys.readouterr().err


@pytest.mark.parametrize("form", OPENED)
def test_predict_knows_the_accuracy_and_the_age_of_the_run_that_was_exported(
    run: Path, exports: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    assert f"run run: {FACTS}, 3 days old" in said_by_predict(run, run, capsys)

    said = said_by_predict(exports / form, run, capsys)

    rounded = " before rounding to 8 bits" * (form == "int8")
    assert f"run run (exported): {FACTS}{rounded}, 3 days old" in said


@pytest.mark.parametrize("form", ["timm", "onnx"])
def test_the_rows_and_the_labels_of_an_export_name_its_run(
    run: Path, exports: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    photo = run.parent / "photos" / "0" / "0.png"
    assert main(["predict", str(photo), "--run", str(exports / form), "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    model = vitft.load(exports / form, device="cpu")

    with serving(model.engine, postprocess=model.postprocess) as client:
        labels = client.ask("GET", "/labels").json
        metrics = client.ask("GET", "/metrics").body.decode()

    assert row["run"] == model.run.name == labels["run"] == "run"
    assert model.run.weights == labels["weights"] == "noise"
    assert labels["cross_validated"] == model.run.cross_validated_top1
    assert labels["cross_validated_images"] == model.run.cross_validated_images
    assert 'run="run"' in metrics


def test_the_export_of_an_unfinished_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_run(tmp_path)
    environment = {"status": "interrupted", "device": "cpu", "precision": "fp32", "python": "3"}
    environment |= {"system": "Linux", "ended": "2026-01-02T03:04:05+00:00"}
    (made / "environment.json").write_text(json.dumps({**environment, "packages": {}}))

    out = tmp_path / "out"
    assert main(["export", "--safetensors", "--run", str(made), "--out", str(out)]) == 0

    said = capsys.readouterr().err
    assert "the run has not finished (status: interrupted)" in said
    assert f"vitft finetune --resume {made}" in said
    page = (out / "README.md").read_text()
    assert "The run had not finished when it was exported (status: interrupted)." in page


def test_the_second_graph_of_transformers_js_is_marked_as_rounded(
    run: Path, exports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = exports / "transformers-js" / "onnx" / "model_quantized.onnx"

    assert f"{FACTS} before rounding to 8 bits, 3 days old" in said_by_predict(graph, run, capsys)


def test_an_export_of_an_export_keeps_the_facts(
    run: Path, exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(exports / "safetensors")

    again = export_run(source, plan_export(["timm"], str(tmp_path / "again"))).folder

    said = said_by_predict(again, run, capsys)
    assert f"run run (exported): {FACTS}, 3 days old" in said


def test_a_file_in_the_names_of_timm_has_the_facts_beside_it(tmp_path: Path) -> None:
    made = make_run(tmp_path, config=tiny(3, rope=RopeConfig(), positions=False))

    out = export_run(str(made), plan_export(["timm"], str(tmp_path / "out"))).folder

    facts = facts_beside(out / "model.safetensors")
    assert (facts["name"], facts["top1"], facts["images"]) == ("run", 0.5, 6)
    assert Predictor.from_run(str(out), device="cpu").facts == facts


def test_an_exported_head_has_its_own_accuracy(tmp_path: Path) -> None:
    made = make_run(tmp_path, config=tiny(3, read_blocks=2))
    results = json.loads((made / "eval.json").read_text())
    head = {"blocks": 2, "reads": "both", "candidates": [], "last_block_top1": 1 / 3}
    (made / "eval.json").write_text(json.dumps({**results, "head": head}))

    out = export_run(str(made), plan_export(["timm", "onnx"], str(tmp_path / "out"))).folder

    facts = Predictor.from_run(str(out / "timm"), device="cpu").facts
    assert facts["top1"] == pytest.approx(1 / 3)
    assert facts["top1_interval"] == pytest.approx(wilson_interval(2, 6))
    assert OnnxEngine(out / "onnx" / "model.onnx").facts["top1"] == 0.5
    timm, onnx = ((out / form / "README.md").read_text() for form in ("timm", "onnx"))
    assert "| recall | precision |" in onnx
    for words in ("recall | precision", "Recall and precision", "recalls on the validation images"):
        assert words not in timm
    assert "| class | training images | validation images |\n|---|---:|---:|\n| blue | " in timm
    assert "were measured with the run's head and are left out" in timm


@pytest.mark.parametrize(
    "damage", [None, 5, {"top1": "high"}, {"images": -1}, {"top1_interval": [1]}]
)
def test_damaged_facts_are_unknown_and_change_no_prediction(
    run: Path, exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Any
) -> None:
    copied = tmp_path / "copied"
    copied.mkdir()
    for path in (exports / "transformers").iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    config = json.loads((copied / "config.json").read_text())
    assert RUN_KEY in config
    (copied / "config.json").write_text(json.dumps({**config, RUN_KEY: damage}))

    said = said_by_predict(copied, run, capsys)

    assert "run copied: 3 classes, accuracy unknown, file 0 minutes old" in said


def test_no_path_of_this_machine_is_in_the_facts(run: Path, exports: Path) -> None:
    for form in OPENED:
        for path in (exports / form).rglob("*"):
            assert path.is_dir() or str(run.parent).encode() not in path.read_bytes()


def test_each_format_is_logged_when_it_begins_and_ends(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--safetensors", "--torch-export", "--run", str(run)]

    assert main(["export", *arguments, "--out", str(tmp_path / "two")]) == 0

    lines = [line.partition(": done in ")[0] for line in capsys.readouterr().err.splitlines()]
    begun = [line for line in lines if line.startswith("writing") and "still running" not in line]
    assert begun == [
        *["writing --safetensors"] * 2,
        *["writing --torch-export"] * 2,
    ]
    (compared,) = (line for line in lines if line.startswith("comparing with the run: "))
    assert compared.startswith("comparing with the run: 6/6  ")  # the images


def test_comparisons_with_two_heads_name_their_formats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_run(tmp_path, config=tiny(3, read_blocks=2))
    arguments = ["export", "--timm", "--onnx", "--torch-export", "--run", str(made)]

    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0

    lines = [line.partition(": ")[0] for line in capsys.readouterr().err.splitlines()]
    assert [line for line in lines if line.startswith("comparing")] == [
        "comparing --onnx and --torch-export with the run",
        "comparing --timm with the run",
    ]


@pytest.mark.parametrize("licence", ["", "mit"])
def test_an_unknown_licence_is_named_with_the_option_that_states_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], licence: str
) -> None:
    options = ["--licence", licence] if licence else []

    assert (
        main(["export", "--timm", "--run", str(run), "--out", str(tmp_path / "o"), *options]) == 0
    )

    assert ("export again with --licence NAME" in capsys.readouterr().err) is (not licence)


def test_the_age_of_a_run_without_end_is_that_of_the_file() -> None:
    info = RunInfo(
        name="a", classes=2, top1=None, images=0, trained_at=0.0, at_chance="", is_file_age=True
    )

    assert info.line(now=86400 * 3) == "run a: 2 classes, accuracy unknown, file 3 days old"
