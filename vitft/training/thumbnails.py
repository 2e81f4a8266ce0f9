"""Small pictures of the images that a run's page shows, kept in the run directory.

The page is made from the run directory alone, so what it may show is kept while the data is at
hand: mistakes, the least sure right answers and suspects, each decoded once; for the worst
mistakes also where the model looked. The pictures hold no metadata of the originals.
"""

import copy
import io
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from vitft.data.images import open_image
from vitft.data.loading import in_order
from vitft.data.split import Manifest, Row
from vitft.data.transforms import EvalTransform
from vitft.models.vit import VisionTransformer
from vitft.predict.validation import (
    THUMBS,
    least_confident,
    mistakes,
    read_json,
    read_validation_predictions,
    thumb_name,
)
from vitft.system import console
from vitft.system.errors import ImageError, VitftError
from vitft.system.files import writing
from vitft.system.rundir import RunDir

log = logging.getLogger(__name__)

SIDE = 112
"""Pixels of the longer side."""
MISTAKES, SUSPECTS, UNSURE, UNSURE_PER_CLASS = 200, 80, 60, 3
"""Images of each kind that are kept."""
LOOKED_AT = 12
"""The worst mistakes, of which the attention is kept as well."""
BATCH = 4
"""Images whose attention is drawn together, on one core of a CPU."""

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Kept:
    """A picture on its way into the run directory."""

    sha256: str
    thumb: bytes
    view: Pixels | None
    """What the model saw, (S, S, 3), where the attention is wanted."""


def write_gallery(
    run: RunDir,
    manifest: Manifest,
    model: nn.Module,
    transform: EvalTransform,
    *,
    max_pixels: int,
    precision: str = "fp32",
) -> int:
    """Fill `thumbs/` of a finished run; returns how many images it shows.

    Without `validation.npz` there is nothing to show. An image that has gone since is left out,
    and where the folder cannot be written the user is told: the run itself is complete. In bf16
    the attention is computed twice as fast; on real photos the pictures are those of float32 but
    for one or two grey levels on average (docs/experiments.md).
    """
    try:
        answers, rows = chosen(run.path, manifest)
        own = model if isinstance(model, VisionTransformer) else None
        if own is not None and answers and precision == "bf16":
            own = copy.deepcopy(own).to(torch.bfloat16)
        painter = Painter(manifest, own, transform, max_pixels, answers)
        return fill(run.path, painter, rows)
    except VitftError as error:
        log.warning(f"no pictures for the report: {error.problem}")
        return 0


@dataclass(frozen=True, slots=True)
class Painter:
    """Makes the pictures of a run's images."""

    manifest: Manifest
    model: VisionTransformer | None
    """None where there is no attention to show."""
    transform: EvalTransform
    max_pixels: int
    answers: Mapping[str, int]
    """What was answered, as class indices, to the images whose attention is kept, by digest."""

    def decode(self, row: Row) -> Kept | None:
        """The thumbnail of an image and perhaps what the model saw; None if it has gone."""
        try:
            image = open_image(self.manifest.locate(row), max_pixels=self.max_pixels)
        except ImageError:
            return None
        wanted = self.model is not None and row.sha256 in self.answers
        return Kept(row.sha256, jpeg(image), self.transform.pixels(image) if wanted else None)

    def attention(self, views: Mapping[str, Pixels]) -> Iterator[tuple[str, bytes]]:
        """The views under what spoke for the model's answer, as JPEG, by the image's digest."""
        if self.model is None or not views:
            return
        model, names = self.model.eval(), list(views)
        on_cpu = next(model.parameters()).device.type == "cpu"
        parts = [names[start : start + BATCH] for start in range(0, len(names), BATCH)]

        def draw(part: Sequence[str]) -> list[tuple[str, bytes]]:
            torch.set_num_threads(1)  # of this thread: as in `extract`, a core works by itself
            return self.drawn(model, {name: views[name] for name in part})

        before = torch.get_num_threads()
        try:
            for drawn in in_order(draw, parts, workers=before if on_cpu else 1):
                yield from drawn
        except VitftError as error:  # a picture beside the point must not cost the others
            log.info(f"no attention pictures: {error.problem}")
        finally:
            torch.set_num_threads(before)

    def drawn(
        self, model: VisionTransformer, views: Mapping[str, Pixels]
    ) -> list[tuple[str, bytes]]:
        """The same of one batch."""
        from vitft.explain.attribution import relevance_map
        from vitft.explain.heatmaps import overlay

        some = next(model.parameters())
        stack = torch.from_numpy(np.stack([*views.values()])).to(some.device)
        answers = torch.tensor([self.answers[name] for name in views])
        heats = relevance_map(model, self.transform.normalise(stack).to(some.dtype), answers)
        pictures = []
        for (name, pixels), heat in zip(views.items(), heats, strict=True):
            view = Image.fromarray(pixels)
            view = view.resize(fitted(view.size), Image.Resampling.BICUBIC)
            pictures.append((name, jpeg(overlay(view, heat))))
        return pictures


def fill(run: Path, painter: Painter, rows: Sequence[Row]) -> int:
    """Write the pictures of `rows`, all of them or none."""
    if not rows:
        return 0
    folder, temporary = run / THUMBS, run / f".{THUMBS}"
    views: dict[str, Pixels] = {}
    count = 0
    looks = len(painter.answers) if painter.model is not None else 0
    with writing(folder), console.Progress("pictures", len(rows) + looks) as progress:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for kept in in_order(painter.decode, rows, workers=torch.get_num_threads()):
            if kept is None:
                continue
            (temporary / thumb_name(kept.sha256)).write_bytes(kept.thumb)
            count += 1
            progress.advance()
            if kept.view is not None:
                views[kept.sha256] = kept.view
        for sha256, picture in painter.attention(views):
            (temporary / thumb_name(sha256, attention=True)).write_bytes(picture)
            progress.advance()
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    return count


def chosen(run: Path, manifest: Manifest) -> tuple[dict[str, int], list[Row]]:
    """What was answered to the images whose attention is kept, by digest; and every image to keep.

    Each picture comes once.
    """
    verdicts = read_validation_predictions(run)
    wrong = mistakes(verdicts)[:MISTAKES]
    doubtful = suspects(read_json(run / "audit.json") or {})[:SUSPECTS]
    sure = least_confident(verdicts, per_class=UNSURE_PER_CLASS, most=UNSURE)
    by_path = {row.path: row for row in manifest.rows}
    paths = [v.path for v in wrong] + doubtful + [v.path for v in sure]
    rows = {by_path[path].sha256: by_path[path] for path in paths if path in by_path}
    place = {name: number for number, name in enumerate(manifest.classes)}
    return {v.sha256: place[v.predicted] for v in wrong[:LOOKED_AT]}, list(rows.values())


def suspects(audit: Mapping[str, Any]) -> list[str]:
    """Paths of the images whose label is in doubt, then of copies."""
    paths = [item["path"] for item in audit.get("mislabels", [])]
    for group in audit.get("duplicates", []):
        paths += [member["path"] for member in group["members"][:6]]
    return paths


def jpeg(image: Image.Image) -> bytes:
    """A small JPEG of the pixels alone: no EXIF, no comment, no profile."""
    small = image.copy() if max(image.size) <= SIDE else image
    if small is image:
        small = image.resize(fitted(image.size), Image.Resampling.LANCZOS, reducing_gap=3.0)
    small.info.clear()
    buffer = io.BytesIO()
    small.save(buffer, format="JPEG", quality=82, optimize=True)
    return buffer.getvalue()


def fitted(size: tuple[int, int]) -> tuple[int, int]:
    """Width and height of the same picture with `SIDE` pixels along the longer side."""
    longest = max(size)
    return max(1, round(size[0] * SIDE / longest)), max(1, round(size[1] * SIDE / longest))
