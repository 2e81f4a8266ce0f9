"""Figures of a model: which are written, from which images, and the numbers that they show."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.explain.test_explain import random_model
from vitft.explain import attention_distance, patch_filters, position_similarity, trace_attention
from vitft.models import ViTConfig


@pytest.mark.parametrize("fields", [{}, {"registers": 2}, {"pool": "mean", "class_token": False}])
@torch.no_grad()
def test_attention_distance_is_the_mean_length_of_the_looks_of_a_head(
    fields: dict[str, Any],
) -> None:
    model = random_model(image_size=(8, 16), depth=2, **fields)
    batches = [torch.randn(2, 3, 8, 16), torch.randn(1, 3, 8, 16)]

    distance, count = attention_distance(model, batches)

    first = model.config.num_prefix
    places = [(4 * y, 4 * x) for y in range(2) for x in range(4)]
    expected = np.zeros((2, 2))
    for pixels in batches:
        for block, (maps, _) in enumerate(trace_attention(model, model.embed(pixels))):
            for image in range(len(pixels)):
                for head in range(2):
                    w = maps[image, head, first:, first:].double().numpy()
                    lengths = [[np.hypot(a - c, b - d) for c, d in places] for a, b in places]
                    expected[block, head] += ((w * lengths).sum(1) / w.sum(1)).mean() / 3
    assert count == 3
    assert distance == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("prefix", [True, False])
def test_similarity_of_positions_is_their_cosine(tiny_config: ViTConfig, prefix: bool) -> None:
    config = replace(tiny_config, image_size=(8, 16), registers=1, prefix_positions=prefix)
    table = torch.randn(1, 8 + 2 * prefix, 32)

    found = position_similarity(config, table)

    rows = table[0, 2 * prefix :].double().numpy()
    a, b = rows[1 * 4 + 3], rows[0 * 4 + 2]
    cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert found.shape == (2, 4, 2, 4)
    assert found[1, 3, 0, 2] == pytest.approx(cosine, abs=1e-5)


def test_filters_are_the_principal_components_of_the_projection() -> None:
    model = random_model(depth=2)
    rows = model.patch_embed.proj.weight.detach().flatten(1).double().numpy()

    pictures, fractions = patch_filters(model)

    centred = rows - rows.mean(axis=0)
    values, directions = np.linalg.eigh(centred.T @ centred)
    assert fractions == pytest.approx((values / values.sum())[::-1][:28], abs=1e-5)
    assert pictures.shape == (28, 4, 4, 3)
    for i in (0, 5):
        direction = directions[:, -1 - i].reshape(3, 4, 4).transpose(1, 2, 0)
        low, high = direction.min(), direction.max()
        scaled = (direction - low) / (high - low)
        assert min(abs(pictures[i] - scaled).max(), abs(pictures[i] - (1 - scaled)).max()) < 1e-4
    assert len(patch_filters(model, 5)[0]) == len(patch_filters(model, 5)[1]) == 5
