"""The engine that needs no torch: for a few images on a CPU, an answer in half a second.

The file is mapped, and its digest is computed in a thread while images are decoded and scored; no
answer leaves before it fits. Each image has one core to itself: the door tells OpenBLAS so, whose
threads burn what they wait for (a product on two cores of a busy machine took ten times as long).
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from vitft.data.transforms import EvalTransform
from vitft.models.numpy_vit import MappedFile, NumpyModel, map_file, normalise, open_model
from vitft.predict.engine import Scores, Views, documented_view
from vitft.system.errors import RunError

CORES = min(4, os.cpu_count() or 1)
FEW = 8
"""Images up to which NumPy is done before torch would be: importing it takes as long as these."""


class QuickEngine:
    """A trained model in NumPy, as an engine of `answering`: one image per core at a time."""

    batch, in_workers = 1, True

    def __init__(
        self,
        path: Path,
        model: NumpyModel,
        mapped: MappedFile,
        transform: EvalTransform,
        classes: tuple[str, ...],
    ) -> None:
        self.path, self.model, self.mapped = path, model, mapped
        self.transform, self.classes = transform, classes
        self.workers = min(FEW, CORES)
        self.is_whole = False
        self.check = threading.Thread(target=self.verify, name="vitft-digest", daemon=True)
        self.check.start()

    @classmethod
    def open(cls, path: Path) -> Self | None:
        """The engine of a checkpoint; None if only torch can run or refuse it."""
        found = open_model(path, threads=CORES)
        if found is None:
            return None
        model, mapped, card = found
        try:
            transform = EvalTransform.from_json(card["transform"])
            return cls(path, model, mapped, transform, tuple(card["classes"]))
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def feature_size(self) -> int:
        """Numbers in the feature of one image."""
        return self.model.feature_size

    def verify(self) -> None:
        """Read the whole file."""
        self.is_whole = self.mapped.is_whole()

    def enter_worker(self) -> None:
        """Nothing to prepare."""

    def view(self, data: bytes, name: str) -> Views:
        """The model's view (S, S, 3) of a file's bytes."""
        return documented_view(data, name, self.transform)

    def scores(self, views: Views) -> Scores:
        """Scores and features of views (B, S, S, 3).

        Raises:
            RunError: The file is not what was written.
        """
        features = self.model.features(normalise(views, self.transform))
        scores = Scores(self.model.classify(features), features)
        self.check.join()
        if not self.is_whole:
            raise RunError(
                f"damaged checkpoint: {self.path} (the sha256 of its contents differs from the "
                "recorded one)",
                fix="copy it again from where it came, or train again",
            )
        return scores


def begin_digest(path: Path) -> Callable[[], str] | None:
    """Compute a checkpoint's digest in a thread; gives a function that waits for it."""
    mapped = map_file(path)
    if mapped is None:
        return None
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(mapped.digest()), daemon=True)
    thread.start()

    def wait() -> str:
        thread.join()
        return found[0]

    return wait
