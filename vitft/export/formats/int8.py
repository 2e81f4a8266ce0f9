"""Export format --int8: an ONNX graph with 8-bit matrices.

Each row of an activation belongs to one token and is quantised with its own scale. The prediction
for an image therefore does not depend on the other images in the batch. In contrast, onnxruntime's
dynamic quantisation uses one scale for the whole batch.

Notation: B images, N tokens, D inputs and F outputs of a linear layer.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitft.export.formats.base import ExportFormat, OpenedModel
from vitft.export.formats.onnx import OnnxFormat, open_onnx, silenced
from vitft.export.formats.onnx_resize import GraphBuilder
from vitft.export.trained import TrainedRun
from vitft.models.find import ONNX_FILE
from vitft.models.graph_digest import add_graph_digest
from vitft.system.errors import RunError
from vitft.system.files import writing
from vitft.system.text import percent

_ACTIVATIONS = ("Gelu", "Mul", "Relu", "Sigmoid", "Tanh")
"""Operators with which an activation function may end; the exact GELU ends with `Mul`."""
_MAX_REMAINING = 0.7
"""Maximum ratio of the int8 size to the float32 size; a larger file is not worthwhile."""
_ZERO = 128
"""Byte that represents zero in a quantised activation or weight. Both factors of a product are
unsigned bytes: with signed ones, onnxruntime's sums saturate on CPUs with AVX2 but without VNNI."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Format(ExportFormat):
    """The file model.onnx with 8-bit matrices, one scale per output; the rest stays float32.

    The file is about a quarter of the float32 size, and the model is faster on CPUs with
    instructions for integer products. Outputs of LayerNorm and attention are quantised to 8 bits at
    run time so that they can be multiplied as integers; no calibration images are needed. The
    output of a GELU contains a few outliers, for which a single scale is too coarse. In layers that
    follow a GELU, only the weights are quantised, and the product is computed in float32
    (benchmarks/notebook/exports.md).
    """

    takes_bytes: bool = False
    """Whether the graph accepts bytes and normalises them itself."""

    def write(self, trained: TrainedRun, folder: Path) -> None:
        path = folder / ONNX_FILE
        OnnxFormat(takes_bytes=self.takes_bytes).write(trained, folder)
        with writing(folder), silenced():
            remaining = quantize_file(path, path)
            path.with_name(f"{ONNX_FILE}.data").unlink(missing_ok=True)
        if remaining > _MAX_REMAINING:
            raise RunError(
                f"--int8 would save little: the model would keep {percent(remaining, 0)} of its "
                "size, because most of its weights are not in linear layers",
                fix="use --onnx",
            )

    def open(self, folder: Path) -> OpenedModel:
        return open_onnx(folder / ONNX_FILE)


def quantize_file(exact: Path, small: Path) -> float:
    """Write the graph in `exact` to `small` with int8 matrices; return the ratio of their sizes."""
    import onnx

    model = onnx.load(exact)
    del model.graph.value_info[:]  # these shapes conflict with those of quantised nodes
    before = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    quantize_graph(model.graph)
    after = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    facts = json.loads({entry.key: entry.value for entry in model.metadata_props}["vitft"])
    if "run" in facts:
        facts["run"]["rounded"] = True  # its accuracy is that of float32
    # Without the digest of the exact graph.
    onnx.helper.set_model_props(model, {"vitft": json.dumps(facts, allow_nan=False)})
    onnx.save(model, small)
    add_graph_digest(small)
    return after / before


def quantize_graph(graph: Any) -> None:  # noqa: ANN401 - onnx's protobufs
    """Replace the constant matrices of a graph with int8 matrices, in place.

    A MatMul that does not follow an activation function is computed in integer arithmetic. For the
    other products, the weights are converted to float32 at run time.
    """
    from onnx import numpy_helper

    producer = {name: node.op_type for node in graph.node for name in node.output}
    matrices = {tensor.name: tensor for tensor in graph.initializer if len(tensor.dims) == 2}
    builder = GraphBuilder("int8_", {})
    parts: dict[str, tuple[str, str]] = {}
    zeros: set[str] = set()  # onnxruntime warns of each tensor that no node reads
    for node in graph.node:
        tensor = matrices.get(node.input[1]) if node.op_type in ("MatMul", "Gemm") else None
        if tensor is None:
            builder.nodes.append(node)
            continue
        is_rows = any(a.name == "transB" and a.i for a in node.attribute)  # (F, D), not (D, F)
        if tensor.name not in parts:
            weights = numpy_helper.to_array(tensor)
            largest = np.abs(weights).max(axis=int(is_rows), keepdims=True)  # of each output
            scales = np.maximum(largest, 1e-12) / 127
            arrays = {
                f"{tensor.name}_rounded": (np.rint(weights / scales) + _ZERO).astype(np.uint8),
                f"{tensor.name}_scale": scales.astype(np.float32).ravel(),
            }
            graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
            parts[tensor.name] = f"{tensor.name}_rounded", f"{tensor.name}_scale"
        rounded, scale = parts[tensor.name]
        if node.op_type == "MatMul" and producer.get(node.input[0]) not in _ACTIVATIONS:
            _integer_product(builder, node, rounded, scale)
            continue
        axis = 0 if is_rows else 1
        zero = f"{tensor.name}_zero"
        if zero not in zeros:
            zeros.add(zero)
            points = np.full(tensor.dims[axis], _ZERO, np.uint8)  # (F,)
            graph.initializer.append(numpy_helper.from_array(points, zero))
        node.input[1] = builder.add("DequantizeLinear", rounded, scale, zero, axis=axis)
        builder.nodes.append(node)
    for name in parts:
        graph.initializer.remove(matrices[name])
    graph.initializer.extend(builder.tensors())
    del graph.node[:]
    graph.node.extend(builder.nodes)


def _integer_product(builder: GraphBuilder, node: Any, rounded: str, scale: str) -> None:  # noqa: ANN401
    """Add the product of an activation (B, N, D), quantised row by row, with an int8 matrix."""
    from onnx import TensorProto

    add, x = builder.add, node.input[0]
    largest = add("Max", add("ReduceMax", add("Abs", x), [-1]), 1e-12)  # (B, N, 1)
    row_scale = add("Div", largest, 127.0)
    shifted = add("Add", add("Round", add("Div", x, row_scale)), float(_ZERO))
    bytes_ = add("Cast", shifted, to=TensorProto.UINT8)
    product = add("MatMulInteger", bytes_, rounded, np.uint8(_ZERO), np.uint8(_ZERO))
    whole = add("Cast", product, to=TensorProto.FLOAT)
    add("Mul", add("Mul", whole, scale), row_scale)
    builder.nodes[-1].output[0] = node.output[0]
