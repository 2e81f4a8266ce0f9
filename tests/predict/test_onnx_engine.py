"""Predictions of exported ONNX graphs through onnxruntime."""

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

import vitft
from tests.support.export_run import make_run
from tests.support.serving import serving
from vitft.cli.main import main
from vitft.data import find_labelled
from vitft.export import export_run, plan_export
from vitft.predict import OnnxEngine, evaluate
from vitft.system import RunError

GRAPHS: dict[str, dict[str, Any]] = {
    "normalised": {},
    "bytes": {"with_preprocessing": True},
    "any size": {"with_resize": True},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    return make_run(root, mean=(0.1, 0.2, 0.3), std=(0.3, 0.2, 0.1))


@pytest.fixture(scope="module")
def graphs(run: Path) -> dict[str, Path]:
    """One exported folder for each kind of input."""
    return {
        kind: export_run(str(run), plan_export(["onnx"], str(run.parent / kind), **options)).folder
        for kind, options in GRAPHS.items()
    }


def answers(
    capsys: pytest.CaptureFixture[str], run: Path, model: Path, *options: str
) -> list[dict[str, str]]:
    photos = str(run.parent / "photos")
    assert main(["predict", photos, "--run", str(model), "--format", "csv", *options]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


@pytest.mark.parametrize("kind", GRAPHS)
def test_predict_answers_from_a_graph_as_from_the_run(
    run: Path, graphs: dict[str, Path], capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    theirs = answers(capsys, run, graphs[kind] / "model.onnx")
    ours = answers(capsys, run, run, "--dtype", "fp32")  # graphs compute in float32

    assert len(theirs) == 9
    assert [row["path"] for row in theirs] == [row["path"] for row in ours]
    assert [row["class"] for row in theirs] == [row["class"] for row in ours]
    gaps = [
        abs(float(a["probability"]) - float(b["probability"]))
        for a, b in zip(theirs, ours, strict=True)
    ]
    assert max(gaps) <= (0.02 if kind == "any size" else 2e-6)


@pytest.mark.parametrize("kind", GRAPHS)
def test_load_and_the_server_answer_from_a_graph_as_predict_does(
    graphs: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    sizes = {"a.png": (40, 30), "b.png": (16, 24), "c.png": (40, 30)}
    for seed, (name, size) in enumerate(sizes.items()):
        speckle(seed, size).save(tmp_path / name)
    files = [tmp_path / name for name in sizes]

    model = vitft.load(graphs[kind])
    rows = model.predict(files, top_k=3)
    pictures = model.predict([Image.open(file) for file in files], top_k=3)
    with serving(model.engine, postprocess=replace(model.postprocess, top_k=3)) as client:
        served = client.form("/predict", *((f.name, f.read_bytes()) for f in files)).json
        facts = client.ask("GET", "/labels").json
        unusable = client.post("/predict", b"not an image")
        no_route = client.post("/explain", files[0].read_bytes())

    assert len({row.probabilities for row in rows}) == 3
    expected = [dict(zip(row.classes, row.probabilities, strict=True)) for row in rows]
    for row, same, answer in zip(expected, pictures, served["results"], strict=True):
        assert dict(zip(same.classes, same.probabilities, strict=True)) == row
        found = {one["class"]: one["probability"] for one in answer["classes"]}
        assert found == pytest.approx(row, abs=2e-6)
    assert facts["explains"] is False
    assert facts["classes"] == [*model.classes]
    assert (unusable.status, no_route.status) == (422, 404)


def speckle(seed: int, size: tuple[int, int]) -> Image.Image:
    """Return an image of noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    return Image.fromarray(noise)


def labelled(run: Path, root: Path) -> Path:
    """The photos of a run in folders with the names of its classes."""
    for label, name in enumerate(("blue", "green", "red")):
        (root / "data").mkdir(exist_ok=True)
        (root / "data" / name).symlink_to(run.parent / "photos" / str(label))
    return root / "data"


def test_a_graph_beside_the_split_of_its_run_leaves_training_images_out(
    run: Path, graphs: dict[str, Path], tmp_path: Path
) -> None:
    for path in (graphs["bytes"] / "model.onnx", run / "split.csv"):
        shutil.copy(path, tmp_path)
    data = find_labelled(labelled(run, tmp_path))

    assert evaluate(data, str(tmp_path)).results["data"]["trained"] == 3

    rows = (tmp_path / "split.csv").read_text()
    (tmp_path / "split.csv").write_text(rows.replace(",train,", ",val,", 1))
    with pytest.raises(RunError, match="is not the split with which"):
        evaluate(data, str(tmp_path))


def foreign_graph(path: Path, **metadata: str) -> Path:
    """A graph that returns the mean of each channel."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("pixels", ["batch", 3, 16, 16]), ("logits", ["batch", 3]))
    ]
    nodes = [helper.make_node("ReduceMean", ["pixels", "axes"], ["logits"], keepdims=0)]
    axes = onnx.numpy_helper.from_array(np.array([2, 3]), "axes")
    graph = helper.make_graph(nodes, "mean", ends[:1], ends[1:], [axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    helper.set_model_props(model, metadata)
    onnx.save(model, path)
    return path


def description(**fields: Any) -> str:
    facts = {
        "classes": ["a", "b", "c"],
        "transform": {"image_size": [16, 16]},
        "input": {"name": "pixels", "bytes": False, "any_size": False},
    }
    return json.dumps({**facts, **fields})


BAD = [
    pytest.param({}, "was not exported by vitft", id="another tool's"),
    pytest.param({"vitft": "{"}, "its vitft metadata is not valid", id="not JSON"),
    pytest.param({"vitft": "[]"}, "its vitft metadata is not valid", id="a list"),
    pytest.param({"vitft": "{}"}, "its vitft metadata is not valid", id="empty"),
    pytest.param({"vitft": description(input=3)}, "is not valid", id="wrong type"),
    pytest.param(
        {"vitft": description(transform={"crop": 9})}, "crop: Expected", id="wrong transform"
    ),
]


@pytest.mark.parametrize(("metadata", "reason"), BAD)
def test_a_graph_that_is_not_completely_described_is_refused_with_the_reason(
    tmp_path: Path, metadata: dict[str, str], reason: str
) -> None:
    path = foreign_graph(tmp_path / "x.onnx", **metadata)

    with pytest.raises(RunError, match=reason):
        OnnxEngine(path)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param(
            {"classes": ["a", "b"]}, r"2 classes, but its output has shape \(1, 3\)", id="classes"
        ),
        pytest.param({"transform": {"image_size": [8, 8]}}, "dimension", id="image size"),
        pytest.param({"input": {"name": "x", "bytes": False, "any_size": False}}, "x", id="name"),
    ],
)
def test_a_graph_that_contradicts_its_description_is_refused_when_it_runs(
    tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    engine = OnnxEngine(foreign_graph(tmp_path / "x.onnx", vitft=description(**fields)))
    views = np.zeros((1, *engine.transform.image_size, 3), np.uint8)

    with pytest.raises(RunError, match=f"cannot run the ONNX graph .*{reason}"):
        engine.scores(views)


@pytest.mark.parametrize("form", ["int8", "transformers-js"])
def test_8_bit_graphs_and_those_for_transformers_js_have_a_digest_too(
    run: Path, tmp_path: Path, form: str
) -> None:
    folder = export_run(str(run), plan_export([form], str(tmp_path / "x"), images=6)).folder

    for path in folder.rglob("*.onnx"):
        assert OnnxEngine(path).outputs.classes == ("blue", "green", "red")
        props = {entry.key for entry in onnx.load(path).metadata_props}
        assert props == {"vitft", "vitft.sha256"}
        content = bytearray(path.read_bytes())
        content[9] ^= 1
        path.write_bytes(content)
        with pytest.raises(RunError, match="sha256"):
            OnnxEngine(path)


def test_a_graph_that_another_tool_wrote_again_is_refused_until_its_digest_is_removed(
    graphs: dict[str, Path], tmp_path: Path
) -> None:
    model = onnx.load(graphs["bytes"] / "model.onnx")
    model.graph.name = "changed"
    onnx.save(model, tmp_path / "x.onnx")
    model.metadata_props.add(key="more", value="at the end")
    onnx.save(model, tmp_path / "y.onnx")

    for name in ("x.onnx", "y.onnx"):
        with pytest.raises(RunError, match="sha256"):
            OnnxEngine(tmp_path / name)
    text = {entry.key: entry.value for entry in model.metadata_props}["vitft"]
    onnx.helper.set_model_props(model, {"vitft": text})
    onnx.save(model, tmp_path / "z.onnx")
    assert OnnxEngine(tmp_path / "z.onnx").takes_bytes
