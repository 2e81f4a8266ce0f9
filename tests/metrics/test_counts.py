"""Numbers of images of each class beside the exact distribution of two classes."""

import math
from typing import Any

import numpy as np
import pytest

from vitft.metrics import adjusted_counts, powered_counts

PRIOR_IMAGES = 2
"""Images that each class has in addition, which are predicted as the average image is."""


def log_beta(images: list[float]) -> float:
    """Return the logarithm of the beta function of two numbers of images."""
    return sum(map(math.lgamma, images)) - math.lgamma(sum(images))


def exact(
    predicted: tuple[int, int], confusion: list[list[float]], accuracy: float | None = None
) -> list[float]:
    """Return the probability of each number of images of the first class.

    It sums over the numbers of images of the first class among those predicted as either class; the
    class frequencies and the fractions of the confusion matrix are integrated out.
    """
    flat = [one for row in confusion for one in row]
    if accuracy is None:  # there are no other classes
        accuracy = (flat[0] + flat[3] + 1) / (sum(flat) + 2)
    right, wrong = PRIOR_IMAGES * accuracy, PRIOR_IMAGES * (1 - accuracy)
    first, second = [flat[0] + right, flat[1] + wrong], [flat[2] + wrong, flat[3] + right]
    chances = [0.0] * (sum(predicted) + 1)
    for a in range(predicted[0] + 1):
        for b in range(predicted[1] + 1):
            c, d = predicted[0] - a, predicted[1] - b
            ways = math.log(math.comb(a + c, a)) + math.log(math.comb(b + d, b))
            chances[a + b] += math.exp(
                ways
                + log_beta([1.0 + a + b, 1.0 + c + d])
                + log_beta([first[0] + a, first[1] + b])
                - log_beta(first)
                + log_beta([second[0] + c, second[1] + d])
                - log_beta(second)
            )
    return [chance / sum(chances) for chance in chances]


@pytest.mark.parametrize(
    ("predicted", "confusion"),
    [
        ((70, 30), [[36, 4], [8, 32]]),
        ((4, 96), [[19, 1], [2, 78]]),
        ((0, 500), [[3, 0], [0, 3]]),
        ((25, 15), [[8, 2], [1, 9]]),
    ],
)
def test_mean_and_interval_are_those_of_the_exact_distribution(
    predicted: tuple[int, int], confusion: list[list[float]]
) -> None:
    chances = np.array(exact(predicted, confusion))
    mean = chances @ np.arange(len(chances))
    below = np.cumsum(chances)
    deviation = math.sqrt(chances @ (np.arange(len(chances)) - mean) ** 2)

    found, other = counted(predicted, confusion)

    assert found.images == pytest.approx(mean, abs=0.1 * deviation)  # draws are correlated
    assert found.images + other.images == pytest.approx(sum(predicted))
    for end, level in ((found.low, 0.025), (found.high, 0.975)):
        expected = int(np.searchsorted(below, level))
        assert abs(end - expected) <= max(1, 0.05 * (found.high - found.low))


def test_intervals_of_few_among_many_classes_are_as_wide_as_those_of_the_exact_distribution() -> (
    None
):
    classes, pairs = 320, 20  # of which each pair of classes is confused, and only they have images
    predicted, confusion = np.zeros((classes, 2), int), 200 * np.eye(classes)
    for first in range(0, 2 * pairs, 2):
        predicted[first : first + 2, 1] = 140, 60
        confusion[first : first + 2, first : first + 2] = [[36, 4], [8, 32]]
    levels = np.stack([np.zeros_like(confusion), confusion], axis=2)

    found = adjusted_counts(predicted, levels)[: 2 * pairs]

    below = np.cumsum(exact((140, 60), [[36, 4], [8, 32]], 1 - 12 * pairs / confusion.sum()))
    low, high = np.searchsorted(below, (0.025, 0.975))
    assert np.mean([one.high - one.low for one in found]) == pytest.approx(high - low, rel=0.05)


def counted(predicted: tuple[int, int], confusion: list[list[float]], *effect: float) -> Any:
    """Return the counts of predictions with one level of confidence."""
    return adjusted_counts(np.array(predicted)[:, None], np.array(confusion)[:, :, None], *effect)


def test_dependent_images_have_wider_intervals() -> None:
    single, _ = counted((500, 500), [[180, 20], [30, 170]])
    grouped, _ = counted((500, 500), [[180, 20], [30, 170]], 4.0)

    assert grouped.images == single.images
    assert grouped.high - grouped.low == pytest.approx(2 * (single.high - single.low), abs=2)


def test_predictions_of_low_confidence_are_adjusted_more() -> None:
    confusion = np.array([[[10.0, 90], [0, 0]], [[30, 0], [0, 70]]])  # true, predicted, level

    sure, _ = adjusted_counts(np.array([[0, 100], [0, 100]]), confusion)
    unsure, _ = adjusted_counts(np.array([[100, 0], [0, 100]]), confusion)

    assert sure.low > 90
    assert unsure.high < 60


def batch(
    rng: np.random.Generator, sample: int, *, size: int = 2000, burst: int = 1
) -> tuple[np.ndarray[Any, Any], list[Any]]:
    """Return the true numbers of a batch, and the counts from the labels of a sample of bursts.

    A third of the rare class, of which the held-out images show no mistakes, is predicted wrongly.
    """
    true = np.repeat(rng.choice(3, size // burst, p=[0.69, 0.3, 0.01]), burst)
    is_wrong = rng.random(size // burst) < np.array([0.02, 0.04, 0.33])[true[::burst]]
    answer = np.where(np.repeat(is_wrong, burst), (true + 1) % 3, true)
    level, groups = np.zeros(size, int), np.arange(size) // burst
    predicted = np.bincount(answer, minlength=3)[:, None]
    some = np.isin(groups, rng.permutation(size // burst)[: sample // burst])
    own = (answer[some], level[some])
    confusion = 50 * np.eye(3)[:, :, None]
    counts = powered_counts(predicted, confusion, true[some], own, groups[some])
    return np.bincount(true, minlength=3), counts


def test_counts_are_exact_if_all_images_have_labels() -> None:
    true, counts = batch(np.random.default_rng(0), 2000)

    assert [one.images for one in counts] == pytest.approx(true)
    assert [(one.low, one.high) for one in counts] == [(n, n) for n in true.tolist()]


@pytest.mark.parametrize(("sample", "burst"), [(100, 1), (1000, 1), (200, 4)])
def test_intervals_from_labels_contain_the_true_numbers(sample: int, burst: int) -> None:
    """Also of a class that few samples show; held-out images would promise no mistakes."""
    rng, inside, errors = np.random.default_rng(1), [], []
    for _ in range(200):
        true, counts = batch(rng, sample, burst=burst)
        inside.append([one.low <= n <= one.high for n, one in zip(true, counts, strict=True)])
        errors.append([one.images - n for n, one in zip(true, counts, strict=True)])

    assert np.mean(inside, axis=0).min() > 0.92
    bias, spread = np.mean(errors, axis=0), np.std(errors, axis=0)
    assert np.abs(bias).max() < 0.3 * spread.max()


@pytest.mark.parametrize("sample", [200, 1000])
def test_predictions_and_a_complete_sample_make_the_interval_from_labels_shorter(
    sample: int,
) -> None:
    _, counts = batch(np.random.default_rng(2), sample)

    common = counts[1]
    assert sum(one.images for one in counts) == pytest.approx(2000)
    of_labels = 2 * 1.96 * 2000 * math.sqrt(0.3 * 0.7 * (1 / sample - 1 / 2000))
    assert common.high - common.low < 0.48 * of_labels


def test_a_class_may_be_absent_or_alone() -> None:
    mistakes = 4 * np.eye(3) + 2 * (1 - np.eye(3))  # of 8 images, 4 are right
    confusion = np.stack([0 * mistakes, 8 * mistakes], axis=2)

    found = adjusted_counts(np.array([[0, 100], [0, 45], [0, 55]]), confusion)

    assert (found[0].high, found[1].low, found[2].low) == (200, 0, 0)
