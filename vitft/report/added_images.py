"""Effect of additional training images on accuracy, from a comparison of two runs."""

from dataclasses import dataclass

from vitft.metrics.values import Interval
from vitft.report.reproduce import different_keys, effective_settings
from vitft.report.run_files import Run
from vitft.system.text import count, points

LOST = 0.02
"""Maximum fraction of the smaller run's training images that the larger run may lack, e.g. because
they are now validation images.
"""
FEW = 0.005
"""Minimum number of added images, as a fraction of the smaller run's training images."""
FREE_SETTINGS = frozenset(
    {"data.path", "data.root", "data.like", "data.split", "data.label", "data.path_column"}
) | {"data.split_column", "data.group", "train.cache", "train.device", "train.tracker"}
"""Settings that describe where images come from, or that do not change results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedImages:
    """Training images that occur in only one of two runs."""

    is_second: bool
    """Whether the second of the two runs has more images."""
    images: int
    settings: tuple[str, ...]
    """Settings outside `FREE_SETTINGS` that differ between the runs."""


def find_added(first: Run, second: Run) -> AddedImages | None:
    """Return the additional training images of one of the runs, if any.

    The result is None if the runs have almost the same training images, or if each run has images
    that the other lacks.
    """
    trained = [{row.sha256 for row in run.rows if row.split == "train"} for run in (first, second)]
    for is_second in (True, False):
        fewer, more = trained if is_second else reversed(trained)
        enough = len(more - fewer) >= max(1, FEW * len(fewer))
        if fewer and enough and len(fewer - more) <= LOST * len(fewer):
            different = different_keys([effective_settings(run.config) for run in (first, second)])
            return AddedImages(
                is_second=is_second,
                images=len(more - fewer),
                settings=tuple(key for key in different if key not in FREE_SETTINGS),
            )
    return None


def effect_text(
    added: AddedImages, letters: tuple[str, str], difference: float, interval: Interval, p: str
) -> str:
    """Return a sentence, without a full stop, that states whether the added images helped.

    Args:
        added: The additional images of one of the two runs.
        letters: Letters of the two runs.
        difference: Accuracy of the second run minus accuracy of the first.
        interval: 95% interval of the difference.
        p: The p-value as text, e.g. `p = 0.012`; empty if the difference is not significant.
    """
    fewer, more = letters if added.is_second else letters[::-1]
    low, high = interval
    bounds = f"95% interval {points(low).split()[0]} to {points(high)}"
    what = f"{count(added.images, 'training image')} that {more} adds to those of {fewer}"
    measured = (
        f"{letters[1]} - {letters[0]} = {points(difference)} on the shared images ({bounds}{p})"
    )
    if not p:
        return f"No clear effect of the {what}: {measured}"
    return f"The {what} {'helped' if (difference > 0) == added.is_second else 'hurt'}: {measured}"
