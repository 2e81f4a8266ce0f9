"""The NumPy engine: predictions for a few images on a CPU in half a second, without torch.

The file is mapped into memory, and its digest is computed in a thread while images are decoded and
scored; no scores are returned until the digest has been verified. Each image is scored on one core:
the command line limits OpenBLAS to one thread, because its threads spin while they wait (a product
on two cores of a busy machine took ten times as long).
"""

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from vitft.data.transforms import EvalTransform
from vitft.models.numpy_vit import MappedFile, NumpyModel, map_file, normalise, open_model
from vitft.predict.engine import Views, decode_view
from vitft.predict.postprocess import Scores
from vitft.system.errors import RunError

T = TypeVar("T")

MAX_THREADS = min(4, os.cpu_count() or 1)
FEW_IMAGES = 8
"""Maximum number of images for which NumPy is faster than importing and running torch."""


class NumpyEngine:
    """An `Engine` in NumPy that scores one image per core at a time."""

    batch, in_workers = 1, True

    def __init__(
        self, path: Path, model: NumpyModel, mapped: MappedFile, card: Mapping[str, Any]
    ) -> None:
        self.path, self.model, self.feature_size = path, model, model.feature_size
        self.transform = EvalTransform.from_json(card["transform"])
        self.classes: tuple[str, ...] = tuple(card["classes"])
        self.workers = min(FEW_IMAGES, MAX_THREADS)
        self.is_whole = in_background(mapped.is_whole)

    @classmethod
    def open(cls, path: Path) -> Self | None:
        """Open a checkpoint; return None if torch is needed to run it or to report damage."""
        found = open_model(path, threads=MAX_THREADS)
        if found is None:
            return None
        try:
            return cls(path, *found)
        except (KeyError, TypeError, ValueError):
            return None

    def running(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def enter_worker(self) -> None:
        """Do nothing; workers need no preparation."""

    def view(self, data: bytes, name: str) -> Views:
        return decode_view(data, name, self.transform)

    def scores(self, views: Views) -> Scores:
        """Return the scores of views (B, S, S, 3).

        Raises:
            RunError: The checkpoint file is damaged.
        """
        features = self.model.features(normalise(views, self.transform))
        scores = Scores(self.model.classify(features), features)
        if not self.is_whole():
            raise RunError(
                f"damaged checkpoint: {self.path} (the sha256 of its contents differs from the "
                "recorded one)",
                fix="copy the file again from its original location, or train the model again",
            )
        return scores


def start_digest(path: Path) -> Callable[[], str] | None:
    """Start computing a checkpoint's digest in a thread; return a function that waits for it."""
    mapped = map_file(path)
    return None if mapped is None else in_background(mapped.digest)


def in_background(work: Callable[[], T]) -> Callable[[], T]:
    """Call `work` in a thread; return a function that waits for its result."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()

    def wait() -> T:
        thread.join()
        return results[0]

    return wait
