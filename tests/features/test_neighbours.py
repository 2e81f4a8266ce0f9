"""Nearest-neighbour votes."""

import pytest
import torch

from tests.features.test_head import blobs
from vitft.features import neighbours
from vitft.features.neighbours import nearest_neighbours, votes_outside_group


def test_neighbours_vote_by_similarity() -> None:
    x, y = torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4)

    votes = nearest_neighbours(x, y, torch.eye(3) + 0.1, classes=3)

    assert votes.argmax(dim=-1).tolist() == [0, 1, 2]


def test_neighbours_are_the_same_however_many_are_compared_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = blobs()
    at_once = nearest_neighbours(x, y, x[:31] + 0.1, classes=3)

    monkeypatch.setattr(neighbours, "SIMILARITY_VALUES", 2 * len(x))

    one_by_one = nearest_neighbours(x, y, x[:31] + 0.1, classes=3)
    torch.testing.assert_close(one_by_one, at_once, atol=1e-4, rtol=1e-4)


def test_a_stratified_sample_votes_in_large_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = blobs(per_class=30)
    monkeypatch.setattr(neighbours, "MAX_VOTERS", 30)

    voters = neighbours.voting_images(y)
    found = nearest_neighbours(x, y, x, classes=3)

    assert len(voters) == 30
    assert y[voters].bincount().tolist() == [10, 10, 10]
    assert torch.equal(found, nearest_neighbours(x[voters], y[voters], x, classes=3))


def test_an_image_of_the_sample_does_not_vote_for_its_own_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = blobs(per_class=30)
    monkeypatch.setattr(neighbours, "MAX_VOTERS", 30)

    alone = votes_outside_group(x, y, torch.arange(90), classes=3)
    together = votes_outside_group(x, y, torch.zeros(90, dtype=torch.long), classes=3)

    assert torch.allclose(alone.sum(dim=1), torch.ones(90))
    assert together.sum() == 0
