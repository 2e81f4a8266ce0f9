"""Export format --onnx: an ONNX graph for onnxruntime and other tools, with any batch size."""

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
from vitft.export.formats.onnx_resize import add_resize, resize_obstacle, rgb_bytes, rgb_planes
from vitft.export.trained import TrainedRun
from vitft.models.card import Card
from vitft.models.find import ONNX_FILE
from vitft.models.graph_digest import add_graph_digest
from vitft.system.files import writing

OPSET = 18
"""Newest operator set that onnxruntime 1.14 supports; most other tools also support it."""
MAX_INLINE_BYTES = 1_800_000_000
"""Size in bytes above which weights are saved in a second file; protobuf allows up to 2 GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxFormat(ExportFormat):
    """The file model.onnx, with model.onnx.data if the weights are too large for one file."""

    takes_bytes: bool = False
    """Whether the graph accepts bytes and normalises them itself."""
    any_size: bool = False

    def obstacle(self, card: Card) -> str:
        return resize_obstacle(card) if self.any_size else ""

    def write(self, trained: TrainedRun, folder: Path) -> None:
        program = onnx_program(trained, self.takes_bytes or self.any_size)
        is_big = parameter_bytes(trained) > MAX_INLINE_BYTES
        with writing(folder), silenced():
            program.save(folder / ONNX_FILE, external_data=is_big)
            if self.any_size:
                text = describe_graph(trained, takes_bytes=True, any_size=True)
                add_resize(folder / ONNX_FILE, trained.card.transform, text, is_big=is_big)
            add_graph_digest(folder / ONNX_FILE)

    def open(self, folder: Path) -> OpenedModel:
        return open_onnx(folder)


@functools.lru_cache(maxsize=1)  # --onnx and --int8 start from the same graph
def onnx_program(trained: TrainedRun, takes_bytes: bool) -> Any:  # noqa: ANN401 - torch's own type
    """Convert the model to an ONNX graph for any batch size, and remove local paths from it.

    Raises:
        RunError: torch cannot export the model.
    """
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


def parameter_bytes(trained: TrainedRun) -> int:
    """Return the size of a model's tensors in bytes."""
    return sum(t.numel() * t.element_size() for t in trained.model.state_dict().values())


def open_onnx(folder: Path, name: str = ONNX_FILE) -> OpenedModel:
    """Open a graph with onnxruntime, using the input described in its metadata."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()  # as many as for the original
    options.log_severity_level = 3  # errors only
    # Otherwise, idle threads would keep the cores busy while another model is timed.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        folder / name, options, providers=["CPUExecutionProvider"]
    )
    described = json.loads(session.get_modelmeta().custom_metadata_map["vitft"])
    source = described["input"]["name"]

    def logits(inputs: NumericArray) -> NumericArray:
        return np.asarray(session.run(["logits"], {source: inputs})[0])

    opened = open_graph(described, logits, by=f"onnxruntime {onnxruntime.__version__}")
    if not described["input"]["any_size"]:
        return opened
    prepare = rgb_bytes if described["input"]["bytes"] else rgb_planes
    return OpenedModel(
        by=opened.by,
        classes=opened.classes,
        thresholds=opened.thresholds,
        prepare=prepare,
        logits=logits,
        one_by_one=True,
    )
