"""Engine-independent prediction pipeline: load images, run an engine, and postprocess its scores.

Images are read and decoded in threads; predictions are returned in the order of their sources.
This module does not import torch; the engines are in `torch_engine` and `numpy_engine`.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from PIL import Image

from vitft.data.download.web_image import WebLimits
from vitft.data.grey_range import is_dark
from vitft.data.images import MAX_PIXELS, has_more_pages, read_image
from vitft.data.inspection import in_chunks, in_order, overlapped
from vitft.data.sources import ImageSource, source_bytes, with_fetched
from vitft.data.transforms import EvalTransform
from vitft.features.reference import Reference
from vitft.metrics.intervals import wilson_interval
from vitft.metrics.summary import Results
from vitft.predict.postprocess import Postprocess, Scores
from vitft.predict.rows import Prediction
from vitft.system.errors import ImageError
from vitft.system.text import count

_STARTED_BATCHES = 3
"""Number of batches on which a GPU may work, or which wait to be finished, at a time."""
FIRST_PAGE_NOTE = "first of several pages"
DARK_NOTE = "nearly black to this model, with at most 14 of 16 bits used"
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
    results: Results | None
    """Numbers of the run that the model file contains; None for the model of a run directory."""
    reference: Reference | None
    """Statistics of the run's training features; None if there are none."""

    def view(self, data: bytes, name: str, *, max_pixels: int = MAX_PIXELS) -> Views:
        """Decode and preprocess an image file, given as bytes; return (S, S, 3).

        Raises:
            ImageError: The bytes are not a usable image, or it has more than `max_pixels`.
        """

    def view_of(self, image: Image.Image) -> Views:
        """Preprocess a decoded RGB image; return (S, S, 3)."""

    def scores(self, views: Views) -> Scores:
        """Return float32 scores for views (B, S, S, 3)."""

    def start(self, views: Views) -> Callable[[], Scores]:
        """Start to compute the scores of views; return a function that waits for them.

        Engines without a device of their own compute the scores at once. The function may be called
        in another thread.
        """

    def enter_worker(self) -> None:
        """Prepare the calling thread for a batch; called before each batch."""

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that restores process-wide settings after a prediction run."""


class CpuEngine:
    """Parts of an `Engine` that computes scores at once, with process-wide settings unchanged."""

    def running(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def enter_worker(self) -> None:
        """Do nothing; workers need no preparation."""

    def scores(self, views: Views) -> Scores:
        raise NotImplementedError

    def start(self, views: Views) -> Callable[[], Scores]:
        scores = self.scores(views)
        return lambda: scores


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

        The sources are divided into chunks of `engine.batch`, so a run that is resumed after a
        whole number of chunks produces the same predictions. A few chunks are in memory at a time.

        Raises:
            RunError: The engine cannot compute the scores, or some logits are not finite.
        """
        engine = self.engine
        batches = (self.in_workers if engine.in_workers else self.beside_workers)(sources)
        with engine.running(), contextlib.closing(batches):
            for batch in batches:
                yield from batch

    def in_workers(self, sources: Iterable[ImageSource]) -> Generator[list[Prediction], None, None]:
        """Yield batches of predictions; each is loaded and scored by one worker."""
        engine = self.engine

        def work(chunk: Sequence[ImageSource]) -> list[Prediction]:
            return self.predict_batch([self.load(source) for source in chunk])

        chunks = in_chunks(with_fetched(sources, limits=self.web), engine.batch)
        return in_order(work, chunks, workers=engine.workers, ahead=2 * max(1, engine.workers))

    def beside_workers(
        self, sources: Iterable[ImageSource]
    ) -> Generator[list[Prediction], None, None]:
        """Yield batches of predictions while workers load the images of the next batches.

        A batch is finished in another thread, so that a GPU always has work.
        """
        engine = self.engine
        fetched = with_fetched(sources, limits=self.web)
        ahead = 2 * (max(1, engine.workers) + engine.batch)
        loaded = in_order(self.load, fetched, workers=engine.workers, ahead=ahead)
        with contextlib.closing(loaded):
            batches = in_chunks(loaded, engine.batch)
            yield from overlapped(batches, self.start_batch, ahead=_STARTED_BATCHES)

    def load(self, source: ImageSource) -> LoadedImage:
        """Load an image in a worker, or return the reason it could not be loaded."""
        engine = self.engine
        engine.enter_worker()
        try:
            data = source_bytes(source, max_pixels=MAX_PIXELS)
            view = engine.view(data, source.name)
            return LoadedImage(source.name, view, notes=notes_on(data, engine.transform))
        except ImageError as error:
            return LoadedImage(source.name, None, error.reason)

    def predict_batch(self, loaded: Sequence[LoadedImage]) -> list[Prediction]:
        """Return the predictions for a batch; raise the same errors as `predict`."""
        return self.start_batch(loaded)()

    def start_batch(self, loaded: Sequence[LoadedImage]) -> Callable[[], list[Prediction]]:
        """Start to score a batch; return a function that waits and returns the predictions."""
        usable = [(item.path, item.view) for item in loaded if item.view is not None]
        wait = self.engine.start(np.stack([view for _, view in usable])) if usable else None

        def finish() -> list[Prediction]:
            scored: Iterator[Prediction] = iter(())
            if wait is not None:
                crops = [self.engine.transform.without_border(view) for _, view in usable]
                paths = [path for path, _ in usable]
                scored = iter(self.postprocess(paths, wait(), views=crops))
            if self.keep_views:
                pairs = zip(scored, usable, strict=True)
                scored = (replace(p, view=view) for p, (_, view) in pairs)
            return [
                Prediction(path=item.path, error=item.error, run=self.postprocess.run_name)
                if item.view is None
                else with_notes(next(scored), item.notes)
                for item in loaded
            ]

        return finish


def with_notes(prediction: Prediction, notes: tuple[str, ...]) -> Prediction:
    """Return the prediction with `notes` appended, if there are any."""
    return replace(prediction, notes=(*prediction.notes, *notes)) if notes else prediction


def notes_on(data: bytes, transform: EvalTransform) -> tuple[str, ...]:
    """Return notes on an image file if only its first page or upper bits are used."""
    found = {
        FIRST_PAGE_NOTE: has_more_pages(data),
        DARK_NOTE: not transform.grey_range and is_dark(data),
    }
    return tuple(note for note, holds in found.items() if holds)


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
    """Engine that averages the logits of images and mirror images; features are the images' own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.batch, self.workers = engine.batch, engine.workers
        self.in_workers, self.transform = engine.in_workers, engine.transform
        self.classes, self.reference = engine.classes, engine.reference
        self.thresholds, self.results = engine.thresholds, engine.results
        self.view, self.view_of = engine.view, engine.view_of
        self.enter_worker = engine.enter_worker
        self.running = engine.running
        self.differs: list[bool] = []
        """Whether the mirror image of each image has another class."""

    def scores(self, views: Views) -> Scores:
        return self.start(views)()

    def start(self, views: Views) -> Callable[[], Scores]:
        original = self.engine.start(views)
        mirrored = self.engine.start(np.ascontiguousarray(views[:, :, ::-1]))

        def finish() -> Scores:
            plain, turned = original(), mirrored()
            self.differs += (plain.logits.argmax(1) != turned.logits.argmax(1)).tolist()
            logits = np.asarray((plain.logits + turned.logits) / 2, np.float32)
            return plain._replace(logits=logits)

        return finish

    def warning(self, run: Results | None) -> str:
        """Return a warning if mirror images seem to differ in meaning from the images, or ""."""
        known = run and run.estimate("cross-validation", "validation")
        changed, total = sum(self.differs), len(self.differs)
        bounds = known and known.interval
        is_rare = wilson_interval(changed, total)[0] <= 2 * (1 - bounds[0]) if bounds else True
        if is_rare or self.thresholds:
            return ""
        return (
            f"the mirror images of {changed:,} of {count(total, 'image')} have another class. If "
            "left and right differ in meaning, remove --tta"
        )
