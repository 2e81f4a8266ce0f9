"""Postprocessing: logits and features become classes, probabilities and notes.

This is the only place where that happens. `vitft predict`, Python, the server, `vitft evaluate`,
`vitft explain` and the validation predictions of the report all use it.

Letters: B images, C classes, D dimensions of a feature, k classes per prediction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from vitft.features.ood import Reference, read_reference
from vitft.metrics.calibration import softmax
from vitft.predict.prediction import NOT_SURE, OUT_OF_DISTRIBUTION, Prediction
from vitft.system.errors import RunError

ScoreArray = np.ndarray[Any, np.dtype[np.float32]]


class Scores(NamedTuple):
    """Output of a model for a batch of images."""

    logits: ScoreArray
    """(B, C)"""
    features: ScoreArray = np.empty((0, 0), np.float32)
    """Input of the head, (B, D); read only for out-of-distribution notes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postprocess:
    """Convert scores into predictions."""

    classes: Sequence[str]
    top_k: int = 1
    """Classes per prediction; more than the model has gives all of them."""
    threshold: float = 0.0
    """Predictions whose best probability is smaller are noted as not sure."""
    reference: Reference | None = None
    """Statistics of the training features; None: no out-of-distribution notes."""

    @classmethod
    def for_run(
        cls,
        folder: Path,
        classes: Sequence[str],
        feature_size: int,
        *,
        top_k: int = 1,
        threshold: float = 0.0,
    ) -> Self:
        """Read the statistics of the training features from a run folder, if it has them.

        Raises:
            RunError: They are damaged or belong to another model.
        """
        reference = read_reference(folder, feature_size)
        return cls(classes=classes, top_k=top_k, threshold=threshold, reference=reference)

    def __call__(
        self, paths: Sequence[str], scores: Scores, targets: Sequence[int] | None = None
    ) -> list[Prediction]:
        """Return one prediction for each of B paths; `targets` (B,) are class indices.

        Raises:
            RunError: A logit is not finite.
        """
        if not np.isfinite(scores.logits).all():
            raise RunError(
                "the model's logits are not finite numbers: it diverged or is damaged",
                fix="train again with a lower learning rate",
            )
        probabilities = softmax(scores.logits.astype(np.float64))  # (B, C)
        if self.top_k == 1:
            order = probabilities.argmax(axis=1)[:, None]  # (B, k)
        else:  # stable: ties keep the model's order, as with argmax
            order = np.argsort(-probabilities, axis=1, kind="stable")[:, : self.top_k]
        unlike = [False] * len(paths)
        if self.reference is not None:
            unlike = self.reference.are_unlike(scores.features)
        predictions = []
        for i, path in enumerate(paths):
            best = tuple(probabilities[i, order[i]].tolist())
            prediction = Prediction(
                path=path,
                classes=tuple(self.classes[index] for index in order[i]),
                probabilities=best,
                notes=(NOT_SURE,) * (best[0] < self.threshold) + (OUT_OF_DISTRIBUTION,) * unlike[i],
                target_probability=float(probabilities[i, targets[i]]) if targets else 0.0,
            )
            predictions.append(prediction)
        return predictions
