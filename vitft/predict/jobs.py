"""Prediction jobs of `vitft predict`; small jobs on a CPU run in NumPy, without torch."""

import glob
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from vitft.data.listed_files import check_some_exist
from vitft.data.places import place_of
from vitft.data.sources import STDIN, ImageSource, sources
from vitft.data.web import WebLimits, is_url
from vitft.messages.results import INTERVAL
from vitft.models.card import lacks_card, open_checkpoint, sha256_of
from vitft.models.find import find_model
from vitft.predict.counts import COUNT_COLUMNS, Confusion, read_sample
from vitft.predict.engine import FEW_IMAGES, Engine, NumpyEngine, OnnxEngine, Pipeline
from vitft.predict.output import check_finished, check_output, predict_to_file
from vitft.predict.postprocess import Postprocess, answer_groups
from vitft.predict.request import FORMAT_OF_SUFFIX, PredictRequest
from vitft.predict.rows import Prediction, RowFormat, Tally, text_lines
from vitft.predict.threshold import marking
from vitft.system import console
from vitft.system.errors import RunError, UsageError
from vitft.system.imports import heavy_imports
from vitft.system.rundir import loading_step, plan_run
from vitft.system.text import count, csv_line

log = logging.getLogger(__name__)

_SCREEN_ROWS = 20  # number of rows that can be seen at a glance on a terminal
_Write = Callable[[str], object]
_Tabulate = Callable[[Sequence[str], Sequence[Sequence[str]]], object]
_Illustrator = Callable[[Engine, Iterator[Prediction], Path], Iterator[Prediction]]
"""Function that writes overlays of the images to a folder and yields the predictions unchanged."""


def run_prediction(
    request: PredictRequest,
    *,
    write: _Write,
    stdin: BinaryIO,
    illustrate: _Illustrator,
    tabulate: _Tabulate,
) -> int:
    """Run a prediction job: write one row per image and return the number of error rows.

    Without an output file, each line is passed to `write` without its line break. `illustrate`
    writes relevance overlays (from the package `explain`), and `tabulate` a table of counts.
    """
    _check_destination(request)
    checkpoint = find_model(request.run, graphs=True)
    pictures = None if request.explain is None else plan_run(request.explain, "", name="explain")
    web = WebLimits(allow_private=request.allow_private_addresses)
    images = sources(
        request.images,
        lists=request.lists,
        stdin=stdin,
        private=web.allow_private,
        groups=request.groups,
    )
    out = None if request.out is None else Path(request.out)
    confusion, images = _read_confusion(request, checkpoint.parent, images)
    if out and request.resume and out.exists():
        return _errors_of_finished(out, request, images)
    engine, images = _choose_engine(request, checkpoint, images)
    if engine.outputs.several:
        request.check_several_labels()
    request = replace(
        request,
        top_k=min(request.top_k, len(engine.outputs.classes)),
        shard=replace(request.shard, chunk=engine.batch),
    )
    form = _row_format(request, engine.outputs.classes if engine.outputs.several else ())
    postprocess = Postprocess.for_run(request.run, engine, top_k=request.top_k)
    postprocess = marking(postprocess, request, checkpoint.parent)
    draws = pictures is not None
    pipeline = Pipeline(engine, postprocess, keep_views=draws, mirror=request.tta, web=web)

    def predict(remaining: Iterator[ImageSource]) -> Iterator[Prediction]:
        if request.shard.rank == 0:
            postprocess.announce()
        found = pipeline.predict(remaining)
        return found if pictures is None else illustrate(engine, found, pictures)

    combine = partial(_combine, postprocess=postprocess, confusion=confusion)
    if out:
        options = _job_options(request, checkpoint, postprocess)
        tally = predict_to_file(out, request.shard, form, options, images, predict, combine)
    else:
        tally = Tally()
        rows = tally.counting(combine(predict(images)))
        for line in _lines_of_none(rows) if confusion else text_lines(form, rows):
            write(line)
    if tally:
        _log_summary(request, tally, postprocess)
        _write_counts(request, tally, confusion, write, tabulate)
    pipeline.warn_of_mirroring()
    if pictures is not None:
        log.info(f"wrote overlays to {pictures}/")
    return tally.errors if tally else 0


def _read_confusion(
    request: PredictRequest, run: Path, images: Iterator[ImageSource]
) -> tuple[Confusion | None, Iterator[ImageSource]]:
    """Return the mistakes that counts are adjusted for, if they are requested, and all images."""
    if not request.counts:
        return None, images
    confusion = Confusion.read(run)
    if request.labels is None:
        return confusion, images
    listed = [*images]
    sample = read_sample(Path(request.labels), confusion.classes, listed)
    return replace(confusion, sample=sample), iter(listed)


def _combine(
    predictions: Iterator[Prediction], postprocess: Postprocess, confusion: Confusion | None
) -> Iterator[Prediction]:
    """Yield one prediction per image or group, and note those for labelled images."""
    found = answer_groups(predictions, postprocess)
    return confusion.noting(found) if confusion else found


def _row_format(request: PredictRequest, labels: Sequence[str] = ()) -> RowFormat:
    """Return the format of the rows; `labels` are those of a multi-label model."""
    return RowFormat(
        request.style,
        request.top_k,
        labels,
        bom=request.bom,
        has_sets=request.coverage is not None,
        groups=bool(request.group_by),
        has_levels=request.tree is not None,
    )


def _errors_of_finished(out: Path, request: PredictRequest, images: Iterator[ImageSource]) -> int:
    """Check a file that is already complete, and return its number of errors."""
    if request.counts:
        raise RunError(
            f"{out} is already complete, and --counts cannot use it, because the model of its rows "
            "is unknown",
            fix="choose another file with --out",
        )
    done, errors = check_finished(out, images, _row_format(request), request.shard)
    log.info(
        f"{out} is already complete: {count(done, 'row')} for these images. Its model and "
        "options are unknown"
    )
    return errors


def _lines_of_none(rows: Iterator[Prediction]) -> Iterator[str]:
    """Compute rows that are not printed, with progress, and yield no lines."""
    with console.Progress("predicting", None) as progress:
        for _ in rows:
            progress.advance()
    yield from ()


def _check_destination(request: PredictRequest) -> None:
    """Check the output file, if any; log a warning if its suffix belongs to another format."""
    if request.out is not None:
        check_output(Path(request.out), request.shard, resume=request.resume)
        names = request.images
        elsewhere = (name == STDIN or is_url(name) or place_of(name) for name in names)
        is_open = request.lists or any(elsewhere) or any(map(glob.has_magic, names))
        if not is_open:
            check_some_exist(names)  # a table of errors alone is of no use
    suffix, style = Path(request.out or "").suffix.lower(), request.style
    if request.shard.rank == 0 and FORMAT_OF_SUFFIX.get(suffix, "table") not in ("table", style):
        log.warning(
            f"{request.out} is written as {style}, although {suffix} is the suffix of another "
            "format"
        )


def _log_summary(request: PredictRequest, tally: Tally, postprocess: Postprocess) -> None:
    """Log the number of rows and, if they are many or in a file, of classes and notes."""
    if request.out is not None:
        errors = ""
        if tally.errors and not request.group_by:
            errors = f", including {count(tally.errors, 'error')},"
        log.info(f"wrote {count(tally.rows, 'row')}{errors} to {request.out}")
    if request.out is not None or tally.rows > _SCREEN_ROWS:
        for line in tally.lines(
            postprocess.run, has_threshold=bool(postprocess.threshold), has_counts=request.counts
        ):
            log.info(line)
    if tally.errors and not log.isEnabledFor(logging.INFO):
        log.warning(f"{count(tally.errors, 'image')} could not be read")


def _write_counts(
    request: PredictRequest,
    tally: Tally,
    confusion: Confusion | None,
    write: _Write,
    tabulate: _Tabulate,
) -> None:
    """Write the number of images of each class, if they are requested."""
    if confusion is None:
        return
    log.info(confusion.summary(tally))
    if request.format == "json":
        write(json.dumps(confusion.to_json(tally), indent=2))
    elif request.format == "csv":
        for line in map(csv_line, [COUNT_COLUMNS, *confusion.rows(tally)]):
            write(line)
    else:
        cells = [
            (name, f"{images:,}", f"{low:,} to {high:,}", f"{own:,}")
            for name, images, low, high, own in confusion.rows(tally)
        ]
        tabulate(("class", "images", INTERVAL, "predicted"), cells)


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
    is_small = request.engine == "auto" and are_few and not request.torch_options
    if request.engine == "numpy" or is_small:
        engine = NumpyEngine.open(checkpoint)
        if engine is not None:
            return engine, images
        if request.engine == "numpy":
            problem = "the NumPy engine does not support this model"
            raise UsageError(problem, fix="remove --engine numpy")
    digest = None
    if not lacks_card(checkpoint):  # in a thread, while torch is imported
        digest = ThreadPoolExecutor(1).submit(open_checkpoint(checkpoint).digest).result
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
            "computed in bf16, with the same most probable classes as in fp32 and slightly "
            "different probabilities"
        )
    if are_few:  # too few for a batch per core: all cores score one batch at a time
        predictor.in_workers = False
    return predictor, images


def _job_options(
    request: PredictRequest, checkpoint: Path, postprocess: Postprocess
) -> dict[str, object]:
    """Return what decides the rows of a job besides its images."""
    return {
        "model": sha256_of(checkpoint),
        "--top-k": request.top_k,
        "threshold": [
            postprocess.threshold,
            *postprocess.outputs.thresholds,
            *postprocess.set_limits,
            *(postprocess.tree.thresholds if postprocess.tree else ()),
        ],
        "tree": request.tree and sha256_of(Path(request.tree)),
        "--dtype": request.torch_dtype,
        "--tta": request.tta,
        "--group-by": request.group_by or "",
        **({"batch size": request.shard.chunk} if request.shard.world > 1 else {}),  # of each part
    }
