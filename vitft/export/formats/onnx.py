"""Export formats --onnx, --int8, --transformers-js and --torch-export, with the computation graph.

The graphs accept any batch size. Notation: B images, C colour channels, N tokens, S pixels per side
of a view, D inputs and F outputs of a linear layer.
"""

import contextlib
import io
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitft.data.transforms import EvalTransform
from vitft.export.formats.base import (
    ExportFormat,
    NumericArray,
    OpenedModel,
    module_logits,
    normalised_input,
    timed_step,
)
from vitft.export.formats.timm import labels_of
from vitft.export.plan import DEFAULT_OPSET
from vitft.export.trained import TrainedRun
from vitft.metrics.outputs import Outputs
from vitft.models.card import Card, add_graph_digest
from vitft.models.find import ONNX_FILE, PROGRAM_FILE
from vitft.predict.engine import OnnxEngine, open_session
from vitft.system import console
from vitft.system.errors import RunError
from vitft.system.files import write_atomically, write_json, writing
from vitft.system.imports import version
from vitft.system.structure import structured
from vitft.system.text import count, percent

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
        if len(self.mean) == 1:  # as Pillow does, in integers below 2^24, which float32 has exactly
            red, green, blue = planes.split(1, dim=1)
            planes = ((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536).floor()
        return self.model((planes / 255 - self.mean) / self.std)


def _describe_graph(trained: TrainedRun, *, takes_bytes: bool, any_size: bool = False) -> str:
    """Return a graph's classes, preprocessing, input and output as one line of ASCII JSON."""
    card, transform = trained.card, trained.card.transform
    height, width = transform.image_size
    colours = "greyscale" if transform.channels == 1 else "RGB"
    layouts = {  # by whether the graph takes bytes, and images of any size
        (False, False): f"float32 (batch, {transform.channels}, {height}, {width}): {colours}, "
        "(value / 255 - mean) / std per channel",
        (True, False): f"uint8 (batch, {height}, {width}, 3): RGB, 0 to 255, which the graph "
        "normalises",
        (False, True): "float32 (batch, 3, height, width): upright RGB of any size, values 0 to "
        "255",
        (True, True): "uint8 (batch, height, width, 3): upright RGB images of any size, which the "
        "graph resizes, crops and normalises",
    }
    name = (_RESIZE_INPUT if takes_bytes else _PLANES_INPUT) if any_size else "pixels"
    layout = layouts[takes_bytes, any_size]
    link = "sigmoid" if card.several else "softmax"
    return json.dumps(
        {
            **card.table,
            "transform": transform.to_json(),
            "input": {"name": name, "layout": layout, "bytes": takes_bytes, "any_size": any_size},
            "output": {"name": "logits", "layout": f"float32 (batch, classes), before the {link}"},
            "weights": dict(card.weights),
            "split": card.split,
            "made_by": f"vitft {version('vitft')}",
            **({"run": card.run.to_json()} if card.run else {}),
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


def _export_error(
    target: str, error: Exception, fix: str = "use --timm or --safetensors"
) -> RunError:
    """Return the error for a model that cannot be exported to a format."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return RunError(
        f"{target} cannot export this model: {(lines or [type(error).__name__])[0][:200]}", fix=fix
    )


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
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


class TorchExportFormat(ExportFormat):
    """The file model.pt2, which `torch.export.load` opens without vitft."""

    name = "torch-export"

    def write(self, folder: Path) -> None:
        takes_bytes = self.plan.with_preprocessing
        model, example = _example_of(self.trained, takes_bytes=takes_bytes)
        batch = torch.export.Dim.DYNAMIC
        try:
            with _silenced():
                program = torch.export.export(model, (example,), dynamic_shapes=({0: batch},))
        except RuntimeError as error:
            raise _export_error("torch.export", error) from error
        modules = program.graph_module.modules()
        for module in (each for each in modules if isinstance(each, torch.fx.GraphModule)):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)  # contains local paths
        text = _describe_graph(self.trained, takes_bytes=takes_bytes)
        content = io.BytesIO()  # torch's writer does not report a full disk as such
        with _silenced():
            torch.export.save(program, content, extra_files={_DESCRIPTION_FILE: text})
        write_atomically(folder / PROGRAM_FILE, content.getvalue())

    def open(self, folder: Path) -> OpenedModel:
        files = {_DESCRIPTION_FILE: ""}
        with _silenced():  # torch 2.10 warns of its own read-only buffers
            module = torch.export.load(folder / PROGRAM_FILE, extra_files=files).module()
        described = json.loads(files[_DESCRIPTION_FILE])
        transform: EvalTransform = structured(described["transform"], EvalTransform)
        takes_bytes = described["input"]["bytes"]
        return OpenedModel(
            by=f"torch {torch.__version__}",
            outputs=Outputs.read(described),
            prepare=transform.pixels if takes_bytes else partial(normalised_input, transform),
            logits=module_logits(module),
        )


# export format --onnx: an ONNX graph for onnxruntime and other tools, with any batch size ---------

_MAX_INLINE_BYTES = 1_800_000_000
"""Size in bytes above which weights are saved in a second file; protobuf allows up to 2 GiB."""
MAX_ERROR_ROUNDED = 1e-2
"""Maximum relative logit difference for graphs that resize images (Pillow resizes differently), and
for 16-bit weights."""


class OnnxFormat(ExportFormat):
    """The file model.onnx, with model.onnx.data if the weights are too large for one file."""

    name = "onnx"

    def obstacle(self) -> str:
        return resize_obstacle(self.card, "the graph") if self.plan.with_resize else ""

    def write(self, folder: Path) -> None:
        path, plan = folder / ONNX_FILE, self.plan
        takes_bytes = plan.with_preprocessing or plan.with_resize
        _save_graph(self.trained, path, takes_bytes=takes_bytes, any_size=plan.with_resize)
        if plan.half or plan.opset != DEFAULT_OPSET:
            with writing(folder), _silenced():
                _rewrite_file(path, path, *[_halve_graph] * plan.half, opset=plan.opset)

    def open(self, folder: Path) -> OpenedModel:
        return _open_onnx(folder / ONNX_FILE)

    def notes(self) -> Sequence[str]:
        if not self.plan.with_resize:
            return ()
        # Views of onnxruntime and of Pillow
        transform, levels, values, differing = self.card.transform, 0, 0, 0
        with timed_step("comparing the images that the graph resizes"):
            graph = resize_graph(transform).SerializeToString()
            session = open_session(graph, threads=torch.get_num_threads())
            for image, _, _ in self.trained.comparison_images(self.plan.images):
                inputs = {_RESIZE_INPUT: np.asarray(image)[None]}
                view = session.run([_RESIZE_OUTPUT], inputs)[0][0]
                off = np.abs(view.astype(np.int16) - transform.pixels(image))
                levels = max(levels, int(off.max()))
                values, differing = values + off.size, differing + int((off > 0).sum())
        if levels > _MAX_GREY_LEVELS:
            raise RunError(
                f"images resized by onnxruntime differ from those resized by Pillow by up to "
                f"{levels} grey levels (out of 255), more than the limit of {_MAX_GREY_LEVELS}. "
                "The export was removed",
                fix="use --with-preprocessing instead, and resize the images with Pillow",
            )
        where = f"in {percent(differing / max(1, values), 2)} of the values"
        most = f"by at most {count(levels, 'grey level')} (out of 255), {where}"
        return [f"images resized by the graph differ from those resized by vitft {most}"]


def _save_graph(trained: TrainedRun, path: Path, *, takes_bytes: bool, any_size: bool) -> None:
    """Write a graph whose images have `any_size` or that of the model, as bytes or as floats."""
    import onnx

    program = _onnx_program(trained, takes_bytes or any_size)
    is_big = _parameter_bytes(trained) > _MAX_INLINE_BYTES
    with writing(path.parent), _silenced():
        program.save(path, external_data=is_big)
        if any_size:  # the nodes that resize images come first
            model = onnx.load(path)
            source = _RESIZE_INPUT if takes_bytes else _PLANES_INPUT
            front = resize_graph(trained.card.transform, model.ir_version, source=source)
            merged = onnx.compose.merge_models(front, model, io_map=[(_RESIZE_OUTPUT, "pixels")])
            del merged.opset_import[:], merged.metadata_props[:]  # it lists both opsets
            merged.opset_import.extend(model.opset_import)
            text = _describe_graph(trained, takes_bytes=takes_bytes, any_size=True)
            onnx.helper.set_model_props(merged, {"vitft": text})
            _save_model(merged, path)
        add_graph_digest(path)


def _save_model(model: Any, path: Path) -> None:  # noqa: ANN401 - onnx's protobuf
    """Write a graph, with the weights in a second file if they are too large for one file."""
    import onnx

    data = path.with_name(f"{path.name}.data")
    data.unlink(missing_ok=True)
    is_big = _weight_bytes(model) > _MAX_INLINE_BYTES
    onnx.save(model, path, save_as_external_data=is_big, location=data.name)


def _weight_bytes(model: Any) -> int:  # noqa: ANN401 - onnx's protobuf
    """Return the size of a graph's weights in bytes."""
    return sum(len(tensor.raw_data) for tensor in model.graph.initializer)


@lru_cache(maxsize=1)  # --onnx and --int8 start from the same graph
def _onnx_program(trained: TrainedRun, takes_bytes: bool) -> Any:  # noqa: ANN401 - torch's own type
    """Convert the model to an ONNX graph for any batch size, and remove local paths from it."""
    model, example = _example_of(trained, takes_bytes=takes_bytes)
    try:
        with _silenced():
            program = torch.onnx.export(
                model,
                (example,),
                dynamo=True,
                opset_version=DEFAULT_OPSET,
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
    program.model.ir_version = 8  # of the file format, for onnxruntime 1.11
    program.model.metadata_props["vitft"] = _describe_graph(trained, takes_bytes=takes_bytes)
    return program


def _parameter_bytes(trained: TrainedRun) -> int:
    """Return the size of a model's tensors in bytes."""
    return sum(t.numel() * t.element_size() for t in trained.model.state_dict().values())


def _open_onnx(path: Path) -> OpenedModel:
    """Open a graph as `vitft predict` does, on as many threads as torch uses."""
    import onnxruntime

    engine = OnnxEngine(path, threads=torch.get_num_threads())
    return OpenedModel(
        by=f"onnxruntime {onnxruntime.__version__}",
        outputs=engine.outputs,
        prepare=lambda image: engine.inputs(engine.view_of(image)[None])[0],
        logits=engine.logits,
        one_by_one=engine.any_size,
    )


class _GraphBuilder:
    """Nodes and constants of an ONNX graph, with new names that start with `prefix`.

    A constant that another builder has already added to `constants` keeps its name.
    """

    def __init__(self, prefix: str, constants: dict[Any, tuple[str, NumericArray]]) -> None:
        self.prefix, self.constants = prefix, constants
        self.nodes: list[Any] = []

    def add(self, operator: str, *inputs: Any, **attributes: Any) -> str:  # noqa: ANN401
        """Add a node and return the name of its output; numbers and lists become constants."""
        from onnx import helper

        output = f"{self.prefix}{len(self.nodes)}"
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        self.nodes.append(helper.make_node(operator, names, [output], output, **attributes))
        return output

    def constant(self, value: Any) -> str:  # noqa: ANN401 - a number, or nested lists
        """Return the name of the constant for a value, adding the constant if it is new.

        Floats become float32 and integers int64; a NumPy scalar keeps its type.
        """
        array = np.asarray(value)
        if not isinstance(value, np.generic):
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        name = f"{self.prefix}constant_{len(self.constants)}"
        return self.constants.setdefault((str(value), array.dtype), (name, array))[0]

    def tensors(self) -> list[Any]:
        """Return the constants as ONNX tensors."""
        from onnx import numpy_helper

        return [numpy_helper.from_array(array, name) for name, array in self.constants.values()]


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

    name = "int8"

    def write(self, folder: Path) -> None:
        path, takes_bytes = folder / ONNX_FILE, self.plan.with_preprocessing
        _save_graph(self.trained, path, takes_bytes=takes_bytes, any_size=False)
        with writing(folder), _silenced():
            remaining = _rewrite_file(path, path, quantize_graph, opset=self.plan.opset)
        if remaining > _MAX_REMAINING:
            raise RunError(
                f"--int8 would save little: the model would keep {percent(remaining, 0)} of its "
                "size, because most of its weights are not in linear layers",
                fix="use --onnx",
            )


def _rewrite_file(
    exact: Path, small: Path, *changes: Callable[[Any], None], opset: int = DEFAULT_OPSET
) -> float:
    """Write the graph in `exact` to `small`, changed and in `opset`; return the ratio of sizes."""
    import onnx

    model = onnx.load(exact)
    del model.graph.value_info[:]  # these shapes conflict with those of quantised nodes
    before = _weight_bytes(model)
    for change in changes:
        change(model.graph)
    after = _weight_bytes(model)
    if opset < DEFAULT_OPSET:
        _lower_opset(model, opset)
    facts = json.loads({entry.key: entry.value for entry in model.metadata_props}["vitft"])
    if quantize_graph in changes and "run" in facts:
        facts["run"]["rounded"] = True  # its accuracy is that of float32
    # Without the digest of the exact graph.
    onnx.helper.set_model_props(model, {"vitft": json.dumps(facts, allow_nan=False)})
    _save_model(model, small)
    try:
        onnx.checker.check_model(small, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise _export_error(f"ONNX opset {opset}", error, "leave out --opset") from error
    add_graph_digest(small)
    return after / before


def _halve_graph(graph: Any) -> None:  # noqa: ANN401 - onnx's protobuf
    """Store the matrices of a graph in float16, in place, and convert them back in front of use.

    All runtimes then compute in float32, where no activation overflows.
    """
    from onnx import TensorProto, helper, numpy_helper

    for tensor in graph.initializer:
        is_matrix = sum(size > 1 for size in tensor.dims) > 1
        if is_matrix and tensor.data_type == TensorProto.FLOAT:
            name, stored = tensor.name, f"{tensor.name}_half"
            weights = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(weights, stored))
            cast = helper.make_node("Cast", [stored], [name], name, to=TensorProto.FLOAT)
            graph.node.insert(0, cast)


def _lower_opset(model: Any, opset: int) -> None:  # noqa: ANN401 - onnx's protobuf
    """Rewrite a graph, in place, without operators and inputs that are newer than `opset`."""
    from onnx import helper, numpy_helper

    graph, builder = model.graph, _GraphBuilder("older_", {})
    constants = {tensor.name: tensor for tensor in graph.initializer}
    moved: set[str] = set()  # names of axes that are attributes now
    for node in graph.node:
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        is_newer = node.op_type.startswith("Reduce") and node.op_type != "ReduceSum"
        if node.op_type == "LayerNormalization" and opset < 17:
            # The steps of a LayerNormalization, which is one operator since opset 17
            add, (x, scale, *biases) = builder.add, node.input  # at most one bias
            axes = [*range(attributes["axis"], 0)]
            centred = add("Sub", x, add("ReduceMean", x, axes=axes))
            variance = add("ReduceMean", add("Mul", centred, centred), axes=axes)
            deviation = add("Sqrt", add("Add", variance, attributes["epsilon"]))
            scaled = add("Mul", add("Div", centred, deviation), scale)
            for bias in biases:
                add("Add", scaled, bias)
            builder.nodes[-1].output[0] = node.output[0]
        elif is_newer and node.input[-1] in constants:  # the axes were an attribute before 18
            x, name = node.input
            moved.add(name)
            attributes.pop("noop_with_empty_axes", None)  # since 18
            attributes["axes"] = numpy_helper.to_array(constants[name])
            builder.add(node.op_type, x, **attributes)
            builder.nodes[-1].output[0] = node.output[0]
        else:
            builder.nodes.append(node)
    for name in moved.difference(name for node in builder.nodes for name in node.input):
        graph.initializer.remove(constants[name])
    graph.initializer.extend(builder.tensors())
    del graph.node[:]
    graph.node.extend(builder.nodes)
    model.opset_import[0].version = opset


def quantize_graph(graph: Any) -> None:  # noqa: ANN401 - onnx's protobufs
    """Replace the constant matrices of a graph with int8 matrices, in place.

    A MatMul that does not follow an activation function is computed in integer arithmetic. For the
    other products, the weights are converted to float32 at run time.
    """
    from onnx import numpy_helper

    producer = {name: node.op_type for node in graph.node for name in node.output}
    matrices = {tensor.name: tensor for tensor in graph.initializer if len(tensor.dims) == 2}
    builder = _GraphBuilder("int8_", {})
    stored: set[str] = set()  # names of new tensors; onnxruntime warns of each that no node reads

    def store(name: str, array: NumericArray) -> None:
        stored.add(name)
        graph.initializer.append(numpy_helper.from_array(array, name))

    for node in graph.node:
        tensor = matrices.get(node.input[1]) if node.op_type in ("MatMul", "Gemm") else None
        if tensor is None:
            builder.nodes.append(node)
            continue
        is_rows = any(a.name == "transB" and a.i for a in node.attribute)  # (F, D), not (D, F)
        rounded, scale, zero = (f"{tensor.name}_{part}" for part in ("rounded", "scale", "zero"))
        if rounded not in stored:
            weights = numpy_helper.to_array(tensor)
            largest = np.abs(weights).max(axis=int(is_rows), keepdims=True)  # of each output
            scales = np.maximum(largest, 1e-12) / 127
            store(rounded, (np.rint(weights / scales) + _ZERO).astype(np.uint8))
            store(scale, scales.astype(np.float32).ravel())
        if node.op_type == "MatMul" and producer.get(node.input[0]) not in _ACTIVATIONS:
            _integer_product(builder, node, rounded, scale)
            continue
        axis = 0 if is_rows else 1
        if zero not in stored:
            store(zero, np.full(tensor.dims[axis], _ZERO, np.uint8))  # (F,)
        node.input[1] = builder.add("DequantizeLinear", rounded, scale, zero, axis=axis)
        builder.nodes.append(node)
    for name, matrix in matrices.items():
        if f"{name}_rounded" in stored:
            graph.initializer.remove(matrix)
    graph.initializer.extend(builder.tensors())
    del graph.node[:]
    graph.node.extend(builder.nodes)


def _integer_product(builder: _GraphBuilder, node: Any, rounded: str, scale: str) -> None:  # noqa: ANN401
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


# resizing and cropping as nodes in front of a graph, for images of any size. Runtimes implement the
# operator Resize differently: OpenVINO, for example, ignores the antialiasing option for bicubic
# interpolation and rounds to bytes at a different step. The nodes therefore compute Pillow's filter
# as two matrices, one for rows and one for columns, and multiply the image by both. In every
# runtime, the view then equals Pillow's, except for small differences (usually one grey level)
# where a value is close to a rounding boundary. The caller must decode the image, apply the EXIF
# rotation and handle very elongated images (`transforms.MAX_ASPECT`).
#
# The sides are h and w for an image, h' and w' for the part of it that affects the view, H and W
# for the resized image.

_RESIZE_INPUT, _RESIZE_OUTPUT = "image", "resize_view"
_PLANES_INPUT = "pixel_values"
"""Name of a float32 input with the channels first, as transformers.js passes it."""
_RESIZED = ("bilinear", "bicubic", "lanczos")  # methods that graph and page (`html`) can compute
_MAX_GREY_LEVELS = 2
"""Maximum difference between views, in grey levels (out of 255). If the first pass rounds a value
near a boundary differently, the second pass can amplify the difference."""
_GREY = [[[19595.0]], [[38470.0]], [[7471.0]]]
"""Pillow's weights for red, green and blue in the conversion to grey, in units of 1 / 65536."""


def resize_obstacle(card: Card, what: str) -> str:
    """Return why `what` cannot resize like the model's transform, or "" if it can."""
    how = card.transform.interpolation
    return "" if how in _RESIZED else f"{what} cannot resize with {how} interpolation"


def resize_graph(
    transform: EvalTransform, ir_version: int = 8, *, source: str = _RESIZE_INPUT
) -> Any:  # noqa: ANN401 - onnx's protobuf
    """Return an ONNX model that maps images to views, uint8 (B, S, S, 3).

    The input is RGB bytes (B, h, w, 3) or, for `_PLANES_INPUT`, float32 (B, 3, h, w).
    """
    from onnx import TensorProto, helper

    is_planes = source == _PLANES_INPUT
    axes = [2, 3] if is_planes else [1, 2]

    graph = _GraphBuilder("resize_", {})
    add = graph.add
    old = add("Slice", add("Shape", source), axes[:1], [axes[1] + 1])  # h, w
    new = _resized_sides(graph, transform, old)  # H, W
    window = _crop_window(graph, transform, old, new)
    planes = add("Slice", source, *window[2:], axes)
    if not is_planes:
        planes = add("Transpose", planes, perm=[0, 3, 1, 2])
        planes = add("Cast", planes, to=TensorProto.FLOAT)  # (B, 3, h', w')
    if transform.channels == 1:
        weighted = add("ReduceSum", add("Mul", planes, _GREY), [1])
        planes = add("Floor", add("Div", add("Add", weighted, 32768.0), 65536.0))  # (B, 1, h', w')
    by_row, by_column = (
        _filter_matrix(graph, transform.interpolation, axis, old, new, *window) for axis in (0, 1)
    )  # (S, h') and (w', S)
    view = _two_passes(graph, planes, by_row, by_column, old, new)
    if transform.fit == "pad":
        sides = add("Slice", add("Shape", view), [2], [4])  # of the partial view (B, C, h, w)
        missing = add("Sub", [*transform.image_size], sides)
        before = add("Div", missing, 2)
        none = add("Identity", [0, 0])
        pads = add("Concat", none, before, none, add("Sub", missing, before), axis=0)
        colour = [[[float(value)]] for value in transform.border[: transform.channels]]
        view = add("Add", add("Pad", add("Sub", view, colour), pads, 0.0), colour)
    view = add("Cast", view, to=TensorProto.UINT8)
    view = add("Transpose", view, perm=[0, 2, 3, 1])
    if transform.channels == 1:
        view = add("Concat", view, view, view, axis=3)
    graph.nodes[-1].output[0] = _RESIZE_OUTPUT
    sizes = ["batch", 3, "rows", "columns"] if is_planes else ["batch", "rows", "columns", 3]
    kind = TensorProto.FLOAT if is_planes else TensorProto.UINT8
    begin = helper.make_tensor_value_info(source, kind, sizes)
    end = helper.make_tensor_value_info(
        _RESIZE_OUTPUT, TensorProto.UINT8, ["batch", *transform.image_size, 3]
    )
    return helper.make_model(
        helper.make_graph(graph.nodes, "resize", [begin], [end], graph.tensors()),
        opset_imports=[helper.make_opsetid("", DEFAULT_OPSET)],
        ir_version=ir_version,
    )


def _resized_sides(graph: _GraphBuilder, transform: EvalTransform, old: str) -> str:
    """Add nodes that compute `EvalTransform.resized`, and return the name of the output (H, W)."""
    from onnx import TensorProto

    wide, tall = transform.resized(1, 1)  # for a square image
    if transform.fit == "squash":
        return graph.add("Identity", [tall, wide])
    height, width = transform.image_size
    if transform.fit == "crop" and height == width:
        short = graph.add("ReduceMin", old, keepdims=0)
        return graph.add("Div", graph.add("Mul", old, [tall, wide]), short)  # rounded down
    # The sides are rounded to the nearest integer, as in timm's ResizeKeepRatio. float64, as in
    # Python, rounds exact halves the same way.
    add = graph.add
    limits = [math.floor(side / transform.crop) for side in transform.image_size]
    sides = add("Cast", old, to=TensorProto.DOUBLE)
    ratios = add("Div", sides, add("Cast", limits, to=TensorProto.DOUBLE))
    ratio = add("ReduceMax" if transform.fit == "pad" else "ReduceMin", ratios, keepdims=0)
    new = add("Cast", add("Round", add("Div", sides, ratio)), to=TensorProto.INT64)
    return add("Max", new, [1, 1] if transform.fit == "pad" else limits)


def _crop_window(
    graph: _GraphBuilder, transform: EvalTransform, old: str, new: str
) -> tuple[str, str, str, str]:
    """Add nodes for the begin and end of the view, and of the part of the image that affects it."""
    # The view is the centre crop of the resized image. Each node has one number per axis.
    from onnx import TensorProto

    add, view = graph.add, [*transform.image_size]
    margin = add("Mul", add("Cast", add("Sub", new, view), to=TensorProto.FLOAT), 0.5)
    corner = add("Cast", add("Round", margin), to=TensorProto.INT64)  # half to even, as in Pillow
    last = add("Add", corner, view)
    if transform.fit == "pad":  # a side that is shorter than the view starts at 0
        corner = add("Max", corner, 0)
        last = add("Min", add("Add", corner, view), new)
    # A filter reaches at most 3 pixels, or 3 times the factor by which the image is reduced.
    reach = add("Add", add("Mul", add("Div", old, new), 3), 4)
    begin = add("Div", add("Mul", corner, old), new)
    end = add("Div", add("Mul", last, old), new)
    first = add("Max", add("Sub", begin, reach), 0)
    return corner, last, first, add("Min", add("Add", end, reach), old)


def _filter_matrix(graph: _GraphBuilder, interpolation: str, axis: int, *values: str) -> str:
    """Add nodes for the filter's weights, a matrix (S, h') for axis 0 or (w', S) for axis 1."""
    # Pixel i contributes to pixel j of the resized image with the filter's weight at the distance
    # between their centres, ((2i + 1) new - (2j + 1) old) / (2 max(old, new)). The numerator is an
    # exact integer.
    from onnx import TensorProto

    add = graph.add
    old, new, corner, last, first, end = (add("Gather", name, axis) for name in values)
    inner, outer = ([1, -1], [-1, 1]) if axis == 0 else ([-1, 1], [1, -1])

    def centres(begin: str, stop: str, shape: list[int]) -> str:
        doubled = add("Add", add("Mul", add("Range", begin, stop, 1), 2), 1)
        return add("Reshape", doubled, shape)

    near = add("Mul", centres(first, end, inner), new)
    far = add("Mul", centres(corner, last, outer), old)
    scale = add("Cast", add("Mul", add("Max", old, new), 2), to=TensorProto.FLOAT)
    distance = add("Div", add("Cast", add("Sub", near, far), to=TensorProto.FLOAT), scale)
    x = add("Abs", distance)
    if interpolation == "bilinear":
        weights = add("Max", add("Sub", 1.0, x), 0.0)
    elif interpolation == "lanczos":
        angles = [add("Max", add("Mul", x, np.pi / scale), 1e-6) for scale in (1, 3)]
        sincs = [add("Div", add("Sin", y), y) for y in angles]  # 1 at an angle of 0
        weights = add("Where", add("Less", x, 3.0), add("Mul", *sincs), 0.0)
    else:  # bicubic with a = -0.5
        square = add("Mul", x, x)
        near = add("Add", add("Mul", add("Sub", add("Mul", x, 1.5), 2.5), square), 1.0)
        far = add("Mul", add("Sub", add("Mul", add("Sub", 5.0, x), x), 8.0), x)
        far = add("Mul", add("Add", far, 4.0), 0.5)
        rest = add("Where", add("Less", x, 2.0), far, 0.0)
        weights = add("Where", add("Less", x, 1.0), near, rest)
    return add("Div", weights, add("ReduceSum", weights, [1 - axis]))


def _two_passes(
    graph: _GraphBuilder, planes: str, by_row: str, by_column: str, old: str, new: str
) -> str:
    """Add nodes that apply both filters, rounding to bytes: views (B, C, S, S) in float32."""
    # Like Pillow 13, the graph applies the column filter first, unless resizing removes at least
    # one row and more than twice as many rows as columns.
    from onnx import TensorProto, helper

    lost = graph.add("Sub", old, new)
    rows, columns = (graph.add("Gather", lost, axis) for axis in (0, 1))
    rows_first = graph.add(
        "And",
        graph.add("Greater", rows, 0),
        graph.add("Greater", rows, graph.add("Mul", columns, 2)),
    )

    def in_order(prefix: str, *, rows_first: bool) -> Any:  # noqa: ANN401 - onnx's protobuf
        inner = _GraphBuilder(prefix, graph.constants)
        view = planes
        for is_rows in (rows_first, not rows_first):
            view = inner.add("MatMul", *((by_row, view) if is_rows else (view, by_column)))
            view = inner.add("Clip", inner.add("Floor", inner.add("Add", view, 0.5)), 0.0, 255.0)
        end = helper.make_tensor_value_info(view, TensorProto.FLOAT, None)
        return helper.make_graph(inner.nodes, prefix, [], [end])

    return graph.add(
        "If",
        rows_first,
        then_branch=in_order("resize_rows_", rows_first=True),
        else_branch=in_order("resize_columns_", rows_first=False),
    )


# export format --transformers-js: a folder for image classification with transformers.js ----------

_PROCESSOR_SETTINGS: Mapping[str, Any] = {
    "image_processor_type": "ViTImageProcessor",
    "do_convert_rgb": True,
    **dict.fromkeys(("do_resize", "do_center_crop", "do_rescale", "do_normalize"), False),
}
_EXACT_GRAPH, _SMALL_GRAPH = f"onnx/{ONNX_FILE}", "onnx/model_quantized.onnx"


class TransformersJsFormat(ExportFormat):
    """The files config.json, preprocessor_config.json and two graphs in onnx/."""

    name = "transformers-js"
    max_error = MAX_ERROR_ROUNDED

    def obstacle(self) -> str:
        if self.card.several:
            return (
                "it is a multi-label model, and the image-classification pipeline of "
                "transformers.js would apply a softmax to its logits"
            )
        if _parameter_bytes(self.trained) > _MAX_INLINE_BYTES:
            return "transformers.js reads a graph from one file of up to 2 GB"
        return resize_obstacle(self.card, "the graph")

    def write(self, folder: Path) -> None:
        config = {"model_type": "vit", "architectures": ["ViTForImageClassification"]}
        write_json(folder / "config.json", config | labels_of(self.card))
        write_json(folder / "preprocessor_config.json", _PROCESSOR_SETTINGS)
        exact, small = folder / _EXACT_GRAPH, folder / _SMALL_GRAPH
        with writing(folder):
            exact.parent.mkdir()
        _save_graph(self.trained, exact, takes_bytes=False, any_size=True)
        with writing(folder), _silenced():
            _rewrite_file(exact, small, quantize_graph)

    def open(self, folder: Path) -> OpenedModel:
        return _open_onnx(folder / _EXACT_GRAPH)

    def reopen(self, folder: Path) -> dict[str, tuple[OpenedModel, int]]:
        ((name, (model, size)),) = super().reopen(folder).items()
        exact, small = folder / _EXACT_GRAPH, folder / _SMALL_GRAPH
        return {
            name: (model, size - small.stat().st_size),
            f"{name}, int8": (_open_onnx(small), size - exact.stat().st_size),
        }
