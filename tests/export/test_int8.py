"""Graphs of 8 and 16 bits and of older opsets: exact integers, equal answers, old operators."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tests.conftest import tiny
from tests.support.export_run import make_run
from vitft.export import export_run, plan_export, quantize_graph
from vitft.models import TimmConfig, load_classifier, save_checkpoint
from vitft.system import RunError


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("made"), config=tiny(3, width=64, heads=4))
    order = plan_export(["onnx", "int8"], str(run.parent / "export"))
    return export_run(str(run), order).folder


def logits(path: Path, pixels: Any, *, openvino: Any = None) -> Any:
    if openvino is None:
        return onnxruntime.InferenceSession(path).run(None, {"pixels": pixels})[0]
    core = openvino.Core()
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    return core.compile_model(core.read_model(path), "CPU", exact)({"pixels": pixels})[0]


@pytest.mark.parametrize(
    "runtime", ["onnxruntime", pytest.param("openvino", marks=pytest.mark.long)]
)
def test_an_image_is_answered_alike_whatever_else_is_in_its_batch(
    graph: Path, runtime: str
) -> None:
    used = None
    if runtime == "openvino":
        used = pytest.importorskip("openvino", reason="OpenVINO is not installed")
    random = np.random.default_rng(0)
    image = random.normal(size=(1, 3, 16, 16)).astype(np.float32)
    # Contrast that no photo has: it would set the scale of the whole batch.
    wild = [image * factor for factor in (0, 30, 1000)]

    alone = logits(graph / "int8" / "model.onnx", image, openvino=used)
    together = logits(graph / "int8" / "model.onnx", np.concatenate([image, *wild]), openvino=used)[
        :1
    ]

    np.testing.assert_allclose(together, alone, atol=2e-5)


def linear_graph(weights: Any, **attributes: Any) -> Any:
    """A graph with one Gemm or MatMul, whose result is its output."""
    operator = "Gemm" if attributes else "MatMul"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("x", "y")]
    node = helper.make_node(operator, ["x", "w"], ["y"], **attributes)
    tensors = [numpy_helper.from_array(weights, "w")]
    made = helper.make_graph([node], "linear", ends[:1], ends[1:], tensors)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("attributes", [{}, {"transB": 1}, {"transB": 0}], ids=str)
def test_whole_numbers_up_to_127_are_multiplied_exactly(attributes: dict[str, int]) -> None:
    random = np.random.default_rng(0)
    x = random.integers(-126, 127, (5, 8)).astype(np.float32)
    weights = random.integers(-126, 127, (8, 4)).astype(np.float32)
    x[:, 0], weights[0] = 127, -127  # so that every scale is one
    model = linear_graph(weights.T.copy() if attributes.get("transB") else weights, **attributes)

    quantize_graph(model.graph)

    (found,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(found, x @ weights, rtol=1e-6)
    assert {t.data_type for t in model.graph.initializer} >= {TensorProto.UINT8}


@pytest.mark.long
@pytest.mark.parametrize(("opset", "runtime"), [(16, "1.11"), (17, "1.12")])
def test_a_graph_of_an_older_opset_answers_as_the_run_does(
    tmp_path: Path, opset: int, runtime: str
) -> None:
    run = make_run(tmp_path, config=tiny(3, width=64, heads=4))

    done = export_run(str(run), plan_export(["onnx", "int8"], str(tmp_path / "x"), opset=opset))

    assert done.rows[0].difference < 1e-4
    assert done.changed == 0
    for name in ("onnx", "int8"):
        model = onnx.load(done.folder / name / "model.onnx")  # checked by the export
        assert (model.ir_version, model.opset_import[0].version) == (8, opset)
        read = {name for node in model.graph.node for name in node.input}
        assert {tensor.name for tensor in model.graph.initializer} <= read
        text = (done.folder / name / "README.md").read_text()
        assert f"The graph has opset {opset}, which onnxruntime {runtime} and newer open." in text


@pytest.mark.long
def test_an_operator_that_an_older_opset_lacks_is_an_error(tmp_path: Path) -> None:
    config = TimmConfig(timm="mobilevit_xxs", image_size=(32, 32), num_classes=3)
    run = make_run(tmp_path, config=config)

    with pytest.raises(
        RunError, match=r"ONNX opset 17 cannot export this model: .* Resize"
    ) as error:
        export_run(str(run), plan_export(["onnx"], str(tmp_path / "x"), opset=17))

    assert error.value.fix == "leave out --opset"
    assert not (tmp_path / "x").exists()


def test_16_bits_halve_the_matrices_and_leave_the_rest(tmp_path: Path) -> None:
    run = make_run(tmp_path, config=tiny(3, width=64, heads=4))
    plan = plan_export(["onnx"], str(tmp_path / "x"), half=True, with_resize=True)

    done = export_run(str(run), plan)

    assert 1e-6 < done.difference < 1e-2
    tensors = onnx.load(done.folder / "model.onnx").graph.initializer
    halves = {tensor.name for tensor in tensors if tensor.data_type == TensorProto.FLOAT16}
    floats = [one for one in tensors if one.data_type == TensorProto.FLOAT]
    assert len(halves) == 11  # positions, patches, four in each block and the head
    assert all(max(one.dims, default=1) == np.prod(one.dims) for one in floats)
    assert "The graph with 16-bit weights has opset 18," in (done.folder / "README.md").read_text()


def test_16_bits_that_change_a_class_are_removed(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    tensors, card = load_classifier(run / "model.safetensors")
    weights = dict(tensors)
    row = weights["head.weight"][0].half().float()
    # Never the first class, but in 16 bits always: there the three rows are equal.
    weights["head.weight"] = torch.stack([row, row * 1.0001, row * 0.9999])
    weights["head.bias"] = torch.zeros(3)
    save_checkpoint(run / "model.safetensors", weights, card)

    with pytest.raises(RunError, match="differ from the run's") as error:
        export_run(str(run), plan_export(["onnx"], str(tmp_path / "x"), half=True))

    assert error.value.fix.startswith("remove --half")
    assert not (tmp_path / "x").exists()
