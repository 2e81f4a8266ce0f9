"""Where a model looked: attention, rollout and relevance per patch, as numbers and as pictures.

    method   what can be asked for, checked without torch
    maps     a model and pixels -> one number per patch
    pictures numbers over an image; sheets of several                 (no torch)
    images   image files in, pictures and arrays out
    figures  what the weights themselves show: filters, positions, distances
    plots    those figures as PNG, by matplotlib

What needs torch is imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitft.explain.attribution import relevance_map as relevance_map
    from vitft.explain.heatmaps import overlay as overlay

HOMES = {"overlay": "vitft.explain.heatmaps", "relevance_map": "vitft.explain.attribution"}

__all__ = ["overlay", "relevance_map"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in HOMES:
        raise AttributeError(f"module 'vitft.explain' has no attribute {name!r}")
    return getattr(importlib.import_module(HOMES[name]), name)
