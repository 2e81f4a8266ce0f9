"""Adapting tensors: positions, architectures and heads."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.ndimage import zoom
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models import adapt_input_conv
from torch import Tensor

from vitft.models import (
    VisionTransformer,
    ViTConfig,
    adapt,
    check_fit,
    fit_channels,
    resize_kernel,
    resize_positions,
)

CONFIG = ViTConfig(
    image_size=(32, 32), patch_size=(8, 8), width=192, depth=2, heads=3, num_classes=7
)


def positions(side: int, width: int = 32) -> Tensor:
    return torch.randn(1, 1 + side * side, width, generator=torch.Generator().manual_seed(side))


def weights(config: ViTConfig) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return dict(VisionTransformer(config).state_dict())


@pytest.mark.parametrize(
    ("side", "grid"),
    [
        pytest.param(14, (24, 24), id="14 to 24"),
        pytest.param(14, (7, 21), id="14 to 7x21"),
        pytest.param(37, (16, 16), id="37 to 16"),
    ],
)
def test_bicubic_positions_equal_timms(side: int, grid: tuple[int, int]) -> None:
    pos = positions(side)

    resized = resize_positions(pos, grid)

    theirs = resample_abs_pos_embed(pos, list(grid), num_prefix_tokens=1)
    assert (resized - theirs).abs().max() <= 1e-6
    assert torch.equal(resized[:, 0], pos[:, 0])  # the class token has no place in the picture


@pytest.mark.parametrize(
    ("side", "grid"),
    [
        pytest.param(14, (24, 24), id="14 to 24"),
        pytest.param(14, (7, 21), id="14 to 7x21"),
        pytest.param(37, (16, 16), id="37 to 16"),
        pytest.param(7, (12, 12), id="7 to 12"),
    ],
)
def test_googles_rule_equals_scipys_zoom_of_order_one(side: int, grid: tuple[int, int]) -> None:
    pos = positions(side)
    table = pos[0, 1:].reshape(side, side, -1).numpy()

    resized = resize_positions(pos, grid, mode="jax")

    expected = zoom(table, (grid[0] / side, grid[1] / side, 1), order=1)
    assert np.abs(resized[0, 1:].reshape(*grid, -1).numpy() - expected).max() <= 1e-5


def test_positions_keep_their_type_and_all_their_prefix_tokens() -> None:
    pos = torch.randn(1, 5 + 16, 8).bfloat16()

    resized = resize_positions(pos, (2, 3), prefix=5)

    assert resized.shape == (1, 5 + 6, 8)
    assert resized.dtype == torch.bfloat16
    assert torch.equal(resized[:, :5], pos[:, :5])


def test_kernels_are_resized_to_patches_that_are_not_square() -> None:
    tensors = weights(CONFIG)
    wanted = replace(CONFIG, patch_size=(4, 16), image_size=(16, 64))

    adapted = adapt(tensors, CONFIG, wanted, new_head=False)

    kernel = adapted.tensors["patch_embed.proj.weight"]
    own = resize_kernel(tensors["patch_embed.proj.weight"], (4, 16))
    assert torch.equal(kernel, own)
    assert kernel.shape == (192, 3, 4, 16)
    assert any("patch kernels 8x8 -> 4x16" in note for note in adapted.notes)


@pytest.mark.parametrize(
    ("channels", "note"),
    [
        (1, "the kernels for 3 channels are summed to fit 1 channel"),
        (2, "the kernels for 3 channels are repeated and scaled to fit 2 channels"),
        (8, "the kernels for 3 channels are repeated and scaled to fit 8 channels"),
    ],
)
def test_kernels_for_other_channels_equal_timms(channels: int, note: str) -> None:
    tensors = weights(CONFIG)
    wanted = replace(CONFIG, in_channels=channels)

    adapted = adapt(tensors, CONFIG, wanted, new_head=False)

    name = "patch_embed.proj.weight"
    expected = adapt_input_conv(channels, tensors[name].clone())
    torch.testing.assert_close(adapted.tensors[name], expected)
    assert [*adapted.notes] == [note]
    check_fit(adapted.tensors, wanted)


def test_a_single_channel_is_repeated_and_keeps_the_response_to_grey_images() -> None:
    kernel = torch.randn(4, 1, 8, 8)

    found = fit_channels(kernel, 3)

    assert found.shape == (4, 3, 8, 8)
    torch.testing.assert_close(found, kernel.expand(4, 3, 8, 8) / 3)


@pytest.mark.parametrize("registers", [0, 2])
def test_a_distillation_token_becomes_the_first_register(registers: int) -> None:
    source = replace(CONFIG, distilled=True, registers=registers)
    target = replace(CONFIG, num_classes=5, registers=registers + 1)
    tensors = weights(source)
    for name in ("dist_token", "reg_token"):
        if name in tensors:
            torch.nn.init.normal_(tensors[name])

    adapted = adapt(tensors, source, target, new_head=True)

    check_fit(adapted.tensors, target)
    found = adapted.tensors["reg_token"]
    assert torch.equal(found[:, :1], tensors["dist_token"])
    assert torch.equal(found[:, 1:], tensors.get("reg_token", found[:, 1:]))
    assert [*adapted.notes] == [
        "the distillation token is used as a register, and the head reads only the class token"
    ]
    assert "dist_token" not in adapted.tensors


def test_mean_pooling_takes_the_last_norm_and_back() -> None:
    tensors = weights(CONFIG)
    mean = replace(CONFIG, pool="mean")

    there = adapt(tensors, CONFIG, mean, new_head=False)
    back = adapt(there.tensors, mean, CONFIG, new_head=False)

    check_fit(there.tensors, mean)
    assert torch.equal(there.tensors["fc_norm.weight"], tensors["norm.weight"])
    assert [*there.notes] == ["norm in the file is loaded as fc_norm because pool=mean"]
    assert [*back.notes] == ["fc_norm in the file is loaded as norm because pool=cls"]
    assert back.tensors.keys() == tensors.keys()
    assert torch.equal(back.tensors["norm.bias"], tensors["norm.bias"])
