"""Resize and crop as nodes in front of an ONNX graph: images of any size in.

Operators of opset 18 say what `EvalTransform` does, and onnxruntime rounds to bytes between the two
passes of a resize as Pillow does: views come out equal but for single grey levels. How many is
measured on the user's images, and more than `LEVELS` are refused. Pillow 13 shrinks pictures over
twice as high as wide in the other order of passes: 2 levels on photos, up to 25 on noise. Decoding,
turning by EXIF and the rare thin image (`transforms.THIN`) stay outside.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitft.data.transforms import EvalTransform
from vitft.export.compare import Array
from vitft.export.trained import Sample
from vitft.models.checkpoint import Card
from vitft.system.errors import RunError

INPUT, VIEW = "image", "view"
MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Our interpolations that ONNX knows, antialiased, under its names."""
PILLOW_CUBIC = -0.5
"""The parameter of Pillow's bicubic filter; ONNX's own default is -0.75."""
LEVELS = 2
"""Grey levels of 255 by which a view may differ: the bound that `fastview` has, too."""


def not_inside(card: Card) -> str:
    """Why a graph cannot resize as this model's transform does; empty if it can."""
    transform = card.transform
    if transform.interpolation not in MODES:
        return f"ONNX has no antialiased {transform.interpolation} resize"
    if transform.channels != 3:
        return "ONNX has no operator for Pillow's greys"
    height, width = transform.image_size
    if transform.fit != "crop":
        return "Pillow squashes an image in another order of its two passes"
    if height != width:
        return f"the sizes of a view of {height}x{width} pixels are not computed in whole numbers"
    return ""


def resize_graph(transform: EvalTransform, opset: int, ir_version: int) -> Any:  # noqa: ANN401
    """RGB bytes (B, height, width, 3) of any size to views (B, S, S, 3), as an ONNX model."""
    from onnx import TensorProto, helper, numpy_helper

    height, width = transform.image_size
    wide, tall = transform.resized(1, 1)  # of a square
    constants = {
        "scaled": [tall, wide],
        "view_size": [height, width],
        "from_1": [1],
        "from_3": [3],
        "planes": [3],
        "zero": [0],
        "rows_and_columns": [2, 3],
    }
    nodes: list[Any] = []

    def add(operator: str, inputs: list[str], output: str, **attributes: Any) -> None:  # noqa: ANN401
        nodes.append(helper.make_node(operator, inputs, [output], **attributes))

    add("Shape", [INPUT], "shape")
    add("Slice", ["shape", "zero", "from_1"], "batch")
    add("Slice", ["shape", "from_1", "from_3"], "sides")
    add("ReduceMin", ["sides"], "short", keepdims=0)
    add("Mul", ["sides", "scaled"], "product")
    add("Div", ["product", "short"], "resized_sides")  # the longer one cut to a whole number
    add("Concat", ["batch", "planes", "resized_sides"], "sizes", axis=0)
    add("Transpose", [INPUT], "upright", perm=[0, 3, 1, 2])
    add(
        "Resize", ["upright", "", "", "sizes"], "resized",
        mode=MODES[transform.interpolation], antialias=1, exclude_outside=1,
        cubic_coeff_a=PILLOW_CUBIC,
    )  # fmt: skip
    add("Sub", ["resized_sides", "view_size"], "rest")
    add("Cast", ["rest"], "rest_as_float", to=TensorProto.FLOAT)
    add("Mul", ["rest_as_float", "half"], "margin")
    add("Round", ["margin"], "whole_margin")  # half to even, as the transform does
    add("Cast", ["whole_margin"], "corner", to=TensorProto.INT64)
    add("Add", ["corner", "view_size"], "end")
    add("Slice", ["resized", "corner", "end", "rows_and_columns"], "cut")
    add("Transpose", ["cut"], VIEW, perm=[0, 2, 3, 1])
    graph = helper.make_graph(
        nodes,
        "resize",
        [helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["batch", "rows", "columns", 3])],
        [helper.make_tensor_value_info(VIEW, TensorProto.UINT8, ["batch", height, width, 3])],
        [
            *(numpy_helper.from_array(np.array(v, np.int64), n) for n, v in constants.items()),
            numpy_helper.from_array(np.array(0.5, np.float32), "half"),
        ],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version
    )


def with_resize(model: Any, transform: EvalTransform) -> Any:  # noqa: ANN401 - onnx's protobufs
    """A graph that takes views as bytes, with the resize in front of it."""
    from onnx import compose

    opset = next(each.version for each in model.opset_import if not each.domain)
    front = compose.add_prefix(
        resize_graph(transform, opset, model.ir_version), "resize_", rename_inputs=False
    )
    whole = compose.merge_models(front, model, io_map=[(f"resize_{VIEW}", "pixels")])
    del whole.opset_import[:]  # it names those of both
    whole.opset_import.extend(model.opset_import)
    return whole


class Difference(NamedTuple):
    """How views of the graph differ from ours."""

    levels: int
    """Grey levels at the most."""
    share: float
    """Share of the values that differ."""


def view_difference(transform: EvalTransform, samples: Iterable[Sample], opset: int) -> Difference:
    """Let onnxruntime make the views of some images, and Pillow.

    Raises:
        RunError: They differ by more than `LEVELS`.
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
        seen = session.run([VIEW], {INPUT: rgb_bytes(sample.image)[None]})[0][0]
        off = np.abs(seen.astype(np.int16) - transform.pixels(sample.image))
        levels = max(levels, int(off.max()))
        values, differing = values + off.size, differing + int((off > 0).sum())
    if levels > LEVELS:
        raise RunError(
            f"onnxruntime resizes otherwise than Pillow: by {levels} grey levels of 255, allowed "
            f"are {LEVELS}; nothing was kept",
            fix="export with --with-preprocessing instead, and resize in front of the graph",
        )
    return Difference(levels, differing / max(1, values))


def rgb_bytes(image: Any) -> Array:  # noqa: ANN401 - a PIL image
    """An image as the graph takes it, (height, width, 3)."""
    return np.asarray(image.convert("RGB"))


def write_resizing(path: Path, transform: EvalTransform, facts: str, *, is_big: bool) -> None:
    """Put the resize in front of the graph in a file, which then describes itself by `facts`."""
    import onnx

    whole = with_resize(onnx.load(path), transform)
    del whole.metadata_props[:]
    onnx.helper.set_model_props(whole, {"vitft": facts})
    for beside in path.parent.glob(f"{path.name}.data"):
        beside.unlink()
    onnx.save(
        whole, path, save_as_external_data=is_big, location=f"{path.name}.data" if is_big else None
    )
