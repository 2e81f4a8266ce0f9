"""Data sets and inputs of training stages in memory: no files, no runs."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitft.data import EvalTransform, Images, Row, View
from vitft.features import Cut
from vitft.training import Dataset, ProcessGroup, StageInputs, counted_places

CPU = torch.device("cpu")


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def row(
    name: str, label: int, split: Literal["train", "val", "test"] = "train", **more: Any
) -> Row:
    """Return a row of the image `name`; two rows with the same `sha256` are identical images."""
    return Row(name, label, split, **{"sha256": digest(name), **more})


def data_set(rows: Sequence[Row], **more: Any) -> Dataset:
    """Return a data set of the classes a, b and c on the CPU."""
    manifest = Images(
        more.pop("root", Path("nowhere")),
        more.pop("classes", ("a", "b", "c")),
        tuple(rows),
        more.pop("labels", ()),
    )
    settings: dict[str, Any] = {
        "transform": EvalTransform(image_size=(8, 8)),
        "max_pixels": 10**6,
        "device": CPU,
        "group": ProcessGroup(),
        "copies": {},
        "groups": {},
        "training_groups": {},
    }
    settings |= more
    counted, left_out = counted_places(manifest, settings["copies"])
    return Dataset(manifest=manifest, counted=counted, left_out=left_out, **settings)


class CachedFeatures:
    """Extractor whose features are already cached: of each digest and view, or of all views."""

    def __init__(self, features: dict[Any, Tensor], prefix: Any = None) -> None:
        self.features, self.prefix = features, prefix
        self.seen: list[tuple[str, ...]] = []

    def rows(self, digests: Sequence[str], view: View) -> Tensor:
        self.seen.append((view.name, *digests))
        keys = [one if one in self.features else (one, view.name) for one in digests]
        return torch.stack([self.features[key] for key in keys]) if keys else torch.empty(0, 2)


def pooled_inputs(data: Dataset, features: dict[Any, Tensor], *, leading: int = 2) -> StageInputs:
    """Return inputs to a head with cached features; `leading` values are of the last block."""
    prefix: Any = SimpleNamespace(pooled=True, leading=leading, shape=(leading,), stop=2)
    extractor: Any = CachedFeatures(features, prefix)
    return StageInputs(data=data, cut=Cut(prefix, nn.Identity()), extractor=extractor)
