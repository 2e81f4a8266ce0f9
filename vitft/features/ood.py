"""Out-of-distribution detection from features (Mahalanobis distance to the nearest class).

The distance of a feature from a class mean is measured in units of the within-class scatter. Images
are out of distribution if their distance is above the 99th percentile of the held-out images'. This
describes the image, not its prediction. Nearest neighbours and the relative distance of Ren et al.
(2106.09022) separate foreign images less well (docs/experiments.md).

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

Features = np.ndarray[Any, np.dtype[np.float32]]

REFERENCE_FILE = "reference.npz"
IN_DISTRIBUTION = 0.99
"""Fraction of held-out images to classify as in distribution."""
MIN_HELD_OUT = 20
"""Minimum number of held-out images for estimating the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Statistics of the training features, possibly of fewer classes than the model has."""

    centre: Features  # mean of all features, (D,)
    means: Features
    """Class means minus the centre, whitened by the within-class scatter: (C, D)."""
    within: Features
    """Whitening matrix (D, D): it gives centred features unit scatter within classes."""
    limit: float  # squared distance above which an image is out of distribution

    def distances(self, features: Features) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the squared distances (B,) of features (B, D) from their nearest class means."""
        x = (features - self.centre).astype(np.float64)
        z = x @ self.within
        means = self.means.astype(np.float64)
        squares = (z**2).sum(1)[:, None] - 2 * z @ means.T + (means**2).sum(1)  # (B, C)
        return np.asarray(np.maximum(squares.min(axis=1), 0))

    def are_unlike(self, features: Features) -> list[bool]:
        """Return, for each feature (B, D), whether it is out of distribution."""
        return [bool(distance > self.limit) for distance in self.distances(features)]

    def arrays(self) -> dict[str, Any]:
        """Return the fields as arrays for `RunDir.write_arrays`."""
        return {name: np.asarray(getattr(self, name), np.float32) for name in self.__slots__}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Create a reference from the output of `arrays`."""
        fields = {name: arrays[name] for name in cls.__slots__}
        return cls(**fields | {"limit": float(fields["limit"])})


def fit_reference(
    features: Features,
    labels: np.ndarray[Any, Any],
    held_out: Features,
) -> Reference | None:
    """Fit a reference to features (n, D) and class indices (n,); return None if there are too few.

    The limit is estimated from features (m, D) of held-out images of the same classes.
    """
    kinds = np.unique(labels)
    if len(held_out) < MIN_HELD_OUT or len(features) < 2 * len(kinds):
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
    limit = float(np.quantile(rough.distances(held_out), IN_DISTRIBUTION))
    return Reference.from_arrays(rough.arrays() | {"limit": limit})


def whitener(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the whitening matrix (D, D) that gives centred rows (n, D) unit scatter.

    The scatter is shrunk towards a sphere by the amount that minimises the expected error (oracle
    approximating shrinkage, Chen et al. 2010, 0907.4698).
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
    """Read the reference of a run directory, or return None if it has none.

    Raises:
        RunError: The file is damaged or belongs to a model of a different width.
    """
    path = run / REFERENCE_FILE
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise damaged_reference(path, str(error.strerror)) from error
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            found = Reference.from_arrays(arrays)
    except (ValueError, KeyError, TypeError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise damaged_reference(path, str(error)) from error
    shapes = (found.centre.shape, found.within.shape, found.means.shape[1:])
    if shapes != ((width,), (width, width), (width,)) or not np.isfinite(found.limit):
        raise damaged_reference(path, f"expected {width}-dimensional features")
    return found


def damaged_reference(path: Path, reason: str) -> RunError:
    """Return the error for a damaged reference file."""
    return RunError(
        f"damaged run: {path} ({reason})",
        fix="restore the file from a copy, or delete it to disable out-of-distribution notes",
    )
