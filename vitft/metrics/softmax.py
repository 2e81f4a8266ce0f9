"""Softmax in NumPy."""

from typing import Any

import numpy as np


def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Turn logits into probabilities along the last axis, in their own precision.

    `logits` is overwritten; pass `logits.astype(np.float64)` to keep it.
    """
    logits -= logits.max(axis=-1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=-1, keepdims=True)
    return logits
