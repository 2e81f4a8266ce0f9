"""Images on which weights were trained, as far as the runs that trained them are on this disk."""

import contextlib
import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vitft.config.run import read_run_config
from vitft.data.image_table import Images, Row
from vitft.data.split import run_manifest
from vitft.models.card import Card, parse_card
from vitft.models.pretrained.catalog import CatalogEntry, cached_file, locate
from vitft.system.errors import RunError, VitftError
from vitft.system.rundir import run_path
from vitft.system.tensors import read_header

_Tables = Mapping[str, Mapping[str, object]]  # the sections of a config.toml


@dataclass(frozen=True)
class WeightsImages:
    """The images on which weights were trained, by the runs that trained them."""

    manifests: Sequence[Images] = ()  # of the runs, with only their training images
    unlisted: str = ""  # weights that vitft has trained on images that cannot be listed

    @cached_property
    def digests(self) -> Set[str]:
        return {row.sha256 for images in self.manifests for row in images.rows}

    def __or__(self, other: "WeightsImages") -> "WeightsImages":
        manifests = (*self.manifests, *other.manifests)
        return WeightsImages(manifests, self.unlisted or other.unlisted)

    def count(self, rows: Sequence[Row]) -> int | None:
        """Return how many of these images trained the weights; None if this is not known."""
        number = sum(row.sha256 in self.digests for row in rows) if self.digests else 0
        return number or (None if self.unlisted else 0)


def run_of_weights(weights: str) -> Path:
    """Return the folder of the run from which the weights (a folder or a file) come, if any."""
    path = run_path(weights)
    return path.parent if path.is_file() else path


def images_of_start(
    settings: _Tables, classes: Sequence[str], *, later: Sequence[str] = ()
) -> tuple[WeightsImages, WeightsImages]:
    """Return the images that trained the initial weights of a run, and those of its teacher.

    A run that does not fit a new head first keeps the head of weights for the same `classes`.
    `later` are the weights that descend from the run.
    """
    weights, train = settings.get("weights", {}), settings.get("train", {})
    is_new = str(train.get("layers", "head")).split(",")[0].strip() == "head"
    head = () if is_new and not weights.get("keep_head") else classes
    return (
        images_of_weights(str(weights.get("name") or ""), head=head, later=later),
        images_of_weights(str(train.get("teacher") or ""), head=None, later=later),
    )


def images_of_weights(
    weights: str, *, head: Sequence[str] | None = (), later: Sequence[str] = ()
) -> WeightsImages:
    """Return the images on which the backbone of weights was trained, or their head.

    The head counts if it is for the classes `head`, or if `head` is None. The images of the models
    from which their run started are included. `later` are weights that descend from these.
    """
    run, manifest = run_of_weights(weights), None
    if not weights or run in map(run_of_weights, later):
        return WeightsImages()
    config: _Tables = {}
    with contextlib.suppress(RunError):
        config = read_run_config(run)  # after --budget, it has the settings that were chosen
        manifest = run_manifest(run)
    if manifest is None:
        is_gone = os.path.isabs(weights) and not os.path.exists(weights)  # noqa: PTH110, PTH117
        card = _card_of(later[-1] if is_gone and later else weights)
        is_unlisted = card and ("from" in card.weights if is_gone else card.split)
        is_unlisted = is_unlisted or (is_gone and head is None)  # a teacher has been trained
        return WeightsImages(unlisted=weights if is_unlisted else "")
    classes = manifest.outputs.classes
    is_same, layers = head is None or {*head} == {*classes}, config.get("train", {}).get("layers")
    found = WeightsImages()
    if is_same or layers not in ("head", None):
        found = WeightsImages([manifest.where(manifest.column("split") == "train")])
    first, teacher = images_of_start(config, classes if is_same else (), later=(*later, weights))
    return found | first | teacher


def _card_of(weights: str) -> Card | None:
    """Return the card of weights that are on this disk, or None if they have none."""
    with contextlib.suppress(VitftError, OSError, ValueError):
        found = locate(weights)
        path = cached_file(found) if isinstance(found, CatalogEntry) else found
        return parse_card(read_header(path).metadata.get("vitft.card", "")) if path else None
    return None
