"""Nearest-neighbour votes."""

import pytest
import torch
from torch import Tensor

from tests.features.test_head import blobs
from vitft.features import nearest_neighbours, similar_images, votes_outside_group


def test_votes_are_the_weights_of_the_twenty_most_similar_images() -> None:
    x, y = blobs(per_class=12)
    queries = x[:5] + 0.3 * x[5:10]
    cosines = torch.nn.functional.cosine_similarity(queries[:, None], x[None], dim=-1)
    expected = torch.zeros(5, 3)
    for row, values in enumerate(cosines):
        for i in values.argsort(descending=True)[:20]:
            expected[row, y[i]] += torch.exp(values[i] / 0.07)  # as in DINO

    found = nearest_neighbours(x, y, queries, classes=3)

    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)


def test_votes_for_several_labels_are_weighted_fractions_of_the_neighbours() -> None:
    x, y = blobs(per_class=12)
    labels = torch.nn.functional.one_hot(y, 3).float()
    labels[::4, 1] = 1
    queries = x[:5] + 0.3 * x[5:10]
    cosines = torch.nn.functional.cosine_similarity(queries[:, None], x[None], dim=-1)
    nearest = cosines.topk(20, dim=-1)
    weight = torch.softmax(nearest.values / 0.07, dim=-1)

    found = nearest_neighbours(x, labels, queries, classes=3)

    expected = (weight[..., None] * labels[nearest.indices]).sum(dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    outside = votes_outside_group(x, labels, torch.arange(36), classes=3)
    assert outside.max() <= 1 + 1e-6
    assert (outside.sum(dim=1) > 1.01).any()  # votes for labels do not sum to one
    assert not votes_outside_group(x, labels, torch.zeros(36), classes=3).any()


def test_a_feature_of_zeros_has_finite_votes() -> None:
    x, y = blobs(per_class=2)
    x[0] = 0

    assert nearest_neighbours(x, y, torch.zeros(2, 8), classes=3).isfinite().all()
    assert votes_outside_group(x, y, torch.arange(6), classes=3).isfinite().all()


def test_the_only_neighbours_vote_even_if_they_are_opposite() -> None:
    x, y = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 1])
    labels, alone = torch.nn.functional.one_hot(y, 2).float(), torch.arange(2)

    for targets in (y, labels):
        votes = votes_outside_group(x, targets, alone, classes=2)
        assert votes.tolist() == [pytest.approx([0, 1]), pytest.approx([1, 0])]


def test_the_length_of_features_does_not_matter() -> None:
    x, y = blobs(per_class=10)

    short = nearest_neighbours(1e-4 * x, y, x[:5], classes=3)

    torch.testing.assert_close(short, nearest_neighbours(x, y, x[:5], classes=3), rtol=1e-3, atol=0)


def brute_force(x: Tensor) -> list[tuple[float, int, int]]:
    """Return cosine and indices of all pairs of centred features, most similar first."""
    centred = (x - x.mean(dim=0)).double()
    unit = (centred / centred.norm(dim=1, keepdim=True)).numpy()
    cosines = unit @ unit.T
    pairs = ((-cosines[i, j], i, j) for i in range(len(x)) for j in range(i + 1, len(x)))
    return sorted(pair for pair in pairs if -pair[0] >= 0.75)


def test_each_image_is_paired_with_the_most_similar_earlier_ones() -> None:
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(0)) + 3
    every = brute_force(x)
    assert len(every) > 200

    found = similar_images(x)

    eight = [pair for j in range(120) for pair in [one for one in every if one[2] == j][:8]]
    assert found == [(i, j) for _, i, j in sorted(eight)]
    assert found is not None
    assert similar_images(x, since=50) == [(i, j) for i, j in found if j >= 50]
    assert similar_images(x.repeat(175, 1)) is None  # 21,000 images
