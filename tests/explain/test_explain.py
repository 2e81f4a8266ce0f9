"""Attribution maps, heat maps and model figures, for every shape of Vision Transformer."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitft.explain.attribution import (
    attention_maps,
    batch_images,
    discard_weakest,
    explain,
    map_title,
    relevance,
    relevance_map,
    rollout,
    scale_maps,
    trace_attention,
)
from vitft.explain.method import FUSIONS, Method
from vitft.explain.model_figures import (
    attention_distance,
    patch_distances,
    patch_filters,
    position_similarity,
)
from vitft.explain.patches import patch_tokens
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.report.patch_plot import PatchTokens, cut_patches, patches_png, token_matrices
from vitft.system.errors import RunError, UsageError

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


@pytest.mark.parametrize("options", SHAPES)
@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("discard", [0.0, 0.9, 0.999])
@torch.no_grad()
def test_rows_of_rollout_sum_to_one(options: dict[str, Any], fusion: str, discard: float) -> None:
    model = random_model(**options)

    held, _ = rollout(model, images_for(model), fusion=fusion, discard=discard)

    assert bool((held >= 0).all())
    assert torch.allclose(held.sum(dim=-1), torch.ones(()), atol=1e-5)


@pytest.mark.parametrize("options", SHAPES)
@pytest.mark.parametrize("name", ["relevance", "rollout", "attention"])
def test_every_model_shape_gets_one_value_per_patch(options: dict[str, Any], name: str) -> None:
    model = random_model(**options)
    pixels = images_for(model)

    heat = explain(model, pixels, Method(name=name))

    assert heat.values.shape == (2, *model.config.grid)
    assert heat.values.dtype == np.float32
    assert heat.values.min() >= 0
    assert heat.values.max() > 0
    with torch.no_grad():
        assert heat.logits == pytest.approx(model(pixels).numpy(), abs=1e-5)


@torch.no_grad()
def test_rollout_is_the_product_of_attention_and_residuals() -> None:
    model = random_model()
    pixels = images_for(model, 1)
    eye = np.eye(17)  # 4x4 patches and the class token

    tokens, expected = model.embed(pixels), eye
    for block in model.blocks:
        mean = block.attn.maps(block.norm1(tokens))[0].double().numpy().mean(axis=0)
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


def test_relevance_of_one_block_is_attention_times_gradient() -> None:
    model = random_model(depth=1)
    pixels, block = images_for(model, 1), model.blocks[0]
    drawn, _ = relevance(model, pixels, torch.tensor([2]))

    # The class token's mixed values are linear in its map: d logit / d map = d logit / d mixed . v
    tokens = model.embed(pixels).detach()
    maps = block.attn.maps(block.norm1(tokens)).detach()
    values = block.attn.split_heads(block.norm1(tokens))[2].detach()
    mixed = (maps @ values).requires_grad_()
    model.classify(
        model.pool(
            block.add_branches(
                tokens, tokens, lambda _: block.attn.proj(mixed.transpose(1, 2).flatten(2))
            )
        )
    )[0, 2].backward()
    assert mixed.grad is not None
    by_hand = (maps[0, :, 0] * (mixed.grad[0, :, 0, None] * values[0]).sum(-1)).clamp(min=0).mean(0)

    assert drawn[0].tolist() == pytest.approx(by_hand.tolist(), rel=1e-4, abs=1e-7)


def test_relevance_with_mean_pooling_and_no_mixing_is_the_contribution_of_each_patch() -> None:
    model = random_model(pool="mean", depth=1)
    block = model.blocks[0]
    for layer in (block.attn.proj, block.mlp.fc2):  # both branches add nothing
        for tensor in layer.parameters():
            nn.init.zeros_(tensor)
    pixels = images_for(model, 1)

    drawn, logits = relevance(model, pixels, torch.tensor([1]))

    tokens = model.embed(pixels).detach()
    pooled = tokens[:, 1:].mean(dim=1).requires_grad_()
    score = model.classify(model.fc_norm(pooled))[0, 1]
    (slope,) = torch.autograd.grad(score, pooled)
    own = (tokens[0, 1:] @ slope[0]).clamp(min=0) / 16
    assert drawn[0, 0] == 0
    assert drawn[0, 1:].tolist() == pytest.approx(own.tolist(), rel=1e-4, abs=1e-7)
    assert logits[0, 1].item() == pytest.approx(score.item(), abs=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="class token"),
        pytest.param({"pool": "mean"}, id="mean of the patches"),
        pytest.param({"read_blocks": 2}, id="two blocks"),
    ],
)
def test_relevance_is_highest_on_the_patch_that_decides(options: dict[str, Any]) -> None:
    # The class is the colour of one patch in noise; small models learn it from random places. How
    # much of it a model routes through other patches depends on its initial weights.
    pixels, places, labels = dotted(64, seed=9999)
    fractions, hits = [], []
    for seed in range(3):
        torch.manual_seed(seed)
        model = VisionTransformer(replace(TINY, depth=2, **options))
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        for step in range(150):
            some, _, classes = dotted(32, seed=step)
            F.cross_entropy(model(some), classes).backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        assert (model(pixels).argmax(dim=-1) == labels).float().mean() > 0.95

        heat = relevance_map(model, pixels, labels).reshape(64, -1)

        fractions.append(heat[np.arange(64), places.numpy()] / heat.sum(axis=1))
        hits.append(heat.argmax(axis=1) == places.numpy())
    assert np.mean(fractions) > 0.4  # its fraction of the area is 1/16
    assert np.mean(hits) > 0.6


def dotted(count: int, *, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Noise with one patch of one strong channel: pixels, the patch's number, the channel's."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(count, 3, 16, 16, generator=generator) * 0.3
    places = torch.randint(16, (count,), generator=generator)
    labels = torch.randint(3, (count,), generator=generator)
    for i, (place, label) in enumerate(zip(places.tolist(), labels.tolist(), strict=True)):
        top, left = place // 4 * 4, place % 4 * 4
        pixels[i, label, top : top + 4, left : left + 4] += 2
    return pixels, places, labels


def test_relevance_is_for_the_target_class_and_by_default_for_the_predicted_one() -> None:
    model = random_model()
    pixels = images_for(model, 4)
    best = model(pixels).argmax(dim=-1)

    of_best, default = relevance_map(model, pixels, best), relevance_map(model, pixels)
    of_other = relevance_map(model, pixels, (best + 1) % 3)

    assert np.array_equal(of_best, default)
    assert np.abs(of_other - default).max() > 0.1


def test_explanations_do_not_depend_on_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = random_model()
    pixels = images_for(model, 5)
    together = explain(model, pixels, Method()).values

    monkeypatch.setattr("vitft.explain.attribution.MAX_WEIGHTS", 2 * 3 * 2 * 17**2)  # two images
    in_parts = explain(model, pixels, Method()).values
    alone = np.concatenate([explain(model, pixels[i : i + 1], Method()).values for i in range(5)])

    assert in_parts == pytest.approx(together, abs=1e-6)
    assert alone == pytest.approx(together, abs=1e-6)


def test_explaining_leaves_the_model_unchanged_and_works_without_gradients() -> None:
    model = random_model()
    pixels = images_for(model)
    expected = relevance_map(model, pixels)
    for parameter in model.parameters():
        parameter.requires_grad_(False)

    with torch.inference_mode():
        again = relevance_map(model, pixels * 1)  # a tensor that may not be differentiated

    assert np.array_equal(expected, again)
    assert all(p.grad is None and not p.requires_grad for p in model.parameters())
    assert relevance_map(model, pixels[:0]).shape == (0, 4, 4)


def test_attention_of_a_block_and_head_is_a_row_of_its_map() -> None:
    model = random_model()
    pixels = images_for(model)

    heat = explain(model, pixels, Method(name="attention", block=1, head=1)).values

    with torch.no_grad():
        maps = [maps for maps, _ in trace_attention(model, model.embed(pixels))]
    assert heat == pytest.approx(maps[1][:, 1, 0, 1:].reshape(2, 4, 4).numpy())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"name": "attention", "block": 3}, "no block 3.*\n.*0 to 2", id="block"),
        pytest.param({"name": "attention", "head": 2}, "no head 2.*\n.*0 to 1", id="head"),
        pytest.param({"name": "attention", "block": -1}, "no block -1", id="negative"),
        pytest.param({"name": "gradcam"}, "'gradcam'.*\n.*rollout", id="method"),
        pytest.param({"fusion": "sum"}, "'sum'.*\n.*max", id="fusion"),
        pytest.param({"discard": 1.0}, "invalid discard 1.0", id="discard everything"),
        pytest.param({"discard": float("nan")}, "invalid discard nan", id="nan"),
    ],
)
def test_invalid_methods_are_refused(options: dict[str, Any], message: str) -> None:
    model = random_model()

    with pytest.raises(UsageError, match=message):
        explain(model, images_for(model), Method(**options))


def test_a_model_without_classes_has_rollout_but_no_relevance() -> None:
    model = random_model(num_classes=0)

    with pytest.raises(UsageError, match=r"classes, but these weights have none\n.*rollout"):
        relevance_map(model, images_for(model))
    assert explain(model, images_for(model), Method(name="rollout")).values.shape == (2, 4, 4)


def test_another_kind_of_model_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"explain needs .* but the model is Sequential"):
        relevance_map(nn.Sequential(), torch.zeros(1, 3, 16, 16))


def test_nan_attention_is_an_error() -> None:
    model = random_model()
    nn.init.constant_(model.get_parameter("blocks.0.attn.qkv.bias"), float("nan"))

    with pytest.raises(RunError, match="infinite or NaN"):
        explain(model, images_for(model), Method(name="rollout"))


def test_maps_are_scaled_to_0_1_and_a_constant_map_to_0() -> None:
    values = np.array([[[1, 2], [3, 5]], [[7, 7], [7, 7]], [[0, 0], [0, 0]]], np.float32)

    shown = scale_maps(values)

    assert shown[0].tolist() == [[0, 0.25], [0.5, 1]]
    assert not shown[1:].any()


def test_maps_that_differ_by_rounding_alone_are_constant() -> None:
    values = np.array([[[1, 1 + 5e-7]], [[1, 1 + 2e-6]], [[1000, 1000 + 5e-4]]], np.float32)

    assert scale_maps(values).tolist() == [[[0, 0]], [[0, 1]], [[0, 0]]]


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        pytest.param({}, 11_534, id="three blocks of two heads and 17 tokens"),
        pytest.param(
            {"image_size": (224, 224), "patch_size": (16, 16), "depth": 12, "width": 768,
             "heads": 12},
            3,
            id="ViT-B/16",
        ),
        pytest.param(
            {"image_size": (512, 512), "depth": 24, "heads": 16}, 1, id="more than fits"
        ),
    ],
)  # fmt: skip
def test_attention_weights_of_a_batch_take_at_most_80_mb(
    fields: dict[str, Any], count: int
) -> None:
    with torch.device("meta"):
        model = VisionTransformer(replace(TINY, **fields))

    config = model.config
    tokens = config.num_prefix + config.grid[0] * config.grid[1]
    size = 4 * config.depth * config.heads * tokens**2  # bytes for an image, in float32
    assert batch_images(model) == count
    assert count == 1 or count * size <= 80e6 < (count + 1) * size


@pytest.mark.parametrize(
    ("fields", "queries"),
    [
        ({}, "of the class token"),
        ({"distilled": True}, "of the class and distillation tokens"),
        ({"pool": "mean"}, "averaged over all patches"),
    ],
)
def test_the_title_of_a_map_names_the_query_tokens_and_the_last_block(
    fields: dict[str, Any], queries: str
) -> None:
    model = random_model(**fields)

    assert map_title(model, Method(name="attention")) == (
        f"attention {queries}, block 2, mean of heads"
    )
    assert map_title(nn.Identity(), Method()) == "relevance"


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

    found = explain(model, pixels, Method(name=name, fusion="max")).values

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
    assert logits[0, 1].item() == pytest.approx(score.item(), abs=1e-5)


# model figures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [*SHAPES, pytest.param({"in_channels": 5}, id="5 channels")])
def test_filters_and_positions_have_their_shapes_in_every_model(options: dict[str, Any]) -> None:
    model = random_model(**options)

    pictures, shares = patch_filters(model)
    assert model.pos_embed is not None
    similarity = position_similarity(model.config, model.pos_embed)

    side = (3, 3) if options.get("convs") else model.config.patch_size
    side = (7, 7) if options.get("stem") is not None else side
    assert pictures.shape == (16 if options.get("convs") else 28, *side, 3)  # of 16 filters
    assert (pictures.min(), pictures.max()) == pytest.approx((0, 1))
    assert (np.diff(shares) <= 1e-7).all()
    assert 0 < shares.sum() <= 1.00001
    assert similarity.shape == model.config.grid * 2
    rows, columns = model.config.grid
    flat = similarity.reshape(rows * columns, -1)
    assert np.diag(flat) == pytest.approx(1, abs=1e-5)
    assert flat == pytest.approx(flat.T, abs=1e-6)


def test_the_first_component_is_the_direction_in_which_filters_differ_most() -> None:
    model = random_model()
    ramp = torch.linspace(-1, 1, 4).expand(3, 4, 4)  # dark left, bright right
    amounts = torch.randn(32, 1, 1, 1, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.patch_embed.proj.weight.copy_(0.7 + amounts * ramp)

    pictures, shares = patch_filters(model, 1)

    expected = np.linspace(0, 1, 4)[None, :, None].repeat(4, 0).repeat(3, 2)
    first = pictures[0] if pictures[0, 0, 0, 0] < 0.5 else 1 - pictures[0]  # its sign is free
    assert first == pytest.approx(expected, abs=1e-6)
    assert shares[0] == pytest.approx(1)


def test_patch_distances_are_in_pixels() -> None:
    distance = patch_distances((2, 3), (8, 4))

    assert distance[0].tolist() == pytest.approx([0, 4, 8, 8, (64 + 16) ** 0.5, (64 + 64) ** 0.5])


@pytest.mark.parametrize("prefix", [{}, {"registers": 3}])
def test_attention_distance_of_known_attention(prefix: dict[str, Any]) -> None:
    model = random_model(**prefix)
    for block in model.blocks:  # equal scores: every head looks everywhere alike
        for tensor in block.attn.qkv.parameters():
            nn.init.zeros_(tensor)

    distance, count = attention_distance(model, [images_for(model), images_for(model, 1)])

    assert count == 3
    assert distance == pytest.approx(np.full((3, 2), patch_distances((4, 4), (4, 4)).mean()))


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


def test_a_projection_is_the_patch_times_the_matrix() -> None:
    model = random_model()
    pixels = images_for(model, 1)
    config, matrix = model.config, model.patch_embed.proj.weight.detach().flatten(1)

    parts = patch_tokens(model, pixels)

    down, across = config.patch_size
    second = pixels[0, :, :down, across : 2 * across].flatten()  # to the right of the first
    bias = model.patch_embed.proj.bias
    assert bias is not None
    assert parts.is_linear
    assert parts.projections[1] == pytest.approx(
        (matrix @ second + bias).detach().numpy(), abs=1e-5
    )


def test_a_patch_that_convolutions_read_is_not_said_to_be_multiplied_with_a_matrix() -> None:
    values = np.zeros((4, 6), np.float32)
    facts: Any = {"grid": (2, 2), "projections": values, "tokens": values, "prefix": ()}
    parts = PatchTokens(
        **facts, positions=None, is_linear=False, has_bias=False, is_sum=True, channels=3
    )

    convolutions = [*token_matrices(parts, 48)]
    matrix = [*token_matrices(replace(parts, is_linear=True), 48)]
    affine = [*token_matrices(replace(parts, is_linear=True, has_bias=True), 48)]

    assert convolutions[0] == "4. Convolutions: 6 numbers at each patch"
    assert matrix[0] == "4. Each patch times a 48 x 6 matrix"
    assert affine[0] == "4. Each patch times a 48 x 6 matrix, plus a bias"


def test_patches_are_cut_in_reading_order() -> None:
    view = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)

    patches = cut_patches(view, (2, 3))

    assert patches.shape == (6, 2, 2, 3)
    assert (patches[1] == view[:2, 2:4]).all()
    assert (patches[3] == view[2:, :2]).all()
