"""Out-of-distribution detection from features (Mahalanobis distance to the nearest class).

The distance of a feature from a class mean is measured in units of the within-class scatter. An
image is out of distribution if its distance is above the 98th percentile of the distances of
held-out images; if they are few, a fitted distribution helps to estimate it. This is a property of
the image, not of its prediction. Methods based on nearest neighbours, on the largest probability or
on a combination detect slightly more images of unknown classes, but fewer images of entirely
different kinds (benchmarks/notebook/out_of_distribution.md).

Training narrows the features of the last block to what distinguishes the classes, so images of
other kinds may look like one of them. If layers before the head were trained, the distance of the
intermediate feature, from an earlier block, is therefore combined with that of the last one.

Notation: n images, D feature dimensions, C classes, P kinds of features (1 or 2).

Source: Lee et al. 2018, "A simple unified framework for detecting out-of-distribution samples",
https://arxiv.org/abs/1807.03888, which also combines the distances in several layers.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from vitft.features.reference import ClassStatistics, Distances, Features, Reference, combined
from vitft.metrics.results import OodResults
from vitft.system.text import percent

_ClassIndices = np.ndarray[Any, np.dtype[np.int64]]
_Bools = np.ndarray[Any, np.dtype[np.bool_]]

_MAX_DIMENSIONS = 1_024
"""Maximum number of dimensions of each kind of feature; if there are more, only the leading ones
are used. This limits the size of the file to 4 MB for each kind, plus 4 kB for each class."""
_IN_DISTRIBUTION = 0.98  # fraction of held-out images to classify as in distribution
_ENOUGH_DISTANCES = 200  # whose quantile is the limit, without a fitted distribution
_MIN_HELD_OUT = 20  # minimum number of held-out images from which to estimate the limit
_FOLDS = 5  # parts of the held-out images; each is compared with a fit to all others
_MAX_FITTED = 5_000  # held-out images, and images in each fit
_PARTS_OF = ((100, _FOLDS), (500, 3), (math.inf, 2))
"""Pairs (upper limit, number of fits). The first pair whose limit exceeds the number of held-out
images determines how many fits are made for each left-out class."""
_CLASSES_LEFT_OUT = 10  # maximum number of classes to leave out, one at a time
_MIN_SPREAD = 1e-3
"""Minimum standard deviation of cube roots of squared distances; that of normally distributed
features is above 0.1, so only that of constant features is lower."""
TOO_HIGH = "may be too high, because the features were trained on these classes"
"""What is said of the rates for left-out classes if the features were trained on them."""


def alarms_text(results: OodResults) -> str:
    """Return the fraction of new images that are flagged, e.g. `2%`.

    Trained features separate the held-out images, which also chose the epoch, better than others.
    """
    trained = results["features_trained"]
    return "at least " * trained + percent(results["false_alarms"] or 0, 0)


def fit_reference(
    features: Features,
    labels: _ClassIndices,
    held_out: _Bools,
    groups: _ClassIndices,
    *,
    trained: bool,
    intermediate: Features | None = None,
    intermediate_blocks: int = 0,
) -> tuple[Reference | None, OodResults]:
    """Fit a reference to inputs to the head (n, D) and classes (n,), and estimate detection rates.

    Args:
        features: Inputs to the head.
        labels: Class indices.
        held_out: Mask (n,) of the images that represent new images: all images if the layers before
            the head are frozen, otherwise the images not used for training.
        groups: Group numbers (n,), shared by near-duplicates, which are held out together.
        trained: Whether the features were trained on these classes.
        intermediate: Intermediate features (n, D) to use as well, if any.
        intermediate_blocks: Number of blocks before the intermediate features.

    Returns:
        The reference, or None if there are too few images, and the results for audit.json.
    """
    kinds = np.unique(labels)
    results = no_reference(None, len(features), int(held_out.sum()), trained=trained)
    if results["held_out"] < _MIN_HELD_OUT:
        reason = f"too few held-out images ({results['held_out']} of the {_MIN_HELD_OUT} needed)"
        return None, results | {"reason": reason}
    if len(features) < 2 * len(kinds):
        return None, results | {"reason": "there are fewer than two images per class on average"}
    used = [x[:, :_MAX_DIMENSIONS] for x in (features, intermediate) if x is not None]
    rows = _thinned(np.flatnonzero(held_out), _MAX_FITTED)
    folds = _Folds(used, labels, rows, groups)
    if left_out := folds.leave_classes_out():
        results["unknown_class_range"] = min(left_out), max(left_out)
        results["classes_left_out"] = len(left_out)
    results["held_out"] = len(rows)
    results["false_alarms"] = expected_false_alarms(len(rows))
    distances = folds.distances()
    units = _units_of(distances)
    fits = [_fit_classes(x, labels).scaled(unit) for x, unit in zip(used, units, strict=True)]
    found = Reference(
        **fits[0].arrays(),
        limit=limit_of(_scores_of(distances, units)),
        unknown=None if trained else results["unknown_class_range"],  # may be too high
        intermediate_blocks=intermediate_blocks,
        intermediate=fits[1] if len(fits) > 1 else None,
    )
    return found, results


def _units_of(distances: Distances) -> list[float]:
    """Return the units of P kinds of squared distances (P, n), as in `Reference`."""
    if len(distances) == 1:
        return [1.0]
    spreads = np.cbrt(distances).std(axis=1, ddof=1)
    return [max(float(spread), _MIN_SPREAD) ** 3 for spread in spreads]


def _scores_of(distances: Distances, units: Sequence[float]) -> Distances:
    """Return the scores (n,) of P kinds of squared distances (P, n), given their units (P,)."""
    return combined(distances / np.array(units)[:, None]) if len(units) > 1 else distances[0]


def no_reference(
    reason: str | None, images: int = 0, held_out: int = 0, *, trained: bool = False
) -> OodResults:
    """Return results without detection rates; `reason` states why the run cannot flag images."""
    return {
        "images": images,
        "held_out": held_out,
        "reason": reason,
        "false_alarms": None,
        "unknown_class_range": None,
        "classes_left_out": 0,
        "features_trained": trained,
    }


def _thinned(rows: _ClassIndices, most: int) -> _ClassIndices:
    """Return all rows, or `most` evenly spaced rows if there are more."""
    return rows[np.arange(min(most, len(rows))) * len(rows) // min(most, len(rows))]


class _Folds:
    """P kinds of features, each (n, D), with classes (n,) and held-out rows (m,) in folds.

    Near-duplicates, which share a number in `groups` (n,), are in the same fold.
    """

    def __init__(
        self,
        features: Sequence[Features],
        labels: _ClassIndices,
        rows: _ClassIndices,
        groups: _ClassIndices,
    ) -> None:
        self.features, self.labels, self.rows = features, labels, rows
        _, self.group = np.unique(groups, return_inverse=True)
        order = np.random.default_rng(0).permutation(self.group.max() + 1)
        self.fold_id = (order % _FOLDS)[self.group[rows]]  # (m,)

    def fit_without(
        self, fold: int, label: int | None = None
    ) -> tuple[list[ClassStatistics], Distances]:
        """Fit outside a fold and class; return fits, and squared distances (P, k) in the fold."""
        tested = self.rows[self.fold_id == fold]
        kept = ~np.isin(self.group, self.group[tested]) & (self.labels != label)
        some = _thinned(np.flatnonzero(kept), _MAX_FITTED)
        fits = [_fit_classes(x[some], self.labels[some]) for x in self.features]
        return fits, self.squares(fits, tested[self.labels[tested] != label])

    def squares(self, fits: Sequence[ClassStatistics], rows: _ClassIndices) -> Distances:
        """Return the squared distances (P, k) of rows from the fits to each kind of features."""
        pairs = zip(fits, self.features, strict=True)
        return np.stack([fit.distances(x[rows]) for fit, x in pairs])

    def distances(self) -> Distances:
        """Return the squared distances (P, m) of held-out rows, by fold, from fits to others."""
        return np.concatenate([self.fit_without(fold)[1] for fold in range(_FOLDS)], axis=1)

    def leave_classes_out(self) -> list[float]:
        """Return the fraction of the images of each left-out class that exceed the limit.

        Each of several fits leaves out the class and one fold, whose other images set the limit.
        """
        fractions = list[float]()
        parts = next(parts for most, parts in _PARTS_OF if len(self.rows) < most)
        for number, label in enumerate(
            _thinned(np.unique(self.labels[self.rows]), _CLASSES_LEFT_OUT)
        ):
            own = self.rows[self.labels[self.rows] == label]
            found = [self.fit_without((number + i) % _FOLDS, int(label)) for i in range(parts)]
            known = np.concatenate([distances for _, distances in found], axis=1)
            if known.shape[1] < _MIN_HELD_OUT // 2:  # too few to estimate the limit
                continue
            unknown = np.concatenate([self.squares(fits, own) for fits, _ in found], axis=1)
            units = _units_of(known)
            limit = limit_of(_scores_of(known, units))
            fractions.append(float((_scores_of(unknown, units) > limit).mean()))
        return fractions


def limit_of(distances: Distances) -> float:
    """Return the limit that a fraction `_IN_DISTRIBUTION` of new images is expected not to exceed.

    With `_ENOUGH_DISTANCES` or more squared distances or scores (n,), this is their quantile. With
    fewer, the quantile depends on the few largest (on the largest alone, up to 49), so the limit is
    the geometric mean of the quantile and that of a fitted distribution, weighted by n and
    `_ENOUGH_DISTANCES` - n. The fitted distribution is normal after the cube root is taken, as a
    sum of squares nearly is (Wilson & Hilferty 1931, "The distribution of chi-square", PNAS 17).
    """
    quantile = float(np.quantile(distances, _IN_DISTRIBUTION, method="weibull"))
    missing = 1 - len(distances) / _ENOUGH_DISTANCES
    if missing <= 0:
        return quantile
    roots = np.cbrt(distances)
    z = NormalDist().inv_cdf(_IN_DISTRIBUTION)
    fitted = float(roots.mean() + z * roots.std(ddof=1)) ** 3
    return quantile ** (1 - missing) * fitted**missing


def expected_false_alarms(distances: int) -> float:
    """Return the expected fraction of new images above the limit from a number of distances.

    The parameters of the fitted distribution are estimates, so it is exceeded slightly more often
    than by 1 - `_IN_DISTRIBUTION`; the excess is about 0.18 / n (first-order expansion of the
    prediction limit of a normal sample, (z³ + 3 z) / 4n times the density at z).
    """
    return 1 - _IN_DISTRIBUTION + 0.18 * max(0.0, 1 / distances - 1 / _ENOUGH_DISTANCES)


def _fit_classes(features: Features, labels: _ClassIndices) -> ClassStatistics:
    """Fit means and scatter to features (n, D) and class indices (n,)."""
    kinds = np.unique(labels)
    centre = features.mean(axis=0, dtype=np.float64)
    x = features - centre.astype(np.float32)
    means = np.stack([x[labels == kind].mean(axis=0, dtype=np.float64) for kind in kinds])  # (C, D)
    within = whitener(x - means.astype(np.float32)[np.searchsorted(kinds, labels)])
    return ClassStatistics(
        centre=centre.astype(np.float32),
        means=(means @ within).astype(np.float32),
        within=within.astype(np.float32),
    )


def whitener(x: Features) -> Distances:
    """Return the whitening matrix (D, D) that gives centred rows (n, D) unit scatter.

    The scatter is shrunk towards a sphere by the amount that minimises the expected error (oracle
    approximating shrinkage, Chen et al. 2010, 0907.4698).
    """
    import torch  # pages of a run name the rates without it

    n, d = x.shape
    scatter = (x.T @ x).astype(np.float64) / n
    sphere, squares = np.trace(scatter) / d, (scatter**2).sum()
    spread = squares + (sphere * d) ** 2
    shrink = min(1.0, spread / max(1e-30, (n + 1) * (squares - (sphere * d) ** 2 / d)))
    least = max(shrink * sphere, 1e-6 * sphere) + 1e-12  # lower bound on each eigenvalue
    scatter = (1 - shrink) * scatter + least * np.eye(d)
    root = torch.linalg.cholesky(torch.from_numpy(scatter))
    # Inverts the triangle in a third of the time of numpy.linalg.inv, which does not know of it
    inverse = torch.linalg.solve_triangular(root, torch.eye(d).to(root), upper=False)
    return np.asarray(inverse.T.numpy())
