"""The computation itself as a file: ONNX and torch.export.

Any module from pixels to logits will do. How an image becomes the input stands in the file, as
JSON, together with the class names in order; with `--with-preprocessing` the graph takes bytes and
normalises them itself, with `--with-resize` an ONNX graph takes images of any size (`resize`).
"""

import contextlib
import functools
import io
import json
import logging
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitft.data.transforms import EvalTransform
from vitft.export.compare import Array, Opened
from vitft.export.native import normalised
from vitft.export.resize import INPUT, rgb_bytes, write_resizing
from vitft.export.trained import Trained
from vitft.models.timm_model import Model
from vitft.system.errors import RunError
from vitft.system.files import write_atomically, writing

ONNX = "model.onnx"
PROGRAM = "model.pt2"
FACTS = "vitft.json"
"""File inside the .pt2 archive that describes it; in ONNX it is the metadata `vitft`."""
OPSET = 18
"""The newest operator set that every onnxruntime since 1.14 and most other tools read."""
BIG = 1_800_000_000
"""Bytes of weights beyond which they lie in a file beside the graph; protobuf ends at 2 GiB."""


class FromBytes(nn.Module):
    """A model that takes images as bytes, (B, S, S, 3), and normalises them itself."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, transform: EvalTransform) -> None:
        super().__init__()
        self.model = model
        for name, values in (("mean", transform.mean), ("std", transform.std)):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        planes = pixels.permute(0, 3, 1, 2).float()  # (B, 3, S, S)
        if len(self.mean) == 1:
            planes = grey(planes)
        return self.model((planes / 255 - self.mean) / self.std)


def grey(planes: Tensor) -> Tensor:
    """Pillow's grey of colours (B, 3, S, S) from 0 to 255: whole numbers below 2^24, so exact."""
    red, green, blue = (planes[:, i : i + 1] for i in range(3))
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536).floor()


def facts(trained: Trained, *, takes_bytes: bool, any_size: bool = False) -> str:
    """What a user of the graph must know, as one line of ASCII JSON."""
    transform, shape = trained.card.transform, trained.card.architecture
    height, width = transform.image_size
    colours = "greys, (value" if transform.channels == 1 else "RGB, (value"
    if any_size:
        layout = "uint8 (batch, height, width, 3): upright RGB of any size, all else inside"
    elif takes_bytes:
        layout = f"uint8 (batch, {height}, {width}, 3): RGB, 0 to 255, normalised inside"
    else:
        layout = (
            f"float32 (batch, {shape.in_channels}, {height}, {width}): {colours} / 255 - "
            "mean) / std per channel"
        )
    return json.dumps(
        {
            "classes": list(trained.card.classes),
            "transform": transform.to_json(),
            "input": {
                "name": INPUT if any_size else "pixels",
                "layout": layout,
                "bytes": takes_bytes,
                "any_size": any_size,
            },
            "output": {"name": "logits", "layout": "float32 (batch, classes): softmax them"},
            "weights": dict(trained.card.weights),
            "made_by": f"vitft {version('vitft')}",
        },
        allow_nan=False,
    )


def write_onnx(
    trained: Trained, folder: Path, *, takes_bytes: bool, any_size: bool = False
) -> None:
    """model.onnx, and model.onnx.data beside it if the weights are too large for one file."""
    program = onnx_program(trained, takes_bytes or any_size)
    with writing(folder), quietly():
        program.save(folder / ONNX, external_data=is_big(trained.model))
        if any_size:
            text = facts(trained, takes_bytes=True, any_size=True)
            transform = trained.card.transform
            write_resizing(folder / ONNX, transform, text, is_big=is_big(trained.model))


@functools.lru_cache(maxsize=1)  # --onnx and --int8 start from the same graph
def onnx_program(trained: Trained, takes_bytes: bool) -> Any:  # noqa: ANN401 - torch's own type
    """The model as an ONNX graph of any batch size, described and without traces of its maker."""
    model, example = traceable(trained, takes_bytes=takes_bytes)
    try:
        with quietly():
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
        raise inexpressible("ONNX", error) from error
    assert program is not None
    graph = program.model.graph
    for part in (graph, *graph, *graph.inputs, *graph.initializers.values()):
        part.metadata_props.clear()  # folders of this machine, line by line of the source
    for node in graph:
        for value in node.outputs:
            value.metadata_props.clear()
    for function in program.model.functions.values():
        for node in function:
            node.metadata_props.clear()
    program.model.metadata_props["vitft"] = facts(trained, takes_bytes=takes_bytes)
    return program


def write_program(trained: Trained, folder: Path, *, takes_bytes: bool) -> None:
    """model.pt2, which `torch.export.load` opens without vitft."""
    model, example = traceable(trained, takes_bytes=takes_bytes)
    batch = torch.export.Dim.DYNAMIC
    try:
        with quietly():
            program = torch.export.export(model, (example,), dynamic_shapes=({0: batch},))
    except RuntimeError as error:
        raise inexpressible("torch.export", error) from error
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)  # folders of this machine
    text = facts(trained, takes_bytes=takes_bytes)
    content = io.BytesIO()  # torch's own writer does not say that a disk is full
    with quietly():
        torch.export.save(program, content, extra_files={FACTS: text})
    write_atomically(folder / PROGRAM, content.getvalue())


def traceable(trained: Trained, *, takes_bytes: bool) -> tuple[nn.Module, Tensor]:
    """What is traced, and an input of two images: one would be taken for the only batch size."""
    shape, transform = trained.card.architecture, trained.card.transform
    if takes_bytes:
        pixels = torch.zeros(2, *transform.image_size, 3, dtype=torch.uint8)
        return FromBytes(trained.model, transform).eval(), pixels
    return trained.model, torch.zeros(2, shape.in_channels, *transform.image_size)


def is_big(model: Model) -> bool:
    """Whether the weights are too large for one protobuf."""
    return sum(t.numel() * t.element_size() for t in model.state_dict().values()) > BIG


def inexpressible(target: str, error: Exception) -> RunError:
    """The error of a model whose computation a format cannot hold."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return RunError(
        f"{target} cannot express this model: {(lines or [type(error).__name__])[0][:200]}",
        fix="export it with --timm or --safetensors",
    )


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without what exporters print and log about themselves; failures are raised all the same."""
    level = logging.root.level
    logging.root.setLevel(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.root.setLevel(level)


def open_onnx(folder: Path) -> Opened:
    """The graph as onnxruntime runs it, fed as its own metadata says."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()  # as many as the original
    options.log_severity_level = 3  # errors only
    # Idle threads would wait by turning round, on the cores that the next model is timed on.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        folder / ONNX, options, providers=["CPUExecutionProvider"]
    )
    described = json.loads(session.get_modelmeta().custom_metadata_map["vitft"])

    name = described["input"]["name"]

    def logits(inputs: Array) -> Array:
        return np.asarray(session.run(["logits"], {name: inputs})[0])

    return opened_graph(described, logits, by=f"onnxruntime {onnxruntime.__version__}")


def open_program(folder: Path) -> Opened:
    """The program as torch runs it, fed as its own metadata says."""
    inside = {FACTS: ""}
    program = torch.export.load(folder / PROGRAM, extra_files=inside)
    module = program.module()

    def logits(inputs: Array) -> Array:
        with torch.inference_mode():
            return np.asarray(module(torch.from_numpy(inputs)).numpy())

    return opened_graph(json.loads(inside[FACTS]), logits, by=f"torch {torch.__version__}")


def opened_graph(described: dict[str, Any], logits: Any, *, by: str) -> Opened:  # noqa: ANN401
    """A graph with the preprocessing that its description asks for."""
    transform = EvalTransform.from_json(described["transform"])
    takes_bytes, any_size = described["input"]["bytes"], described["input"]["any_size"]
    prepare = transform.pixels if takes_bytes else functools.partial(normalised, transform)
    return Opened(
        by=by,
        classes=tuple(described["classes"]),
        prepare=rgb_bytes if any_size else prepare,
        logits=logits,
        one_by_one=any_size,
    )
