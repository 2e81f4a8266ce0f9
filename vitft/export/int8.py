"""ONNX with weights of 8 bits: a quarter of the size, and faster on CPUs with integer dot products.

Two ways, by what a matrix is multiplied with. Inputs that come from a LayerNorm or from attention
are rounded to 8 bits as they pass, so whole numbers are multiplied; no calibration images are
needed. What comes out of a GELU has a few values far from all others, which one scale for all
cannot hold: there only the weights are rounded and the product is computed in float32. On a
ViT-Tiny that is the difference between 1.2 and 0.2 in a logit (docs/experiments.md).
"""

from pathlib import Path
from typing import Any

import numpy as np

from vitft.export.compare import Array
from vitft.export.graph import ONNX, quietly, write_onnx
from vitft.export.trained import Trained
from vitft.system.errors import RunError
from vitft.system.files import writing

ACTIVATIONS = ("Gelu", "Mul", "Relu", "Sigmoid", "Tanh")
"""Operators that end an activation function; the exact GELU ends in a product."""

WORTH_IT = 0.7
"""Share of the weights' bytes beyond which nothing is gained; convolutions stay as they are."""


def write_int8(trained: Trained, folder: Path, *, takes_bytes: bool) -> None:
    """model.onnx with one scale per output of each matrix; the rest stays in float32."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    exact = folder / "exact"
    exact.mkdir()
    write_onnx(trained, exact, takes_bytes=takes_bytes)
    with writing(folder), quietly():
        model = onnx.load(exact / ONNX)
        del model.graph.value_info[:]  # the exporter's shapes contradict those of rounded nodes
        lasting = behind_activations(model.graph)
        quantize_dynamic(
            model,
            folder / ONNX,
            op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_exclude=[node.name for node in lasting],
            per_channel=True,
            weight_type=QuantType.QInt8,
        )
        small = onnx.load(folder / ONNX)
        round_weights(small.graph, {node.input[1] for node in lasting})
        onnx.save(small, folder / ONNX)
    left = weight_bytes(small.graph) / weight_bytes(model.graph)
    if left > WORTH_IT:
        raise RunError(
            f"8 bits would leave {left:.0%} of this model's size: its weights are not in matrices",
            fix="export it with --onnx",
        )
    for path in exact.iterdir():
        path.unlink()
    exact.rmdir()


def weight_bytes(graph: Any) -> int:  # noqa: ANN401 - onnx's protobufs
    """Bytes of all constants of a graph."""
    return sum(len(tensor.raw_data) for tensor in graph.initializer)


def behind_activations(graph: Any) -> list[Any]:  # noqa: ANN401 - onnx's protobufs
    """The products of an activation's outcome with a constant matrix."""
    maker = {name: node.op_type for node in graph.node for name in node.output}
    constants = {tensor.name for tensor in graph.initializer}
    return [
        node
        for node in graph.node
        if node.op_type == "MatMul"
        and node.input[1] in constants
        and maker.get(node.input[0]) in ACTIVATIONS
    ]


def round_weights(graph: Any, names: set[str]) -> None:  # noqa: ANN401 - onnx's protobufs
    """Store constant matrices as bytes, from which the graph makes float32 when it runs."""
    from onnx import helper, numpy_helper

    added = []
    for tensor in [t for t in graph.initializer if t.name in names]:
        whole, scale = rounded(numpy_helper.to_array(tensor))
        name = tensor.name
        graph.initializer.remove(tensor)
        parts = {f"{name}_rounded": whole, f"{name}_scale": scale}
        graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in parts.items())
        added.append(helper.make_node("DequantizeLinear", [*parts], [name], f"{name}_back", axis=1))
    rest = [*graph.node]
    del graph.node[:]
    graph.node.extend([*added, *rest])


def rounded(weights: Array) -> tuple[Array, Array]:
    """A matrix (inputs, outputs) as whole numbers from -127 to 127 and a scale per output."""
    scale = np.maximum(np.abs(weights).max(axis=0), 1e-12) / 127
    return np.rint(weights / scale).astype(np.int8), scale.astype(np.float32)
