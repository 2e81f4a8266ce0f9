"""Reports on the data of a run: label errors, duplicates, unlike images and thumbnails."""

import copy
import functools
import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitft.check.folder import audit_images, audit_summary
from vitft.data.arrays import PixelArray
from vitft.data.fixes import settled_paths
from vitft.data.image_table import Images, Row
from vitft.data.images import in_chunks, in_order, open_image, thumbnail_jpeg, thumbnail_size
from vitft.data.transforms import measure_view
from vitft.explain.attribution import relevance_map
from vitft.explain.heatmaps import overlay
from vitft.features.folds import CV_IMAGES, in_one_group, stratified_subset
from vitft.features.head import HeldOutLogits, cross_validation_rows, default_penalty
from vitft.features.label_errors import check_scored_labels, out_of_fold_logits
from vitft.features.ood import (
    REFERENCE_FILE,
    TOO_HIGH,
    Features,
    alarms_text,
    fit_reference,
    no_reference,
    power_text,
)
from vitft.messages.results import sentence
from vitft.metrics.results import AuditResults, Mislabel, OodResults
from vitft.models.timm_model import Model
from vitft.predict.validation import THUMBS, HeldOut, least_confident, mistakes, thumb_name
from vitft.system import console
from vitft.system.cores import usable_cores
from vitft.system.device import exact_float32
from vitft.system.errors import ImageError, VitftError
from vitft.system.files import writing
from vitft.system.rundir import RunDir
from vitft.system.text import count
from vitft.training.batches import Dataset, StageInputs
from vitft.training.record import Fitted, ScoredImages

log = logging.getLogger(__name__)


def write_reports(fitted: Fitted, *, complete: bool = True) -> None:
    """Write audit.json, thumbnails and the reference distribution of the features.

    Nothing is written if no epoch has ended. If `complete` is false, the run must end soon: it
    gets no thumbnails, and the reference is written only if features are cached.
    """
    fitted.is_reported = True
    data, config, run, audit = fitted.inputs.data, fitted.config, fitted.run, None
    with data.group.main_works():
        if not data.group.is_main:
            return
        if fitted.best.facts["epochs"]:
            with console.quiet_step("searching for duplicates and label errors"):
                audit = _audit_run(fitted)
            if complete or fitted.inputs.cut.pooled:
                audit["out_of_distribution"] = _write_reference(fitted)
            run.write_json("audit.json", audit)
            if summary := audit_summary(audit, settled_paths(config.data)):
                what = "it" if re.fullmatch("1 [^,]*", summary) else "them"
                verb = f"look at {what}" if data.manifest.labels else f"decide on {what}"
                log.debug(f"found {summary}: {verb} in {run.path / 'report.html'}")
        if complete:
            _write_thumbnails(run, data, fitted.model, fitted.precision, audit)


# audit.json: duplicates, leakage and probable label errors ----------------------------------------


def _audit_run(fitted: Fitted) -> AuditResults:
    """Return the contents of audit.json, from the inputs to the first stage of a run."""
    inputs, config = fitted.start.inputs, fitted.config
    data = inputs.data
    mislabels, probabilities = list[Mislabel](), dict[str, dict[str, float]]()
    if inputs.cut.pooled:
        scored = fitted.scored or _score_by_default_head(inputs, seed=config.train.seed)
        if scored.held_out is not None:
            mislabels, probabilities = _check_labels(data, scored, scored.held_out)
    return audit_images(
        data.manifest,
        remarks=lambda row: row.odd,
        groups=data.copies,
        mislabels=mislabels,
        probabilities=probabilities,
        view=measure_view(data.transform, ((r.width, r.height) for r in data.manifest.rows)),
        own_split=data.own_split,
    )


def _check_labels(
    data: Dataset, scored: ScoredImages, held_out: HeldOutLogits
) -> tuple[list[Mislabel], dict[str, dict[str, float]]]:
    """Return `check_scored_labels` of the images with held-out logits; copies count once."""
    copies: dict[str, list[Row]] = {}
    for row in data.manifest.rows:
        copies.setdefault(row.sha256, []).append(row)
    (places, logits), distinct = held_out, data.distinct
    some = [distinct[place] for place in places.tolist()]
    mislabels, probabilities = check_scored_labels(
        logits,
        scored.features[places],
        data.labels(some).cpu(),
        data.group_ids(some),
        [copies[row.sha256] for row in some],
        data.manifest.outputs.classes,
    )
    once = {row.path for row in some}
    return [one for one in mislabels if one["path"] in once], probabilities


def _score_by_default_head(inputs: StageInputs, *, seed: int) -> ScoredImages:
    """Return features of the distinct images, and out-of-fold logits at the default L2 penalty."""
    data = inputs.data
    distinct = data.distinct
    x, y = inputs.last_features(distinct), data.labels(distinct).cpu()
    groups = data.group_ids(distinct)
    rows = cross_validation_rows(y, len(data.manifest.outputs.classes), seed, most=CV_IMAGES)
    if rows is None:
        return ScoredImages(features=x, held_out=None)
    logits = out_of_fold_logits(
        x[rows],
        y[rows],
        groups[rows],
        classes=len(data.manifest.outputs.classes),
        seed=seed,
        l2=default_penalty(y, len(data.manifest.outputs.classes)),
    )
    known = ~in_one_group(y[rows], groups[rows])
    return ScoredImages(features=x, held_out=(rows[known], logits[known]))


# reference distribution of the features, to detect out-of-distribution images ---------------------

_NEVER_FLAGGED = "this is not supported for multi-label models"

_INTERMEDIATE_DEPTH = 0.75
"""Relative depth of the intermediate feature (benchmarks/notebook/out_of_distribution.md)."""
CACHED_IMAGES, COMPUTED_IMAGES = 20_000, 2_000
"""Maximum number of images sampled from each set (training and validation): `CACHED_IMAGES` if the
features are cached, `COMPUTED_IMAGES` if they have to be computed."""


def _write_reference(fitted: Fitted) -> OodResults:
    """Write the reference distribution if there are enough images, and return its results."""
    run, inputs, train = fitted.run, fitted.inputs, fitted.config.train
    manifest, most = inputs.data.manifest, CACHED_IMAGES if inputs.cut.pooled else COMPUTED_IMAGES
    if manifest.labels:
        log.debug(f"no images will be flagged as unlike the training images: {_NEVER_FLAGGED}")
        return no_reference(_NEVER_FLAGGED)
    frozen = {*train.stages} <= {"head", "pre_logits"}  # training has left the features unchanged
    rows: list[Row] = []
    for part in (manifest.train, manifest.val):  # samples in proportion to the class sizes
        some = stratified_subset(torch.tensor([row.label for row in part]), most, train.seed)
        rows += [part[i] for i in some.tolist()]
    is_validation = np.array([row.split == "val" for row in rows])
    features, intermediate, blocks = _reference_features(inputs, fitted.model, rows)
    reference, results = fit_reference(
        features,
        inputs.data.labels(rows).cpu().numpy(),
        is_validation | frozen,
        inputs.data.group_ids(rows).numpy(),
        trained=not frozen,
        intermediate=intermediate,
        intermediate_blocks=blocks,
    )
    if reference is not None:
        run.write_arrays(REFERENCE_FILE, **reference.arrays())
    elif run.writes:
        (run.path / REFERENCE_FILE).unlink(missing_ok=True)  # may remain from an earlier attempt
    if results["reason"] is not None:
        log.info(f"no images will be flagged as unlike the training images: {results['reason']}")
        return results
    text = f"flagged as unlike the training images: {alarms_text(results)} of new images"
    if results["unknown_class_range"] is not None:
        left_out = count(results["classes_left_out"], "class", "classes")
        power = sentence(power_text(results["unknown_class_range"])).rstrip(".")
        text += f". {power} ({left_out} left out in turn)"
        text += f", which {TOO_HIGH}" * results["features_trained"]
    log.debug(text)
    return results


@torch.inference_mode()
def _reference_features(
    inputs: StageInputs, model: Model, rows: Sequence[Row]
) -> tuple[Features, Features | None, int]:
    """Return pooled features (n, D), any intermediate ones (n, D), and the blocks before them."""
    if inputs.cut.pooled:
        return inputs.last_features(rows).numpy(), None, 0
    # The blocks before the second feature: not frozen, nor read by the head
    depth, prefix, parts = model.config.depth, inputs.cut.prefix, list[Tensor]()
    wanted = max(round(_INTERMEDIATE_DEPTH * depth), 0 if prefix is None else prefix.stop)
    blocks = min(wanted, depth - model.config.read_blocks) if depth else 0
    model.eval()

    def compute(batch: Tensor, part: slice) -> Tensor:
        with exact_float32(inputs.data.device):
            if prefix is None:
                return model.features(batch[part], blocks).float().cpu()
            # The batch has tokens from frozen layers, not pixels
            return model.finish(batch[part], prefix.stop, intermediate=blocks).float().cpu()

    with console.Progress("features of the trained model", len(rows)) as progress:
        for batch in inputs.evaluation_batches(rows):
            parts += inputs.limit.split(functools.partial(compute, batch), len(batch))
            progress.advance(len(batch))
    head, intermediate = torch.cat(parts).numpy(), None
    if blocks:
        head, intermediate = np.split(head, [model.feature_size], axis=1)
    return head, intermediate, blocks


# thumbnails: mistakes, the least confident answers, images in audit.json --------------------------

_ATTENTION_BATCH = 4  # images per batch of attention; on a CPU, each uses one core


def _write_thumbnails(
    run: RunDir, data: Dataset, model: Model, precision: str, audit: AuditResults | None
) -> None:
    """Write the folder `thumbs/` of a run; errors are only logged, because the run is complete."""
    folder, temporary = run.path / THUMBS, run.path / f".{THUMBS}"
    try:
        predicted, rows = _select_images(run.path, data.manifest, audit)
        # In bf16, overlays take half the time, and change by one or two of 255 grey levels on
        # average, see benchmarks/notebook/speed.md
        if model.casts_to_bf16 and predicted and precision == "bf16":
            model = copy.deepcopy(model).to(torch.bfloat16)
        decode = functools.partial(_thumbnail, data, predicted)
        views: dict[str, PixelArray] = {}
        total = len(rows) + len(predicted)
        with (
            writing(folder),
            console.Progress("drawing thumbnails", total, level=logging.DEBUG) as progress,
        ):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            for found in in_order(decode, rows, workers=usable_cores()):
                if found is None:
                    continue
                sha256, jpeg, view = found
                (temporary / thumb_name(sha256)).write_bytes(jpeg)
                progress.advance()
                if view is not None:
                    views[sha256] = view
            for sha256, jpeg in _attention(data, model, predicted, views):
                (temporary / thumb_name(sha256, attention=True)).write_bytes(jpeg)
                progress.advance()
            shutil.rmtree(folder, ignore_errors=True)  # once everything has been written
            temporary.rename(folder)
    except VitftError as error:
        log.warning(f"the report will have no thumbnails: {error.problem}")


def _thumbnail(
    data: Dataset, predicted: Mapping[str, int], row: Row
) -> tuple[str, bytes, PixelArray | None] | None:
    """Return an image's digest, thumbnail and, to draw attention on, model input (H, W, 3).

    The result is None if the file can no longer be read.
    """
    source, grey_range = data.manifest.locate(row), data.transform.grey_range
    try:
        image = open_image(source, max_pixels=data.max_pixels, grey_range=grey_range)
    except ImageError:
        return None
    view = data.transform.pixels(image) if row.sha256 in predicted else None
    return row.sha256, thumbnail_jpeg(image), view


def _attention(
    data: Dataset, model: Model, predicted: Mapping[str, int], views: Mapping[str, PixelArray]
) -> Iterator[tuple[str, bytes]]:
    """Yield each view's digest and a JPEG of its relevance to the predicted class."""
    model, batches = model.eval(), map(dict, in_chunks(views.items(), _ATTENTION_BATCH))
    some, before = next(model.parameters()), torch.get_num_threads()

    def draw(batch: Mapping[str, PixelArray]) -> list[tuple[str, bytes]]:
        torch.set_num_threads(1)  # for this thread: one core per batch, as in `extract`
        stack = torch.from_numpy(np.stack([*batch.values()])).to(some.device)
        classes = torch.tensor([predicted[name] for name in batch])
        maps = relevance_map(model, data.transform.normalise(stack).to(some.dtype), classes)
        overlays = []
        for (name, pixels), relevance in zip(batch.items(), maps, strict=True):
            view = Image.fromarray(pixels)
            view = view.resize(thumbnail_size(view.size), Image.Resampling.BICUBIC)
            overlays.append((name, thumbnail_jpeg(overlay(view, relevance))))
        return overlays

    try:
        workers = before if some.device.type == "cpu" else 0  # a GPU needs no worker threads
        for overlays in in_order(draw, batches, workers=workers):
            yield from overlays
    except VitftError as error:  # thumbnails are written without overlays
        log.info(f"the report will have no relevance overlays: {error.problem}")
    finally:
        torch.set_num_threads(before)


def _select_images(
    run: Path, manifest: Images, audit: AuditResults | None
) -> tuple[dict[str, int], list[Row]]:
    """Return predicted classes by digest of images to explain, and one row per image to show."""
    predictions = HeldOut.read(run).validation
    wrong = mistakes(predictions)[:200]
    named = [item["path"] for item in audit["mislabels"]] if audit else []
    for group in audit["duplicates"] if audit else ():
        named += [member["path"] for member in group["members"][:6]]
    named += [item["path"] for item in audit["odd"]] if audit else []
    unsure = least_confident(predictions, per_class=3, most=60)
    sure = least_confident(predictions, per_class=1, most=8, reverse=True)
    paths = [p.path for p in wrong] + named[:80] + [p.path for p in unsure + sure]
    some = {*paths}
    by_path = {row.path: row for row in manifest.rows if row.path in some}
    rows = {by_path[path].sha256: by_path[path] for path in paths if path in by_path}
    index = {name: number for number, name in enumerate(manifest.outputs.classes)}
    predicted = {p.sha256: index[p.most_probable] for p in wrong[:12]}
    return predicted, list(rows.values())
