"""Options of an unfinished job, which only the same job may resume."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from vitft.models.graph_digest import add_graph_digest
from vitft.predict.job_record import (
    check_record,
    job_options,
    model_digest,
    read_options,
    write_record,
)
from vitft.predict.request import PredictRequest
from vitft.system.errors import RunError


def request(**options: Any) -> PredictRequest:
    return PredictRequest(**{"images": ("a.jpg",), "out": "o.csv", **options})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path / "model.safetensors"


def test_the_options_are_the_model_and_what_changes_its_rows(model: Path) -> None:
    found = job_options(request(top_k=3, tta=True), model, 0.25, (0.5, 0.75))

    assert found == {
        "model": hashlib.sha256(b"weights").hexdigest(),
        "--top-k": 3,
        "threshold": [0.25, 0.5, 0.75],
        "--dtype": "fp32",
        "--tta": True,
    }


@pytest.mark.parametrize("name", ["model.safetensors", "model.onnx"])
def test_a_digest_in_the_file_is_used_without_hashing_the_file(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, digest = tmp_path / name, hashlib.sha256(b"graph").hexdigest()
    if name.endswith(".onnx"):
        path.write_bytes(b"graph")
        add_graph_digest(path)
    else:
        save_file({"x": np.zeros(1)}, path, metadata={"vitft.sha256": digest})
    monkeypatch.setattr(hashlib, "file_digest", None)

    assert job_options(request(), path, 0.0, ())["model"] == digest


def test_other_files_are_hashed(tmp_path: Path) -> None:
    path = tmp_path / "other.onnx"
    path.write_bytes(b"graph")

    assert model_digest(path) == hashlib.sha256(b"graph").hexdigest()


@pytest.mark.parametrize("out", [None, "o.json", "o.txt"])
def test_a_job_that_cannot_be_resumed_has_no_options(model: Path, out: str | None) -> None:
    assert job_options(request(out=out), model, 0.0, ()) == {}
    assert job_options(request(out="o.jsonl"), model, 0.0, ()) != {}


def test_a_record_is_accepted_by_the_same_options_only(model: Path, tmp_path: Path) -> None:
    part = tmp_path / "o.csv.part"
    options = job_options(request(), model, 0.0, ())

    check_record(part, options)  # of an older version, without a record
    write_record(part, options)
    write_record(part, options)
    check_record(part, options)

    assert read_options(part) == options
    assert [path.name for path in tmp_path.glob("o*")] == ["o.csv.part.json"]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model": "other"}, "another model"),
        ({"threshold": [0.5]}, "another threshold"),
        ({"--top-k": 2}, "--top-k 1, not 2"),
        ({"--dtype": "fp32"}, "--dtype auto, not fp32"),
        ({"--tta": True}, "no --tta"),
        ({"--top-k": 2, "--tta": True, "model": "other"},
         "another model, --top-k 1, not 2 and no --tta"),
    ],
)  # fmt: skip
def test_other_options_are_named(
    model: Path, tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    options = job_options(request(), model, 0.0, ())
    write_record(tmp_path / "o.part", options)

    with pytest.raises(RunError) as refused:
        check_record(tmp_path / "o.part", options | changed)

    assert refused.value.problem.endswith(f"it was begun with {reason}")


def test_a_missing_option_is_named(model: Path, tmp_path: Path) -> None:
    options = job_options(request(tta=True), model, 0.0, ())
    write_record(tmp_path / "o.part", options)

    with pytest.raises(RunError, match="begun with --tta, which is missing now\n"):
        check_record(tmp_path / "o.part", options | {"--tta": False})


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model": "x"}', "\xff"])
def test_a_file_that_is_no_record_is_neither_read_nor_replaced(
    model: Path, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "o.part.json"
    path.write_text(text, encoding="latin-1")
    options = job_options(request(), model, 0.0, ())

    for step in (check_record, write_record):
        with pytest.raises(RunError, match="does not contain the options of a job"):
            step(tmp_path / "o.part", options)
    assert path.read_text(encoding="latin-1") == text
