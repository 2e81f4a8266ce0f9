"""Formats --onnx and --int8: ONNX graphs for onnxruntime and other tools, any batch size."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitft.export.formats.base import ExportFormat, NumericArray, OpenedModel
from vitft.export.formats.graph import (
    describe_graph,
    example_of,
    export_error,
    open_graph,
    silenced,
)
from vitft.export.formats.onnx_resize import add_resize, resize_obstacle, rgb_bytes
from vitft.export.trained import TrainedRun
from vitft.models.card import Card
from vitft.models.find import ONNX_FILE
from vitft.system.errors import RunError
from vitft.system.files import writing
from vitft.system.text import percent

OPSET = 18
"""Newest operator set supported by onnxruntime 1.14 and later and by most other tools."""
MAX_INLINE_BYTES = 1_800_000_000
"""Size in bytes above which weights go into a second file; protobuf's limit is 2 GiB."""


ACTIVATIONS = ("Gelu", "Mul", "Relu", "Sigmoid", "Tanh")
"""Last operators of activation functions; the exact GELU ends in a product."""
MAX_REMAINING = 0.7
"""Maximum ratio of int8 to float32 size that is worthwhile; convolutions stay float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxFormat(ExportFormat):
    """The file model.onnx, with model.onnx.data if the weights are too large for one file."""

    takes_bytes: bool = False
    """Whether the graph takes bytes and normalises them itself."""
    any_size: bool = False

    def obstacle(self, card: Card) -> str:
        return resize_obstacle(card) if self.any_size else ""

    def write(self, trained: TrainedRun, folder: Path) -> None:
        program = onnx_program(trained, self.takes_bytes or self.any_size)
        size = sum(t.numel() * t.element_size() for t in trained.model.state_dict().values())
        is_big = size > MAX_INLINE_BYTES
        with writing(folder), silenced():
            program.save(folder / ONNX_FILE, external_data=is_big)
            if self.any_size:
                text = describe_graph(trained, takes_bytes=True, any_size=True)
                add_resize(folder / ONNX_FILE, trained.card.transform, text, is_big=is_big)

    def open(self, folder: Path) -> OpenedModel:
        return open_onnx(folder)


@functools.lru_cache(maxsize=1)  # --onnx and --int8 start from the same graph
def onnx_program(trained: TrainedRun, takes_bytes: bool) -> Any:  # noqa: ANN401 - torch's own type
    """Return the model as an ONNX graph for any batch size, without local paths."""
    model, example = example_of(trained, takes_bytes=takes_bytes)
    try:
        with silenced():
            program = torch.onnx.export(
                model,
                (example,),
                dynamo=True,
                opset_version=OPSET,
                input_names=["pixels"],
                output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise export_error("ONNX", error) from error
    assert program is not None
    graph = program.model.graph
    for part in (graph, *graph, *graph.inputs, *graph.initializers.values()):
        part.metadata_props.clear()  # contains file paths and source lines
    for node in graph:
        for value in node.outputs:
            value.metadata_props.clear()
    for function in program.model.functions.values():
        for node in function:
            node.metadata_props.clear()
    program.model.metadata_props["vitft"] = describe_graph(trained, takes_bytes=takes_bytes)
    return program


def open_onnx(folder: Path) -> OpenedModel:
    """Open a graph with onnxruntime, using the input described in its metadata."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()  # as many as for the original
    options.log_severity_level = 3  # errors only
    # Otherwise, idle threads would keep the cores busy while another model is timed.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        folder / ONNX_FILE, options, providers=["CPUExecutionProvider"]
    )
    described = json.loads(session.get_modelmeta().custom_metadata_map["vitft"])
    name = described["input"]["name"]

    def logits(inputs: NumericArray) -> NumericArray:
        return np.asarray(session.run(["logits"], {name: inputs})[0])

    opened = open_graph(described, logits, by=f"onnxruntime {onnxruntime.__version__}")
    if not described["input"]["any_size"]:
        return opened
    return OpenedModel(
        by=opened.by, classes=opened.classes, prepare=rgb_bytes, logits=logits, one_by_one=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Format(ExportFormat):
    """The file model.onnx with 8-bit matrices, one scale per output; the rest stays float32.

    The file has a quarter of the size and is faster on CPUs with integer dot products. Outputs of
    LayerNorm and attention are quantised to 8 bits at run time, so that integers are multiplied; no
    calibration images are needed. The output of a GELU contains a few outliers, which a single
    scale cannot represent: there, only the weights are quantised and the product is computed in
    float32. On a ViT-Tiny this reduces the maximum logit error from 1.2 to 0.2
    (docs/experiments.md).
    """

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
            del model.graph.value_info[:]  # these shapes conflict with those of quantised nodes
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
                f"--int8 would only reduce this model to {percent(remaining, 0)} of its size, "
                "because most of its weights are not in linear layers",
                fix="use --onnx",
            )
        for path in exact.iterdir():
            path.unlink()
        exact.rmdir()

    def open(self, folder: Path) -> OpenedModel:
        return open_onnx(folder)


def weight_bytes(graph: Any) -> int:  # noqa: ANN401 - onnx's protobufs
    """Return the size in bytes of all constants in a graph."""
    return sum(len(tensor.raw_data) for tensor in graph.initializer)


def products_after_activations(graph: Any) -> list[Any]:  # noqa: ANN401 - onnx's protobufs
    """Return the nodes that multiply an activation's output by a constant matrix."""
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
    """Replace constant matrices by int8 ones that the graph converts to float32 at run time."""
    from onnx import helper, numpy_helper

    added = []
    for tensor in [t for t in graph.initializer if t.name in names]:
        name, weights = tensor.name, numpy_helper.to_array(tensor)  # (inputs, outputs)
        scale = np.maximum(np.abs(weights).max(axis=0), 1e-12) / 127  # one per output
        rounded = np.rint(weights / scale).astype(np.int8)
        graph.initializer.remove(tensor)
        parts = {f"{name}_rounded": rounded, f"{name}_scale": scale.astype(np.float32)}
        graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in parts.items())
        added.append(helper.make_node("DequantizeLinear", [*parts], [name], f"{name}_back", axis=1))
    rest = [*graph.node]
    del graph.node[:]
    graph.node.extend([*added, *rest])
