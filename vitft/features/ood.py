"""Out-of-distribution detection from features (Mahalanobis distance to the nearest class).

The distance of a feature from a class mean is measured in units of the within-class scatter. An
image is out of distribution if its distance is above the 98th percentile of the distances of
held-out images; if they are few, a fitted distribution helps to estimate it. This is a property of
the image, not of its prediction. Methods based on nearest neighbours, on the largest probability or
on a combination detect slightly more images of unknown classes, but fewer images of entirely
different kinds (docs/experiments.md).

Notation: n images, D feature dimensions, C classes.

Source: Lee et al. 2018, "A simple unified framework for detecting out-of-distribution samples",
https://arxiv.org/abs/1807.03888.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Self

import numpy as np

from vitft.metrics.intervals import wilson_interval
from vitft.metrics.results import OodResults
from vitft.system.errors import RunError
from vitft.system.npz import read_npz
from vitft.system.text import describe_os_error, percent

Features = np.ndarray[Any, np.dtype[np.float32]]
Distances = np.ndarray[Any, np.dtype[np.float64]]
ClassIndices = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

REFERENCE_FILE = "reference.npz"
MAX_DIMENSIONS = 1_024
"""Maximum number of dimensions; if features have more, only the leading ones are used. This limits
the size of the file to 4 MB plus 4 kB for each class."""
IN_DISTRIBUTION = 0.98
"""Fraction of held-out images to classify as in distribution."""
ENOUGH_DISTANCES = 200
"""Number of distances from which the limit is their quantile, without a fitted distribution."""
MIN_HELD_OUT = 20
"""Minimum number of held-out images from which to estimate the limit."""
FOLDS = 5
"""Number of parts into which the held-out images are divided; each part is compared with a fit to
all other images."""
MAX_FITTED = 5_000
"""Maximum number of held-out images; also the maximum number of images in each fit."""
PARTS_OF = ((100, FOLDS), (500, 3), (math.inf, 2))
"""Pairs (upper limit, number of fits). The first pair whose limit exceeds the number of held-out
images determines how many fits are made for each left-out class."""
CLASSES_LEFT_OUT = 10
"""Maximum number of classes to leave out, one at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Statistics of a run's features; classes without images are omitted."""

    centre: Features  # mean of all features, (D,)
    means: Features
    """Class means minus the centre, whitened by the within-class scatter: (C, D)."""
    within: Features
    """Whitening matrix (D, D), which gives centred features unit scatter within classes."""
    limit: float  # squared distance above which an image is out of distribution
    unknown: float = math.nan
    """Fraction of left-out classes' images with squared distances above `limit`; NaN if not
    measured, or if the features were trained on these classes."""

    def distances(self, features: Features) -> Distances:
        """Return the squared distance (n,) of each feature from the nearest class mean.

        If the reference has fewer dimensions than the features (n, D), only the leading dimensions
        of the features are used.
        """
        x = features[:, : len(self.centre)] - self.centre
        z = x.astype(np.float64) @ self.within
        means = self.means.astype(np.float64)
        squares = (z**2).sum(1)[:, None] - 2 * z @ means.T + (means**2).sum(1)
        return np.asarray(np.maximum(squares.min(axis=1), 0))

    def are_unlike(self, features: Features) -> list[bool]:
        """Return, for each feature (n, D), whether it is out of distribution."""
        return [bool(distance > self.limit) for distance in self.distances(features)]

    def arrays(self) -> dict[str, Any]:
        """Return the fields as arrays for `RunDir.write_arrays`."""
        return {name: np.asarray(getattr(self, name), np.float32) for name in self.__slots__}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Create a reference from the output of `arrays`; files of older runs lack `unknown`."""
        fields = {name: arrays[name] for name in ("centre", "means", "within")}
        return cls(
            **fields,
            limit=float(arrays["limit"]),
            unknown=float(arrays["unknown"]) if "unknown" in arrays else math.nan,
        )

    def power(self) -> str:
        """Return how many images of unknown classes are noticed, or "" if it was not measured."""
        if math.isnan(self.unknown):
            return ""
        return (
            "of similar-looking images of other classes, about "
            f"{unknown_percent(self.unknown)} are marked as unlike the training images"
        )


TOO_HIGH = "may be too high, because the features were trained on these classes"
"""What is said of the rate for left-out classes if the features were trained on them."""


def unknown_percent(unknown: float) -> str:
    """Return the fraction of images of unknown classes that are flagged, as a whole percentage.

    The fraction is a float64 in audit.json and a float32 in the reference; both give the same text,
    also for 0.185.
    """
    return percent(round(unknown, 6), 0)


def power_text(unknown: float) -> str:
    """Return a phrase such as `about 40% of images of unknown classes similar to these`.

    `unknown` is the fraction of these images that are classified as out of distribution.
    """
    return f"about {unknown_percent(unknown)} of images of unknown classes similar to these"


def fit_reference(
    features: Features,
    labels: ClassIndices,
    held_out: Bools,
    groups: ClassIndices,
    *,
    trained: bool,
) -> tuple[Reference | None, OodResults]:
    """Fit a reference to features (n, D) and class indices (n,), and estimate detection rates.

    Args:
        features: Inputs to the head.
        labels: Class indices.
        held_out: Mask (n,) of the images that represent new images: all images if the layers before
            the head are frozen, otherwise the images not used for training.
        groups: Group numbers (n,), shared by near-duplicates, which are held out together.
        trained: Whether the features were trained on these classes; recorded in the results.

    Returns:
        The reference, or None if there are too few images, and the results for audit.json.
    """
    kinds = np.unique(labels)
    results = no_reference(None, len(features), int(held_out.sum()), trained=trained)
    if results["held_out"] < MIN_HELD_OUT:
        reason = f"too few held-out images ({results['held_out']} of the {MIN_HELD_OUT} needed)"
        return None, results | {"reason": reason}
    if len(features) < 2 * len(kinds):
        return None, results | {"reason": "there are fewer than two images per class on average"}
    features = features[:, :MAX_DIMENSIONS]
    rows = thinned(np.flatnonzero(held_out), MAX_FITTED)
    folds = Folds(features, labels, rows, groups)
    if left_out := folds.leave_classes_out():
        noted, total = (sum(numbers) for numbers in zip(*left_out, strict=True))
        fractions = [one / images for one, images in left_out]
        results["unknown_class"] = noted / total
        results["unknown_class_interval"] = wilson_interval(noted, total)
        results["unknown_class_range"] = min(fractions), max(fractions)
        results["classes_left_out"] = len(left_out)
    results["held_out"] = len(rows)
    results["false_alarms"] = expected_false_alarms(len(rows))
    found = fit_classes(features, labels).arrays()
    unknown = results["unknown_class"]
    if unknown is None or results["features_trained"]:  # then it may be too high
        unknown = math.nan
    reference = found | {
        "limit": limit_of(folds.distances()),
        "unknown": unknown,
    }
    return Reference.from_arrays(reference), results


def no_reference(
    reason: str | None, images: int = 0, held_out: int = 0, *, trained: bool = False
) -> OodResults:
    """Return results without detection rates; `reason` states why the run cannot flag images."""
    return {
        "images": images,
        "held_out": held_out,
        "reason": reason,
        "false_alarms": None,
        "unknown_class": None,
        "unknown_class_interval": None,
        "unknown_class_range": None,
        "classes_left_out": 0,
        "features_trained": trained,
    }


def thinned(rows: ClassIndices, most: int) -> ClassIndices:
    """Return all rows, or `most` evenly spaced rows if there are more."""
    return rows[np.arange(min(most, len(rows))) * len(rows) // min(most, len(rows))]


class Folds:
    """Features (n, D) with class indices (n,), and held-out rows (m,) divided into `FOLDS` parts.

    Near-duplicates, which share a number in `groups` (n,), are in the same part.
    """

    def __init__(
        self, features: Features, labels: ClassIndices, rows: ClassIndices, groups: ClassIndices
    ) -> None:
        self.features, self.labels, self.rows = features, labels, rows
        _, self.group = np.unique(groups, return_inverse=True)
        order = np.random.default_rng(0).permutation(self.group.max() + 1)
        self.fold_id = (order % FOLDS)[self.group[rows]]  # (m,)

    def fit_without(self, fold: int, label: int | None = None) -> tuple["Reference", Distances]:
        """Fit to all rows outside one fold and, if `label` is given, outside that class.

        Near-duplicates of rows in the fold are left out too. At most `MAX_FITTED` rows are used.

        Returns:
            The fit, with an infinite limit, and the squared distances of the rows in the fold,
            except for rows of the left-out class.
        """
        tested = self.rows[self.fold_id == fold]
        kept = ~np.isin(self.group, self.group[tested]) & (self.labels != label)
        some = thinned(np.flatnonzero(kept), MAX_FITTED)
        found = fit_classes(self.features[some], self.labels[some])
        known = tested[self.labels[tested] != label]
        return found, found.distances(self.features[known])

    def distances(self) -> Distances:
        """Return the squared distances (m,) of the held-out rows, each from a fit to other rows."""
        return np.concatenate([self.fit_without(fold)[1] for fold in range(FOLDS)])

    def leave_classes_out(self) -> list[tuple[int, int]]:
        """Leave out up to `CLASSES_LEFT_OUT` classes, one at a time, and treat each as unknown.

        Several fits are made for each class. Each fit leaves out the class and one fold. The limit
        is estimated from the distances of the other classes' images in these folds, and the
        distances of the left-out class's images are compared with it. A class is skipped if there
        are too few distances to estimate the limit.

        Returns:
            Two counts for each left-out class: its held-out images that exceed the limit (mean over
            the fits, rounded), and all its held-out images.
        """
        counts = list[tuple[int, int]]()
        parts = next(parts for most, parts in PARTS_OF if len(self.rows) < most)
        for number, label in enumerate(
            thinned(np.unique(self.labels[self.rows]), CLASSES_LEFT_OUT)
        ):
            own = self.rows[self.labels[self.rows] == label]
            fits = [self.fit_without((number + i) % FOLDS, int(label)) for i in range(parts)]
            known = np.concatenate([distances for _, distances in fits])
            if len(known) < MIN_HELD_OUT // 2:
                continue
            unknown = np.concatenate([fit.distances(self.features[own]) for fit, _ in fits])
            noted = round(float((unknown > limit_of(known)).mean()) * len(own))
            counts.append((noted, len(own)))
        return counts


def limit_of(distances: Distances) -> float:
    """Return the limit that a fraction `IN_DISTRIBUTION` of new images is expected not to exceed.

    With `ENOUGH_DISTANCES` or more squared distances (n,), this is their quantile. With fewer, the
    quantile depends on the few largest (on the largest alone, up to 49), so the limit is the
    geometric mean of the quantile and that of a fitted distribution, weighted by n and
    `ENOUGH_DISTANCES` - n. The fitted distribution is normal after the cube root is taken, as a sum
    of squares nearly is (Wilson & Hilferty 1931, "The distribution of chi-square", PNAS 17).
    """
    quantile = float(np.quantile(distances, IN_DISTRIBUTION, method="weibull"))
    missing = 1 - len(distances) / ENOUGH_DISTANCES
    if missing <= 0:
        return quantile
    roots = np.cbrt(distances)
    z = NormalDist().inv_cdf(IN_DISTRIBUTION)
    fitted = float(roots.mean() + z * roots.std(ddof=1)) ** 3
    return quantile ** (1 - missing) * fitted**missing


def expected_false_alarms(distances: int) -> float:
    """Return the expected fraction of new images above the limit from a number of distances.

    The parameters of the fitted distribution are estimates, so it is exceeded slightly more often
    than by 1 - `IN_DISTRIBUTION`; the excess is about 0.18 / n (first-order expansion of the
    prediction limit of a normal sample, (z³ + 3 z) / 4n times the density at z).
    """
    return 1 - IN_DISTRIBUTION + 0.18 * max(0.0, 1 / distances - 1 / ENOUGH_DISTANCES)


def fit_classes(features: Features, labels: ClassIndices) -> Reference:
    """Fit means and scatter to features (n, D) and class indices (n,), with an infinite limit."""
    kinds = np.unique(labels)
    centre = features.mean(axis=0, dtype=np.float64)
    x = features - centre.astype(np.float32)
    means = np.stack([x[labels == kind].mean(axis=0, dtype=np.float64) for kind in kinds])  # (C, D)
    within = whitener(x - means.astype(np.float32)[np.searchsorted(kinds, labels)])
    return Reference(
        centre=centre.astype(np.float32),
        means=(means @ within).astype(np.float32),
        within=within.astype(np.float32),
        limit=math.inf,
    )


def whitener(x: Features) -> Distances:
    """Return the whitening matrix (D, D) that gives centred rows (n, D) unit scatter.

    The scatter is shrunk towards a sphere by the amount that minimises the expected error (oracle
    approximating shrinkage, Chen et al. 2010, 0907.4698).
    """
    n, d = x.shape
    scatter = (x.T @ x).astype(np.float64) / n
    sphere, squares = np.trace(scatter) / d, (scatter**2).sum()
    spread = squares + (sphere * d) ** 2
    shrink = min(1.0, spread / max(1e-30, (n + 1) * (squares - (sphere * d) ** 2 / d)))
    least = max(shrink * sphere, 1e-6 * sphere) + 1e-12  # lower bound on each eigenvalue
    scatter = (1 - shrink) * scatter + least * np.eye(d)
    return np.asarray(np.linalg.inv(np.linalg.cholesky(scatter)).T)


def read_reference(run: Path, width: int) -> Reference | None:
    """Return the reference of a run directory, or None if there is no such file.

    Raises:
        RunError: The file cannot be read, is damaged or has more than `width` dimensions.
    """
    path = run / REFERENCE_FILE
    try:
        arrays = read_npz(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise damaged_reference(path, describe_os_error(error)) from error
    except ValueError as error:
        raise damaged_reference(path, str(error)) from error
    if not are_statistics(arrays):
        raise damaged_reference(path, "it does not contain feature statistics")
    found = Reference.from_arrays(arrays)
    shapes = (found.centre.shape, found.within.shape, found.means.shape[1:])
    size = min(width, found.centre.size)  # less than `width` if the head reads several blocks
    if shapes != ((size,), (size, size), (size,)) or not len(found.means):
        raise damaged_reference(path, f"it does not match {width}-dimensional features")
    return found


def are_statistics(arrays: Mapping[str, Features]) -> bool:
    """Return whether the arrays have the names, types, ranks and value ranges of a reference."""
    required = {"centre": 1, "means": 2, "within": 2, "limit": 0}
    optional = {"unknown": 0, "trained": 0}
    if not required.keys() <= arrays.keys() <= (required | optional).keys():
        return False
    fits = (a.ndim == (required | optional)[n] and a.dtype == np.float32 for n, a in arrays.items())
    if not all(fits) or not all(bool(np.isfinite(arrays[name]).all()) for name in required):
        return False
    unknown = arrays.get("unknown", np.float32(0))
    return bool(np.isnan(unknown) or 0 <= unknown <= 1)


def damaged_reference(path: Path, reason: str) -> RunError:
    """Return the error for a damaged reference file."""
    return RunError(
        f"damaged run: {path} ({reason})",
        fix="restore the file from a backup, or delete it to disable out-of-distribution notes",
    )
