"""Facts about a run inside its exports: predict says of an export what it says of the run."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.export_run import make_run
from vitft.cli.main import main
from vitft.export import export_run, plan_export

FACTS = "trained 3 days ago, accuracy 50%"
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
    assert f"(photos, {FACTS})" in said_by_predict(run, run, capsys)

    said = said_by_predict(exports / form, run, capsys)

    rounded = " before rounding to 8 bits" * (form == "int8")
    assert f"(photos, {FACTS}{rounded})" in said


@pytest.mark.parametrize(
    "damage",
    [None, 5, {"name": 5}, {"headline": {"value": "high"}}, {"weakest": [1]}, {"unknown": 1}],
)
def test_damaged_facts_are_unknown_and_change_no_prediction(
    run: Path, exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Any
) -> None:
    copied = tmp_path / "copied"
    copied.mkdir()
    for path in (exports / "transformers").iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    config = json.loads((copied / "config.json").read_text())
    assert "vitft_run" in config
    (copied / "config.json").write_text(json.dumps({**config, "vitft_run": damage}))

    said = said_by_predict(copied, run, capsys)

    assert "copied (file " in said
    assert "accuracy unknown" in said
