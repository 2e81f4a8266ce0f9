"""One run, every format: the same names, the same values, the same notes."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vitft
from tests.support.reference_run import FOREIGN, make_reference_run
from tests.support.serving import serving
from vitft.cli.main import main
from vitft.models import VisionTransformer
from vitft.predict import Postprocess
from vitft.system import percent


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_vit: VisionTransformer) -> Path:
    """A run with statistics of its training features, and images in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("text.jpg").write_text("see you at eight\n")
    return make_reference_run(tmp_path, tiny_vit)


IMAGES = ["0.png", "foreign.png", "text.jpg", "1.png", "2.png"]


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of JSON under the column names of a table."""
    cells = {"path": row["path"], "notes": "; ".join(row.get("notes", []))}
    for rank, answer in enumerate(row.get("classes", []), start=1):
        cells |= {name if rank == 1 else f"{name}_{rank}": cell for name, cell in answer.items()}
    return cells | {"error": row.get("error", "")}


def present(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a table without empty class columns."""
    cells = {name: cell for name, cell in row.items() if cell not in ("", None)}
    cells |= {name: float(cell) for name, cell in cells.items() if name.startswith("prob")}
    return {"notes": "", "error": ""} | cells


def test_every_format_has_the_same_names_values_and_notes(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    common = ["--run", "run", "--device", "cpu", "--top-k", "2", "--threshold", "0.99"]
    for style in ("csv", "parquet", "json", "jsonl"):
        assert main(["predict", *IMAGES, *common, "--out", f"o.{style}"]) == 3
    model = vitft.load(run, device="cpu")
    engine = model.engine
    postprocess = replace(Postprocess.for_run("run", engine, top_k=3), threshold=0.99)

    with serving(engine, postprocess=postprocess) as client:
        files = [(name, Path(name).read_bytes()) for name in IMAGES]
        served = client.form("/predict?top_k=2", *files).json["results"]
    with Path("o.csv").open(newline="") as file:
        tables = {"csv": [present(row) for row in csv.DictReader(file)]}
    tables["parquet"] = [present(row) for row in parquet.read_table("o.parquet").to_pylist()]
    tables["json"] = [flat(row) for row in json.loads(Path("o.json").read_text())]
    tables["jsonl"] = [flat(json.loads(line)) for line in Path("o.jsonl").read_text().splitlines()]
    tables["server"] = [flat(row) for row in served]
    answers = model.predict(IMAGES, top_k=2, threshold=0.99)
    rows = [*json.loads(Path("o.json").read_text()), *served]
    assert {row["run"] for row in rows} == {model.results.name} == {"run"}
    tables["python"] = [flat(dict(answer.to_dict())) for answer in answers]

    names = ["path", "class", "probability", "class_2", "probability_2", "notes", "error"]
    assert Path("o.csv").read_text().splitlines()[0].split(",") == names
    for rows in tables.values():
        assert [row["path"] for row in rows] == IMAGES
        assert set(rows[0]) == set(names)
        assert rows[1]["notes"] == f"not sure; {FOREIGN}; blank: one uniform colour"
        assert rows[2] == {
            "path": "text.jpg", "notes": "", "error": "not an image (looks like text)"
        }  # fmt: skip
        for row, expected in zip(rows, tables["python"], strict=True):
            assert row == {
                name: pytest.approx(cell, abs=3e-6) if isinstance(cell, float) else cell
                for name, cell in expected.items()
            }


def test_explain_shows_the_same_classes_probabilities_and_notes(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["0.png", "foreign.png", "1.png", "2.png", "--run", "run", "--device", "cpu"]
    assert main(["predict", *words, "--format", "json"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    assert main(["explain", *words]) == 0

    printed = capsys.readouterr()
    explained = {line.split()[0]: " ".join(line.split()) for line in printed.out.splitlines()}
    for row in predicted:
        (first, *_), notes = row["classes"], row.get("notes", [])
        noted = f" ({', '.join(notes)})" if notes else ""
        answer = f"{row['path']} {first['class']} {percent(first['probability'])}{noted} "
        assert explained[row["path"]].startswith(answer)
    assert f"({FOREIGN}, blank: one uniform colour)" in explained["foreign.png"]
    assert FOREIGN not in explained["0.png"]
    assert "Using run (" in printed.err
