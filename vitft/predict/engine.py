"""Images in, answers out, whatever computes them: the part of predict that needs no torch.

An `Engine` turns views into scores; here images are read and viewed in threads, in the order of
their sources, and scores become classes with probabilities and notes. Torch's engine is in
`predict`, NumPy's in `numpy_engine`.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from vitft.data.images import MAX_PIXELS, decode
from vitft.data.loading import in_order
from vitft.data.sources import ImageSource, source_bytes, with_fetched
from vitft.data.transforms import EvalTransform
from vitft.features.ood import Reference
from vitft.system.errors import ImageError, RunError

UNSURE, UNLIKE = "not sure", "unlike the training images"

Views = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The answer for one input: classes with probabilities, best first, or why there is none."""

    path: str
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    """Shares of one, over all classes of the model, in the order of `classes`."""
    error: str = ""
    notes: tuple[str, ...] = ()
    """`not sure` below the threshold; `unlike the training images` by the picture's feature."""
    view: Views | None = field(default=None, repr=False, compare=False)
    """What the model was shown, (S, S, 3), if views are kept."""


class Scores(NamedTuple):
    """What an engine says of some views."""

    logits: Floats
    """(B, C)"""
    features: Floats
    """What the head read of each, (B, D)."""


class Engine(Protocol):
    """A model at work."""

    batch: int
    """Views per call."""
    workers: int
    """Threads that read and decode; 0: the caller's own."""
    in_workers: bool
    """Whether each worker also computes, on one core, the batch that it has decoded."""

    @property
    def transform(self) -> EvalTransform: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def feature_size(self) -> int: ...

    def view(self, data: bytes, name: str) -> Views:
        """The model's view (S, S, 3) of a file's bytes; ImageError if they are no image."""
        ...

    def scores(self, views: Views) -> Scores:
        """Scores of views (B, S, S, 3), float32."""
        ...

    def enter_worker(self) -> None:
        """Called in a worker before each batch."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """From scores to answers."""

    classes: Sequence[str]
    top_k: int = 1
    threshold: float = 0.0
    """Answers whose best probability is smaller are noted as not sure."""
    reference: Reference | None = None
    """What the training images look like."""
    keeps_views: bool = False

    def predictions(self, names: Sequence[str], scores: Scores) -> list[Prediction]:
        """One for each name and row of scores.

        Raises:
            RunError: A score is not a finite number.
        """
        if not np.isfinite(scores.logits).all():
            raise RunError(
                "the model's scores are not finite numbers",
                fix="train again; it diverged or is damaged",
            )
        unlike = [False] * len(names)
        if self.reference is not None:
            unlike = self.reference.are_unlike(scores.features)
        shares = probabilities(scores.logits)
        best = np.argsort(-shares, axis=1, kind="stable")[:, : self.top_k]
        found = []
        for name, row, order, is_unlike in zip(names, shares, best, unlike, strict=True):
            notes = (UNSURE,) * bool(row[order[0]] < self.threshold) + (UNLIKE,) * is_unlike
            found.append(
                Prediction(
                    path=name,
                    classes=tuple(self.classes[i] for i in order),
                    probabilities=tuple(row[order].tolist()),
                    notes=notes,
                )
            )
        return found


def probabilities(logits: Floats) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Shares of one (B, C)."""
    scores = logits.astype(np.float64)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


class Looked(NamedTuple):
    """One source on its way: its view, or why there is none."""

    name: str
    view: Views | None
    error: str = ""


def answers(engine: Engine, sources: Iterable[ImageSource], judge: Judge) -> Iterator[Prediction]:
    """One prediction per source, in order; what is no image gets its reason instead.

    `engine.batch` sources in a row are always computed together, bad ones among them, so that
    an answer does not depend on where a run was resumed. At most some batches are under way.
    """

    def work(chunk: Sequence[ImageSource]) -> list[Prediction] | list[Looked]:
        engine.enter_worker()
        looked = [look(engine, source) for source in chunk]
        return judged(engine, looked, judge) if engine.in_workers else looked

    chunks = in_chunks(with_fetched(sources), engine.batch)
    results = in_order(work, chunks, workers=engine.workers, ahead=2 * max(1, engine.workers))
    with contextlib.closing(results):
        for chunk in results:
            looked = [item for item in chunk if isinstance(item, Looked)]
            yield from judged(engine, looked, judge)
            yield from (item for item in chunk if isinstance(item, Prediction))


def in_chunks(sources: Iterable[ImageSource], size: int) -> Iterator[list[ImageSource]]:
    """`size` sources at a time."""
    remaining = iter(sources)
    while chunk := list(islice(remaining, size)):
        yield chunk


def look(engine: Engine, source: ImageSource) -> Looked:
    """Read and view one image."""
    try:
        return Looked(
            source.name, engine.view(source_bytes(source, max_pixels=MAX_PIXELS), source.name)
        )
    except ImageError as error:
        return Looked(source.name, None, error.reason)


def documented_view(data: bytes, name: str, transform: EvalTransform) -> Views:
    """The view (S, S, 3) that the checkpoint's card describes.

    Raises:
        ImageError: The bytes are no whole image.
    """
    return transform.pixels(decode(data, name, max_pixels=MAX_PIXELS).image)


def judged(engine: Engine, looked: Sequence[Looked], judge: Judge) -> list[Prediction]:
    """Predictions for a batch; its views meet the model together."""
    good = [(item.name, item.view) for item in looked if item.view is not None]
    found: Iterator[Prediction] = iter(())
    if good:
        scores = engine.scores(np.stack([view for _, view in good]))
        found = iter(judge.predictions([name for name, _ in good], scores))
    done = []
    for item in looked:
        if item.view is None:
            done.append(Prediction(path=item.name, error=item.error))
        else:
            prediction = next(found)
            if judge.keeps_views:
                prediction = replace(prediction, view=item.view)
            done.append(prediction)
    return done


class Mirrored:
    """An engine that shows each view and its mirror image, and answers with the mean score."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.batch, self.workers = engine.batch, engine.workers
        self.in_workers = engine.in_workers
        self.view, self.enter_worker = engine.view, engine.enter_worker

    @property
    def transform(self) -> EvalTransform:
        return self.engine.transform

    @property
    def classes(self) -> tuple[str, ...]:
        return self.engine.classes

    @property
    def feature_size(self) -> int:
        return self.engine.feature_size

    def scores(self, views: Views) -> Scores:
        seen = self.engine.scores(views)
        flipped = self.engine.scores(np.ascontiguousarray(views[:, :, ::-1]))
        return Scores(np.asarray((seen.logits + flipped.logits) / 2, np.float32), seen.features)
