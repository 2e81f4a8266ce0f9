"""The NumPy engine: predictions for a few images on a CPU in half a second, without torch.

The file is mapped into memory, and its digest is computed in a thread while images are decoded and
scored; no score is returned before the digest is right. Each image has one core to itself: the
command line limits OpenBLAS to one thread, because its threads spin while they wait (a product on
two cores of a busy machine took ten times as long).
"""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from vitft.data.transforms import EvalTransform
from vitft.models.numpy_vit import MappedFile, NumpyModel, map_file, normalise, open_model
from vitft.predict.engine import Views, decode_view
from vitft.predict.postprocess import Scores
from vitft.system.errors import RunError

MAX_THREADS = min(4, os.cpu_count() or 1)
FEW_IMAGES = 8
"""Most images that NumPy predicts before torch would have been imported."""


class NumpyEngine:
    """The `Engine` in NumPy, which scores one image per core at a time."""

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
        self.transform, self.classes, self.feature_size = transform, classes, model.feature_size
        self.workers = min(FEW_IMAGES, MAX_THREADS)
        self.is_verified = False
        self.verification = threading.Thread(target=self.verify, name="vitft-digest", daemon=True)
        self.verification.start()

    @classmethod
    def open(cls, path: Path) -> Self | None:
        """Open a checkpoint; None if torch is needed to run it or to report what is damaged."""
        found = open_model(path, threads=MAX_THREADS)
        if found is None:
            return None
        model, mapped, card = found
        try:
            transform = EvalTransform.from_json(card["transform"])
            return cls(path, model, mapped, transform, tuple(card["classes"]))
        except (KeyError, TypeError, ValueError):
            return None

    def verify(self) -> None:
        """Compare the digest of the whole file with the recorded one."""
        self.is_verified = self.mapped.is_whole()

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that does nothing, since no process-wide setting changes."""
        return contextlib.nullcontext()

    def enter_worker(self) -> None:
        """Do nothing: a worker needs no preparation."""

    def view(self, data: bytes, name: str) -> Views:
        """Preprocess an image file: (S, S, 3)."""
        return decode_view(data, name, self.transform)

    def scores(self, views: Views) -> Scores:
        """Compute scores of views (B, S, S, 3).

        Raises:
            RunError: The file is damaged.
        """
        features = self.model.features(normalise(views, self.transform))
        scores = Scores(self.model.classify(features), features)
        self.verification.join()
        if not self.is_verified:
            raise RunError(
                f"damaged checkpoint: {self.path} (the sha256 of its contents differs from the "
                "recorded one)",
                fix="copy it again from where it came, or train again",
            )
        return scores


def start_digest(path: Path) -> Callable[[], str] | None:
    """Compute a checkpoint's digest in a thread; return a function that waits for it."""
    mapped = map_file(path)
    if mapped is None:
        return None
    digests: list[str] = []
    thread = threading.Thread(target=lambda: digests.append(mapped.digest()), daemon=True)
    thread.start()

    def wait() -> str:
        thread.join()
        return digests[0]

    return wait
