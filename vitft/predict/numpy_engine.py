"""The NumPy engine: predictions for a few images on a CPU in half a second, without torch.

The checkpoint is mapped into memory. Its digest is computed in a thread while images are decoded
and scored, and no scores are returned until it has been verified. Each image uses one core. The
command line limits OpenBLAS to one thread, because waiting threads use CPU time: on a busy
machine with two cores, a matrix product with two threads took ten times as long as with one.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import numpy as np

from vitft.features.ood import Reference, read_reference
from vitft.models.card import CheckpointFile, lacks_card, open_checkpoint
from vitft.models.numpy_vit import NumpyModel, normalise, numpy_model, strictly
from vitft.predict.engine import Engine, Views
from vitft.predict.postprocess import Scores, not_finite

_MAX_THREADS = min(4, os.cpu_count() or 1)
FEW_IMAGES = 8  # maximum number for which NumPy is faster than importing and running torch


class NumpyEngine(Engine):
    """An `Engine` in NumPy that scores one image per core at a time."""

    batch, in_workers = 1, True

    def __init__(
        self, opened: CheckpointFile, model: NumpyModel, reference: Reference | None = None
    ) -> None:
        self.opened, self.model, self.feature_size = opened, model, model.feature_size
        self.transform, self.classes = opened.card.transform, opened.card.classes
        self.thresholds, self.results = opened.card.thresholds, opened.card.run
        self.split = opened.card.split
        self.reference = reference
        self.intermediate = reference.intermediate_blocks if reference else 0
        self.workers = min(FEW_IMAGES, _MAX_THREADS)
        self.digest = ThreadPoolExecutor(1).submit(opened.digest).result

    @classmethod
    def open(cls, path: Path) -> Self | None:
        """Open a checkpoint; return None if torch is needed to run it, or raise RunError."""
        if lacks_card(path):
            return None
        opened = open_checkpoint(path)
        model = numpy_model(opened, threads=_MAX_THREADS)
        if model is None:
            return None
        reference = read_reference(path.parent, model.feature_size, model.config)
        return cls(opened, model, reference)

    def scores(self, views: Views) -> Scores:
        try:
            inputs = normalise(views, self.transform)
            found = strictly(self.model.features)(inputs, self.intermediate)
            features, intermediate = np.split(found, [self.feature_size], axis=1)
            scores = Scores(strictly(self.model.classify)(features), features, intermediate)
        except FloatingPointError as error:
            self.opened.check_digest(self.digest())
            raise not_finite() from error
        self.opened.check_digest(self.digest())
        return scores
