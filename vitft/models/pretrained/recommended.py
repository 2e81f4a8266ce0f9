"""Recommended weights, and the default choice of weights.

Does not import torch. The recommendations are in the table `recommended` in `weights/catalog.toml`.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitft.models.licences import licence_terms
from vitft.models.pretrained.catalog import CatalogEntry, find_entry, read_catalog
from vitft.system.errors import UsageError
from vitft.system.speed import GPU_SPEED, cpu_speed, has_gpu
from vitft.system.text import count, duration

_Tier = Literal["fast", "balanced", "best"]
_ACCEPTABLE_S = 300.0
"""Maximum time in seconds of the feature pass over a data set with the default weights."""
_EFFICIENCY = 0.6
"""Speed of a model, including image decoding, relative to that of a matrix product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Recommended weights, with their cost."""

    name: str
    tier: _Tier
    megabytes: int
    """Size of the download in 10^6 bytes."""
    gmacs: float
    """Billions of multiply-adds for one image at the native size."""
    default: bool = False
    """Whether these weights may be chosen by default."""

    @property
    def entry(self) -> CatalogEntry:
        """Entry of the catalogue for these weights."""
        return find_entry(self.name)

    def seconds(self, images: int, speed: float) -> float:
        """Return the estimated time in seconds of a pass over `images` images.

        `speed` is the speed of the machine in billions of multiply-adds per second.
        """
        return images * self.gmacs / (speed * _EFFICIENCY)


@functools.cache
def recommendations() -> tuple[Recommendation, ...]:
    """Return the recommended weights, from the fastest to the most accurate."""
    return tuple(Recommendation(**row) for row in read_catalog()["recommended"])


def machine_speed(device: str = "auto") -> float:
    """Return the speed of a device in billions of multiply-adds per second."""
    return GPU_SPEED if device != "cpu" and has_gpu() else cpu_speed()


def default_weights(images: int, *, device: str) -> tuple[str, str]:
    """Return the name of the default weights for a run, and the reason for choosing them.

    The candidates are the defaults in the local cache or, if there are none, all defaults. The most
    accurate weights with a feature pass of at most `_ACCEPTABLE_S` are chosen. If every pass takes
    longer, the fastest weights are chosen.

    Raises:
        UsageError: None of the default weights are in the cache, and HF_HUB_OFFLINE is set.
    """
    choices = [one for one in recommendations() if one.default]
    cached = [one for one in choices if _is_cached(one.entry)]
    if not cached and _is_offline():
        raise UsageError(
            "no weights given, none of the default weights are in the cache, and HF_HUB_OFFLINE is "
            "set",
            fix=f"run `vitft weights fetch {choices[0].name}` while online, pass the path of a "
            "weight file with --weights, or use --weights demo, which needs no network",
        )
    speed = machine_speed(device)
    several = cached or choices
    affordable = [one for one in several if one.seconds(images, speed) <= _ACCEPTABLE_S]
    chosen = affordable[-1] if affordable else several[0]
    seconds = chosen.seconds(images, speed)
    origin = "in the cache" if cached else f"a download of {chosen.megabytes:,} MB"
    return chosen.name, (
        f"{chosen.name}: {chosen.tier}, {chosen.entry.licence}, {origin}; about "
        f"{duration(max(1, seconds))} for {count(images, 'image')}"
    )


def cached_alternatives(name: str, licence: str) -> list[Recommendation]:
    """Return recommended weights in the local cache that are probably more accurate than `name`.

    They are listed from the fastest to the most accurate. Their licence is open or the same as
    `licence`, that of the weights `name`. If `name` is not among the recommended weights, all
    others are listed.
    """
    every = recommendations()
    names = [one.name for one in every]
    better = every[names.index(name) + 1 :] if name in names else every
    return [
        one
        for one in better
        if (licence_terms(one.entry.licence) == "open" or one.entry.licence == licence)
        and _is_cached(one.entry)
    ]


def _is_cached(entry: CatalogEntry) -> bool:
    """Return whether the hub's local cache contains the file of an entry."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(entry.repo, entry.file, revision=entry.revision)
    return isinstance(found, str) and Path(found).exists()


def _is_offline() -> bool:
    """Return whether the environment forbids connections to the hub."""
    from huggingface_hub import constants

    return constants.is_offline_mode()
