"""Statistics of a run's features, with which out-of-distribution images are detected.

They are fitted in `ood`, which explains the method, and stored in the run directory.

Notation: n images, D feature dimensions, C classes, P kinds of features (1 or 2).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from vitft.metrics.results import Interval
from vitft.models.card import AnyConfig
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import RunError
from vitft.system.npz import read_npz
from vitft.system.text import describe_os_error, percent

Features = np.ndarray[Any, np.dtype[np.float32]]
Distances = np.ndarray[Any, np.dtype[np.float64]]

REFERENCE_FILE = "reference.npz"
_STATISTICS = ("centre", "means", "within")  # names of the arrays of `ClassStatistics`
_USUALLY_NOT = 0.2  # up to this flagged fraction, images of a class usually go unnoticed
_INTERMEDIATE = "intermediate_"  # prefix of the arrays of the intermediate feature


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassStatistics:
    """Means and scatter of one kind of feature by class; classes without images are omitted."""

    centre: Features  # mean of all features, (D,)
    means: Features  # class means minus the centre, whitened by the within-class scatter: (C, D)
    within: Features
    """Whitening matrix (D, D), which gives centred features equal scatter in all directions within
    classes."""

    def distances(self, features: Features) -> Distances:
        """Return the squared distance (n,) of each feature from the nearest class mean.

        Only as many leading dimensions of the features (n, D) are used as there are here.
        """
        x = features[:, : len(self.centre)] - self.centre
        z = x.astype(np.float64) @ self.within
        means = self.means.astype(np.float64)
        squares = (z**2).sum(1)[:, None] - 2 * z @ means.T + (means**2).sum(1)
        return np.asarray(np.maximum(squares.min(axis=1), 0))

    def scaled(self, unit: float) -> "ClassStatistics":
        """Return the same statistics with all squared distances divided by `unit`."""
        factor = np.float32(unit**-0.5)
        return ClassStatistics(
            centre=self.centre, means=self.means * factor, within=self.within * factor
        )

    def arrays(self) -> dict[str, Features]:
        """Return the fields by name."""
        return {name: np.asarray(getattr(self, name), np.float32) for name in _STATISTICS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference(ClassStatistics):
    """Statistics of a run's features: the inputs to the head and, if trained, earlier features.

    With an intermediate feature, squared distances are in units in which the cube roots of those of
    held-out images have a standard deviation of one, so that both kinds of features count equally.
    """

    limit: float  # score above which an image is out of distribution
    unknown: Interval | None = None
    """Lowest and highest fraction of a left-out class whose images have scores above `limit`; None
    if not measured, or if the features were trained on these classes."""
    intermediate_blocks: int = 0  # before the intermediate feature; 0 if it is not used
    intermediate: ClassStatistics | None = None  # of the intermediate feature, if used

    def scores(self, features: Features, intermediate: Features | None = None) -> Distances:
        """Return the score (n,) of each image, a squared distance if it has only one feature."""
        if self.intermediate is None:
            return self.distances(features)
        assert intermediate is not None, "the intermediate features are missing"
        return combined([self.distances(features), self.intermediate.distances(intermediate)])

    def are_unlike(self, features: Features, intermediate: Features | None = None) -> list[bool]:
        """Return, for each image, whether it is out of distribution (see `scores`)."""
        return [bool(score > self.limit) for score in self.scores(features, intermediate)]

    def arrays(self) -> dict[str, Any]:
        """Return the fields as arrays for `RunDir.write_arrays`."""
        # `super()` does not work in a method of a class with slots that a decorator recreates.
        arrays = ClassStatistics.arrays(self)
        arrays["limit"] = np.asarray(self.limit, np.float32)
        if self.unknown is not None:
            arrays["unknown_range"] = np.asarray(self.unknown, np.float32)
        if self.intermediate is not None:
            arrays[f"{_INTERMEDIATE}blocks"] = np.asarray(self.intermediate_blocks, np.float32)
            more = self.intermediate.arrays().items()
            arrays |= {f"{_INTERMEDIATE}{name}": array for name, array in more}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Create a reference from the output of `arrays`."""
        by_class = arrays.get("unknown_range")
        intermediate, blocks = None, int(arrays.get(f"{_INTERMEDIATE}blocks", 0))
        if blocks:
            intermediate = ClassStatistics(
                **{n: arrays[f"{_INTERMEDIATE}{n}"] for n in _STATISTICS}
            )
        return cls(
            **{name: arrays[name] for name in _STATISTICS},
            limit=float(arrays["limit"]),
            unknown=(float(by_class[0]), float(by_class[1])) if by_class is not None else None,
            intermediate_blocks=blocks,
            intermediate=intermediate,
        )

    def power(self) -> str:
        """Return how many images of unknown classes are noticed, or "" if it was not measured."""
        return "" if self.unknown is None else power_text(self.unknown)


def power_text(by_class: Interval) -> str:
    """Return how many images of similar classes are flagged as unlike the training images.

    `by_class` has the lowest and the highest fraction of a class that was left out.
    """
    share = " to ".join(dict.fromkeys(percent(bound, 0) for bound in by_class))
    if by_class[1] < _USUALLY_NOT:
        return f"images of similar classes usually go unnoticed ({share} are flagged)"
    return f"of images of similar classes, {share} are flagged, depending on the class"


def combined(distances: Sequence[Distances]) -> Distances:
    """Combine scaled squared distances of P kinds of features, each (n,), to one score (n,).

    The cube root of a squared distance is nearly normal (see `limit_of`). The cube root of the
    score is the sum of these roots.
    """
    return np.asarray(sum(np.cbrt(squares) for squares in distances) ** 3)


def read_reference(run: Path, width: int, config: AnyConfig) -> Reference | None:
    """Return the reference of a run directory, or None if there is no such file.

    Raises:
        RunError: The file is damaged, or does not fit features of `width` dimensions of the model.
    """
    path = run / REFERENCE_FILE
    try:
        arrays = read_npz(path)
        if not _are_statistics(arrays):
            raise ValueError("it does not contain feature statistics")
        found = Reference.from_arrays(arrays)
        if not _fits_width(found, width):
            raise ValueError(f"it does not match {width}-dimensional features")
        if found.intermediate is not None and not (
            isinstance(config, ViTConfig)
            and found.intermediate_blocks <= config.depth - config.read_blocks
            and _fits_width(found.intermediate, config.width)
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


def _fits_width(found: ClassStatistics, width: int) -> bool:
    """Return whether statistics have consistent shapes, and at most `width` dimensions."""
    shapes = (found.centre.shape, found.within.shape, found.means.shape[1:])
    size = min(width, found.centre.size)  # less than `width` if the head reads several blocks
    return shapes == ((size,), (size, size), (size,)) and len(found.means) > 0


def _are_statistics(arrays: Mapping[str, Features]) -> bool:
    """Return whether the arrays have the names, types, ranks and value ranges of a reference."""
    ranks = {"centre": 1, "means": 2, "within": 2}
    required = ranks | {"limit": 0}
    if f"{_INTERMEDIATE}blocks" in arrays:
        required |= {f"{_INTERMEDIATE}{name}": rank for name, rank in ranks.items()}
        required |= {f"{_INTERMEDIATE}blocks": 0}
    known = required | {"unknown_range": 1}
    if not required.keys() <= arrays.keys() <= known.keys():
        return False
    fits = (a.ndim == known[n] and a.dtype == np.float32 for n, a in arrays.items())
    if not all(fits) or not all(bool(np.isfinite(arrays[name]).all()) for name in required):
        return False
    by_class = arrays.get("unknown_range", np.zeros(2))
    blocks = float(arrays.get(f"{_INTERMEDIATE}blocks", 1))
    is_block = blocks >= 1 and blocks.is_integer()
    return is_block and by_class.shape == (2,) and bool(((by_class >= 0) & (by_class <= 1)).all())
