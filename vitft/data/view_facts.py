"""Fraction of an image's area that a model's view shows, for `vitft check` and the report."""

from collections.abc import Iterable

from vitft.data.transforms import EvalTransform
from vitft.metrics.results import ViewFacts
from vitft.system.text import percent

_MOST_SHOWN = 0.75
"""Mean fraction of the area above which `describe_view` suggests no alternatives."""


def measure_view(transform: EvalTransform, sizes: Iterable[tuple[int, int]]) -> ViewFacts | None:
    """Return the fraction of an image that a view shows, for images of these widths and heights.

    The result is None if there are no images.
    """
    shown = [transform.shown(*size) for size in sizes]
    if not shown:
        return None
    return {
        "image_size": transform.image_size,
        "fit": transform.fit,
        "crop": transform.crop,
        "shown": sum(shown) / len(shown),
        "least_shown": min(shown),
    }


def describe_view(facts: ViewFacts, *, whose: str = "the model's") -> str:
    """Return a sentence on how much of an image the view shows, and on how to show more of it."""
    height, width = facts["image_size"]
    how = f"{height} x {width} pixels, {facts['fit']} {facts['crop']:g}"
    mean, least = percent(facts["shown"], 0), percent(facts["least_shown"], 0)
    least = f" (at least {least})" if least != mean else ""
    text = f"{whose} view ({how}) shows {mean} of an image's area on average{least}"
    if facts["shown"] > _MOST_SHOWN:
        return text
    return f"{text}; to train on all of it, use vitft finetune --fit pad or --fit squash"
