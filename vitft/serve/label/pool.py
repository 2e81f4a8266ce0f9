"""The pictures of a folder that is to be labelled, with features from weights or from a run.

Importing this module does not import torch.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitft.config.run import Config
from vitft.config.sections import TrainSpec, WeightsSpec
from vitft.data.image_table import Images, Row, distinct_rows
from vitft.data.images import GreyRange, check_any_readable, log_inspection, measure_grey_range
from vitft.data.mistaken import check_is_folder
from vitft.data.walk import Walk, by_suffix, unused_notes
from vitft.messages.results import known_images_note
from vitft.models.ancestry import images_of_weights
from vitft.models.pretrained.text import prompt_head, text_tower
from vitft.predict.embeddings import load_features
from vitft.system.cores import usable_cores
from vitft.system.errors import DataError, VitftError
from vitft.system.text import count

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vitft.models.timm_model import Model

log = logging.getLogger(__name__)

_MOST_PICTURES = 50_000  # maximum number of files; if there are more, a random subset is used
_SURE = 0.9  # minimum predicted probability of a picture that represents a class of the run
_STAND_INS = 50  # maximum number of pictures that represent a class


@dataclass(frozen=True, slots=True, kw_only=True)
class PicturePool:
    """The readable pictures of a folder; identical files count as one picture."""

    root: Path
    paths: tuple[tuple[str, ...], ...]  # sorted paths of each picture's files in the folder
    digests: tuple[str, ...]  # SHA-256 of each picture
    z: "Tensor"  # directions of the features (n, D), each of length 1
    bad: tuple[tuple[str, str], ...] = ()  # paths of unreadable files, with the reasons
    classes: tuple[str, ...] = ()  # classes of the run, if any
    stand_ins: "tuple[Tensor, Tensor] | None" = None
    """Indices (m,) of confidently predicted pictures and of their classes, which they represent
    until these have enough answers."""
    grey_range: GreyRange = ()


def find_pictures(root: Path) -> Images:
    """Return the image files in and below a folder, without opening them; or raise a DataError."""
    check_is_folder(root)
    walk = Walk(os.fspath(root))
    paths = [*walk.images()]
    walk.raise_if_refused()
    if not paths:
        content = by_suffix(walk.unused())
        raise DataError(
            f"no images in {root}{f', which contains {content}' if content else ''}",
            fix="use a folder with .jpg, .png or .webp files",
        )
    notes = unused_notes(walk.unused())
    if len(paths) > _MOST_PICTURES:
        notes.append(f"using {_MOST_PICTURES:,} of {count(len(paths), 'image')}, drawn at random")
        paths.sort(key=lambda path: hashlib.sha256(os.fsencode(path)).digest())  # a random order
        paths = sorted(paths[:_MOST_PICTURES])
    rows = [Row(path, 0) for path in paths]
    return Images(root, classes=(), rows=rows, bad=tuple(walk.bad), notes=tuple(notes))


def load_pool(
    folder: Images, *, weights: str, run: str | None, train: TrainSpec, names: Sequence[str] = ()
) -> PicturePool:
    """Compute the features of a folder's pictures, or read them from the cache.

    The features come from `weights` or, if `run` is given, from the model of the run. Without a
    run, the first guesses come from the class `names`, if the weights have a text tower.
    """
    from vitft.features.extract import inspect_with
    from vitft.serve.label.chooser import directions

    spec = WeightsSpec(name=weights) if run is None else None
    if run is not None:
        train = replace(train, precision="fp32")
    config = Config(train=train)
    pipeline, classes = load_features(run, spec, config)
    if run is None:
        most, workers = config.data.max_pixels, usable_cores()
        found = measure_grey_range(folder, max_pixels=most, workers=workers)
        pipeline = replace(pipeline, transform=replace(pipeline.transform, grey_range=found))
    inspected, features = inspect_with(pipeline, folder, allow_bad=True)
    log_inspection(inspected)
    check_any_readable(inspected)
    files: dict[str, list[str]] = {}
    for file in inspected.rows:
        files.setdefault(file.sha256, []).append(file.path)
    trained = images_of_weights(run or weights).count(distinct_rows(inspected.rows))
    if trained != 0:
        log.warning(known_images_note(run or weights, trained, len(files)))
    x = features([*files])
    logits = None
    if classes:
        logits = _logits(pipeline.model, x, pipeline.device)
    elif len(names) > 1:
        try:
            if text_tower(weights):
                weight, bias = prompt_head(weights, names).scaled(x)
                logits = x @ weight.T + bias
        except VitftError as error:  # they only save time
            log.warning(f"no first guesses from the class names: {error.problem}. {error.fix}")
    return PicturePool(
        root=folder.root,
        paths=tuple(map(tuple, files.values())),
        digests=tuple(files),
        z=directions(x),
        bad=inspected.bad,
        classes=classes or tuple(names) * (logits is not None),
        stand_ins=None if logits is None else _find_stand_ins(logits),
        grey_range=pipeline.transform.grey_range,
    )


def _logits(model: "Model", x: "Tensor", device: "torch.device") -> "Tensor":
    """Return the logits (n, C) of the model of a run, given features (n, D)."""
    import torch

    from vitft.system.device import exact_float32

    with torch.inference_mode(), exact_float32(device):
        return torch.cat([model.classify(part.to(device)).cpu() for part in x.split(4096)])


def _find_stand_ins(logits: "Tensor") -> "tuple[Tensor, Tensor]":
    """Return the pictures with the most confident predictions, given logits (n, C)."""
    import torch

    best, labels = logits.float().softmax(dim=1).max(dim=1)
    chosen = []
    for label in labels.unique():
        members = torch.where((labels == label) & (best >= _SURE))[0]
        chosen.append(members[best[members].argsort(descending=True, stable=True)[:_STAND_INS]])
    pictures = torch.cat(chosen)
    return pictures, labels[pictures]
