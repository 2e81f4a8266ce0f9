"""Resizing and cropping as nodes in front of an ONNX graph, for images of any size.

Runtimes implement the operator Resize differently. OpenVINO, for example, ignores the antialiasing
option for bicubic interpolation and rounds to bytes at a different step. The nodes therefore
compute Pillow's filter as two matrices, one for rows and one for columns, and multiply the image by
both. In every runtime, the view then equals Pillow's, except for small differences (usually one
grey level) where a value is close to a rounding boundary. With `--with-resize`, the differences are
measured on the user's images, and the export is rejected if they exceed `_MAX_GREY_LEVELS`. The
caller must decode the image, apply the EXIF rotation and handle very elongated images
(`transforms.MAX_ASPECT`).

Notation: B images, C colour channels. The sides are h and w for an image, h' and w' for the part of
it that affects the view, H and W for the resized image, and S for the view.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitft.data.transforms import EvalTransform
from vitft.export.formats.base import NumericArray
from vitft.export.trained import LabelledImage
from vitft.models.card import Card
from vitft.system.errors import RunError


class GraphBuilder:
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


# resizing and cropping as nodes in front of an ONNX graph, for images of any size -----------------

RESIZE_INPUT, RESIZE_OUTPUT = "image", "resize_view"
PLANES_INPUT = "pixel_values"
"""Name of a float32 input with the channels first, as transformers.js passes it."""
RESIZED = ("bilinear", "bicubic", "lanczos")  # interpolation methods that the graph can compute
_MAX_GREY_LEVELS = 2
"""Maximum difference between views, in grey levels (out of 255).

If the first pass rounds a value near a boundary differently, the second pass can amplify the
difference.
"""
_GREY = [[[19595.0]], [[38470.0]], [[7471.0]]]
"""Pillow's weights for red, green and blue in the conversion to grey, in units of 1 / 65536."""


def resize_obstacle(card: Card) -> str:
    """Return why a graph cannot resize like the model's transform, or "" if it can."""
    how = card.transform.interpolation
    return "" if how in RESIZED else f"the graph cannot resize with {how} interpolation"


def resize_graph(
    transform: EvalTransform, opset: int, ir_version: int, *, source: str = RESIZE_INPUT
) -> Any:  # noqa: ANN401 - onnx's protobuf
    """Return an ONNX model that maps images to views, uint8 (B, S, S, 3).

    The input is RGB bytes (B, h, w, 3) or, for `PLANES_INPUT`, float32 (B, 3, h, w).
    """
    from onnx import TensorProto, helper

    is_planes = source == PLANES_INPUT
    axes = [2, 3] if is_planes else [1, 2]

    graph = GraphBuilder("resize_", {})
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
    graph.nodes[-1].output[0] = RESIZE_OUTPUT
    sizes = ["batch", 3, "rows", "columns"] if is_planes else ["batch", "rows", "columns", 3]
    kind = TensorProto.FLOAT if is_planes else TensorProto.UINT8
    begin = helper.make_tensor_value_info(source, kind, sizes)
    end = helper.make_tensor_value_info(
        RESIZE_OUTPUT, TensorProto.UINT8, ["batch", *transform.image_size, 3]
    )
    return helper.make_model(
        helper.make_graph(graph.nodes, "resize", [begin], [end], graph.tensors()),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=ir_version,
    )


def _resized_sides(graph: GraphBuilder, transform: EvalTransform, old: str) -> str:
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
    graph: GraphBuilder, transform: EvalTransform, old: str, new: str
) -> tuple[str, str, str, str]:
    """Add nodes for the position of the view, the centre crop; each has one number per axis.

    Returns:
        The names of the first and end row and column (exclusive) of the view in the resized image,
        then of those of the part of the original image on which the view depends.
    """
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


def _filter_matrix(graph: GraphBuilder, interpolation: str, axis: int, *values: str) -> str:
    """Add nodes for the matrix of the filter's weights, (S, h') for axis 0 or (w', S) for axis 1.

    Pixel i of the image contributes to pixel j of the resized image with the filter's weight at the
    distance between their centres, ((2i + 1) new - (2j + 1) old) / (2 max(old, new)). The numerator
    is an exact integer.
    """
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
    graph: GraphBuilder, planes: str, by_row: str, by_column: str, old: str, new: str
) -> str:
    """Add nodes that apply both filters with rounding to bytes: the views (B, C, S, S) in float32.

    Like Pillow 13, the graph applies the column filter first, unless resizing removes at least one
    row and more than twice as many rows as columns.
    """
    from onnx import TensorProto, helper

    lost = graph.add("Sub", old, new)
    rows, columns = (graph.add("Gather", lost, axis) for axis in (0, 1))
    rows_first = graph.add(
        "And",
        graph.add("Greater", rows, 0),
        graph.add("Greater", rows, graph.add("Mul", columns, 2)),
    )

    def in_order(prefix: str, *, rows_first: bool) -> Any:  # noqa: ANN401 - onnx's protobuf
        inner = GraphBuilder(prefix, graph.constants)
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


def view_difference(
    transform: EvalTransform, samples: Iterable[LabelledImage], opset: int
) -> tuple[int, float]:
    """Return by how many grey levels views of onnxruntime and Pillow differ, and in which fraction.

    Raises:
        RunError: The views differ by more than `_MAX_GREY_LEVELS` grey levels.
    """
    session = onnx_session(resize_graph(transform, opset, 8).SerializeToString())
    levels = values = differing = 0
    for sample in samples:
        view = session.run([RESIZE_OUTPUT], {RESIZE_INPUT: rgb_bytes(sample.image)[None]})[0][0]
        off = np.abs(view.astype(np.int16) - transform.pixels(sample.image))
        levels = max(levels, int(off.max()))
        values, differing = values + off.size, differing + int((off > 0).sum())
    if levels > _MAX_GREY_LEVELS:
        raise RunError(
            f"images resized by onnxruntime differ from those resized by Pillow by up to {levels} "
            f"grey levels (out of 255), more than the limit of {_MAX_GREY_LEVELS}. The export was "
            "removed",
            fix="use --with-preprocessing instead, and resize the images with Pillow",
        )
    return levels, differing / max(1, values)


def onnx_session(graph: Path | bytes) -> Any:  # noqa: ANN401 - onnxruntime's own type
    """Open a graph with onnxruntime, on as many threads as torch uses."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors only
    # Otherwise, idle threads would keep the cores busy while another model is timed.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def rgb_planes(image: Any) -> NumericArray:  # noqa: ANN401 - a PIL image
    """Convert an image to the input `PLANES_INPUT`, float32 (3, height, width)."""
    return rgb_bytes(image).transpose(2, 0, 1).astype(np.float32)


def rgb_bytes(image: Any) -> NumericArray:  # noqa: ANN401 - a PIL image
    """Convert an image to the input `RESIZE_INPUT`, uint8 (height, width, 3)."""
    return np.asarray(image.convert("RGB"))


def add_resize(
    path: Path,
    transform: EvalTransform,
    description: str,
    *,
    is_big: bool,
    source: str,
) -> None:
    """Prepend nodes that resize the input `source` to a graph, and replace its description."""
    import onnx

    model = onnx.load(path)
    opset = next(each.version for each in model.opset_import if not each.domain)
    front = resize_graph(transform, opset, model.ir_version, source=source)
    merged = onnx.compose.merge_models(front, model, io_map=[(RESIZE_OUTPUT, "pixels")])
    del merged.opset_import[:], merged.metadata_props[:]  # the merged model lists both opsets
    merged.opset_import.extend(model.opset_import)
    onnx.helper.set_model_props(merged, {"vitft": description})
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)
    onnx.save(
        merged, path, save_as_external_data=is_big, location=f"{path.name}.data" if is_big else None
    )
