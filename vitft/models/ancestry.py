"""Images on which weights were trained, as far as the runs that trained them are on this disk."""

import contextlib
import os
from collections.abc import Sequence, Set
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


@dataclass(frozen=True)
class WeightsImages:
    """The images on which weights were trained, by the runs that trained them."""

    manifests: Sequence[Images] = ()  # of the runs, with only their training images
    unlisted: str = ""  # weights that vitft has trained on images that cannot be listed

    @cached_property
    def digests(self) -> Set[str]:
        return {row.sha256 for images in self.manifests for row in images.rows}

    def count(self, rows: Sequence[Row]) -> int | None:
        """Return how many of these images trained the weights; None if this is not known."""
        return sum(row.sha256 in self.digests for row in rows) or (None if self.unlisted else 0)


def run_of_weights(weights: str) -> Path:
    """Return the folder of the run from which the weights (a folder or a file) come, if any."""
    path = run_path(weights)
    return path.parent if path.is_file() else path


def kept_head(layers: object, keep_head: object, classes: Sequence[str]) -> Sequence[str]:
    """Return the classes of the head that a run keeps if its weights have one for these, or ().

    `layers` and `keep_head` are settings of the run, which may fit a new head first.
    """
    is_new = str(layers or "head").split(",")[0].strip() == "head" and not keep_head
    return () if is_new else classes


def images_of_weights(weights: str, *, head: Sequence[str] | None = ()) -> WeightsImages:
    """Return the images on which the backbone of weights was trained, or their head.

    The head counts if it is for the classes `head`, or if `head` is None. The images of the run
    from whose weights it started are included.
    """
    found, visited, before = list[Images](), set[Path](), ""
    while weights and (run := run_of_weights(weights)) not in visited:
        visited.add(run)
        manifest, config = None, dict[str, dict[str, object]]()
        with contextlib.suppress(RunError):
            config = read_run_config(run)  # after --budget, it has the settings that were chosen
            manifest = run_manifest(run)
        if manifest is None:
            is_gone = os.path.isabs(weights) and not os.path.exists(weights)  # noqa: PTH110, PTH117
            card = _card_of(before if is_gone else weights)
            if card and ("from" in card.weights if is_gone else card.split):
                return WeightsImages(found, weights)
            break
        layers, spec = config.get("train", {}).get("layers", "head"), config.get("weights", {})
        is_same = head is None or {*head} == {*manifest.outputs.classes}
        if is_same or layers != "head":
            found.append(manifest.where(manifest.column("split") == "train"))
        kept = kept_head(layers, spec.get("keep_head"), manifest.outputs.classes)
        name, before, head = spec.get("name"), weights, kept if is_same else ()
        weights = name if isinstance(name, str) else ""
    return WeightsImages(found)


def _card_of(weights: str) -> Card | None:
    """Return the card of weights that are on this disk, or None if they have none."""
    with contextlib.suppress(VitftError, OSError, ValueError):
        found = locate(weights)
        path = cached_file(found) if isinstance(found, CatalogEntry) else found
        return parse_card(read_header(path).metadata.get("vitft.card", "")) if path else None
    return None
