"""Nearest-neighbour votes."""

import pytest
import torch

from tests.features.test_head import blobs
from vitft.features import neighbours
from vitft.features.neighbours import nearest_neighbours


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
