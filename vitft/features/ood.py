"""Out-of-distribution detection from features (Mahalanobis distance to the nearest class).

The distance of a feature from a class mean is measured in units of the within-class scatter. An
image is out of distribution if its distance is above the 98th percentile of the distances of
held-out images; if they are few, a fitted distribution helps to estimate it. Other methods detect
slightly more images of unknown classes, but fewer images of entirely different kinds
(benchmarks/notebook/out_of_distribution.md).

Training narrows the features of the last block to what distinguishes the classes, so images of
other kinds may look like one of them. If layers before the head were trained, the distance of the
intermediate feature, from an earlier block, is therefore combined with that of the last one.

Notation: n images, D feature dimensions, C classes, P kinds of features (1 or 2).

Source: Lee et al. 2018, "A simple unified framework for detecting out-of-distribution samples",
https://arxiv.org/abs/1807.03888, which also combines the distances in several layers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, Self

import numpy as np

from vitft.metrics.intervals import Interval
from vitft.metrics.results import OodResults
from vitft.models.card import AnyConfig
from vitft.system.errors import RunError
from vitft.system.tensors import read_npz
from vitft.system.text import describe_os_error, percent

Features = np.ndarray[Any, np.dtype[np.float32]]
_Distances = np.ndarray[Any, np.dtype[np.float64]]
_ClassIndices = np.ndarray[Any, np.dtype[np.int64]]
_Bools = np.ndarray[Any, np.dtype[np.bool_]]

REFERENCE_FILE = "reference.npz"
_STATISTICS = ("centre", "means", "within")  # fields of `Reference` for each kind of feature
_MAX_DIMENSIONS = 1_024  # of each kind of feature; of more, the leading ones are used
_IN_DISTRIBUTION = 0.98  # fraction of held-out images to classify as in distribution
_ENOUGH_DISTANCES = 200  # whose quantile is the limit, without a fitted distribution
_MIN_HELD_OUT = 20  # minimum number of held-out images from which to estimate the limit
_FOLDS = 5  # parts of the held-out images; each is compared with a fit to all others
_MAX_FITTED = 5_000  # held-out images, and images in each fit
_PARTS_OF = ((100, _FOLDS), (500, 3), (math.inf, 2))
"""Number of fits for each left-out class, up to so many held-out images."""
_CLASSES_LEFT_OUT = 10  # maximum number of classes to leave out, one at a time
_MIN_SPREAD = 1e-3  # of cube roots of squared distances; only that of constant features is lower
_USUALLY_NOT = 0.2  # up to this flagged fraction, images of a class usually go unnoticed
TOO_HIGH = "may be too high, because the features were trained on these classes"


def alarms_text(results: OodResults) -> str:
    """Return the fraction of new images that are flagged, e.g. `2%`."""
    # Trained features separate the held-out images, which also chose the epoch, better than others
    trained = results["features_trained"]
    return "at least " * trained + percent(results["false_alarms"] or 0, 0)


def power_text(by_class: Interval) -> str:
    """Return how many images of similar classes are flagged as unlike the training images.

    `by_class` has the lowest and the highest fraction of a class that was left out.
    """
    share = " to ".join(dict.fromkeys(percent(bound, 0) for bound in by_class))
    if by_class[1] < _USUALLY_NOT:
        return f"images of similar classes usually go unnoticed ({share} are flagged)"
    return f"of images of similar classes, {share} are flagged, depending on the class"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Means and scatter of a run's features by class; classes without images are omitted.

    With an intermediate feature, squared distances are in units in which the cube roots of those of
    held-out images have a standard deviation of one, so that both kinds of features count equally.
    """

    centre: Features  # mean of all features, (D,)
    means: Features  # class means minus the centre, whitened by the within-class scatter: (C, D)
    within: Features
    """Whitening matrix (D, D), which gives centred features equal scatter in all directions within
    classes."""
    limit: float = math.inf  # score above which an image is out of distribution
    unknown: Interval | None = None
    """Lowest and highest fraction of a left-out class whose images have scores above `limit`; None
    if not measured, or if the features were trained on these classes."""
    intermediate_blocks: int = 0  # before the intermediate feature; 0 if it is not used
    intermediate: "Reference | None" = None  # statistics of the intermediate feature, if used

    def distances(self, features: Features) -> _Distances:
        """Return the squared distance (n,) of each feature from the nearest class mean.

        Only as many leading dimensions of the features (n, D) are used as there are here.
        """
        x = features[:, : len(self.centre)] - self.centre
        z = x.astype(np.float64) @ self.within
        means = self.means.astype(np.float64)
        squares = (z**2).sum(1)[:, None] - 2 * z @ means.T + (means**2).sum(1)
        return np.asarray(np.maximum(squares.min(axis=1), 0))

    def scores(self, features: Features, intermediate: Features | None = None) -> _Distances:
        """Return the score (n,) of each image, a squared distance if it has only one feature."""
        if self.intermediate is None:
            return self.distances(features)
        assert intermediate is not None, "the intermediate features are missing"
        return _combined([self.distances(features), self.intermediate.distances(intermediate)])

    def are_unlike(self, features: Features, intermediate: Features | None = None) -> list[bool]:
        """Return, for each image, whether it is out of distribution."""
        return [bool(score > self.limit) for score in self.scores(features, intermediate)]

    def arrays(self) -> dict[str, Any]:
        """Return the fields as arrays for `RunDir.write_arrays`."""
        values: dict[str, Any] = {name: getattr(self, name) for name in (*_STATISTICS, "limit")}
        if self.unknown is not None:
            values["unknown_range"] = self.unknown
        if (more := self.intermediate) is not None:
            values["intermediate_blocks"] = self.intermediate_blocks
            values |= {f"intermediate_{name}": getattr(more, name) for name in _STATISTICS}
        return {name: np.asarray(value, np.float32) for name, value in values.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Create a reference from the output of `arrays`; raise a ValueError for other arrays."""
        has_intermediate, names = "intermediate_blocks" in arrays, {*_STATISTICS, "limit"}
        if has_intermediate:
            names |= {f"intermediate_{name}" for name in (*_STATISTICS, "blocks")}
        by_class = arrays.get("unknown_range", np.zeros(2))
        blocks = arrays.get("intermediate_blocks", np.ones(()))
        if not (
            names == arrays.keys() - {"unknown_range"}
            and all(a.dtype == np.float32 and np.isfinite(a).all() for a in arrays.values())
            and (arrays["limit"].shape, by_class.shape, blocks.shape) == ((), (2,), ())
            and ((by_class >= 0) & (by_class <= 1)).all()
            and blocks >= 1
            and float(blocks).is_integer()
        ):
            raise ValueError("it does not contain feature statistics")
        found = cls(
            **{name: arrays[name] for name in _STATISTICS},
            limit=float(arrays["limit"]),
            unknown=tuple(by_class.tolist()) if "unknown_range" in arrays else None,
        )
        if not has_intermediate:
            return found
        intermediate = cls(**{name: arrays[f"intermediate_{name}"] for name in _STATISTICS})
        return replace(found, intermediate_blocks=int(blocks), intermediate=intermediate)

    def fits(self, width: int) -> bool:
        """Return whether the shapes are consistent, with at most `width` dimensions."""
        shapes = (self.centre.shape, self.within.shape, self.means.shape[1:])
        size = min(width, self.centre.size)  # less than `width` if the head reads several blocks
        return shapes == ((size,), (size, size), (size,)) and len(self.means) > 0

    def power(self) -> str:
        """Return how many images of unknown classes are noticed, or "" if it was not measured."""
        return "" if self.unknown is None else power_text(self.unknown)


def _combined(distances: Sequence[_Distances] | _Distances) -> _Distances:
    """Combine scaled squared distances of P kinds of features, each (n,), to one score (n,).

    The cube root of a squared distance is nearly normal (see `limit_of`). The cube root of the
    score is the sum of these roots.
    """
    if len(distances) == 1:
        return distances[0]
    return np.asarray(sum(np.cbrt(squares) for squares in distances) ** 3)


def read_reference(run: Path, width: int, config: AnyConfig) -> Reference | None:
    """Return the reference of a run directory, or None if there is no such file.

    Raises:
        RunError: The file is damaged, or does not fit features of `width` dimensions of the model.
    """
    path = run / REFERENCE_FILE
    try:
        found = Reference.from_arrays(read_npz(path))
        if not found.fits(width):
            raise ValueError(f"it does not match {width}-dimensional features")
        if found.intermediate is not None and not (
            found.intermediate_blocks <= config.depth - config.read_blocks  # never of timm models
            and found.intermediate.fits(config.width)
        ):
            raise ValueError("its intermediate feature does not match the model")
        return found
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = describe_os_error(error) if isinstance(error, OSError) else str(error)
        raise RunError(
            f"damaged run: {path} ({reason})",
            fix="restore the file from a backup, or delete it to disable out-of-distribution notes",
        ) from error


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

    The reference is None if there are too few images; the results are for audit.json.
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
    results["false_alarms"] = _expected_false_alarms(len(rows))
    distances = folds.distances()
    if distances.shape[1] < _MIN_HELD_OUT:
        return None, results | {"reason": "nearly all images are in one group"}
    units = _units_of(distances)
    fits = [_fit_classes(x, labels, float(unit)) for x, (unit,) in zip(used, units, strict=True)]
    found = replace(
        fits[0],
        limit=limit_of(_combined(distances / units)),
        unknown=None if trained else results["unknown_class_range"],  # may be too high
        intermediate_blocks=intermediate_blocks,
        intermediate=fits[1] if len(fits) > 1 else None,
    )
    return found, results


def _units_of(distances: _Distances) -> _Distances:
    """Return the units (P, 1) of squared distances (P, n), as in `Reference`."""
    if len(distances) == 1:
        return np.ones((1, 1))
    spreads = np.cbrt(distances).std(axis=1, ddof=1, keepdims=True)
    return np.asarray(np.maximum(spreads, _MIN_SPREAD) ** 3)


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
    """P kinds of features, each (n, D), with classes (n,) and held-out rows (m,) in folds."""

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
    ) -> tuple[list[Reference], _Distances]:
        """Fit outside a fold and class; return fits, and squared distances (P, k) in the fold."""
        tested = self.rows[self.fold_id == fold]
        kept = ~np.isin(self.group, self.group[tested]) & (self.labels != label)
        some = _thinned(np.flatnonzero(kept), _MAX_FITTED)
        if not len(some):  # all groups are in the fold or have the class
            return [], np.empty((len(self.features), 0))
        fits = [_fit_classes(x[some], self.labels[some]) for x in self.features]
        return fits, self.squares(fits, tested[self.labels[tested] != label])

    def squares(self, fits: Sequence[Reference], rows: _ClassIndices) -> _Distances:
        """Return the squared distances (P, k) of rows from the fits to each kind of features."""
        pairs = zip(fits, self.features, strict=True)
        return np.stack([fit.distances(x[rows]) for fit, x in pairs])

    def distances(self) -> _Distances:
        """Return the squared distances (P, m) of held-out rows, by fold, from fits to others."""
        return np.concatenate([self.fit_without(fold)[1] for fold in range(_FOLDS)], axis=1)

    def leave_classes_out(self) -> list[float]:
        """Return the fraction of the images of each left-out class that exceed the limit."""
        fractions = list[float]()
        parts = next(parts for most, parts in _PARTS_OF if len(self.rows) < most)
        for number, label in enumerate(
            _thinned(np.unique(self.labels[self.rows]), _CLASSES_LEFT_OUT)
        ):
            own = self.rows[self.labels[self.rows] == label]
            # The other images of the folds that these fits leave out, too, set the limit
            found = [self.fit_without((number + i) % _FOLDS, int(label)) for i in range(parts)]
            known = np.concatenate([distances for _, distances in found], axis=1)
            if known.shape[1] < _MIN_HELD_OUT // 2:  # too few to estimate the limit
                continue
            unknown = np.concatenate([self.squares(fits, own) for fits, _ in found if fits], axis=1)
            units = _units_of(known)
            limit = limit_of(_combined(known / units))
            fractions.append(float((_combined(unknown / units) > limit).mean()))
        return fractions


def limit_of(distances: _Distances) -> float:
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


def _expected_false_alarms(distances: int) -> float:
    """Return the expected fraction of new images above the limit from a number of distances.

    The fitted distribution is an estimate, so it is exceeded more often, by about 0.18 / n (first-
    order expansion of the prediction limit of a normal sample, (z³ + 3 z) / 4n x the density at z).
    """
    return 1 - _IN_DISTRIBUTION + 0.18 * max(0.0, 1 / distances - 1 / _ENOUGH_DISTANCES)


def _fit_classes(features: Features, labels: _ClassIndices, unit: float = 1.0) -> Reference:
    """Fit means and scatter; all squared distances are divided by `unit`."""
    kinds = np.unique(labels)
    centre = features.mean(axis=0, dtype=np.float64)
    x = features - centre.astype(np.float32)
    means = np.stack([x[labels == kind].mean(axis=0, dtype=np.float64) for kind in kinds])  # (C, D)
    within = whitener(x - means.astype(np.float32)[np.searchsorted(kinds, labels)])
    factor = np.float32(unit**-0.5)
    return Reference(
        centre=centre.astype(np.float32),
        means=(means @ within).astype(np.float32) * factor,
        within=within.astype(np.float32) * factor,
    )


def whitener(x: Features) -> _Distances:
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
