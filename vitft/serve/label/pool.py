"""The unlabelled pictures of a folder, with features from pretrained weights or from a run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vitft.config.sections import DataSpec, ModelSpec, TrainSpec, WeightsSpec
from vitft.data.image_table import Images
from vitft.data.images import GreyRange
from vitft.data.inspection import log_inspection, measure_grey_range
from vitft.data.transforms import eval_view
from vitft.features.pipeline import (
    build_pipeline,
    inspect_dataset,
    load_pipeline,
    log_cached_features,
)
from vitft.models.timm_model import Model
from vitft.predict.torch_engine import Predictor
from vitft.serve.label.chooser import directions
from vitft.system.cores import usable_cores
from vitft.system.device import exact_float32
from vitft.system.errors import DataError
from vitft.system.text import count

_SURE = 0.9
"""Minimum predicted probability at which a picture may represent a class of the run."""
_STAND_INS = 50
"""Maximum number of pictures that represent a class."""


@dataclass(frozen=True, slots=True)
class StandIns:
    """Confidently predicted pictures that represent a class until it has enough answers."""

    pictures: Tensor  # (m,) indices
    labels: Tensor  # (m,) indices into the run's classes


@dataclass(frozen=True, slots=True, kw_only=True)
class PicturePool:
    """The readable pictures of a folder; identical files count as one picture."""

    root: Path
    paths: tuple[tuple[str, ...], ...]
    """Sorted paths of each picture's files, relative to the folder."""
    digests: tuple[str, ...]
    """SHA-256 of each picture."""
    z: Tensor
    """Directions of the features (n, D), each of length 1."""
    bad: tuple[tuple[str, str], ...] = ()
    """Paths of unreadable files, with the reasons."""
    classes: tuple[str, ...] = ()
    """Classes of the run, if any."""
    stand_ins: StandIns | None = None
    grey_range: GreyRange = ()


def load_pool(folder: Images, *, weights: str, run: str | None, train: TrainSpec) -> PicturePool:
    """Compute the features of a folder's pictures, or read them from the cache.

    The features come from `weights` or, if `run` is given, from the model of the run.

    Raises:
        DataError: None of the files can be read.
        WeightsError, RunError, UsageError, ResourceError: The weights, the run, the device or the
            cache cannot be used.
    """
    max_pixels = DataSpec().max_pixels
    if run is None:
        pipeline, _ = load_pipeline(
            folder,
            "head",
            weights=WeightsSpec(name=weights),
            model=ModelSpec(),
            train=train,
            max_pixels=max_pixels,
        )
        found = measure_grey_range(folder, max_pixels=max_pixels, workers=usable_cores())
        transform, classes = replace(pipeline.transform, grey_range=found), tuple[str, ...]()
    else:
        one = Predictor.from_run(run, device=train.device)
        pipeline = build_pipeline(
            one.model, one.transform, "head", train, device=one.device, precision="fp32"
        )
        transform, classes = pipeline.transform, one.classes
    view = eval_view(transform)
    extractor = pipeline.open_extractor(train, max_pixels=max_pixels)
    assert extractor is not None
    inspected = inspect_dataset(
        folder, max_pixels=max_pixels, allow_bad=True, extractor=extractor, view=view
    )
    log_inspection(inspected)
    log_cached_features(inspected, extractor.computed)
    files: dict[str, list[str]] = {}
    for file in inspected.rows:
        files.setdefault(file.sha256, []).append(file.path)
    if not files:
        path, reason = inspected.bad[0]
        raise DataError(
            f"none of the {count(len(inspected.bad), 'image')} in {inspected.root} can be "
            f"read ({path}: {reason})",
            fix="use a folder with undamaged images",
        )
    x = extractor.rows([*files], view)
    stand_ins = _find_stand_ins(pipeline.model, x, pipeline.device) if classes else None
    return PicturePool(
        root=folder.root,
        paths=tuple(map(tuple, files.values())),
        digests=tuple(files),
        z=directions(x),
        bad=inspected.bad,
        classes=classes,
        stand_ins=stand_ins,
        grey_range=transform.grey_range,
    )


@torch.inference_mode()
def _find_stand_ins(model: Model, x: Tensor, device: torch.device) -> StandIns:
    """Return the pictures with the most confident predictions, given their features (n, D)."""
    with exact_float32(device):
        parts: Sequence[Tensor] = [model.classify(part.to(device)).cpu() for part in x.split(4096)]
    best, labels = torch.cat([*parts]).float().softmax(dim=1).max(dim=1)
    chosen = []
    for label in labels.unique():
        members = torch.where((labels == label) & (best >= _SURE))[0]
        chosen.append(members[best[members].argsort(descending=True, stable=True)[:_STAND_INS]])
    pictures = torch.cat(chosen)
    return StandIns(pictures, labels[pictures])
