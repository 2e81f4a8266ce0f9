"""Attribution maps of timm models."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.models.test_timm_blocks import images, random_timm
from vitft.explain import Method, explain
from vitft.models import TimmModel

GRIDS = {
    "test_resnet": (8, 8),
    "test_convnext": (8, 8),
    "test_efficientnet": (8, 8),
    "mobilevit_xxs": (8, 8),
    "hrnet_w18_small": (2, 2),
    "vit_tiny_r_s16_p8_224": (2, 2),
    "eva02_tiny_patch14_224": (4, 4),
    "poolformer_s12": (8, 8),
}
"""Architectures with the grids of their maps for images of 64 pixels."""


def relevance_of(model: TimmModel, pixels: Tensor, target: Tensor) -> Tensor:
    return torch.from_numpy(explain(model, pixels, Method(), target)[0])


@pytest.mark.parametrize(("name", "grid"), GRIDS.items(), ids=[*GRIDS])
def test_each_structure_gets_a_map_of_the_class(name: str, grid: tuple[int, int]) -> None:
    model = random_timm(name)
    pixels = images(model)

    found = [explain(model, pixels, Method(), torch.full((3,), i)) for i in range(3)]

    assert found[0][0].shape == (3, *grid)
    assert min(one.min() for one, _ in found) >= 0
    assert max(one.max() for one, _ in found) > 0
    assert any(not np.allclose(one, found[0][0]) for one, _ in found[1:])
    with torch.no_grad():
        expected = model(pixels).numpy()
    assert found[0][1] == pytest.approx(expected, abs=1e-4 * float(np.abs(expected).max()))


def test_where_the_head_averages_positions_the_map_is_grad_cam() -> None:
    model = random_timm("test_resnet", side=192)
    pixels = images(model)
    with torch.no_grad():
        features = model.net.forward_features(pixels)  # (B, D, 6, 6)
        expected = torch.einsum("bdij,d->bij", features, model.head.get_parameter("weight")[1]) / 36

    found = relevance_of(model, pixels, torch.ones(3, dtype=torch.long))

    assert torch.allclose(found, expected.clamp(min=0), atol=1e-4)


@pytest.mark.parametrize("name", ["test_vit", "test_convnext"])
def test_an_earlier_map_is_weighted_by_the_gradients_of_its_structure(name: str) -> None:
    """Tokens have gradients of their own; channels of a map have that of their mean."""
    model = random_timm(name)
    pixels, target = images(model), torch.tensor([0, 1, 0])
    kept: list[torch.Tensor] = []
    blocks = [m for m in model.net.modules() if type(m).__name__ in ("Block", "ConvNeXtBlock")]
    for block in blocks:
        block.register_forward_hook(lambda *args: kept.append(args[-1]))

    found = relevance_of(model, pixels, target)
    with torch.enable_grad():
        kept.clear()
        score = model(pixels.requires_grad_()).gather(1, target[:, None]).sum()
        gradients = torch.autograd.grad(score, kept, allow_unused=True)
    expected = []
    for values, gradient in zip(kept, gradients, strict=True):
        if gradient is None:
            continue
        if values.ndim == 3:
            centred = values - values[:, -16:].mean(dim=1, keepdim=True)
            expected.append((centred * gradient).sum(2)[:, -16:].clamp(min=0).view(3, 4, 4))
        else:
            mean = (2, 3)
            centred = values - values.mean(mean, keepdim=True)
            expected.append((centred * gradient.mean(mean, keepdim=True)).sum(1).clamp(min=0))

    assert any(
        one.shape == found.shape and torch.allclose(one.detach(), found, atol=1e-6)
        for one in expected
    )


def test_the_map_lies_where_the_only_evidence_is() -> None:
    model = random_timm("test_convnext", side=128)
    blank = images(model, 1) * 0

    def outside(part: tuple[slice, slice]) -> Tensor:
        picture = blank.clone()
        picture[0, :, part[0], part[1]] = 3
        plain = relevance_of(model, blank, torch.tensor([0]))
        found = relevance_of(model, picture, torch.tensor([0]))
        return (found - plain).abs()[0]

    changed = outside((slice(0, 40), slice(0, 40)))

    assert changed[:2, :2].sum() > changed[2:, 2:].sum()
