"""Sentences about the accuracy of exported models."""

from collections.abc import Sequence

from vitft.metrics.values import Interval
from vitft.system.text import count, interval, percent


def export_accuracy(
    before: float, after: float, bounds: Interval, images: str, *, several_labels: bool = False
) -> str:
    """Return a clause about the accuracy of an export on images, given that of the original."""
    measure = "the fraction of images with all labels right" if several_labels else "the accuracy"
    return (
        f"{measure} is {percent(after)} (95% CI {interval(bounds)}) on {images}, compared with "
        f"{percent(before)} for the original"
    )


def fewer_blocks(blocks: int, last: float | None, whole: float) -> str:
    """Return why the head of an export reads only the last block, and what that costs.

    Args:
        blocks: Number of blocks that the head of the run reads; 0 if unknown.
        last: Validation accuracy of the exported head; None if unknown.
        whole: Validation accuracy of the run's head.
    """
    if last is None:
        return "because timm and transformers cannot load a head that reads several blocks"
    cost = f"{percent(last)} instead of {percent(whole)}"
    if percent(last) == percent(whole):
        cost = f"{percent(last)}, as with the run's head"
    return (
        "because timm and transformers cannot load the run's head, which reads the last "
        f"{blocks} blocks (validation accuracy {cost})"
    )


def few_images_accuracy(images: int, accuracies: Sequence[float]) -> str:
    """Return the accuracy on few images, and that with 8-bit weights if it differs."""
    own, other = map(percent, accuracies)
    also = f", and {other} with 8 bits" * (own != other)
    return f"(on only {count(images, 'validation image')}, the model's accuracy is {own}{also})"
