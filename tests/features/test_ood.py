"""Out-of-distribution detection."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.covariance import OAS

from vitft.features import Reference, fit_reference, limit_of, read_reference, whitener
from vitft.models import ViTConfig

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
    found, _ = fitted(*drawn(900))
    assert found is not None
    return found


def fitted(
    features: np.ndarray, labels: np.ndarray, held_out: np.ndarray | None = None
) -> tuple[Reference | None, Any]:
    """Fit to images without copies, all of them held out unless stated."""
    everything = np.ones(len(labels), np.bool_)
    held = everything if held_out is None else held_out
    return fit_reference(features, labels, held, np.arange(len(labels)), trained=False)


def test_foreign_features_are_separated_from_new_ones_of_the_same_classes(
    reference: Reference,
) -> None:
    same = reference.are_unlike(drawn(1000, seed=3)[0])
    foreign = reference.are_unlike(drawn(1000, shift=30.0, seed=4)[0])

    assert 0.005 < np.mean(same) < 0.04  # 2% is meant
    assert np.mean(foreign) == 1


def test_distances_are_in_units_of_the_scatter_within_classes(reference: Reference) -> None:
    features, labels = drawn(2000, seed=5)

    inverse = np.linalg.inv(SCATTER.T @ SCATTER)
    offsets = features - CENTRES[labels]
    expected = np.einsum("nd,de,ne->n", offsets, inverse, offsets)  # Mahalanobis, by definition

    assert np.corrcoef(reference.distances(features), expected)[0, 1] > 0.95
    assert reference.distances(features).mean() == pytest.approx(12, rel=0.1)  # D of them


@pytest.mark.parametrize("images", [4, 15, 40, 1000])
def test_the_scatter_is_shrunk_as_scikit_learn_shrinks_it(images: int) -> None:
    x = np.random.default_rng(0).normal(size=(images, 12)) @ SCATTER * np.linspace(0.2, 2, 12)

    found = whitener(x.astype(np.float32))

    expected = OAS(assume_centered=True).fit(x)
    assert expected.shrinkage_ > 0.001
    assert found @ found.T == pytest.approx(np.linalg.inv(expected.covariance_), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("images", "limit"), [(200, 196.98), (249, 245), (999, 980)])
def test_the_limit_of_many_distances_is_their_quantile(images: int, limit: float) -> None:
    assert limit_of(np.arange(1, images + 1, dtype=np.float64)) == pytest.approx(
        limit  # 0.98 (n + 1)
    )


def false_alarms(images: int) -> float:
    """Return the fraction of new images above the limit: 2%, and more if it is an estimate."""
    return 0.02 + 0.18 * max(0, 1 / images - 1 / 200)


@pytest.mark.parametrize("images", [20, 40, 100, 199])
def test_the_limit_of_few_distances_is_steadier_than_their_quantile(images: int) -> None:
    random = np.random.default_rng(0)
    draws = random.chisquare(10, size=(2000, images))  # squared distances in ten dimensions

    limits = np.array([limit_of(draw) for draw in draws])
    quantiles = np.quantile(draws, 0.98, axis=1, method="weibull")

    exceeded = (random.chisquare(10, size=(2000, 1000)) > limits[:, None]).mean()
    assert exceeded == pytest.approx(false_alarms(images), abs=0.002)
    assert false_alarms(images) < 0.03
    if images < 150:
        assert limits.std() < 0.9 * quantiles.std()


def test_one_odd_image_among_few_does_not_set_the_limit() -> None:
    usual = np.random.default_rng(1).chisquare(10, size=39)

    limit = limit_of(np.append(usual, 1000.0))

    assert limit < 250  # their quantile is 1000, so nothing less foreign would be noticed


def test_fewer_images_than_dimensions_still_give_finite_distances() -> None:
    features, labels = drawn(30)
    wide = np.concatenate([features, np.zeros((30, 80), np.float32)], axis=1)

    found, _ = fitted(wide, labels)

    assert found is not None
    assert np.isfinite(found.distances(wide)).all()


@pytest.mark.parametrize("seed", range(4))
def test_the_limit_holds_for_new_images_though_the_fit_is_close_to_the_old_ones(seed: int) -> None:
    features, labels = drawn(120, seed=seed)  # 12 dimensions: distances of these are too small
    found, results = fitted(features, labels)

    assert found is not None
    new = found.are_unlike(drawn(5000, seed=100 + seed)[0])
    naive = np.quantile(found.distances(features), 0.98)
    assert np.mean(new) < 0.045 < np.mean(found.distances(drawn(5000, seed=99)[0]) > naive)
    assert results["false_alarms"] == pytest.approx(0.02, abs=0.001)


def test_images_on_which_the_features_were_trained_do_not_set_the_limit() -> None:
    features, labels = drawn(900)
    collapsed = np.arange(900) < 750
    features[collapsed] = CENTRES[labels[collapsed]] + (
        features[collapsed] - CENTRES[labels[collapsed]]
    ) * np.float32(0.1)

    found, results = fitted(features, labels, ~collapsed)

    assert found is not None
    assert results["held_out"] == 150
    assert np.mean(found.are_unlike(drawn(2000, seed=5)[0])) < 0.05
    naive, _ = fitted(features, labels)
    assert naive is not None
    assert np.mean(naive.are_unlike(drawn(2000, seed=5)[0])) > 0.08


def test_copies_are_held_out_together() -> None:
    features, labels = drawn(60)
    rows = np.repeat(np.arange(60), 4)  # each image four times: its copies would be very close
    everything = np.ones(240, np.bool_)

    apart, _ = fit_reference(features[rows], labels[rows], everything, rows, trained=False)
    naive, _ = fitted(features[rows], labels[rows])

    assert apart is not None
    assert naive is not None
    assert apart.limit > 1.1 * naive.limit


@pytest.mark.parametrize(
    ("distance", "low", "high"),
    [
        pytest.param(0.3, 0.0, 0.15, id="classes that look alike are hardly noticed"),
        pytest.param(8.0, 0.95, 1.0, id="classes that look different are"),
    ],
)
def test_the_power_is_that_on_classes_that_were_really_left_out(
    distance: float, low: float, high: float
) -> None:
    random = np.random.default_rng(0)
    labels = np.arange(1200) % 4
    centres = random.normal(size=(4, 12)) * distance
    features = (centres[labels] + random.normal(size=(1200, 12))).astype(np.float32)

    _, results = fitted(features, labels)

    real = []
    for label in range(4):
        known = labels != label
        without, _ = fitted(features[known], labels[known])
        assert without is not None
        real.append(np.mean(without.are_unlike(features[~known])))
    assert results["unknown_class_range"] is not None
    least, most = results["unknown_class_range"]
    assert most >= low
    assert least <= high
    assert (least, most) == pytest.approx((min(real), max(real)), abs=0.06)
    assert results["classes_left_out"] == 4


def test_too_few_images_give_no_reference_but_the_reason() -> None:
    features, labels = drawn(30)
    few = np.arange(30) < 5

    assert fitted(features, labels, few)[0] is None
    assert fitted(features, labels, few)[1]["reason"] == (
        "too few held-out images (5 of the 20 needed)"
    )
    assert fitted(features, np.arange(30) // 2 * 2 + few)[1]["reason"] == (
        "there are fewer than two images per class on average"
    )


def test_wide_features_are_limited_to_the_first_dimensions(tmp_path: Path) -> None:
    features, labels = drawn(90)
    noise = np.random.default_rng(0).normal(size=(90, 1100)).astype(np.float32)
    wide = np.concatenate([features, noise], axis=1)

    found, _ = fitted(wide, labels)

    assert found is not None
    assert found.within.shape == (1024, 1024)
    np.savez(tmp_path / "reference.npz", **found.arrays())
    read = read_reference(tmp_path, wide.shape[1], ViTConfig(width=1112, heads=1))
    assert read is not None
    assert read.distances(wide) == pytest.approx(found.distances(wide))


def test_features_trained_on_the_classes_give_no_power_to_the_reference() -> None:
    features, labels = drawn(90)
    everything = np.ones(90, np.bool_)

    found, results = fit_reference(features, labels, everything, np.arange(90), trained=True)

    assert found is not None
    assert found.unknown is None
    assert results["unknown_class_range"] is not None
    assert results["features_trained"] is True
    assert (results["images"], results["reason"]) == (90, None)


@pytest.mark.parametrize("images", [30, 90, 200, 900])
def test_the_expected_false_alarms_depend_on_the_number_of_images(images: int) -> None:
    _, results = fitted(*drawn(images))

    assert results["false_alarms"] == pytest.approx(false_alarms(images))


def test_the_scatter_of_scaled_features_is_scaled() -> None:
    x = (np.random.default_rng(0).normal(size=(40, 6)) @ SCATTER[:6, :6]).astype(np.float32)

    assert 1e-3 * whitener(np.float32(1e-3) * x) == pytest.approx(whitener(x), rel=1e-3, abs=1e-3)


def two_kinds(count: int, seed: int, *, shift: float = 0.0) -> list[np.ndarray]:
    """Features and intermediate features; a shift moves only the latter."""
    return [drawn(count, seed=seed)[0], drawn(count, seed=seed + 50, shift=shift)[0]]


def fitted_to_both(features: np.ndarray, intermediate: np.ndarray) -> Reference:
    rows = np.arange(len(features))
    more: Any = {"intermediate": intermediate, "intermediate_blocks": 9}
    found, _ = fit_reference(features, rows % 3, rows >= 0, rows, trained=True, **more)
    assert found is not None
    return found


def test_images_that_are_foreign_in_the_intermediate_feature_alone_are_flagged() -> None:
    found = fitted_to_both(*two_kinds(900, 1))

    assert found.intermediate_blocks == 9
    assert 0.005 < np.mean(found.are_unlike(*two_kinds(2000, 3))) < 0.04  # 2% is meant
    assert np.mean(found.are_unlike(*two_kinds(500, 4, shift=6.0))) == 1


def test_both_kinds_of_features_count_equally_whatever_their_scale_and_spread() -> None:
    features, more = two_kinds(600, 1)
    random = np.random.default_rng(5)
    wide = np.concatenate([more, random.normal(size=(600, 30))], axis=1).astype(np.float32)

    found = fitted_to_both(features, 1000 * wide)

    new = [drawn(3000, seed=11)[0], 1000 * drawn(3000, seed=12)[0]]
    noise = 1000 * random.normal(size=(3000, 30))
    new[1] = np.concatenate([new[1], noise], axis=1).astype(np.float32)
    assert found.intermediate is not None
    for squares in (found.distances(new[0]), found.intermediate.distances(new[1])):
        assert np.cbrt(squares).std() == pytest.approx(1, abs=0.15)


def test_a_class_left_out_is_noticed_by_the_intermediate_feature() -> None:
    same = np.random.default_rng(1).normal(size=(300, 12)).astype(np.float32)  # all classes alike
    features, labels = drawn(300)
    every, rows = np.ones(300, np.bool_), np.arange(300)

    _, alone = fit_reference(same, labels, every, rows, trained=True)
    _, both = fit_reference(same, labels, every, rows, trained=True, intermediate=features)

    assert alone["unknown_class_range"] is not None
    assert both["unknown_class_range"] is not None
    assert alone["unknown_class_range"][1] < 0.2 < 0.8 < both["unknown_class_range"][0]
