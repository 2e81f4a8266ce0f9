"""Metrics of two classes by the ranks of their images."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from vitft.metrics import two_class_metrics

NAMES = ["cat", "dog"]


def drawn(cats: int, dogs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return scores (n, 2) and classes (n,); the area of infinitely many images is 0.9."""
    random, truth = np.random.default_rng(seed), np.repeat([0, 1], [cats, dogs])
    margin = random.normal(np.where(truth == 0, 1.8124, 0.0), 1)  # 1.2816 * sqrt(2)
    return np.stack([margin, 0 * margin], axis=1), truth


@pytest.mark.parametrize("digits", [0, 9])  # with 0, many scores are equal
def test_the_metrics_are_those_of_scikit_learn(digits: int) -> None:
    scores, truth = drawn(70, 130)
    scores = scores.round(digits)

    found = two_class_metrics(scores, truth, NAMES)

    assert found is not None
    assert found["auroc"] == pytest.approx(roc_auc_score(truth == 0, scores[:, 0]))
    for index, name in enumerate(NAMES):
        own, score = truth == index, scores[:, index] - scores[:, 1 - index]
        false, right, _ = roc_curve(own, score, drop_intermediate=False)
        row = found["classes"][name]
        assert row["ap"] == pytest.approx(average_precision_score(own, score))
        assert row["sensitivity"] == pytest.approx(right[false <= 0.05].max())


@pytest.mark.parametrize("sizes", [(40, 40), (30, 200)])
def test_the_intervals_contain_the_values_of_infinitely_many_images(sizes: tuple[int, int]) -> None:
    found = [two_class_metrics(*drawn(*sizes, seed), NAMES) for seed in range(200)]
    areas = [one["auroc_interval"] for one in found if one]
    rates = [one["classes"]["cat"]["sensitivity_interval"] for one in found if one]

    assert 184 <= sum(low <= 0.9 <= high for low, high in areas) <= 199
    assert sum(low <= 0.5666 <= high for low, high in rates) >= 184


def test_copies_of_a_group_count_once() -> None:
    scores, truth = drawn(50, 80)
    alone = two_class_metrics(scores, truth, NAMES, np.arange(130))
    copied = two_class_metrics(
        np.repeat(scores, 3, axis=0), np.repeat(truth, 3), NAMES, np.repeat(np.arange(130), 3)
    )

    assert alone is not None
    assert copied is not None
    assert copied["auroc_interval"] == pytest.approx(alone["auroc_interval"], abs=0.01)
    bounds, copies = (one["classes"]["cat"]["sensitivity_interval"] for one in (alone, copied))
    assert copies == pytest.approx(bounds, abs=0.01)


@pytest.mark.parametrize("truth", [[0, 0, 0], [1, 1, 1]])
def test_images_of_one_class_have_no_such_metrics(truth: list[int]) -> None:
    assert two_class_metrics(np.eye(3)[:, :2], np.array(truth), NAMES) is None
    assert two_class_metrics(np.eye(3), np.arange(3), ["a", "b", "c"]) is None
    assert two_class_metrics(np.eye(2), np.eye(2, dtype=int), NAMES) is None  # two labels
