"""Nearest-neighbour votes."""

import pytest
import torch

from tests.features.test_head import blobs
from vitft.features import nearest_neighbours, votes_outside_group


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
