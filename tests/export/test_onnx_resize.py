"""The resize inside an ONNX graph: Pillow's views, in onnxruntime and in OpenVINO."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

from tests.conftest import tiny
from tests.support.export_run import make_run
from vitft.data import EvalTransform, open_image
from vitft.export import export_run, plan_export, resize_graph
from vitft.predict import Predictor
from vitft.system import RunError

Runtime = Callable[[bytes, str, Any], Any]
"""Function from a graph, the name of its input and the input to the first output."""


def in_onnxruntime(graph: bytes, name: str, value: Any) -> Any:
    (output,) = onnxruntime.InferenceSession(graph).run(None, {name: value})
    return np.asarray(output)


def in_openvino(graph: bytes, name: str, value: Any) -> Any:
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed")
    core = openvino.Core()
    # On some processors, bfloat16 is the default.
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    model = core.compile_model(core.read_model(graph, b""), "CPU", exact)
    return np.asarray(model({name: value})[0])


RUNTIMES = [
    pytest.param(in_onnxruntime, id="onnxruntime"),
    pytest.param(in_openvino, id="OpenVINO", marks=pytest.mark.long),
]
SIZES = [
    *((24, 24), (30, 47), (47, 30), (200, 120), (9, 12), (26, 26), (25, 48)),
    *((101, 50), (300, 31), (50, 301), (60, 20)),  # Pillow 13 begins with the rows of some
]
"""Height and width of images."""
TRANSFORMS = [
    pytest.param({"interpolation": "bilinear"}, id="bilinear"),
    pytest.param({"interpolation": "bicubic"}, id="bicubic"),
    pytest.param({"interpolation": "lanczos"}, id="lanczos"),
    pytest.param({"crop": 1.0}, id="whole short side"),
    pytest.param({"crop": 0.45}, id="a small part"),
    pytest.param({"fit": "squash"}, id="squashed"),
    pytest.param({"fit": "squash", "image_size": (16, 32)}, id="squashed, not square"),
    pytest.param({"image_size": (24, 36)}, id="not square"),
    pytest.param({"image_size": (36, 20), "crop": 0.7}, id="high, a part"),
    pytest.param({"fit": "pad", "crop": 1.0, "mean": (0.1, 0.5, 0.9)}, id="padded"),
    pytest.param({"fit": "pad", "image_size": (16, 32)}, id="padded and cropped, not square"),
    pytest.param({"fit": "pad", "crop": 1.0, "mean": (0.4,), "std": (0.5,)}, id="padded, grey"),
    pytest.param({"mean": (0.5,), "std": (0.5,)}, id="grey"),
]


def noise(size: tuple[int, int]) -> Image.Image:
    random = np.random.default_rng(sum(size))
    return Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8))


@pytest.mark.parametrize("run", RUNTIMES)
@pytest.mark.parametrize("fields", TRANSFORMS)
def test_the_view_of_a_graph_is_pillows_to_single_grey_levels(
    run: Runtime, fields: dict[str, Any]
) -> None:
    transform = EvalTransform(**{"image_size": (24, 24), **fields})
    graph = resize_graph(transform).SerializeToString()
    off = []

    for size in SIZES:
        image = noise(size)
        view = run(graph, "image", np.asarray(image)[None])[0]
        off.append(np.abs(view.astype(np.int16) - transform.pixels(image)).ravel())

    assert max(each.max() for each in off) <= 2  # rarely two: see MAX_GREY_LEVELS
    # Weights such as 1/4 make exact halves, which Pillow rounds by the error of its weights.
    assert np.concatenate(off).mean() < (0.02 if transform.interpolation == "bilinear" else 1e-3)


@pytest.mark.parametrize("run", RUNTIMES)
def test_images_of_one_size_are_resized_together(run: Runtime) -> None:
    transform = EvalTransform(image_size=(24, 24))
    graph = resize_graph(transform).SerializeToString()
    pair = np.stack([np.asarray(noise((40, 31))), np.asarray(noise((40, 31)).rotate(180))])

    views = run(graph, "image", pair)

    for view, image in zip(views, pair, strict=True):
        assert np.abs(view.astype(int) - transform.pixels(Image.fromarray(image))).max() <= 2


@pytest.mark.parametrize("run", RUNTIMES)
def test_logits_of_a_graph_with_resize_are_those_of_the_run(tmp_path: Path, run: Runtime) -> None:
    grey = tiny(3, in_channels=1)  # its resize begins and ends with a conversion
    kept = make_run(tmp_path, config=grey, mean=(0.4,), std=(0.3,))
    order = plan_export(["onnx"], str(tmp_path / "x"), with_resize=True)
    done = export_run(str(kept), order)
    graph = (done.folder / "model.onnx").read_bytes()
    predictor = Predictor.from_run(str(kept), device="cpu")

    assert re.search(r"at most \d grey levels? \(out of 255\)", done.notes[0])
    facts = onnx.load_from_string(graph)
    assert [(one.domain, one.version) for one in facts.opset_import] == [("", 18)]
    assert [entry.key for entry in facts.metadata_props] == ["vitft", "vitft.sha256"]
    for path in sorted((tmp_path / "photos").rglob("*.png")):
        image = open_image(path)
        theirs = run(graph, "image", np.asarray(image)[None])
        ours = predictor.scores(predictor.transform.pixels(image)[None]).logits
        assert np.abs(theirs - ours).max() < 1e-3 * np.abs(ours).max()


def test_a_resize_that_no_graph_can_say_is_refused(tmp_path: Path) -> None:
    kept = make_run(tmp_path, config=tiny(3), interpolation="nearest")

    with pytest.raises(RunError, match=r"--onnx cannot represent.*nearest interpolation") as e:
        export_run(str(kept), plan_export(["onnx"], str(tmp_path / "x"), with_resize=True))

    assert e.value.fix == "use --with-preprocessing instead of --with-resize"
    assert not (tmp_path / "x").exists()
