"""8-bit graphs: exact integers, and answers that do not depend on the rest of the batch."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.conftest import tiny
from tests.support.export_run import make_run
from vitft.export import export_run, plan_export, quantize_graph


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
