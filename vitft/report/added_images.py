"""Effect of additional training images on accuracy, from a comparison of two runs."""

from dataclasses import dataclass

from vitft.report.reproduce import different_keys, effective_settings
from vitft.report.run_files import Run

_LOST = 0.02
"""Maximum fraction of the smaller run's training images that the larger run may lack, e.g. because
they are now validation images.
"""
_FEW = 0.005
"""Minimum number of added images, as a fraction of the smaller run's training images."""
FREE_SETTINGS = frozenset(
    {"data.path", "data.root", "data.like", "data.split", "data.label", "data.path_column"}
) | {"data.split_column", "data.group", "train.cache", "train.device", "train.tracker"}
"""Settings that describe where images come from, or that do not change results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AddedImages:
    """Training images that occur in only one of two runs."""

    is_second: bool
    """Whether the second of the two runs has more images."""
    images: int
    settings: tuple[str, ...]
    """Settings outside `FREE_SETTINGS` that differ between the runs."""


def find_added(first: Run, second: Run) -> _AddedImages | None:
    """Return the additional training images of one of the runs, if any.

    The result is None if the runs have almost the same training images, or if each run has images
    that the other lacks.
    """
    trained = [{row.sha256 for row in run.rows if row.split == "train"} for run in (first, second)]
    for is_second in (True, False):
        fewer, more = trained if is_second else reversed(trained)
        enough = len(more - fewer) >= max(1, _FEW * len(fewer))
        if fewer and enough and len(fewer - more) <= _LOST * len(fewer):
            different = different_keys([effective_settings(run.config) for run in (first, second)])
            return _AddedImages(
                is_second=is_second,
                images=len(more - fewer),
                settings=tuple(key for key in different if key not in FREE_SETTINGS),
            )
    return None
