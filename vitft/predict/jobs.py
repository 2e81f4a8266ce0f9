"""Prediction jobs, as `vitft predict` runs them: from names of images to rows in a file.

A few images on a CPU are predicted in NumPy, without importing torch.
"""

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from vitft.data.sources import ImageSource, sources
from vitft.models.find import find_model
from vitft.predict.engine import Engine, MirroredEngine, Pipeline
from vitft.predict.numpy_engine import FEW_IMAGES, NumpyEngine, start_digest
from vitft.predict.output import (
    ProcessShard,
    ResumePoint,
    check_output,
    count_errors,
    find_resume_point,
    finished_path,
    merge_shards,
    open_rows,
    part_path,
)
from vitft.predict.postprocess import Postprocess
from vitft.predict.prediction import Prediction
from vitft.predict.request import PredictRequest
from vitft.predict.rows import RowWriter
from vitft.system.errors import UsageError
from vitft.system.imports import heavy_imports
from vitft.system.rundir import plan_run
from vitft.system.text import count

if TYPE_CHECKING:
    from vitft.predict.torch_engine import Predictor


log = logging.getLogger(__name__)

Illustrator = Callable[[Engine, Iterator[Prediction], Path], Iterator[Prediction]]
"""Passes predictions on and writes a picture of each into a folder."""


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Outcome of a prediction job."""

    rows: int
    errors: int
    """Rows of images that could not be read."""


def run_prediction(
    request: PredictRequest,
    *,
    write: Callable[[str], object],
    stdin: BinaryIO | None = None,
    illustrate: Illustrator | None = None,
) -> JobSummary:
    """Predict every image of a request and write one row for each.

    Args:
        request: What to predict, with which model, and where to write rows.
        write: Takes each line, without its end, if the request names no file.
        stdin: Read where the request names `-`.
        illustrate: Needed if the request asks for explanations: `vitft.explain.explainer`,
            which is in a higher package.

    Raises:
        VitftError: The request cannot be met; see `vitft.system.errors`.
    """
    if request.out is not None:
        check_output(Path(request.out), request.shard, resume=request.resume)
    checkpoint = find_model(request.run)
    threshold = request.threshold or 0.0
    if request.precision is not None:
        from vitft.predict.threshold import choose_threshold  # it imports simplejpeg

        chosen = choose_threshold(checkpoint.parent, request.precision)
        log.info(str(chosen))
        threshold = chosen.value
    pictures = None
    if request.explain is not None:
        pictures = plan_run(request.explain, "", option="--explain")
    images = sources(request.images, lists=request.lists, stdin=stdin)
    engine, images = choose_engine(request, checkpoint, images)
    shard = replace(request.shard, chunk=engine.batch)
    done = finished_job(request, shard)
    if done is not None:
        return done
    postprocess = Postprocess.for_run(
        checkpoint.parent,
        engine.classes,
        engine.feature_size,
        top_k=request.top_k,
        threshold=threshold,
    )
    mirrored = MirroredEngine(engine) if request.tta else engine
    pipeline = Pipeline(mirrored, postprocess, keep_views=pictures is not None)
    with open_destination(request, shard, images, write) as (rows, remaining):
        predictions = pipeline.predict(remaining)
        if pictures is not None:
            assert illustrate is not None
            predictions = illustrate(engine, predictions, pictures)
        for prediction in predictions:
            rows.add(prediction)
    if request.out is not None:
        errors = f", {count(rows.errors, 'error')} among them" if rows.errors else ""
        log.info(f"{count(rows.count, 'row')}{errors}: {request.out}")
    if pictures is not None:
        log.info(f"pictures: {pictures}/")
    return JobSummary(rows.count, rows.errors)


def choose_engine(
    request: PredictRequest, checkpoint: Path, images: Iterator[ImageSource]
) -> tuple[Engine, Iterator[ImageSource]]:
    """Choose NumPy for a few images on a CPU, else torch; return the engine and all sources."""
    first = [*islice(images, FEW_IMAGES + 1)] if request.shard.world == 1 else []
    are_few = 0 < len(first) <= FEW_IMAGES
    images = chain(first, images)
    is_plain = (
        request.device in ("auto", "cpu") and request.dtype == "fp32" and request.explain is None
    )
    if request.engine == "numpy" or (request.engine == "auto" and are_few and is_plain):
        engine = NumpyEngine.open(checkpoint)
        if engine is not None:
            return engine, images
    predictor = load_predictor(request, checkpoint)
    if request.engine == "numpy":
        raise UsageError(
            "the NumPy engine does not support this model (a hybrid, or one of timm's)",
            fix="leave --engine numpy out",
        )
    if are_few:
        predictor.use_all_cores_per_batch()
    return predictor, images


def load_predictor(request: PredictRequest, checkpoint: Path) -> "Predictor":
    """Load torch's engine; the checkpoint is verified while torch is imported."""
    digest = start_digest(checkpoint)
    with heavy_imports():
        from vitft.predict.torch_engine import Predictor

    return Predictor.from_run(
        request.run, device=request.device, precision=request.dtype, digest=digest
    )


def finished_job(request: PredictRequest, shard: ProcessShard) -> JobSummary | None:
    """Return the outcome of a resumed job whose file is already complete, else None."""
    if not request.resume or request.out is None:
        return None
    out = Path(request.out)
    if out.exists():
        log.info(f"{request.out} is already finished")
        return JobSummary(0, count_errors(out, request.style))
    if finished_path(out, shard).exists():
        merge_shards(out, request.style, shard)
        return JobSummary(0, 0)
    return None


@contextlib.contextmanager
def open_destination(
    request: PredictRequest,
    shard: ProcessShard,
    images: Iterator[ImageSource],
    write: Callable[[str], object],
) -> Iterator[tuple[RowWriter, Iterator[ImageSource]]]:
    """Open the destination of the rows; yield it with the sources that have no row yet."""
    style, top_k = request.style, request.top_k
    if request.out is None:
        rows = RowWriter(style, top_k, write)
        yield rows, images
        rows.close()
        return
    out, start = Path(request.out), ResumePoint()
    own, part = select_shard(images, shard), part_path(out, shard)
    if request.resume and part.exists():
        history = SourceHistory(own, shard.chunk)
        start = find_resume_point(part, style, top_k, history.names(), shard.chunk)
        own = history.after(start.rows)
        log.info(f"resuming after {count(start.rows, 'row')}")
    with open_rows(out, style, top_k, shard, start) as rows:
        yield rows, own


class SourceHistory:
    """Iterator over sources that can repeat the last few of them."""

    def __init__(self, images: Iterator[ImageSource], size: int) -> None:
        self.images = images
        self.recent: deque[ImageSource] = deque(maxlen=size)
        self.count = 0

    def names(self) -> Iterator[str]:
        """Iterate over the sources and yield their names."""
        for source in self.images:
            self.recent.append(source)
            self.count += 1
            yield source.name

    def after(self, count: int) -> Iterator[ImageSource]:
        """Return the sources after the first `count`; recent ones among them are repeated."""
        again = list(self.recent)[len(self.recent) - (self.count - count) :]
        return chain(again, self.images)


def select_shard(images: Iterator[ImageSource], shard: ProcessShard) -> Iterator[ImageSource]:
    """Return the sources of this process."""
    if shard.world == 1:
        return images
    return (
        source
        for index, source in enumerate(images)
        if index // shard.chunk % shard.world == shard.rank
    )
