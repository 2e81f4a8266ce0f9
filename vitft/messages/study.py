"""Sentences about the accuracies of a study."""

from collections.abc import Iterator, Mapping, Sequence

from vitft.metrics.intervals import Interval
from vitft.system.text import count, percent

HEAD_NOTE = (
    "every head uses the last block only. The head of vitft finetune may use several blocks and be "
    "more accurate, especially on images unlike photos"
)
"""What a user must know before comparing the accuracies with those of runs."""


def study_heading(seeds: int, images: str, majority: float, *, has_tests: bool) -> str:
    """Return a description of the accuracies, the test images and the baseline `majority`."""
    origin = "the folder's validation or test set" if has_tests else "all other images"
    return (
        f"accuracy in % by number of training images per class, {_mean_of(seeds)}, with 95% "
        f"intervals. {images} ({origin}), baseline (largest class): {percent(majority)}"
    )


def figure_heading(seeds: int, test_images: int) -> str:
    """Return the line below the title of the figure."""
    images = count(test_images, "test image")
    return f"{_mean_of(seeds)}, bands: 95% intervals, {images}"


def _mean_of(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"mean of {seeds} seeds"


def known_images_note(name: str, trained: int, images: int) -> str:
    """Return the note on a source whose backbone was trained on some of the images."""
    return (
        f"{name} was trained on {trained:,} of these {count(images, 'image')}, so its accuracies "
        "here say nothing about new images"
    )


def lead_sentences(
    first: str, leads: Mapping[str, Sequence[tuple[float, Interval]]], shots: Sequence[int]
) -> Iterator[str]:
    """Yield lines that compare the first source with every other one."""
    per_class = count(shots[-1], "image per class", "images per class")
    for name, differences in leads.items():
        mean, (low, high) = differences[-1]
        yield (
            f"{first} compared with {name} at {per_class}: {100 * mean:+.1f} points "
            f"(95% CI {100 * low:+.1f} to {100 * high:+.1f})"
        )
        pairs = list(zip(shots, differences, strict=True))
        behind = [str(s) for s, (_, (_, top)) in pairs if top < 0]
        unclear = [str(s) for s, (_, (bottom, top)) in pairs if bottom <= 0 <= top]
        if behind:
            yield f"  images per class at which {name} is significantly better: {', '.join(behind)}"
        if unclear:
            yield f"  images per class without a significant difference: {', '.join(unclear)}"
