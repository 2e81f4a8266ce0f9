"""Resizing and cropping as nodes in front of an ONNX graph, for images of any size.

The nodes implement `EvalTransform` with operators of opset 18. Like Pillow, onnxruntime rounds to
bytes between the two passes of a resize, so views usually differ by single grey levels. Differences
are measured on the user's images and rejected above `MAX_GREY_LEVELS`. Pillow 13 reverses the order
of the passes for images more than twice as high as wide, with differences of 2 levels on photos and
up to 25 on noise. Decoding, EXIF rotation and thin images (`transforms.THIN`) are up to the caller.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitft.data.transforms import EvalTransform
from vitft.export.formats.base import NumericArray
from vitft.export.trained import LabelledImage
from vitft.models.card import Card
from vitft.system.errors import RunError

RESIZE_INPUT, RESIZE_OUTPUT = "image", "view"
RESIZE_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""ONNX names of the interpolations that ONNX supports with antialiasing."""
MAX_GREY_LEVELS = 2
"""Maximum difference between views, in grey levels (out of 255)."""


def resize_obstacle(card: Card) -> str:
    """Return why a graph cannot resize like the model's transform, or an empty string if it can."""
    transform = card.transform
    if transform.interpolation not in RESIZE_MODES:
        return f"ONNX has no antialiased {transform.interpolation} interpolation"
    if transform.channels != 3:
        return "ONNX has no operator for Pillow's conversion to greyscale"
    height, width = transform.image_size
    if transform.fit != "crop":
        return "without cropping, ONNX resizes the two axes in a different order from Pillow"
    if height != width:
        return f"the graph can only resize to square images, not to {height}x{width} pixels"
    return ""


def resize_graph(transform: EvalTransform, opset: int, ir_version: int) -> Any:  # noqa: ANN401
    """Return an ONNX model that maps RGB bytes (B, height, width, 3) to views (B, S, S, 3)."""
    from onnx import TensorProto, helper, numpy_helper

    height, width = transform.image_size
    wide, tall = transform.resized(1, 1)  # for a square image
    constants = {"zero": [0], "from_1": [1], "from_3": [3], "planes": [3], "scaled": [tall, wide]}
    constants |= {"view_size": [height, width], "rows_and_columns": [2, 3]}
    nodes: list[Any] = []

    def add(operator: str, inputs: list[str], output: str, **attributes: Any) -> None:  # noqa: ANN401
        nodes.append(helper.make_node(operator, inputs, [output], **attributes))

    add("Shape", [RESIZE_INPUT], "shape")
    add("Slice", ["shape", "zero", "from_1"], "batch")
    add("Slice", ["shape", "from_1", "from_3"], "sides")
    add("ReduceMin", ["sides"], "short", keepdims=0)
    add("Mul", ["sides", "scaled"], "product")
    add("Div", ["product", "short"], "resized_sides")  # integer division, rounded down
    add("Concat", ["batch", "planes", "resized_sides"], "sizes", axis=0)
    add("Transpose", [RESIZE_INPUT], "upright", perm=[0, 3, 1, 2])
    add(
        "Resize", ["upright", "", "", "sizes"], "resized",
        mode=RESIZE_MODES[transform.interpolation], antialias=1, exclude_outside=1,
        cubic_coeff_a=-0.5,  # as in Pillow; the default is -0.75
    )  # fmt: skip
    add("Sub", ["resized_sides", "view_size"], "rest")
    add("Cast", ["rest"], "rest_as_float", to=TensorProto.FLOAT)
    add("Mul", ["rest_as_float", "half"], "margin")
    add("Round", ["margin"], "whole_margin")  # half to even, as in the transform
    add("Cast", ["whole_margin"], "corner", to=TensorProto.INT64)
    add("Add", ["corner", "view_size"], "end")
    add("Slice", ["resized", "corner", "end", "rows_and_columns"], "cut")
    add("Transpose", ["cut"], RESIZE_OUTPUT, perm=[0, 2, 3, 1])
    ends = [
        helper.make_tensor_value_info(name, TensorProto.UINT8, ["batch", *sides, 3])
        for name, sides in ((RESIZE_INPUT, ("rows", "columns")), (RESIZE_OUTPUT, (height, width)))
    ]
    tensors = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in constants.items()]
    tensors.append(numpy_helper.from_array(np.array(0.5, np.float32), "half"))
    graph = helper.make_graph(nodes, "resize", ends[:1], ends[1:], tensors)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version
    )


class ViewDifference(NamedTuple):
    """Difference between views computed by a graph and by vitft."""

    levels: int
    """Maximum difference in grey levels."""
    fraction: float
    """Fraction of the values that differ."""


def view_difference(
    transform: EvalTransform, samples: Iterable[LabelledImage], opset: int
) -> ViewDifference:
    """Return the difference between views computed by onnxruntime and by Pillow.

    Raises:
        RunError: The views differ by more than `MAX_GREY_LEVELS` grey levels.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(
        resize_graph(transform, opset, 8).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    levels = values = differing = 0
    for sample in samples:
        view = session.run([RESIZE_OUTPUT], {RESIZE_INPUT: rgb_bytes(sample.image)[None]})[0][0]
        off = np.abs(view.astype(np.int16) - transform.pixels(sample.image))
        levels = max(levels, int(off.max()))
        values, differing = values + off.size, differing + int((off > 0).sum())
    if levels > MAX_GREY_LEVELS:
        raise RunError(
            f"images resized by onnxruntime differ from Pillow's by up to {levels} grey levels "
            f"(out of 255), more than the limit of {MAX_GREY_LEVELS}; the export was removed",
            fix="use --with-preprocessing instead, and resize the images with Pillow",
        )
    return ViewDifference(levels, differing / max(1, values))


def rgb_bytes(image: Any) -> NumericArray:  # noqa: ANN401 - a PIL image
    """Return an image as the input of the graph, (height, width, 3)."""
    return np.asarray(image.convert("RGB"))


def add_resize(path: Path, transform: EvalTransform, description: str, *, is_big: bool) -> None:
    """Prepend the resize to the graph in a file, and replace its description."""
    import onnx

    model = onnx.load(path)
    opset = next(each.version for each in model.opset_import if not each.domain)
    front = onnx.compose.add_prefix(
        resize_graph(transform, opset, model.ir_version), "resize_", rename_inputs=False
    )
    merged = onnx.compose.merge_models(front, model, io_map=[(f"resize_{RESIZE_OUTPUT}", "pixels")])
    del merged.opset_import[:], merged.metadata_props[:]  # the merged model lists both opsets
    merged.opset_import.extend(model.opset_import)
    onnx.helper.set_model_props(merged, {"vitft": description})
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)
    onnx.save(
        merged, path, save_as_external_data=is_big, location=f"{path.name}.data" if is_big else None
    )
