"""Adapting tensors: positions, architectures and heads."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.ndimage import zoom
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models import adapt_input_conv
from torch import Tensor

from vitft.models.pretrained.adapt import (
    adapt,
    adapt_statistics,
    check_statistics,
    fit_channels,
    resize_kernel,
    resize_positions,
)
from vitft.models.pretrained.infer import check_fit, infer_config
from vitft.models.pretrained.sidecar import SidecarFacts
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import UsageError, WeightsError

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


def test_positions_of_the_same_grid_are_untouched() -> None:
    pos = positions(4)

    assert resize_positions(pos, (4, 4)) is pos


def test_positions_keep_their_type_and_all_their_prefix_tokens() -> None:
    pos = torch.randn(1, 5 + 16, 8).bfloat16()

    resized = resize_positions(pos, (2, 3), prefix=5)

    assert resized.shape == (1, 5 + 6, 8)
    assert resized.dtype == torch.bfloat16
    assert torch.equal(resized[:, :5], pos[:, :5])


def test_a_grid_that_is_not_square_must_be_told() -> None:
    pos = torch.randn(1, 1 + 2 * 6, 8)

    assert resize_positions(pos, (4, 4), source_grid=(2, 6)).shape == (1, 17, 8)
    with pytest.raises(WeightsError, match=r"12 position embeddings do not form a square"):
        resize_positions(pos, (4, 4))
    with pytest.raises(WeightsError, match=r"12 position embeddings do not form a grid of 3x5"):
        resize_positions(pos, (4, 4), source_grid=(3, 5))


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(CONFIG, id="plain"),
        pytest.param(replace(CONFIG, num_classes=0, pre_logits=True), id="no head"),
        pytest.param(replace(CONFIG, pool="mean", in_channels=1), id="mean pooling, grey"),
        pytest.param(replace(CONFIG, qkv_bias=False, mlp_ratio=1.3), id="odd MLP, no bias"),
        pytest.param(replace(CONFIG, patch_size=(4, 8), image_size=(16, 32)), id="flat patches"),
        pytest.param(replace(CONFIG, width=320, heads=5), id="64 numbers per head"),
    ],
)
def test_an_architecture_is_read_off_its_tensors(config: ViTConfig) -> None:
    tensors = weights(config)

    inferred = infer_config(tensors, SidecarFacts())

    check_fit(tensors, inferred)
    ratio = pytest.approx(config.mlp_ratio, abs=0.01)  # 1.3 * 192 is not whole
    assert inferred.mlp_ratio == ratio
    assert replace(inferred, mlp_ratio=config.mlp_ratio) == config


def test_hints_decide_only_what_tensors_leave_open() -> None:
    tensors = weights(replace(CONFIG, image_size=(16, 64)))

    hinted = infer_config(tensors, SidecarFacts(heads=6, image_size=(16, 64)))
    misled = infer_config(tensors, SidecarFacts(image_size=(512, 512)))

    assert (hinted.heads, hinted.image_size) == (6, (16, 64))
    assert misled.image_size == (32, 32)  # 16 positions are a square too


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"pos_embed": None}, "pos_embed is missing", id="no positions"),
        pytest.param(
            {"pos_embed": (17, 192)},
            r"pos_embed has unexpected shape \(17, 192\)",
            id="flat positions",
        ),
        pytest.param(
            {"pos_embed": (1, 19, 192)}, "18 position embeddings do not form", id="no square"
        ),
        pytest.param({"patch_embed.proj.weight": None}, "patch_embed.*missing", id="no patches"),
        pytest.param({"blocks.0.mlp.fc1.weight": None}, "fc1.weight is missing", id="no MLP"),
        pytest.param({"blocks.5.norm1.weight": (192,)}, "block 2 is missing", id="gap"),
        pytest.param({"norm.bias": None}, r"missing: norm\.bias", id="one missing"),
        pytest.param(
            {"head.bias": (9,)}, r"wrong shape: head\.bias \(9,\) instead of \(7,\)", id="shape"
        ),
        pytest.param({"fc_norm.weight": (192,)}, "missing: fc_norm.bias", id="two last norms"),
        pytest.param({"head.weight": None}, "unexpected: head.bias", id="half a head"),
    ],
)
def test_tensors_that_make_no_model_are_named(
    change: dict[str, tuple[int, ...] | None], message: str
) -> None:
    tensors = weights(CONFIG)
    for name, shape in change.items():
        tensors.pop(name, None)
        if shape is not None:
            tensors[name] = torch.zeros(shape)

    with pytest.raises(WeightsError, match=message):
        check_fit(tensors, infer_config(tensors, SidecarFacts()))


def test_heads_that_nothing_tells_are_asked_for() -> None:
    tensors = weights(replace(CONFIG, width=96, heads=2))

    with pytest.raises(WeightsError, match=r"heads is unknown for a width of 96"):
        infer_config(tensors, SidecarFacts())
    with pytest.raises(WeightsError, match=r"not a multiple of the number of attention heads, 7"):
        infer_config(tensors, SidecarFacts(heads=7))


def test_a_new_head_is_zero_and_the_old_one_is_reported() -> None:
    tensors = weights(replace(CONFIG, pre_logits=True))
    wanted = replace(CONFIG, num_classes=5)

    adapted = adapt(tensors, replace(CONFIG, pre_logits=True), wanted, new_head=True)

    assert not adapted.tensors["head.weight"].any()
    assert "head.weight (7, 192)" in adapted.dropped
    assert "pre_logits.fc.weight (192, 192)" in adapted.dropped
    assert adapted.loaded == len(adapted.tensors) - 2  # all but the new head's
    assert "head.weight" in tensors  # what came in is left untouched


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


@pytest.mark.parametrize(
    ("mean", "std", "channels"),
    [
        pytest.param((0.5,) * 3, None, 3, id="no std"),
        pytest.param(None, (0.5,) * 3, 3, id="no mean"),
        pytest.param((0.5,), (0.5,), 3, id="too few"),
        pytest.param((0.5,) * 3, (0.5,) * 3, 1, id="too many"),
    ],
)
def test_statistics_are_given_together_and_for_every_channel(
    mean: tuple[float, ...] | None, std: tuple[float, ...] | None, channels: int
) -> None:
    with pytest.raises(UsageError) as caught:
        check_statistics(mean, std, channels)

    shown = f"mean is {mean} and std is {std}, but the model has {channels} channel"
    assert caught.value.problem.startswith(shown)
    assert check_statistics(None, None, channels) is None
    given = (0.5,) * channels, (0.25,) * channels
    assert check_statistics(*given, channels) == given


@pytest.mark.parametrize(
    ("values", "channels", "fitted"),
    [
        ((0.1, 0.2, 0.6), 1, (0.3,)),
        ((0.1,), 1, (0.1,)),
        ((0.1,), 3, (0.1, 0.1, 0.1)),
        ((0.1, 0.2, 0.6), 2, (0.1, 0.2)),
        ((0.1, 0.2, 0.6), 5, (0.1, 0.2, 0.6, 0.1, 0.2)),
    ],
)
def test_statistics_for_other_channels_are_averaged_or_repeated(
    values: tuple[float, ...], channels: int, fitted: tuple[float, ...]
) -> None:
    assert adapt_statistics(values, channels) == pytest.approx(fitted)
