"""The prediction pipeline for any engine, and the engines in NumPy and in onnxruntime.

Images are read and decoded in threads; predictions are returned in the order of their sources.
This module does not import torch; the engine in torch is in `torch_engine`.
"""

import contextlib
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from PIL import Image

from vitft.data.images import (
    MAX_PIXELS,
    decode,
    has_more_pages,
    in_chunks,
    in_order,
    is_dark,
    overlapped,
)
from vitft.data.sources import ImageSource, with_fetched
from vitft.data.transforms import EvalTransform
from vitft.data.web import WebLimits
from vitft.features.ood import Reference, read_reference
from vitft.metrics.intervals import wilson_interval
from vitft.metrics.outputs import Outputs
from vitft.metrics.results import Results
from vitft.models.card import (
    CHANGED,
    CheckpointFile,
    contradicts_metadata,
    foreign_thresholds,
    has_changed,
    lacks_card,
    open_checkpoint,
)
from vitft.models.numpy_vit import NumpyModel, normalise, numpy_model, strictly
from vitft.predict.postprocess import Postprocess, ScoreArray, Scores, not_finite
from vitft.predict.rows import Prediction
from vitft.system.cores import usable_cores
from vitft.system.errors import ImageError, RunError
from vitft.system.imports import require_extra
from vitft.system.structure import parse_json, structured
from vitft.system.text import count

log = logging.getLogger(__name__)

_STARTED_BATCHES = 3  # maximum number of batches that are computed or wait to be finished
_LOADED_PARTS = 16  # number of parts of a large batch that workers load one by one
FIRST_PAGE_NOTE = "first of several pages"
DARK_NOTE = "nearly black to this model, with at most 14 of 16 bits used"
_Item = TypeVar("_Item")
Views = np.ndarray[Any, np.dtype[np.uint8]]  # preprocessed images (B, S, S, 3) or one (S, S, 3)


class Engine:
    """Model that computes scores for batches of images.

    By default, it preprocesses images as its transform says and scores them at once, with
    process-wide settings unchanged.
    """

    batch: int  # number of images per call to `scores`
    workers: int  # number of threads that read and decode images; 0 for the calling thread
    in_workers = False  # whether each worker also scores the batch that it has decoded
    transform: EvalTransform
    outputs: Outputs  # what the model assigns
    split: str  # digest of the split with which the model was trained; empty if unknown
    prompts = ""  # texts behind a head from class names, which no image has trained
    results: Results | None  # numbers of the run, if the model file contains them
    reference: Reference | None = None  # statistics of the run's training features

    def view(self, data: bytes, name: str, *, max_pixels: int = MAX_PIXELS) -> Views:
        """Decode and preprocess the bytes of an image file (S, S, 3), or raise an ImageError."""
        grey_range = self.transform.grey_range
        decoded = decode(data, name, max_pixels=max_pixels, grey_range=grey_range)
        return self.view_of(decoded.image)

    def view_of(self, image: Image.Image) -> Views:
        """Preprocess a decoded RGB image; return (S, S, 3)."""
        return self.transform.pixels(image)

    def scores(self, views: Views) -> Scores:
        """Return float32 scores for views (B, S, S, 3); a damaged model raises a RunError."""
        raise NotImplementedError

    def start(self, views: Sequence[Views]) -> Callable[[], Scores]:
        """Start to score views (S, S, 3); return a function, for any thread, that waits for it."""
        scores = self.scores(np.stack(views))
        return lambda: scores

    def enter_worker(self) -> None:
        """Prepare the calling thread for a batch; called before each batch."""

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that restores process-wide settings after a prediction run."""
        return contextlib.nullcontext()


class LoadedImage(NamedTuple):
    """A preprocessed image, or the reason it could not be loaded."""

    path: str
    view: Views | None
    error: str = ""
    notes: tuple[str, ...] = ()
    target: Any = None  # index of its class, or whether it has each label (C,), if known
    group: str = ""
    transform: EvalTransform | None = None  # that made the view, if another process did


@dataclass(frozen=True, slots=True)
class Pipeline:
    """An engine together with the postprocessing of its scores."""

    engine: Engine
    postprocess: Postprocess
    keep_views: bool = False  # whether each prediction includes its preprocessed image
    mirror: bool = False  # whether to average the logits of each image and its mirror image
    web: WebLimits = WebLimits()  # noqa: RUF009 - WebLimits is frozen
    differs: list[bool] = field(default_factory=list)  # whether each mirror image changes the class

    def predict(self, sources: Iterable[ImageSource]) -> Iterator[Prediction]:
        """Yield one prediction per source, in order, with an error if the image is unusable."""

        def load(source: ImageSource) -> LoadedImage:
            try:
                found = self.loaded(source.name, source.read(max_pixels=MAX_PIXELS))
            except ImageError as error:
                found = LoadedImage(source.name, None, error.reason)
            return found._replace(group=source.group)

        return self.run(with_fetched(sources, limits=self.web), load)

    def run(
        self, items: Iterable[_Item], load: Callable[[_Item], LoadedImage]
    ) -> Generator[Prediction, None, None]:
        """Yield one prediction per item, in order, like `predict`; workers `load` the items.

        The items are divided into chunks of `engine.batch`, so a run that is resumed after a whole
        number of chunks produces the same predictions. A few chunks are in memory at a time. If
        workers do not score their batches, they load those of the next batches meanwhile, and a
        batch is finished in another thread, so that a GPU always has work.
        """
        engine, workers = self.engine, max(1, self.engine.workers)
        each = max(1, engine.batch // _LOADED_PARTS)  # items that a worker loads at a time

        def load_in_worker(chunk: Sequence[_Item]) -> list[LoadedImage]:
            engine.enter_worker()
            return [load(item) for item in chunk]

        def score_in_worker(chunk: Sequence[_Item]) -> list[Prediction]:
            return self.predict_batch(load_in_worker(chunk))

        with contextlib.ExitStack() as stack:
            stack.enter_context(engine.running())
            if engine.in_workers:
                chunks = in_chunks(items, engine.batch)
                batches = in_order(
                    score_in_worker, chunks, workers=engine.workers, ahead=2 * workers
                )
            else:
                chunks, ahead = in_chunks(items, each), 2 * (workers + engine.batch // each)
                loaded = in_order(load_in_worker, chunks, workers=engine.workers, ahead=ahead)
                stack.callback(loaded.close)
                ready = in_chunks(chain.from_iterable(loaded), engine.batch)
                batches = overlapped(ready, self.start_batch, ahead=_STARTED_BATCHES)
            stack.callback(batches.close)
            for batch in batches:
                yield from batch

    def loaded(self, name: str, data: bytes) -> LoadedImage:
        """Return the preprocessed image of a file, with notes on it, or raise ImageError."""
        view = self.engine.view(data, name)
        return LoadedImage(name, view, notes=notes_on(data, self.engine.transform))

    def predict_batch(self, loaded: Sequence[LoadedImage]) -> list[Prediction]:
        """Return the predictions for a batch; raise the same errors as `predict`."""
        return self.start_batch(loaded)()

    def start_batch(self, loaded: Sequence[LoadedImage]) -> Callable[[], list[Prediction]]:
        """Start to score a batch; return a function that waits and returns the predictions."""
        usable = [(item, item.view) for item in loaded if item.view is not None]
        views = [view for _, view in usable]
        wait = self.start(views) if views else None

        def finish() -> list[Prediction]:
            scored: list[Prediction] = []
            if wait is not None:
                targets = [item.target for item, _ in usable]
                scored = self.postprocess(
                    [item.path for item, _ in usable],
                    wait(),
                    None if targets[0] is None else targets,
                    views=[*map(self.engine.transform.without_border, views)],
                )
            if self.keep_views:
                scored = [replace(p, view=v) for p, v in zip(scored, views, strict=True)]
            answers, found = iter(scored), list[Prediction]()
            for item in loaded:
                failed = Prediction(path=item.path, error=item.error, run=self.postprocess.run_name)
                one = failed if item.view is None else next(answers)
                if item.notes or item.group:
                    one = replace(one, notes=(*one.notes, *item.notes), group=item.group)
                found.append(one)
            return found

        return finish

    def start(self, views: Sequence[Views]) -> Callable[[], Scores]:
        """Start to score views; with `mirror`, the logits are averaged with the mirror images'."""
        original = self.engine.start(views)
        if not self.mirror:
            return original
        mirrored = self.engine.start([view[:, ::-1] for view in views])

        def finish() -> Scores:
            plain, turned = original(), mirrored()
            self.differs.extend((plain.logits.argmax(1) != turned.logits.argmax(1)).tolist())
            logits = np.asarray((plain.logits + turned.logits) / 2, np.float32)
            return plain._replace(logits=logits)

        return finish

    def warn_of_mirroring(self) -> None:
        """Log a warning if mirror images seem to differ in meaning from the images."""
        run, changed, total = self.postprocess.run, sum(self.differs), len(self.differs)
        known = run and run.estimate("cross-validation", "validation")
        if not known or not known.interval or self.engine.outputs.several:
            return
        if wilson_interval(changed, total)[0] > 2 * (1 - known.interval[0]):
            log.warning(
                f"the mirror images of {changed:,} of {count(total, 'image')} have another class. "
                "If left and right differ in meaning, remove --tta"
            )


def warn_of_dark(number: int) -> None:
    """Log a warning about a number of images with the note DARK_NOTE, if there are any."""
    if number:
        log.warning(
            f"{count(number, 'image is', 'images are')} {DARK_NOTE}. Scale such images to 8 bits "
            "first, or use a run trained on such images"
        )


def notes_on(data: bytes | Image.Image, transform: EvalTransform) -> tuple[str, ...]:
    """Return notes on an image if only the first page of its file or its upper bits are used."""
    found = {
        FIRST_PAGE_NOTE: isinstance(data, bytes) and has_more_pages(data),
        DARK_NOTE: not transform.grey_range and is_dark(data),
    }
    return tuple(note for note, holds in found.items() if holds)


# predictions for a few images on a CPU in half a second, without torch ----------------------------

_MAX_THREADS = min(4, usable_cores())
FEW_IMAGES = 8  # maximum number for which NumPy is faster than importing and running torch


class NumpyEngine(Engine):
    """An `Engine` in NumPy that scores one image per core at a time.

    The checkpoint is mapped into memory. Its digest is computed in a thread while images are
    decoded and scored, and no scores are returned until it has been verified. The command line
    limits OpenBLAS to one thread: on a busy machine with two cores, a matrix product with two
    threads took ten times as long as with one.
    """

    batch, in_workers = 1, True

    def __init__(
        self, opened: CheckpointFile, model: NumpyModel, reference: Reference | None = None
    ) -> None:
        self.opened, self.model, self.feature_size = opened, model, model.feature_size
        self.transform, self.outputs = opened.card.transform, opened.card
        self.split, self.results = opened.card.split, opened.card.run
        self.reference = reference
        self.intermediate = reference.intermediate_blocks if reference else 0
        self.workers = min(FEW_IMAGES, _MAX_THREADS)
        self.digest = ThreadPoolExecutor(1).submit(opened.digest).result

    @classmethod
    def open(cls, path: Path) -> Self | None:
        """Open a checkpoint; return None if torch is needed to run it, or raise RunError."""
        if lacks_card(path):
            return None
        opened = open_checkpoint(path)
        model = numpy_model(opened, threads=_MAX_THREADS)
        if model is None:
            return None
        return cls(opened, model, read_reference(path.parent, model.feature_size, model.config))

    def scores(self, views: Views) -> Scores:
        try:
            inputs = normalise(views, self.transform)
            found = strictly(self.model.features)(inputs, self.intermediate)
            features, intermediate = np.split(found, [self.feature_size], axis=1)
            scores = Scores(strictly(self.model.classify)(features), features, intermediate)
        except FloatingPointError as error:
            self.opened.check_digest(self.digest())
            raise not_finite() from error
        self.opened.check_digest(self.digest())
        return scores


# ONNX graphs of `vitft export`, which state the classes, the preprocessing and the layout of the
# input; a graph that resizes images itself receives decoded images, one at a time ----------------

_ONNX_BATCH_SIZE = 16  # number of images per call to a graph with a fixed image size


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

    def inputs(self, views: Views) -> np.ndarray[Any, Any]:
        """Return the graph's input for views (B, S, S, 3), or for a decoded image (1, H, W, 3)."""
        if self.takes_bytes:
            return views
        values = views.astype(np.float32) if self.any_size else normalise(views, self.transform)
        return values.transpose(0, 3, 1, 2)

    def scores(self, views: Views) -> Scores:
        """Return the scores of views (B, S, S, 3), or of a decoded image (1, H, W, 3)."""
        return Scores(self.logits(self.inputs(views)))

    def logits(self, inputs: np.ndarray[Any, Any]) -> ScoreArray:
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
