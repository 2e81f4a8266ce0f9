"""Whether an image is unlike anything that a model was trained on, told by its feature.

The Mahalanobis distance from the nearest class: how far the feature lies from the mean of a class
in units of the scatter that the classes share. What 1 % of the held-out images exceed is unlike. It
is a statement about the picture, not about the answer. Nearest neighbours and the relative distance
of Ren et al. (2106.09022) tell foreign pictures less well (docs/experiments.md).

Source: Lee et al. 2018, "A simple unified framework for detecting out-of-distribution samples",
https://arxiv.org/abs/1807.03888.
"""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from vitft.system.errors import RunError

Array = np.ndarray[Any, np.dtype[np.float32]]

FILE = "reference.npz"
SHARE = 0.99
"""Of held-out images of the trained kinds that are not called unlike."""
FEWEST = 20
"""Held-out images below which no such share can be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What is kept of the training features; classes may be fewer than the model's."""

    centre: Array
    """Mean of all features, (D,)."""
    means: Array
    """Of each class, less the centre and whitened by the scatter within classes: (C, D)."""
    within: Array
    """Features less the centre, times this (D, D), scatter by one around their class."""
    limit: float
    """Distance beyond which an image is unlike the training images."""

    def distances(self, features: Array) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Squared distances (B,) of features (B, D) from their nearest classes."""
        x = (features - self.centre).astype(np.float64)
        z = x @ self.within
        means = self.means.astype(np.float64)
        squares = (z**2).sum(1)[:, None] - 2 * z @ means.T + (means**2).sum(1)  # (B, C)
        return np.asarray(np.maximum(squares.min(axis=1), 0))

    def are_unlike(self, features: Array) -> list[bool]:
        """One answer per feature (B, D)."""
        return [bool(distance > self.limit) for distance in self.distances(features)]

    def arrays(self) -> dict[str, Any]:
        """For `RunDir.write_arrays`."""
        return {name: np.asarray(getattr(self, name), np.float32) for name in self.__slots__}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Read back `arrays`."""
        fields = {name: arrays[name] for name in cls.__slots__}
        return cls(**fields | {"limit": float(fields["limit"])})


def fit(
    features: Array, labels: np.ndarray[Any, Any], held_out: Array, *, share: float = SHARE
) -> Reference | None:
    """Learn what training features look like, and from held-out ones how far they may stray.

    Args:
        features: Of the training images, (n, D).
        labels: Their class indices, (n,).
        held_out: Features of images of the same kinds that trained nothing, (m, D).
        share: Of these that shall not be called unlike.

    Returns:
        None if there is too little of either to say anything.
    """
    kinds = np.unique(labels)
    if len(held_out) < FEWEST or len(features) < 2 * len(kinds):
        return None
    x = features.astype(np.float64)
    centre = x.mean(axis=0)
    x = x - centre
    means = np.stack([x[labels == kind].mean(axis=0) for kind in kinds])  # (C, D)
    within = whitener(x - means[np.searchsorted(kinds, labels)])
    rough = Reference(
        centre=centre.astype(np.float32),
        means=(means @ within).astype(np.float32),
        within=within.astype(np.float32),
        limit=0.0,
    )
    limit = float(np.quantile(rough.distances(held_out), share))
    return Reference.from_arrays(rough.arrays() | {"limit": limit})


def whitener(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The matrix (D, D) that makes centred rows (n, D) scatter by one in every direction.

    With fewer rows than directions the scatter is drawn towards a sphere by the share that
    minimises the expected error (oracle approximating shrinkage, Chen et al. 2010, 0907.4698).
    """
    n, d = x.shape
    scatter = x.T @ x / n
    sphere, squares = np.trace(scatter) / d, (scatter**2).sum()
    spread = squares + (sphere * d) ** 2
    shrink = min(1.0, spread / max(1e-30, (n + 1) * (squares - (sphere * d) ** 2 / d)))
    scatter = (1 - shrink) * scatter + (shrink * sphere + 1e-12) * np.eye(d)
    values, vectors = np.linalg.eigh(scatter)
    return np.asarray(vectors / np.sqrt(np.maximum(values, 1e-12)))


def read_reference(run: Path, width: int) -> Reference | None:
    """The reference of a run folder; None if it keeps none.

    Raises:
        RunError: It is damaged, or belongs to a model of another width.
    """
    path = run / FILE
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise damaged(path, str(error.strerror)) from error
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            found = Reference.from_arrays(arrays)
    except (ValueError, KeyError, TypeError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise damaged(path, str(error)) from error
    shapes = (found.centre.shape, found.within.shape, found.means.shape[1:])
    if shapes != ((width,), (width, width), (width,)) or not np.isfinite(found.limit):
        raise damaged(path, f"it is not about features of {width} numbers")
    return found


def damaged(path: Path, reason: str) -> RunError:
    """The error of a file that is not what was written."""
    return RunError(
        f"damaged run: {path} ({reason})",
        fix="copy it again from where it came, or remove it and do without",
    )
