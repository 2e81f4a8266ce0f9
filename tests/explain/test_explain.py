"""Attribution maps, heat maps and model figures, for every shape of Vision Transformer."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from vitft.explain import (
    Method,
    attention_maps,
    discard_weakest,
    explain,
    overlay,
    patch_tokens,
    png_bytes,
    relevance,
    rollout,
    trace_attention,
)
from vitft.models import VisionTransformer, ViTConfig
from vitft.report import cut_patches, patches_png
from vitft.system import RunError

TINY = ViTConfig(image_size=(16, 16), patch_size=(4, 4), width=32, depth=3, heads=2, num_classes=3)
SHAPES = [
    pytest.param({}, id="class token"),
    pytest.param({"pool": "mean"}, id="mean of the patches"),
    pytest.param({"image_size": (8, 24)}, id="wider than high"),
    pytest.param({"image_size": (24, 8), "patch_size": (8, 4)}, id="flat patches"),
    pytest.param({"registers": 4, "layer_scale": 0.5, "prefix_positions": False}, id="registers"),
    pytest.param({"registers": 2, "pool": "mean"}, id="registers, mean"),
    pytest.param({"distilled": True}, id="distilled"),
    pytest.param({"norm": "post"}, id="post-norm"),
    pytest.param({"pre_logits": True}, id="pre_logits"),
    pytest.param({"drop_path": 0.5}, id="drop path"),
    pytest.param({"read_blocks": 2, "registers": 1}, id="a head that reads two blocks"),
    pytest.param({"read_blocks": 3, "pool": "mean"}, id="mean, a head that reads three blocks"),
    pytest.param({"stem": (), "image_size": (24, 16), "patch_size": (8, 8)}, id="hybrid"),
    pytest.param({"convs": (16, 24, 32)}, id="convolutions"),
]


def random_model(**options: Any) -> VisionTransformer:
    """Weights large enough that attention is far from even and heads differ."""
    torch.manual_seed(0)
    model = VisionTransformer(replace(TINY, **options)).eval()
    for name, tensor in model.named_parameters():
        if "norm" not in name:
            nn.init.normal_(tensor, std=0.3)
    return model


def images_for(model: VisionTransformer, count: int = 2) -> Tensor:
    config = model.config
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, config.in_channels, *config.image_size, generator=generator)


def maps_of(block: Any, tokens: Tensor) -> Tensor:
    """Return the attention weights of a block, by the definition: (B, H, N, N)."""
    q, k, _ = block.attn.split_heads(block.norm1(tokens))
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)


@pytest.mark.parametrize("options", SHAPES)
@torch.no_grad()
def test_traced_logits_equal_those_of_forward(options: dict[str, Any]) -> None:
    model = random_model(**options)
    pixels = images_for(model)

    steps = list(trace_attention(model, model.embed(pixels)))

    *earlier, last = [tokens for _, tokens in steps][-model.config.read_blocks :]
    logits = model.classify(model.pool(last, earlier))
    assert torch.allclose(logits, model(pixels), atol=1e-5)
    tokens = model.config.num_prefix + model.config.grid[0] * model.config.grid[1]
    for maps, _ in steps:
        assert maps.shape == (2, 2, tokens, tokens)
        assert torch.allclose(maps.sum(dim=-1), torch.ones(()), atol=1e-5)


@torch.no_grad()
def test_rollout_is_the_product_of_attention_and_residuals() -> None:
    model = random_model()
    pixels = images_for(model, 1)
    eye = np.eye(17)  # 4x4 patches and the class token

    tokens, expected = model.embed(pixels), eye
    for block in model.blocks:
        mean = maps_of(block, tokens)[0].double().numpy().mean(axis=0)
        expected = (mean + eye) / 2 @ expected
        tokens = block(tokens)

    held, _ = rollout(model, pixels)
    assert held[0].numpy() == pytest.approx(expected, abs=1e-5)


def test_discarding_zeroes_the_weakest_connections_except_class_token_to_itself() -> None:
    fused = torch.tensor([[[0.01, 0.9, 0.09], [0.2, 0.5, 0.3], [0.6, 0.35, 0.05]]])
    both = torch.cat([fused, fused.flip(1)])

    kept = discard_weakest(both, 5 / 9)

    # 0.01, 0.05, 0.09, 0.2 and 0.3 are the five weakest; 0.01 stands at the class token's place.
    assert torch.equal(kept[0], torch.tensor([[0.01, 0.9, 0], [0, 0.5, 0], [0.6, 0.35, 0]]))
    assert (kept[1] > 0).sum() == 4
    assert torch.equal(discard_weakest(both, 0.0), both)


def test_explanations_do_not_depend_on_the_batch() -> None:
    model = random_model()
    pixels = images_for(model, 5)
    together = explain(model, pixels, Method())[0]

    alone = np.concatenate([explain(model, pixels[i : i + 1], Method())[0] for i in range(5)])

    assert alone == pytest.approx(together, abs=1e-6)


def test_attention_of_a_block_and_head_is_a_row_of_its_map() -> None:
    model = random_model()
    pixels = images_for(model)

    heat = explain(model, pixels, Method(name="attention", block=1, head=1))[0]

    with torch.no_grad():
        maps = [maps for maps, _ in trace_attention(model, model.embed(pixels))]
    assert heat == pytest.approx(maps[1][:, 1, 0, 1:].reshape(2, 4, 4).numpy())


def test_nan_attention_is_an_error() -> None:
    model = random_model()
    nn.init.constant_(model.get_parameter("blocks.0.attn.qkv.bias"), float("nan"))

    with pytest.raises(RunError, match="infinite or NaN"):
        explain(model, images_for(model), Method(name="rollout"))


@pytest.mark.parametrize("name", ["rollout", "attention"])
@pytest.mark.parametrize(
    ("options", "rows"),
    [
        pytest.param({}, slice(0, 1), id="class token"),
        pytest.param({"distilled": True}, slice(0, 2), id="both tokens"),
        pytest.param({"registers": 2}, slice(0, 1), id="registers are not read"),
        pytest.param({"pool": "mean", "registers": 2}, slice(3, None), id="patches"),
    ],
)
@torch.no_grad()
def test_a_map_is_the_mean_of_the_rows_of_the_tokens_that_the_head_reads(
    name: Any, options: dict[str, Any], rows: slice
) -> None:
    model = random_model(**options)
    pixels, first = images_for(model), model.config.num_prefix

    found = explain(model, pixels, Method(name=name, fusion="max"))[0]

    if name == "rollout":
        matrix, _ = rollout(model, pixels, fusion="max")
    else:
        matrix = attention_maps(model, pixels)[0][-1].amax(dim=1)
    expected = matrix[:, rows, first:].mean(dim=1)
    assert found.reshape(2, -1) == pytest.approx(expected.numpy(), abs=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="class token"),
        pytest.param({"distilled": True}, id="distilled"),
        pytest.param({"registers": 2}, id="registers"),
        pytest.param({"pool": "mean"}, id="mean"),
        pytest.param({"read_blocks": 2}, id="two blocks"),
    ],
)
def test_relevance_is_the_product_of_matrices_of_the_paper(options: dict[str, Any]) -> None:
    model = random_model(**options)
    pixels, config = images_for(model, 1), model.config

    found, logits = relevance(model, pixels, torch.tensor([1]))

    tokens = model.embed(pixels).detach().requires_grad_()
    steps = [*trace_attention(model, tokens)]
    read = [x.view_as(x) for _, x in steps[-config.read_blocks :]]
    *earlier, last = read
    score = model.classify(model.pool(last, earlier))[0, 1]
    slopes = torch.autograd.grad(score, [*(maps for maps, _ in steps), *read])
    product, products = torch.eye(tokens.shape[1]), []
    for (maps, _), slope in zip(steps, slopes, strict=False):
        product = product + (maps * slope)[0].clamp(min=0).mean(dim=0) @ product
        products.append(product.detach())
    if config.pool == "cls" and config.read_blocks == 1:
        rows = (products[-1] - torch.eye(tokens.shape[1]))[: config.num_read]
        expected = rows.mean(dim=0)
    else:
        weights = [(x * slope)[0].sum(dim=-1).clamp(min=0).detach()
                   for x, slope in zip(read, slopes[len(steps) :], strict=True)]  # fmt: skip
        expected = torch.stack(
            [w @ p for w, p in zip(weights, products[-len(read) :], strict=True)]
        ).sum(dim=0)
    assert found[0].tolist() == pytest.approx(expected.tolist(), rel=1e-3, abs=1e-5)
    drawn, _ = explain(model, pixels, Method(), torch.tensor([1]))
    assert drawn.reshape(-1) == pytest.approx(found[0, config.num_prefix :].numpy())
    assert logits[0, 1].item() == pytest.approx(score.item(), abs=1e-5)


# patches and tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize("options", SHAPES)
def test_tokens_are_the_sum_of_projections_and_positions(options: dict[str, Any]) -> None:
    model = random_model(**options)
    pixels = images_for(model, 1)

    parts = patch_tokens(model, pixels)

    config = model.config
    rows, columns = config.grid
    assert parts.tokens.shape == (rows * columns, config.width)
    with torch.no_grad():
        embedded = model.embed(pixels)[0, config.num_prefix :].numpy()
    assert parts.tokens == pytest.approx(embedded)
    if parts.is_sum:
        positions = 0 if parts.positions is None else parts.positions
        assert parts.tokens == pytest.approx(parts.projections + positions, abs=1e-5)
    view = np.zeros((*config.image_size, 3), np.uint8)
    assert patches_png(view, parts, "x").startswith(b"\x89PNG")


def test_patches_are_cut_in_reading_order() -> None:
    view = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)

    patches = cut_patches(view, (2, 3))

    assert patches.shape == (6, 2, 2, 3)
    assert (patches[1] == view[:2, 2:4]).all()
    assert (patches[3] == view[2:, :2]).all()


def test_an_overlay_is_bright_where_the_map_is_high_and_keeps_the_image() -> None:
    image = Image.new("RGB", (60, 40), (90, 90, 90))
    heat = np.zeros((4, 6), np.float32)
    heat[1, 4] = 1  # rows from the top, columns from the left: around pixel (45, 15)

    shown = overlay(image, heat)

    grey = np.asarray(shown.convert("L"), int)
    assert shown.size == (60, 40)
    assert np.unravel_index(grey.argmax(), grey.shape) == pytest.approx((15, 45), abs=5)
    assert grey[30:, :20].max() < 90  # dimmed elsewhere
    assert image.getcolors() == [(2400, (90, 90, 90))]


def test_the_colour_map_rises_in_luminance() -> None:
    black, ramp = Image.new("RGB", (21, 1)), np.linspace(0, 1, 21, dtype=np.float32)[None]

    light = np.asarray(overlay(black, ramp), float)[0] @ (0.2126, 0.7152, 0.0722)

    assert (np.diff(light) > 0).all()


@pytest.mark.parametrize(
    ("value", "colour", "opacity"), [(0.0, (20, 8, 48), 0.45), (1.0, (252, 250, 160), 0.75)]
)
def test_the_ends_of_a_map_have_their_colour_and_opacity(
    value: float, colour: tuple[int, int, int], opacity: float
) -> None:
    image = Image.new("RGB", (6, 4), (100, 200, 0))

    shown = overlay(image, np.full((2, 3), value, np.float32))

    mixed = [
        round((1 - opacity) * own + opacity * other)
        for own, other in zip((100, 200, 0), colour, strict=True)
    ]
    assert np.abs(np.asarray(shown, int) - mixed).max() <= 1


def test_a_png_carries_no_metadata_of_its_source() -> None:
    picture = Image.new("RGB", (8, 8))
    picture.info = {"comment": "secret", "exif": b"Exif\0\0secret"}

    assert b"secret" not in png_bytes(picture)
