"""The onnxruntime engine, which runs an exported ONNX graph on a CPU, without torch.

`vitft export` stores the classes, the preprocessing and the layout of the input in the graph. A
graph that resizes images itself receives decoded images, one at a time.
"""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitft.data.transforms import EvalTransform
from vitft.metrics.results import Results
from vitft.models.card import (
    CHANGED,
    contradicts_metadata,
    foreign_thresholds,
    has_changed,
    lacks_card,
    open_checkpoint,
)
from vitft.models.numpy_vit import normalise
from vitft.predict.engine import Engine, Views
from vitft.predict.postprocess import Scores
from vitft.system.cores import usable_cores
from vitft.system.errors import RunError
from vitft.system.imports import require_extra
from vitft.system.structure import parse_json, structured

_ONNX_BATCH_SIZE = 16  # number of images per call to a graph with a fixed image size


class OnnxEngine(Engine):
    """An `Engine` that runs an ONNX graph written by `vitft export`."""

    def __init__(self, path: Path) -> None:
        require_extra("onnx", feature=f"running {path}", libraries=("onnxruntime",))
        self.path = path
        self.session = _open_session(path)
        self.workers = usable_cores()
        described = self.session.get_modelmeta().custom_metadata_map.get("vitft")
        if described is None:
            raise RunError(
                f"the ONNX graph {path} was not exported by vitft and contains neither the class "
                "names nor the preprocessing",
                fix="use a graph from `vitft export --onnx`, or run this one with onnxruntime",
            )
        try:
            facts = parse_json(described)
            self.classes = tuple(map(str, facts["classes"]))
            self.transform: EvalTransform = structured(facts["transform"], EvalTransform)
            self.split = str(facts.get("split", ""))
            self.thresholds = tuple(map(float, facts.get("thresholds", ())))
            self.results = Results.from_json(facts.get("run"))
            self.input = str(facts["input"]["name"])
            self.takes_bytes, self.any_size = facts["input"]["bytes"], facts["input"]["any_size"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unreadable_graph(path, f"its vitft metadata is not valid: {error}") from error
        self.batch = 1 if self.any_size else _ONNX_BATCH_SIZE

    def view_of(self, image: Image.Image) -> Views:
        """Return a decoded RGB image, preprocessed (S, S, 3), or as it is (H, W, 3)."""
        return np.asarray(image) if self.any_size else self.transform.pixels(image)

    def scores(self, views: Views) -> Scores:
        """Return the scores of views (B, S, S, 3), or of a decoded image (1, H, W, 3)."""
        inputs: Any = views
        if self.any_size and not self.takes_bytes:
            inputs = views.transpose(0, 3, 1, 2).astype(np.float32)
        elif not self.takes_bytes:
            inputs = normalise(views, self.transform).transpose(0, 3, 1, 2)
        try:
            (logits,) = self.session.run(["logits"], {self.input: np.ascontiguousarray(inputs)})
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise _unreadable_graph(self.path, _first_line(error)) from error
        if logits.shape != (len(views), len(self.classes)):
            raise _unreadable_graph(
                self.path,
                f"it has {len(self.classes)} classes, but its output has shape {logits.shape}",
            )
        return Scores(np.asarray(logits, np.float32))


def _open_session(path: Path) -> Any:  # noqa: ANN401 - onnxruntime's own type
    """Return an onnxruntime session that runs a graph on all cores."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # fatal errors only; other errors are raised
    # Otherwise, idle threads would take the cores from the threads that decode images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        if has_changed(path):
            raise ValueError(CHANGED)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        if contradicts_metadata(path, session.get_modelmeta().custom_metadata_map):
            raise ValueError(CHANGED)
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise _unreadable_graph(path, _first_line(error)) from error
    return session


def _first_line(error: Exception) -> str:
    """Return at most 200 characters of the first line of an error message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _unreadable_graph(path: Path, reason: str) -> RunError:
    """Return the error for a graph that cannot be read or run."""
    return RunError(
        f"cannot run the ONNX graph {path}: {reason}",
        fix="copy the file again from its original location, or run `vitft export --onnx` again",
    )


# detection of multi-label models from their files, without importing torch ------------------------


def gives_several(path: Path) -> bool:
    """Return whether a model is multi-label, i.e. may assign an image several labels or none."""
    if path.suffix.lower() == ".onnx":
        return bool(OnnxEngine(path).thresholds)
    if lacks_card(path):
        return bool(foreign_thresholds(path))
    return bool(open_checkpoint(path).card.thresholds)
