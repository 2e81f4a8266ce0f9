"""Prediction jobs of `vitft predict`; small jobs on a CPU run in NumPy, without torch."""

import contextlib
import glob
import hashlib
import json
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from vitft.data.download.web_image import WebLimits, is_url
from vitft.data.missing import check_some_exist, is_missing
from vitft.data.remote.places import place_of
from vitft.data.sources import STDIN, ImageSource, sources
from vitft.models.checkpoint_file import lacks_card, open_checkpoint
from vitft.models.find import find_model
from vitft.models.graph_digest import DIGEST_KEY, recorded_digest
from vitft.predict.engine import Engine, MirroredEngine, Pipeline
from vitft.predict.numpy_engine import FEW_IMAGES, NumpyEngine, in_background
from vitft.predict.onnx_engine import OnnxEngine
from vitft.predict.output import (
    RESUMABLE,
    ResumePoint,
    cannot_resume,
    check_output,
    find_resume_point,
    finished_path,
    merge_shards,
    open_rows,
    part_path,
    record_path,
)
from vitft.predict.postprocess import Postprocess
from vitft.predict.request import FORMAT_OF_SUFFIX, PredictRequest
from vitft.predict.rows import Prediction, RowFormat, RowWriter
from vitft.system import console
from vitft.system.errors import RunError, UsageError
from vitft.system.files import write_atomically
from vitft.system.imports import heavy_imports
from vitft.system.rundir import loading_step, plan_run
from vitft.system.safetensors_file import read_header
from vitft.system.structure import parse_json
from vitft.system.text import count, listing

log = logging.getLogger(__name__)


# options of an unfinished job, in a file beside its rows, so that only the same job resumes it ----

_JobOptions = dict[str, object]
_KEYS = {"model", "--top-k", "threshold", "--dtype", "--tta"}
"""Keys of a record."""


def _job_options(
    request: PredictRequest, checkpoint: Path, postprocess: Postprocess
) -> _JobOptions:
    """Return what decides the rows of a job besides its images; {} if it cannot be resumed."""
    if request.out is None or request.style not in RESUMABLE:
        return {}
    digest = ""  # the one that the model file contains, which engines check, or that of the file
    if checkpoint.suffix.lower() == ".onnx":
        digest = (recorded_digest(checkpoint) or b"").decode("ascii", "replace")
    else:
        with contextlib.suppress(ValueError):
            digest = read_header(checkpoint).metadata.get(DIGEST_KEY, "")
    if not digest:
        with checkpoint.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "model": digest,
        "--top-k": request.top_k,
        "threshold": [postprocess.threshold, *postprocess.thresholds],
        "--dtype": request.torch_dtype,
        "--tta": request.tta,
    }


def _read_options(part: Path) -> _JobOptions | None:
    """Return the options with which a file of rows was begun, or None without a record."""
    path = record_path(part)
    try:
        found = parse_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not found.keys() >= _KEYS:
        raise RunError(
            f"{path} does not contain the options of a job of vitft predict",
            fix="move it elsewhere, or choose another file with --out",
        )
    return found


def _check_record(part: Path, options: _JobOptions) -> None:
    """Check that a file of rows was begun with the same options."""
    before, differ = _read_options(part) or options, []
    for key, now in options.items():
        begun = before[key]
        if begun == now:
            continue
        if isinstance(begun, bool):
            differ.append(f"{key}, which is missing now" if begun else f"no {key}")
        elif key in ("model", "threshold"):
            differ.append(f"another {key}")
        else:
            differ.append(f"{key} {begun}, not {now}")
    if differ:
        raise cannot_resume(part, f"it was begun with {listing(differ)}")


# prediction jobs of `vitft predict`; small jobs on a CPU run in NumPy, without torch --------------

_SCREEN_ROWS = 20
"""Number of rows that can be seen at a glance on a terminal."""

_Illustrator = Callable[[Engine, Iterator[Prediction], Path], Iterator[Prediction]]
"""Function that writes overlays of the images to a folder and yields the predictions unchanged."""


def run_prediction(
    request: PredictRequest,
    *,
    write: Callable[[str], object],
    stdin: BinaryIO,
    illustrate: _Illustrator,
) -> int:
    """Run a prediction job: write one row per image and return the number of error rows.

    Without an output file, each line is passed to `write` without its line break. `illustrate`
    writes relevance overlays (from the package `explain`).

    Raises:
        VitftError: The request cannot be carried out; see `vitft.system.errors`.
    """
    _check_destination(request)
    checkpoint = find_model(request.run, graphs=True)
    pictures = None
    if request.explain is not None:
        pictures = plan_run(request.explain, "", name="explain")
    web = WebLimits(allow_private=request.allow_private_addresses)
    images = sources(request.images, lists=request.lists, stdin=stdin, private=web.allow_private)
    engine, images = _choose_engine(request, checkpoint, images)
    if engine.thresholds and request.top_k > 1:
        raise UsageError(
            f"--top-k {request.top_k} has no effect: predictions of a multi-label model contain "
            "the probability of every label",
            fix="remove --top-k",
        )
    request = replace(
        request,
        top_k=min(request.top_k, len(engine.classes)),
        shard=replace(request.shard, chunk=engine.batch),
    )
    labels = engine.classes if engine.thresholds else ()
    form = RowFormat(request.style, request.top_k, labels, bom=request.bom)
    postprocess = Postprocess.for_run(request.run, engine, top_k=request.top_k).marking(
        request.threshold, request.precision, checkpoint.parent
    )
    mirrored = MirroredEngine(engine) if request.tta else engine
    pipeline = Pipeline(mirrored, postprocess, keep_views=pictures is not None, web=web)
    options = _job_options(request, checkpoint, postprocess)
    if (done := _finished_job(request, images, form, options)) is not None:
        return done
    with _open_destination(request, images, form, options, write) as (rows, remaining):
        if request.shard.rank == 0:
            postprocess.announce()
        predictions = pipeline.predict(remaining)
        if pictures is not None:
            predictions = illustrate(engine, predictions, pictures)
        resumed_rows = rows.count
        shown = request.out is not None and request.shard.rank == 0
        with (
            console.Progress("predicting", None) if shown else contextlib.nullcontext() as progress
        ):
            for prediction in predictions:
                rows.add(prediction)
                if progress is not None:
                    progress.advance()
    _log_summary(request, rows, resumed=resumed_rows)
    if isinstance(mirrored, MirroredEngine) and (text := mirrored.warning(postprocess.run)):
        log.warning(text)
    if pictures is not None:
        log.info(f"wrote overlays to {pictures}/")
    return rows.errors


def _check_destination(request: PredictRequest) -> None:
    """Check the output file, if any; log a warning if its suffix belongs to another format."""
    if request.out is not None:
        check_output(Path(request.out), request.shard, resume=request.resume)
        names = request.images
        elsewhere = (name == STDIN or is_url(name) or place_of(name) for name in names)
        is_open = request.lists or any(elsewhere) or any(map(glob.has_magic, names))
        if not is_open and all(map(is_missing, names)):  # a table of errors alone is of no use
            check_some_exist(names)
    suffix, style = Path(request.out or "").suffix.lower(), request.style
    if request.shard.rank == 0 and FORMAT_OF_SUFFIX.get(suffix, "table") not in ("table", style):
        log.warning(
            f"{request.out} is written as {style}, although {suffix} is the suffix of another "
            "format"
        )


def _log_summary(request: PredictRequest, rows: RowWriter, *, resumed: int) -> None:
    """Log the number of rows and, if they are in a file or too many to see, of classes and notes.

    `resumed` is the number of rows of an earlier job. Each of several processes knows only its own
    classes, so they are not counted.
    """
    if request.out is not None:
        errors = f", including {count(rows.errors, 'error')}," if rows.errors else ""
        log.info(f"wrote {count(rows.count, 'row')}{errors} to {request.out}")
    if request.shard.world == 1 and (request.out is not None or rows.count > _SCREEN_ROWS):
        beginning = " after resuming" if resumed else ""
        has_threshold = bool(request.threshold or request.precision) and not rows.form.labels
        for line in rows.tally.lines(beginning, has_threshold=has_threshold):
            log.info(line)
    if rows.errors and request.shard.world == 1 and not log.isEnabledFor(logging.INFO):
        log.warning(f"{count(rows.errors, 'image')} could not be read")


def _choose_engine(
    request: PredictRequest, checkpoint: Path, images: Iterator[ImageSource]
) -> tuple[Engine, Iterator[ImageSource]]:
    """Return an engine and an iterator over all sources.

    An ONNX graph runs in onnxruntime. By default, a checkpoint runs in NumPy if the NumPy engine
    supports the model and the job is small, and otherwise in torch.
    """
    if checkpoint.suffix.lower() == ".onnx":
        request.check_graph(checkpoint)
        return OnnxEngine(checkpoint), images
    first = [*islice(images, FEW_IMAGES + 1)] if request.shard.world == 1 else []
    are_few = 0 < len(first) <= FEW_IMAGES
    images = chain(first, images)
    is_plain = (
        request.device in ("auto", "cpu") and request.dtype != "bf16" and request.explain is None
    )
    if request.engine == "numpy" or (request.engine == "auto" and are_few and is_plain):
        engine = NumpyEngine.open(checkpoint)
        if engine is not None:
            return engine, images
    digest = None
    if not lacks_card(checkpoint):  # in a thread, while torch is imported
        digest = in_background(open_checkpoint(checkpoint).digest)
    with heavy_imports(loading_step(request.run)):
        from vitft.predict.torch_engine import Predictor

    predictor = Predictor.from_run(
        request.run,
        device=request.device,
        precision="fp32" if are_few and request.dtype == "auto" else request.torch_dtype,
        digest=digest,
    )
    if request.dtype == "auto" and predictor.precision == "bf16" and request.shard.rank == 0:
        log.info(
            "computed in bf16, with the same classes as in fp32 and slightly different "
            "probabilities"
        )
    if request.engine == "numpy":
        problem = "the NumPy engine does not support this model"
        raise UsageError(problem, fix="remove --engine numpy")
    if are_few:  # too few for a batch per core: all cores score one batch at a time
        predictor.in_workers = False
    return predictor, images


def _finished_job(
    request: PredictRequest, images: Iterator[ImageSource], form: RowFormat, options: _JobOptions
) -> int | None:
    """Return the number of error rows if a resumed job or its shard is complete, otherwise None."""
    if not request.resume or request.out is None:
        return None
    out = Path(request.out)
    if out.exists():
        names = (image.name for image in images)
        found = find_resume_point(out, form, names, 1)
        if (more := next(names, None)) is not None:
            raise cannot_resume(
                out,
                f"it is complete, with {count(found.rows, 'row')}, but the request has more "
                f"images, e.g. {console.visible(more)}",
                fix="choose another file with --out. The rows of this one stay as they are",
            )
        rows = count(found.rows, "row")
        log.info(
            f"{request.out} is already complete: {rows} for these images. Its model and options "
            "are unknown"
        )
        return found.errors
    shard = request.shard
    for rank in range(shard.world):  # also those of processes that start later
        _check_record(part_path(out, replace(shard, rank=rank)), options)
    if finished_path(out, shard).exists():
        merge_shards(out, form.style, shard)
        return 0
    return None


@contextlib.contextmanager
def _open_destination(
    request: PredictRequest,
    images: Iterator[ImageSource],
    form: RowFormat,
    options: _JobOptions,
    write: Callable[[str], object],
) -> Iterator[tuple[RowWriter, Iterator[ImageSource]]]:
    """Open the output; yield a writer for the rows and the sources that do not have a row yet."""
    if request.out is None:
        rows = RowWriter(form, write)
        yield rows, images
        rows.close()
        return
    out, shard, start = Path(request.out), request.shard, ResumePoint()
    own, part, is_resumable = images, part_path(out, shard), form.style in RESUMABLE
    if shard.world > 1:
        numbered = enumerate(images)
        own = (s for i, s in numbered if i // shard.chunk % shard.world == shard.rank)
    remaining = own
    if request.resume and part.exists():
        # The sources of the last chunk, whose rows may be incomplete, are read again
        recent: deque[tuple[int, ImageSource]] = deque(maxlen=shard.chunk)

        def names() -> Iterator[str]:
            for number, source in enumerate(own):
                recent.append((number, source))
                yield source.name

        start = find_resume_point(part, form, names(), shard.chunk)
        remaining = chain([source for i, source in recent if i >= start.rows], own)
        log.info(f"resuming after {count(start.rows, 'row')}")
    elif is_resumable:
        _read_options(part)  # in place of those of a job that wrote no row
        write_atomically(record_path(part), json.dumps(options))
    try:
        with open_rows(out, form, shard, start) as rows:
            yield rows, remaining
    except KeyboardInterrupt:  # Ctrl-C or another signal
        if is_resumable and part.exists():
            log.info(f"finished rows are in {part}. To continue, add --resume to the same command")
        raise
    if is_resumable and shard.world == 1:  # otherwise, `merge_shards` removes the records
        record_path(part).unlink(missing_ok=True)
