"""Export formats --onnx, --int8 and --torch-export, which contain the computation graph.

The graphs accept any batch size. Notation: B images, N tokens, S pixels per side, D inputs and F
outputs of a linear layer.
"""

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitft.data.transforms import EvalTransform
from vitft.export.formats.base import (
    ExportFormat,
    NumericArray,
    OpenedModel,
    module_logits,
    normalised_input,
)
from vitft.export.formats.onnx_resize import (
    PLANES_INPUT,
    RESIZE_INPUT,
    GraphBuilder,
    add_resize,
    onnx_session,
    resize_obstacle,
    rgb_bytes,
    rgb_planes,
)
from vitft.export.trained import TrainedRun
from vitft.models.card import Card
from vitft.models.find import ONNX_FILE, PROGRAM_FILE
from vitft.models.graph_digest import add_graph_digest
from vitft.system import console
from vitft.system.errors import RunError
from vitft.system.files import write_atomically, writing
from vitft.system.text import percent

_DESCRIPTION_FILE = "vitft.json"  # name of the file in the .pt2 archive that describes the program


class _NormalisingModel(nn.Module):
    """A model that accepts images as bytes (B, S, S, 3) and normalises them itself."""

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
            planes = to_grey(planes)
        return self.model((planes / 255 - self.mean) / self.std)


def to_grey(planes: Tensor) -> Tensor:
    """Convert RGB images (B, 3, S, S) in [0, 255] to grey (B, 1, S, S), exactly as Pillow does.

    All intermediate values are integers below 2^24, which float32 represents exactly.
    """
    red, green, blue = (planes[:, i : i + 1] for i in range(3))
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536).floor()


def _describe_graph(trained: TrainedRun, *, takes_bytes: bool, any_size: bool = False) -> str:
    """Return a graph's classes, preprocessing, input and output as one line of ASCII JSON."""
    transform, shape = trained.card.transform, trained.card.architecture
    height, width = transform.image_size
    name = "pixels"
    if any_size and not takes_bytes:
        name = PLANES_INPUT
        layout = "float32 (batch, 3, height, width): upright RGB of any size, values 0 to 255"
    elif any_size:
        name = RESIZE_INPUT
        layout = (
            "uint8 (batch, height, width, 3): upright RGB images of any size, which the graph "
            "resizes, crops and normalises"
        )
    elif takes_bytes:
        layout = f"uint8 (batch, {height}, {width}, 3): RGB, 0 to 255, which the graph normalises"
    else:
        layout = (
            f"float32 (batch, {shape.in_channels}, {height}, {width}): "
            f"{'greyscale' if transform.channels == 1 else 'RGB'}, (value / 255 - mean) / std per "
            "channel"
        )
    link = "sigmoid" if trained.card.thresholds else "softmax"
    return json.dumps(
        {
            "classes": list(trained.card.classes),
            "transform": transform.to_json(),
            "input": {"name": name, "layout": layout, "bytes": takes_bytes, "any_size": any_size},
            "output": {"name": "logits", "layout": f"float32 (batch, classes), before the {link}"},
            "weights": dict(trained.card.weights),
            "split": trained.card.split,
            "made_by": f"vitft {version('vitft')}",
            **({"thresholds": list(trained.card.thresholds)} if trained.card.thresholds else {}),
            **({"run": trained.card.run.to_json()} if trained.card.run else {}),
        },
        allow_nan=False,
    )


def _example_of(trained: TrainedRun, *, takes_bytes: bool) -> tuple[nn.Module, Tensor]:
    """Return the module to trace and an example input (one image would fix the batch size at 1)."""
    shape, transform = trained.card.architecture, trained.card.transform
    if takes_bytes:
        pixels = torch.zeros(2, *transform.image_size, 3, dtype=torch.uint8)
        return _NormalisingModel(trained.model, transform).eval(), pixels
    return trained.model, torch.zeros(2, shape.in_channels, *transform.image_size)


def _export_error(target: str, error: Exception) -> RunError:
    """Return the error for a model that cannot be exported to a format."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return RunError(
        f"{target} cannot export this model: {(lines or [type(error).__name__])[0][:200]}",
        fix="use --timm or --safetensors",
    )


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Suppress output and logging of exporters, but not the log and progress of vitft."""
    level = logging.root.level
    logging.root.setLevel(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(console.DiscardingStream()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.root.setLevel(level)


def _open_graph(
    described: Mapping[str, Any], logits: Callable[[NumericArray], NumericArray], *, by: str
) -> OpenedModel:
    """Return a graph as an opened model, with the preprocessing given in its description."""
    transform = EvalTransform.from_json(described["transform"])
    takes_bytes, any_size = described["input"]["bytes"], described["input"]["any_size"]
    prepare: Callable[[Image.Image], NumericArray]
    if any_size:
        prepare = rgb_bytes if takes_bytes else rgb_planes
    else:
        prepare = transform.pixels if takes_bytes else partial(normalised_input, transform)
    return OpenedModel(
        by=by,
        classes=tuple(described["classes"]),
        thresholds=tuple(described.get("thresholds", ())),
        prepare=prepare,
        logits=logits,
        one_by_one=any_size,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchExportFormat(ExportFormat):
    """The file model.pt2, which `torch.export.load` opens without vitft."""

    takes_bytes: bool = False  # whether the program accepts bytes and normalises them itself

    def write(self, trained: TrainedRun, folder: Path) -> None:
        model, example = _example_of(trained, takes_bytes=self.takes_bytes)
        batch = torch.export.Dim.DYNAMIC
        try:
            with silenced():
                program = torch.export.export(model, (example,), dynamic_shapes=({0: batch},))
        except RuntimeError as error:
            raise _export_error("torch.export", error) from error
        modules = program.graph_module.modules()
        for module in (each for each in modules if isinstance(each, torch.fx.GraphModule)):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)  # contains local paths
        text = _describe_graph(trained, takes_bytes=self.takes_bytes)
        content = io.BytesIO()  # torch's writer does not report a full disk as such
        with silenced():
            torch.export.save(program, content, extra_files={_DESCRIPTION_FILE: text})
        write_atomically(folder / PROGRAM_FILE, content.getvalue())

    def open(self, folder: Path) -> OpenedModel:
        files = {_DESCRIPTION_FILE: ""}
        with silenced():  # torch 2.10 warns of its own read-only buffers
            module = torch.export.load(folder / PROGRAM_FILE, extra_files=files).module()
        return _open_graph(
            json.loads(files[_DESCRIPTION_FILE]),
            lambda inputs: module_logits(module, inputs),
            by=f"torch {torch.__version__}",
        )


# export format --onnx: an ONNX graph for onnxruntime and other tools, with any batch size ---------

OPSET = 18  # newest operator set that onnxruntime 1.14 supports; most other tools also support it
MAX_INLINE_BYTES = 1_800_000_000
"""Size in bytes above which weights are saved in a second file; protobuf allows up to 2 GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxFormat(ExportFormat):
    """The file model.onnx, with model.onnx.data if the weights are too large for one file."""

    takes_bytes: bool = False  # whether the graph accepts bytes and normalises them itself
    any_size: bool = False

    def obstacle(self, card: Card) -> str:
        return resize_obstacle(card) if self.any_size else ""

    def write(self, trained: TrainedRun, folder: Path) -> None:
        takes_bytes = self.takes_bytes or self.any_size
        save_graph(trained, folder / ONNX_FILE, takes_bytes=takes_bytes, any_size=self.any_size)

    def open(self, folder: Path) -> OpenedModel:
        return open_onnx(folder / ONNX_FILE)


def save_graph(trained: TrainedRun, path: Path, *, takes_bytes: bool, any_size: bool) -> None:
    """Write a graph whose images have `any_size` or that of the model, as bytes or as floats."""
    program = _onnx_program(trained, takes_bytes or any_size)
    is_big = parameter_bytes(trained) > MAX_INLINE_BYTES
    with writing(path.parent), silenced():
        program.save(path, external_data=is_big)
        if any_size:
            source = RESIZE_INPUT if takes_bytes else PLANES_INPUT
            text = _describe_graph(trained, takes_bytes=takes_bytes, any_size=True)
            add_resize(path, trained.card.transform, text, is_big=is_big, source=source)
        add_graph_digest(path)


@lru_cache(maxsize=1)  # --onnx and --int8 start from the same graph
def _onnx_program(trained: TrainedRun, takes_bytes: bool) -> Any:  # noqa: ANN401 - torch's own type
    """Convert the model to an ONNX graph for any batch size, and remove local paths from it."""
    model, example = _example_of(trained, takes_bytes=takes_bytes)
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
        raise _export_error("ONNX", error) from error
    assert program is not None
    graph = program.model.graph
    outputs = (value for node in graph for value in node.outputs)
    inside = (node for function in program.model.functions.values() for node in function)
    inputs = (*graph.inputs, *graph.initializers.values())
    for part in (graph, *graph, *inputs, *outputs, *inside):
        part.metadata_props.clear()  # contains file paths and source lines
    program.model.metadata_props["vitft"] = _describe_graph(trained, takes_bytes=takes_bytes)
    return program


def parameter_bytes(trained: TrainedRun) -> int:
    """Return the size of a model's tensors in bytes."""
    return sum(t.numel() * t.element_size() for t in trained.model.state_dict().values())


def open_onnx(path: Path) -> OpenedModel:
    """Open a graph with onnxruntime, using the input described in its metadata."""
    import onnxruntime

    session = onnx_session(path)
    described = json.loads(session.get_modelmeta().custom_metadata_map["vitft"])
    source = described["input"]["name"]

    return _open_graph(
        described,
        lambda inputs: np.asarray(session.run(["logits"], {source: inputs})[0]),
        by=f"onnxruntime {onnxruntime.__version__}",
    )


# export format --int8: an ONNX graph with 8-bit matrices. Each row of an activation belongs to one
# token and is quantised with its own scale, so that the prediction for an image does not depend on
# the other images in the batch. onnxruntime's dynamic quantisation uses one scale for the batch.

_ACTIVATIONS = ("Gelu", "Mul", "Relu", "Sigmoid", "Tanh")
"""Operators with which an activation function may end; the exact GELU ends with `Mul`."""
_MAX_REMAINING = 0.7
"""Maximum ratio of the int8 size to the float32 size; a larger file is not worthwhile."""
_ZERO = 128
"""Byte that represents zero in a quantised activation or weight. Both factors of a product are
unsigned bytes: with signed ones, onnxruntime's sums saturate on CPUs with AVX2 but without VNNI."""


class Int8Format(OnnxFormat):
    """The file model.onnx with 8-bit matrices, one scale per output; the rest stays float32.

    The file is about a quarter of the float32 size, and the model is faster on CPUs with
    instructions for integer products. Outputs of LayerNorm and attention are quantised to 8 bits at
    run time so that they can be multiplied as integers; no calibration images are needed. The
    output of a GELU contains a few outliers, for which a single scale is too coarse. In layers that
    follow a GELU, only the weights are quantised, and the product is computed in float32
    (benchmarks/notebook/exports.md).
    """

    def write(self, trained: TrainedRun, folder: Path) -> None:
        path = folder / ONNX_FILE
        super().write(trained, folder)
        with writing(folder), silenced():
            remaining = quantize_file(path, path)
            path.with_name(f"{ONNX_FILE}.data").unlink(missing_ok=True)
        if remaining > _MAX_REMAINING:
            raise RunError(
                f"--int8 would save little: the model would keep {percent(remaining, 0)} of its "
                "size, because most of its weights are not in linear layers",
                fix="use --onnx",
            )


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
