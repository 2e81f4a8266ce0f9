"""8-bit graphs: exact integers, and answers that do not depend on the rest of the batch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.export_run import make_run, tiny
from vitft.export import export_run
from vitft.export.formats.int8 import quantize_graph, rounded_description
from vitft.export.formats.nodes import GraphBuilder
from vitft.export.plan import plan_export


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


def test_the_readme_tells_the_8_bit_graph_from_the_float32_one(graph: Path) -> None:
    exact, small = ((graph / name / "README.md").read_text() for name in ("onnx", "int8"))

    assert "accuracy with 8-bit weights on 6 validation images" in small
    assert "original float32 model on the same images" in small
    assert "8-bit weights" not in exact


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
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


def test_an_8_bit_graph_has_no_tensor_that_onnxruntime_warns_of(
    graph: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = graph / "int8" / "model.onnx"
    model = onnx.load(path).graph

    logits(path, np.zeros((1, 3, 16, 16), np.float32))

    assert capfd.readouterr().err == ""  # onnxruntime names each tensor that no node reads
    used = {name for node in model.node for name in node.input}
    assert {tensor.name for tensor in model.initializer} <= used


def test_no_operator_looks_at_the_whole_batch_for_its_scale(graph: Path) -> None:
    nodes = onnx.load(graph / "int8" / "model.onnx").graph.node

    operators = [node.op_type for node in nodes]

    assert "DynamicQuantizeLinear" not in operators
    assert operators.count("MatMulInteger") == 6  # qkv, proj and fc1 of two blocks
    assert operators.count("DequantizeLinear") == 3  # fc2 of two blocks, and the head


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


def test_a_row_of_zeros_stays_zero() -> None:
    model = linear_graph(np.eye(4, dtype=np.float32))

    quantize_graph(model.graph)

    x = np.array([[0, 0, 0, 0], [1, 0, -1, 0]], np.float32)
    (found,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(found, x, atol=1e-6)


def test_each_output_of_a_layer_has_its_own_scale() -> None:
    weights = np.array([[1.0, -0.5], [-2.0, 0.25], [0.5, 0.0]], np.float32)  # (D, F)
    for operator, matrix in (({}, weights), ({"transB": 1}, weights.T.copy())):
        model = linear_graph(matrix, **operator)

        quantize_graph(model.graph)

        tensors = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        scales = np.array([2, 0.5]) / 127
        expected = np.rint(weights / scales) + 128
        rounded = tensors["w_rounded"].T if operator else tensors["w_rounded"]
        np.testing.assert_allclose(tensors["w_scale"], scales, rtol=1e-6)
        assert rounded.dtype == np.uint8
        np.testing.assert_array_equal(rounded, expected)
        assert "w" not in tensors
        if operator:
            assert tensors["w_zero"].tolist() == [128, 128]


@pytest.mark.parametrize("run", [None, {"top1": 0.5}])
def test_the_description_states_that_the_accuracy_is_not_that_of_8_bits(run: Any) -> None:
    model = linear_graph(np.eye(2, dtype=np.float32))
    facts = {"classes": ["a", "b"], **({"run": run} if run else {})}
    helper.set_model_props(model, {"other": "x", "vitft": json.dumps(facts)})

    found = json.loads(rounded_description(model))

    assert found == {"classes": ["a", "b"], **({"run": {**run, "rounded": True}} if run else {})}


def test_constants_of_a_graph_are_shared_and_have_one_type_each() -> None:
    shared: dict[Any, tuple[str, Any]] = {}
    builder, other = GraphBuilder("a_", shared), GraphBuilder("b_", shared)

    names = [builder.constant(v) for v in (1, 1.0, [1, 2], [0.5], np.uint8(1), 1, [1, 2])]
    result = other.add("Add", "x", 1.0)
    last = other.add("Cast", result, to=1)

    assert names == [f"a_constant_{i}" for i in (0, 1, 2, 3, 4, 0, 2)]
    assert [t.dtype.name for _, t in shared.values()] == [
        "int64", "float32", "int64", "float32", "uint8"
    ]  # fmt: skip
    assert (result, last) == ("b_0", "b_1")
    assert [[*node.input] for node in other.nodes] == [["x", "a_constant_1"], ["b_0"]]
    assert [tensor.name for tensor in other.tensors()] == names[:5]
