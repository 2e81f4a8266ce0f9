"""Thumbnails of images for the report, written to the run directory.

They show mistakes, correct predictions with low probability and images listed in the audit. For the
most confident mistakes, attention overlays are written as well. Metadata of the original files is
not copied.
"""

import copy
import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from vitft.data.arrays import PixelArray
from vitft.data.images import open_image
from vitft.data.inspection import in_order
from vitft.data.pictures import thumbnail_jpeg, thumbnail_size
from vitft.data.split import Manifest, Row
from vitft.data.transforms import EvalTransform
from vitft.explain.attribution import relevance_map
from vitft.explain.heatmaps import overlay
from vitft.metrics.results import AuditResults
from vitft.models.vit import VisionTransformer
from vitft.predict.validation import (
    THUMBS,
    least_confident,
    mistakes,
    most_confident,
    read_validation_predictions,
    thumb_name,
)
from vitft.system import console
from vitft.system.errors import ImageError, VitftError
from vitft.system.files import writing
from vitft.system.rundir import RunDir, read_run_json

log = logging.getLogger(__name__)

_ATTENTION_BATCH = 4  # images per batch of attention; on a CPU, each uses one core


def write_thumbnails(
    run: RunDir,
    manifest: Manifest,
    model: nn.Module,
    transform: EvalTransform,
    *,
    max_pixels: int,
    precision: str = "fp32",
) -> int:
    """Write the folder `thumbs/` of a run and return the number of images in it.

    Errors are only logged, because the run itself is complete. If `precision` is bf16, attention is
    computed in bf16, which halves the time; overlays change by one or two grey levels (out of 255)
    on average (benchmarks/notebook/speed.md).
    """
    written, folder, temporary = 0, run.path / THUMBS, run.path / f".{THUMBS}"
    try:
        predicted, rows = _select_images(run.path, manifest)
        if not rows:
            return 0
        if isinstance(model, VisionTransformer) and predicted and precision == "bf16":
            model = copy.deepcopy(model).to(torch.bfloat16)
        maker = _ThumbnailMaker(manifest, model, transform, max_pixels, predicted)
        views: dict[str, PixelArray] = {}
        total = len(rows) + len(predicted)
        with (
            writing(folder),
            console.Progress("drawing thumbnails", total, level=logging.DEBUG) as progress,
        ):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            for thumbnail in in_order(maker.decode, rows, workers=torch.get_num_threads()):
                if thumbnail is None:
                    continue
                sha256, jpeg, view = thumbnail
                (temporary / thumb_name(sha256)).write_bytes(jpeg)
                written += 1
                progress.advance()
                if view is not None:
                    views[sha256] = view
            for sha256, jpeg in maker.attention(views):
                (temporary / thumb_name(sha256, attention=True)).write_bytes(jpeg)
                progress.advance()
            shutil.rmtree(folder, ignore_errors=True)  # once everything has been written
            temporary.rename(folder)
    except VitftError as error:
        log.warning(f"the report will have no thumbnails: {error.problem}")
        return 0
    return written


@dataclass(frozen=True, slots=True)
class _ThumbnailMaker:
    """Renderer of thumbnails and attention overlays for the images of a run."""

    manifest: Manifest
    model: nn.Module  # model whose predictions the overlays explain
    transform: EvalTransform
    max_pixels: int
    predicted: Mapping[str, int]  # classes by digest, for images whose attention is drawn

    def decode(self, row: Row) -> tuple[str, bytes, PixelArray | None] | None:
        """Return an image's digest, thumbnail and, to draw attention on, model input (H, W, 3)."""
        try:
            image = open_image(
                self.manifest.locate(row),
                max_pixels=self.max_pixels,
                grey_range=self.transform.grey_range,
            )
        except ImageError:
            return None
        view = self.transform.pixels(image) if row.sha256 in self.predicted else None
        return row.sha256, thumbnail_jpeg(image), view

    def attention(self, views: Mapping[str, PixelArray]) -> Iterator[tuple[str, bytes]]:
        """Yield each view's digest and a JPEG of its relevance to the predicted class."""
        if not views:
            return
        model, items = self.model.eval(), list(views.items())
        on_cpu = next(model.parameters()).device.type == "cpu"
        starts = range(0, len(items), _ATTENTION_BATCH)
        batches = [dict(items[start : start + _ATTENTION_BATCH]) for start in starts]

        def draw(batch: Mapping[str, PixelArray]) -> list[tuple[str, bytes]]:
            torch.set_num_threads(1)  # for this thread: one core per batch, as in `extract`
            some = next(model.parameters())
            stack = torch.from_numpy(np.stack([*batch.values()])).to(some.device)
            classes = torch.tensor([self.predicted[name] for name in batch])
            maps = relevance_map(model, self.transform.normalise(stack).to(some.dtype), classes)
            overlays = []
            for (name, pixels), relevance in zip(batch.items(), maps, strict=True):
                view = Image.fromarray(pixels)
                view = view.resize(thumbnail_size(view.size), Image.Resampling.BICUBIC)
                overlays.append((name, thumbnail_jpeg(overlay(view, relevance))))
            return overlays

        before = torch.get_num_threads()
        try:
            # A GPU needs no worker threads.
            drawn = in_order(draw, batches, workers=before) if on_cpu else map(draw, batches)
            for overlays in drawn:
                yield from overlays
        except VitftError as error:  # thumbnails are written without overlays
            log.info(f"the report will have no relevance overlays: {error.problem}")
        finally:
            torch.set_num_threads(before)


def _select_images(run: Path, manifest: Manifest) -> tuple[dict[str, int], list[Row]]:
    """Return predicted classes by digest of images to explain, and one row per image to show."""
    predictions = read_validation_predictions(run)
    wrong = mistakes(predictions)[:200]
    audit = read_run_json(run / "audit.json", AuditResults)
    named = [item["path"] for item in audit["mislabels"]] if audit else []
    for group in audit["duplicates"] if audit else ():
        named += [member["path"] for member in group["members"][:6]]
    named += [item["path"] for item in audit["odd"]] if audit else []
    unsure = least_confident(predictions, per_class=3, most=60)
    by_path = {row.path: row for row in manifest.rows}
    sure = most_confident(predictions, most=8)
    paths = [p.path for p in wrong] + named[:80] + [p.path for p in unsure + sure]
    rows = {by_path[path].sha256: by_path[path] for path in paths if path in by_path}
    index = {name: number for number, name in enumerate(manifest.outputs)}
    predicted = {p.sha256: index[p.most_probable] for p in wrong[:12]}
    return predicted, list(rows.values())
