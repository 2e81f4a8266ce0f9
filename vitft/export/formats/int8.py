"""--int8: an ONNX graph with 8-bit weights.

A quarter of the size, and faster on CPUs with integer dot products. A matrix is quantised in one of
two ways, depending on its input. Inputs from a LayerNorm or from attention are quantised to 8 bits
at run time, so integers are multiplied; no calibration images are needed. The output of a GELU has
a few values far from all others, which a single scale cannot represent: there, only the weights
are quantised and the product is computed in float32. On a ViT-Tiny this reduces the largest error
of a logit from 1.2 to 0.2 (docs/experiments.md).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitft.export.formats.base import ExportFormat, NumericArray, OpenedModel
from vitft.export.formats.graph import silenced
from vitft.export.formats.onnx import ONNX_FILE, OnnxFormat, open_onnx
from vitft.export.trained import TrainedRun
from vitft.system.errors import RunError
from vitft.system.files import writing
from vitft.system.text import percent

ACTIVATIONS = ("Gelu", "Mul", "Relu", "Sigmoid", "Tanh")
"""Operators that end an activation function; the exact GELU ends in a product."""
MAX_REMAINING = 0.7
"""Fraction of the weights' bytes above which int8 is not worthwhile; convolutions stay float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Format(ExportFormat):
    """model.onnx with one scale per output of each matrix; everything else stays in float32."""

    takes_bytes: bool = False
    """Whether the graph takes bytes and normalises them itself."""

    def write(self, trained: TrainedRun, folder: Path) -> None:
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        exact = folder / "exact"
        exact.mkdir()
        OnnxFormat(takes_bytes=self.takes_bytes).write(trained, exact)
        with writing(folder), silenced():
            model = onnx.load(exact / ONNX_FILE)
            del model.graph.value_info[:]  # these shapes contradict those of quantised nodes
            weight_only = products_after_activations(model.graph)
            quantize_dynamic(
                model,
                folder / ONNX_FILE,
                op_types_to_quantize=["MatMul", "Gemm"],
                nodes_to_exclude=[node.name for node in weight_only],
                per_channel=True,
                weight_type=QuantType.QInt8,
            )
            small = onnx.load(folder / ONNX_FILE)
            quantize_weights(small.graph, {node.input[1] for node in weight_only})
            onnx.save(small, folder / ONNX_FILE)
        remaining = weight_bytes(small.graph) / weight_bytes(model.graph)
        if remaining > MAX_REMAINING:
            raise RunError(
                f"--int8 would still take {percent(remaining, 0)} of this model's size, because "
                "most of its weights are not in matrices",
                fix="export it with --onnx",
            )
        for path in exact.iterdir():
            path.unlink()
        exact.rmdir()

    def open(self, folder: Path) -> OpenedModel:
        return open_onnx(folder)


def weight_bytes(graph: Any) -> int:  # noqa: ANN401 - onnx's protobufs
    """Return the bytes of all constants of a graph."""
    return sum(len(tensor.raw_data) for tensor in graph.initializer)


def products_after_activations(graph: Any) -> list[Any]:  # noqa: ANN401 - onnx's protobufs
    """Return the products of an activation's output with a constant matrix."""
    producer = {name: node.op_type for node in graph.node for name in node.output}
    constants = {tensor.name for tensor in graph.initializer}
    return [
        node
        for node in graph.node
        if node.op_type == "MatMul"
        and node.input[1] in constants
        and producer.get(node.input[0]) in ACTIVATIONS
    ]


def quantize_weights(graph: Any, names: set[str]) -> None:  # noqa: ANN401 - onnx's protobufs
    """Store constant matrices as int8, which the graph converts to float32 at run time."""
    from onnx import helper, numpy_helper

    added = []
    for tensor in [t for t in graph.initializer if t.name in names]:
        whole, scale = quantized(numpy_helper.to_array(tensor))
        name = tensor.name
        graph.initializer.remove(tensor)
        parts = {f"{name}_rounded": whole, f"{name}_scale": scale}
        graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in parts.items())
        added.append(helper.make_node("DequantizeLinear", [*parts], [name], f"{name}_back", axis=1))
    rest = [*graph.node]
    del graph.node[:]
    graph.node.extend([*added, *rest])


def quantized(weights: NumericArray) -> tuple[NumericArray, NumericArray]:
    """Return a matrix (inputs, outputs) as integers from -127 to 127, and a scale per output."""
    scale = np.maximum(np.abs(weights).max(axis=0), 1e-12) / 127
    return np.rint(weights / scale).astype(np.int8), scale.astype(np.float32)
