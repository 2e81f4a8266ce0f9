"""Comparison of a converted model with the run it was exported from, used by the scripts here."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def compare(predict: Callable[[Array], Array], reference: str, *, client: str) -> None:
    """Print how much the logits of a client differ from the run's.

    Args:
        predict: Function from one image, float32 (1, channels, S, S), to its logits (1, classes).
        reference: File written by reference.py.
        client: Name and version of the client.
    """
    with np.load(reference) as file:
        pixels, expected, labels = file["pixels"], file["logits"], file["labels"]
    started = time.perf_counter()
    found = np.concatenate([predict(image[None]) for image in pixels])
    seconds = time.perf_counter() - started
    changed = int((found.argmax(1) != expected.argmax(1)).sum())
    right = f"{np.mean(found.argmax(1) == labels):.1%} correct, " if labels.min() >= 0 else ""
    print(
        f"{client}: {len(pixels)} images, largest logit difference "
        f"{np.abs(found - expected).max():.1e} (largest logit {np.abs(expected).max():.1f}), "
        f"{changed} changed labels, {right}{len(pixels) / seconds:.1f} images/s"
    )
