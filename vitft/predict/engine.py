"""Engine-independent prediction pipeline: load images, run an engine, and postprocess its scores.

Images are read and decoded in threads; predictions are returned in the order of their sources.
This module does not import torch; the engines are in `torch_engine` and `numpy_engine`.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from vitft.data.download.web_image import WebLimits
from vitft.data.images import MAX_PIXELS, read_image
from vitft.data.loading import in_order
from vitft.data.signatures import has_more_pages
from vitft.data.sources import ImageSource, source_bytes, with_fetched
from vitft.data.transforms import EvalTransform
from vitft.predict.postprocess import Postprocess, Scores
from vitft.predict.prediction import Prediction
from vitft.system.errors import ImageError

FIRST_PAGE_NOTE = "first of several pages"
"""Note on a file with several pages; only the first one is used."""
Views = np.ndarray[Any, np.dtype[np.uint8]]
"""Preprocessed images before normalisation, (B, S, S, 3), or a single image, (S, S, 3)."""


class Engine(Protocol):
    """Interface of a model that computes scores for batches of images."""

    batch: int
    """Number of images per call to `scores`."""
    workers: int
    """Number of threads that read and decode images; if it is 0, the calling thread does so."""
    in_workers: bool
    """Whether each worker also scores the batch that it has decoded, using one core."""

    transform: EvalTransform
    classes: tuple[str, ...]
    thresholds: tuple[float, ...]
    """Minimum probability at which a multi-label model assigns each label; empty for other
    models."""
    feature_size: int

    def view(self, data: bytes, name: str) -> Views:
        """Decode and preprocess an image file, given as bytes; return (S, S, 3).

        Raises:
            ImageError: The bytes are not a usable image.
        """

    def scores(self, views: Views) -> Scores:
        """Return float32 scores for views (B, S, S, 3)."""

    def enter_worker(self) -> None:
        """Prepare the calling thread for a batch; called before each batch."""

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that restores process-wide settings after a prediction run."""


class LoadedImage(NamedTuple):
    """A preprocessed image, or the reason it could not be loaded."""

    path: str
    view: Views | None
    error: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """An engine together with the postprocessing of its scores."""

    engine: Engine
    postprocess: Postprocess
    keep_views: bool = False
    """Whether each prediction includes its preprocessed image."""
    web: WebLimits = WebLimits()  # noqa: RUF009 - WebLimits is frozen

    def predict(self, sources: Iterable[ImageSource]) -> Iterator[Prediction]:
        """Yield one prediction per source, in order, with an error if the image is unusable.

        The sources, including unusable ones, are divided into chunks of `engine.batch`, so a run
        that is resumed after a whole number of chunks produces the same predictions. Only a few
        chunks are in memory at a time.

        Raises:
            RunError: The engine cannot compute the scores, or some logits are not finite.
        """
        engine = self.engine

        def work(chunk: Sequence[ImageSource]) -> list[Prediction] | list[LoadedImage]:
            engine.enter_worker()
            loaded = [load_image(engine, source) for source in chunk]
            return self.predict_batch(loaded) if engine.in_workers else loaded

        fetched = with_fetched(sources, limits=self.web)
        chunks = iter(lambda: list(islice(fetched, engine.batch)), [])
        results = in_order(work, chunks, workers=engine.workers, ahead=2 * max(1, engine.workers))
        with engine.running(), contextlib.closing(results):
            for chunk in results:
                loaded = [item for item in chunk if isinstance(item, LoadedImage)]
                yield from self.predict_batch(loaded)
                yield from (item for item in chunk if isinstance(item, Prediction))

    def predict_batch(self, loaded: Sequence[LoadedImage]) -> list[Prediction]:
        """Return the predictions for a batch, scoring its usable images in one call to the engine.

        Raises:
            RunError: The engine cannot compute the scores, or some logits are not finite.
        """
        usable = [(item.path, item.view) for item in loaded if item.view is not None]
        scored: Iterator[Prediction] = iter(())
        if usable:
            scores = self.engine.scores(np.stack([view for _, view in usable]))
            scored = iter(self.postprocess([path for path, _ in usable], scores))
        if self.keep_views:
            scored = (replace(p, view=view) for p, (_, view) in zip(scored, usable, strict=True))
        return [
            Prediction(path=item.path, error=item.error, run=self.postprocess.run_name)
            if item.view is None
            else with_notes(next(scored), item.notes)
            for item in loaded
        ]


def with_notes(prediction: Prediction, notes: tuple[str, ...]) -> Prediction:
    """Return the prediction with `notes` appended, if there are any."""
    return replace(prediction, notes=(*prediction.notes, *notes)) if notes else prediction


def load_image(engine: Engine, source: ImageSource) -> LoadedImage:
    """Read and preprocess one image; return it, or the reason it could not be loaded."""
    try:
        data = source_bytes(source, max_pixels=MAX_PIXELS)
        return LoadedImage(source.name, engine.view(data, source.name), notes=notes_on(data))
    except ImageError as error:
        return LoadedImage(source.name, None, error.reason)


def notes_on(data: bytes) -> tuple[str, ...]:
    """Return a note if an image file has several pages, because only the first one is used."""
    return (FIRST_PAGE_NOTE,) if has_more_pages(data) else ()


def decode_view(
    data: bytes, name: str, transform: EvalTransform, *, max_pixels: int = MAX_PIXELS
) -> Views:
    """Decode and preprocess an image file, given as bytes; return (S, S, 3).

    Raises:
        ImageError: The bytes are not a usable image.
    """
    image = read_image(data, name, max_pixels=max_pixels, grey_range=transform.grey_range)
    return transform.pixels(image)


class MirroredEngine:
    """Engine that averages the logits of each image and its mirror image.

    The features come from the original image alone.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.batch, self.workers = engine.batch, engine.workers
        self.in_workers, self.transform = engine.in_workers, engine.transform
        self.classes, self.feature_size = engine.classes, engine.feature_size
        self.thresholds = engine.thresholds
        self.view, self.enter_worker = engine.view, engine.enter_worker
        self.running = engine.running

    def scores(self, views: Views) -> Scores:
        original = self.engine.scores(views)
        mirrored = self.engine.scores(np.ascontiguousarray(views[:, :, ::-1]))
        logits = np.asarray((original.logits + mirrored.logits) / 2, np.float32)
        return Scores(logits, original.features)
