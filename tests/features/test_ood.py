"""Out-of-distribution detection."""

from pathlib import Path

import numpy as np
import pytest

from vitft.features.ood import REFERENCE_FILE, Reference, fit_reference, read_reference
from vitft.system.errors import RunError

RANDOM = np.random.default_rng(0)
SCATTER = np.eye(12) + RANDOM.normal(size=(12, 12)) / 5
CENTRES = RANDOM.normal(size=(3, 12)) * 6


def drawn(count: int, shift: float = 0.0, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Features around three centres with a common, slanted scatter; and their labels."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    noise = random.normal(size=(count, 12)) @ SCATTER
    return (CENTRES[labels] + noise + shift * random.normal(size=12)).astype(np.float32), labels


@pytest.fixture
def reference() -> Reference:
    features, labels = drawn(600)
    found = fit_reference(features, labels, drawn(300, seed=2)[0])
    assert found is not None
    return found


def test_foreign_features_are_separated_from_new_ones_of_the_same_classes(
    reference: Reference,
) -> None:
    same = reference.are_unlike(drawn(1000, seed=3)[0])
    foreign = reference.are_unlike(drawn(1000, shift=30.0, seed=4)[0])

    assert np.mean(same) < 0.05  # 1 % is meant, on 300 held-out features
    assert np.mean(foreign) == 1


def test_distances_are_in_units_of_the_scatter_within_classes(reference: Reference) -> None:
    features, labels = drawn(2000, seed=5)

    inverse = np.linalg.inv(SCATTER.T @ SCATTER)
    offsets = features - CENTRES[labels]
    expected = np.einsum("nd,de,ne->n", offsets, inverse, offsets)  # Mahalanobis, by definition

    assert np.corrcoef(reference.distances(features), expected)[0, 1] > 0.95
    assert reference.distances(features).mean() == pytest.approx(12, rel=0.1)  # D of them


def test_fewer_images_than_numbers_still_give_finite_distances() -> None:
    features, labels = drawn(9)
    wide = np.concatenate([features, np.zeros((9, 40), np.float32)], axis=1)

    found = fit_reference(wide, labels, np.concatenate([wide, wide, wide]))

    assert found is not None
    assert np.isfinite(found.distances(wide)).all()


def test_too_few_images_give_no_reference() -> None:
    features, labels = drawn(30)

    assert fit_reference(features, labels, features[:5]) is None
    assert fit_reference(features[:4], labels[:4], features) is None


def test_the_reference_is_saved_with_the_run_and_read_back(
    reference: Reference, tmp_path: Path
) -> None:
    np.savez_compressed(tmp_path / REFERENCE_FILE, **reference.arrays())

    found = read_reference(tmp_path, 12)

    assert found is not None
    features = drawn(50, seed=6)[0]
    assert found.distances(features) == pytest.approx(reference.distances(features), rel=1e-5)
    assert read_reference(tmp_path / "elsewhere", 12) is None


@pytest.mark.parametrize("damage", ["cut", "width"])
def test_a_damaged_one_is_refused(reference: Reference, tmp_path: Path, damage: str) -> None:
    path = tmp_path / REFERENCE_FILE
    np.savez_compressed(path, **reference.arrays())
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-40])

    with pytest.raises(RunError, match="damaged run"):
        read_reference(tmp_path, 12 if damage == "cut" else 13)
