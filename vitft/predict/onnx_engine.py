"""The onnxruntime engine, which runs an exported ONNX graph on a CPU, without torch.

`vitft export` stores the classes, the preprocessing and the layout of the input in the graph. A
graph that resizes images itself receives decoded images, one at a time.
"""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitft.data.transforms import EvalTransform
from vitft.metrics.outputs import Outputs
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
from vitft.predict.postprocess import ScoreArray, Scores
from vitft.system.cores import usable_cores
from vitft.system.errors import RunError
from vitft.system.imports import require_extra
from vitft.system.structure import parse_json, structured

_ONNX_BATCH_SIZE = 16  # number of images per call to a graph with a fixed image size
_Array = np.ndarray[Any, np.dtype[Any]]


class OnnxEngine(Engine):
    """An `Engine` that runs an ONNX graph of `vitft export`, on all cores or so many threads."""

    def __init__(self, path: Path, *, threads: int = 0) -> None:
        require_extra("onnx", feature=f"running {path}", libraries=("onnxruntime",))
        self.path, self.workers = path, usable_cores()
        try:
            if has_changed(path):
                raise ValueError(CHANGED)
            self.session = open_session(path, threads=threads)
            metadata = self.session.get_modelmeta().custom_metadata_map
            if contradicts_metadata(path, metadata):
                raise ValueError(CHANGED)
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise _unreadable_graph(path, _first_line(error)) from error
        if (described := metadata.get("vitft")) is None:
            raise RunError(
                f"the ONNX graph {path} was not exported by vitft and contains neither the class "
                "names nor the preprocessing",
                fix="use a graph from `vitft export --onnx`, or run this one with onnxruntime",
            )
        try:
            facts = parse_json(described)
            self.outputs = Outputs.read(facts)
            self.transform: EvalTransform = structured(facts["transform"], EvalTransform)
            self.split = str(facts.get("split", ""))
            self.prompts = str(facts.get("weights", {}).get("prompts", ""))
            self.results = Results.from_json(facts.get("run"))
            self.input = str(facts["input"]["name"])
            self.takes_bytes, self.any_size = facts["input"]["bytes"], facts["input"]["any_size"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unreadable_graph(path, f"its vitft metadata is not valid: {error}") from error
        self.batch = 1 if self.any_size else _ONNX_BATCH_SIZE

    def view_of(self, image: Image.Image) -> Views:
        """Return a decoded RGB image, preprocessed (S, S, 3), or as it is (H, W, 3)."""
        return np.asarray(image) if self.any_size else self.transform.pixels(image)

    def inputs(self, views: Views) -> _Array:
        """Return the graph's input for views (B, S, S, 3), or for a decoded image (1, H, W, 3)."""
        if self.takes_bytes:
            return views
        values = views.astype(np.float32) if self.any_size else normalise(views, self.transform)
        return values.transpose(0, 3, 1, 2)

    def scores(self, views: Views) -> Scores:
        """Return the scores of views (B, S, S, 3), or of a decoded image (1, H, W, 3)."""
        return Scores(self.logits(self.inputs(views)))

    def logits(self, inputs: _Array) -> ScoreArray:
        """Return the logits (B, C) of the graph, given its input."""
        try:
            (logits,) = self.session.run(["logits"], {self.input: np.ascontiguousarray(inputs)})
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise _unreadable_graph(self.path, _first_line(error)) from error
        classes = len(self.outputs.classes)
        if logits.shape != (len(inputs), classes):
            problem = f"it has {classes} classes, but its output has shape {logits.shape}"
            raise _unreadable_graph(self.path, problem)
        return np.asarray(logits, np.float32)


def open_session(graph: Path | bytes, *, threads: int) -> Any:  # noqa: ANN401 - onnxruntime's own type
    """Return an onnxruntime session that runs a graph on so many threads (0: on all cores)."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # fatal errors only; other errors are raised
    # Otherwise, idle threads would take the cores from other work, such as decoding images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


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
        return OnnxEngine(path).outputs.several
    if lacks_card(path):
        return bool(foreign_thresholds(path))
    return open_checkpoint(path).card.several
