"""Iterative stratification of images with several labels."""

from typing import Any

import numpy as np
import pytest

from vitft.data import stratify


def draw(images: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Labels of images: frequent, rare and correlated ones, and images without labels."""
    random = np.random.default_rng(seed)
    first = random.random((images, 4)) < (0.5, 0.2, 0.05, 0.02)
    return np.concatenate([first, first[:, :1] & first[:, 1:2]], axis=1).astype(np.int64)


@pytest.mark.parametrize("seed", range(5))
def test_each_part_gets_its_fraction_of_every_label(seed: int) -> None:
    counts = draw(1000, seed)

    part = stratify(counts, np.ones(1000, np.int64), (0.2, 0.8), seed=seed)

    wanted = 0.2 * counts.sum(axis=0)
    assert np.abs(counts[part == 0].sum(axis=0) - wanted).max() <= 2.5
    assert abs((part == 0).sum() - 200) <= 2


def test_a_label_of_two_images_is_on_both_sides() -> None:
    counts = np.zeros((50, 2), np.int64)
    counts[:25, 0], counts[[3, 40], 1] = 1, 1

    part = stratify(counts, np.ones(50, np.int64), (0.2, 0.8), seed=0, at_least=1)

    assert sorted(part[[3, 40]]) == [0, 1]


def test_the_seed_determines_the_parts_and_groups_stay_whole() -> None:
    counts, sizes = np.array([[3, 0], [0, 2], [1, 1], [2, 0], [0, 3]]), np.array([3, 2, 1, 2, 3])

    first = stratify(counts, sizes, (0.5, 0.5), seed=1)

    assert first.tolist() == stratify(counts, sizes, (0.5, 0.5), seed=1).tolist()
    assert {*first.tolist()} == {0, 1}


def test_units_that_are_assigned_already_count() -> None:
    counts, fixed = np.ones((6, 1), np.int64), np.array([0, -1, -1, 0, -1, 1])

    part = stratify(counts, np.ones(6, np.int64), (0.5, 0.5), seed=None, fixed=fixed)

    assert part[fixed >= 0].tolist() == [0, 0, 1]
    assert part.sum() == 3
    full = np.array([0, 0, 0, 0, -1, -1])
    assert stratify(counts, np.ones(6, np.int64), (0.5, 0.5), seed=None, fixed=full).tolist() == [
        0, 0, 0, 0, 1, 1,
    ]  # fmt: skip
