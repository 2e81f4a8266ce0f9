"""The stem of hybrids: the same outputs as timm."""

from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from timm.layers import pad_same as timms_padding
from torch import nn

from tests.conftest import fill
from vitft.models.checkpoint import build_model
from vitft.models.pretrained.adapt import adapt
from vitft.models.registry import architecture_config, create_model
from vitft.models.stem import StdConv2d, pad_same
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import STEMS, ViTConfig, conv_strides, stem_stride
from vitft.system.errors import UsageError


def random_hybrid(name: str, image_size: tuple[int, int], **options: Any) -> Any:
    """timm's hybrid of that name with random weights; norms stay near one."""
    model = timm.create_model(name, img_size=image_size, num_classes=10, **options)
    noise = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0)) * 0.02
    for offset, (key, tensor) in enumerate(model.state_dict().items()):
        centre = float("norm" in key and "weight" in key)
        fill(tensor, noise.roll(7919 * offset), centre=centre)
    return model.eval()


@pytest.mark.parametrize(
    ("name", "image_size", "limit"),
    [
        pytest.param("vit_tiny_r_s16_p8_224", (224, 224), 1e-5, id="R+Ti/16"),
        pytest.param("vit_small_r26_s32_224", (96, 160), 1e-5, id="R26+S/32"),
        # 16 bottlenecks add up rounding: on noise, the last digits of GroupNorm differ.
        pytest.param("vit_base_r50_s16_224", (64, 96), 1e-4, id="R50+B/16"),
        pytest.param("vit_large_r50_s32_224", (64, 64), 1e-4, id="R50+L/32"),
    ],
)
@torch.no_grad()
def test_logits_of_a_hybrid_equal_timms(
    name: str, image_size: tuple[int, int], limit: float
) -> None:
    theirs = random_hybrid(name, image_size, depth=2)
    config = replace(architecture_config(name), image_size=image_size, depth=2, num_classes=10)
    ours = build_model(theirs.state_dict(), config)
    images = torch.randn(1, 3, *image_size, generator=torch.Generator().manual_seed(1))

    assert (ours(images) - theirs(images)).abs().max() <= limit


@pytest.mark.parametrize("side", [7, 8, 15, 224])
@pytest.mark.parametrize(("kernel", "stride"), [(7, 2), (3, 2), (3, 1), (1, 2), (1, 1)])
def test_padding_is_tensorflows_same(side: int, kernel: int, stride: int) -> None:
    x = torch.randn(1, 2, side, side + 1)

    padded = pad_same(x, kernel, stride, value=-1.0)

    expected = timms_padding(x, [kernel, kernel], [stride, stride], value=-1.0)
    assert torch.equal(padded, expected)
    assert (padded.shape[-1] - kernel) // stride + 1 == -(-(side + 1) // stride)


@torch.no_grad()
def test_the_scale_and_mean_of_a_standardised_kernel_mean_nothing() -> None:
    convolution = StdConv2d(3, 4, 3)
    x = torch.randn(1, 3, 8, 8)
    before = convolution(x)

    convolution.weight.mul_(7).add_(0.3)

    assert torch.allclose(convolution(x), before, atol=1e-5)


@pytest.mark.parametrize("stem", STEMS)
def test_the_feature_map_is_as_large_as_the_grid_needs(stem: str) -> None:
    stages, pixels = STEMS[stem]
    size = next(
        s for s, r in zip(("tiny", "small", "base", "large"), STEMS, strict=True) if r == stem
    )

    with torch.device("meta"):
        model = create_model(f"vit_{size}_{stem}_224", num_classes=0)
        tokens = model.embed(torch.empty(1, 3, 224, 224))

    assert pixels % stem_stride(stages) == 0
    assert tokens.shape[1] == 1 + (224 // pixels) ** 2


def test_a_hybrid_trains_down_to_its_first_kernel() -> None:
    model = create_model("vit_tiny_r_s16_p8_224", image_size=32, depth=1, num_classes=3)
    head = model.head
    assert isinstance(head, nn.Linear)
    nn.init.normal_(head.weight)

    model(torch.randn(2, 3, 32, 32)).sum().backward()

    root = model.patch_embed.backbone.get_parameter("conv.weight")
    assert root.grad is not None
    assert bool(root.grad.any())


def test_an_image_that_the_stem_does_not_tile_is_refused() -> None:
    with pytest.raises(UsageError, match=r"height \(240 pixels\).*patch size \(32 pixels\)"):
        VisionTransformer(
            replace(architecture_config("vit_small_r26_s32_224"), image_size=(240, 240))
        )


@pytest.mark.parametrize(
    ("convs", "patch", "strides"),
    [
        pytest.param((32, 48, 64), (4, 4), (1, 2, 2), id="more than the patch can be halved"),
        pytest.param((24, 48), (16, 16), (2, 2), id="the patch is cut from the rest"),
        pytest.param((8, 8), (7, 7), (1, 1), id="odd patches"),
        pytest.param((8, 8), (8, 2), (1, 2), id="flat patches"),
        pytest.param((), (4, 4), (), id="none"),
    ],
)
@torch.no_grad()
def test_convolutions_halve_the_image_as_often_as_a_patch_can_be(
    convs: tuple[int, ...], patch: tuple[int, int], strides: tuple[int, ...]
) -> None:
    image = (2 * patch[0], 3 * patch[1])
    model = VisionTransformer(
        ViTConfig(image_size=image, patch_size=patch, convs=convs, width=8, depth=1, heads=2)
    )

    assert conv_strides(convs, patch) == strides
    assert model.embed(torch.randn(2, 3, *image)).shape == (2, 1 + 6, 8)
    kernel = model.patch_embed.proj.kernel_size
    assert tuple(side * model.config.stride for side in kernel) == patch


def test_other_patches_never_change_the_strides_of_trained_convolutions() -> None:
    config = ViTConfig(image_size=(24, 24), patch_size=(4, 4), convs=(8, 8), width=8, depth=1,
                       heads=2)  # fmt: skip
    tensors = VisionTransformer(config).state_dict()

    twice = replace(config, patch_size=(8, 8))
    adapted = adapt(tensors, config, twice, new_head=False).tensors
    VisionTransformer(twice).load_state_dict(adapted)
    assert adapted["patch_embed.proj.weight"].shape == (8, 8, 2, 2)
    with pytest.raises(UsageError, match=r"supports patch size \(4, 4\), but not \(6, 6\)"):
        adapt(tensors, config, replace(config, patch_size=(6, 6)), new_head=False)


@torch.no_grad()
def test_one_small_image_passes_few_channels() -> None:
    config = ViTConfig(image_size=(4, 4), patch_size=(4, 4), convs=(8, 2, 3, 2), width=8, depth=1,
                       heads=2)  # fmt: skip

    assert VisionTransformer(config)(torch.randn(1, 3, 4, 4)).shape == (1, 1000)


def test_a_model_behind_convolutions_trains_down_to_its_first_kernel() -> None:
    model = VisionTransformer(
        ViTConfig(image_size=(8, 8), patch_size=(4, 4), convs=(8, 12), width=8, depth=1, heads=2)
    )
    assert isinstance(model.head, nn.Linear)
    nn.init.normal_(model.head.weight)

    model(torch.randn(2, 3, 8, 8)).sum().backward()

    first = model.patch_embed.backbone.get_parameter("0.conv.weight")
    assert first.grad is not None
    assert bool(first.grad.any())
