"""The cut at the freeze boundary."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from vitft.features import BothHeads, cut_model, run_prefix
from vitft.models import TimmConfig, TimmModel, VisionTransformer, ViTConfig, freeze_model

PIXELS = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("layers", ["head", "blocks:1", "blocks:2"])
def test_suffix_after_prefix_is_the_model(tiny_vit: VisionTransformer, layers: str) -> None:
    tiny_vit.head.weight.data.normal_()
    freeze_model(tiny_vit, layers)
    cut = cut_model(tiny_vit, layers)
    assert cut.prefix is not None

    inputs = run_prefix(cut.prefix, PIXELS).clone()
    logits = cut.suffix.eval()(inputs)

    torch.testing.assert_close(logits, tiny_vit(PIXELS), atol=1e-5, rtol=0)


def test_without_a_frozen_part_only_the_class_token_leaves_the_last_block(
    tiny_vit: VisionTransformer,
) -> None:
    tiny_vit.head.weight.data.normal_()
    freeze_model(tiny_vit, "all")
    cut, rows = cut_model(tiny_vit, "all"), list[int]()
    mlp: nn.Module = tiny_vit.blocks[-1].mlp
    mlp.register_forward_pre_hook(lambda _, args: rows.append(args[0].shape[1]))

    found, expected = cut.suffix(PIXELS), tiny_vit(PIXELS)

    assert cut.prefix is None
    assert rows == [1, 17]  # 16 patches
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    weights = [*tiny_vit.parameters()]
    pairs = (torch.autograd.grad(logits.sigmoid().sum(), weights) for logits in (found, expected))
    torch.testing.assert_close(*pairs, atol=1e-4, rtol=1e-4)


def test_training_the_suffix_leaves_frozen_parts_in_eval_mode(tiny_vit: VisionTransformer) -> None:
    freeze_model(tiny_vit, "blocks:1")
    cut = cut_model(tiny_vit, "blocks:1")

    cut.suffix.train()

    assert not tiny_vit.blocks[0].training
    assert not tiny_vit.patch_embed.training
    assert tiny_vit.blocks[1].mlp.fc1.training
    assert tiny_vit.head.training


def test_drop_path_of_the_trained_blocks_is_active_only_during_training(
    tiny_config: ViTConfig,
) -> None:
    model = VisionTransformer(replace(tiny_config, drop_path=0.9))
    model.head.weight.data.normal_()
    freeze_model(model, "blocks:1")
    cut = cut_model(model, "blocks:1")
    assert cut.prefix is not None
    inputs = run_prefix(cut.prefix, PIXELS).clone()

    assert torch.equal(cut.suffix.eval()(inputs), cut.suffix.eval()(inputs))
    assert not torch.equal(cut.suffix.train()(inputs), cut.suffix.eval()(inputs))


@pytest.mark.parametrize("layers", ["head", "blocks:1"])
def test_a_bf16_prefix_differs_by_rounding_only(tiny_vit: VisionTransformer, layers: str) -> None:
    cut = cut_model(tiny_vit, layers)
    assert cut.prefix is not None

    exact = run_prefix(cut.prefix, PIXELS)
    lean = run_prefix(cut.prefix.in_precision("bf16"), PIXELS)

    assert lean.dtype == torch.bfloat16
    assert tiny_vit.cls_token.dtype == torch.float32  # the model itself is left alone
    assert ((lean.float() - exact).norm() / exact.norm()).item() < 0.02  # 8 bits, a few layers


@pytest.mark.parametrize("layers", ["head", "blocks:1", "blocks:2"])
def test_the_digest_changes_with_the_function_of_the_prefix_only(
    tiny_vit: VisionTransformer, layers: str
) -> None:
    def digest() -> str:
        prefix = cut_model(tiny_vit, layers).prefix
        assert prefix is not None
        return prefix.digest()

    before = digest()
    tiny_vit.head.weight.data += 1  # behind every cut
    unchanged = digest()
    tiny_vit.patch_embed.proj.weight.data += 1  # in front of every cut
    changed = digest()
    tiny_vit.blocks[1].mlp.fc1.weight.data += 1  # the last block: frozen only under `head`
    last = digest()
    tiny_vit.norm.weight.data += 1  # of pooled features only
    norm = digest()

    assert unchanged == before
    assert changed != before
    assert (last != changed) == (norm != last) == (layers == "head")


@pytest.mark.parametrize("layers", ["blocks:1", "blocks:2", "all"])
def test_checkpointing_stores_fewer_activations_and_changes_no_gradient(
    tiny_config: ViTConfig, layers: str
) -> None:
    stored, gradients = [], []
    for enabled in (False, True):
        torch.manual_seed(0)
        model = VisionTransformer(tiny_config)
        model.head.weight.data.normal_()
        freeze_model(model, layers)
        model.set_checkpointing(enabled)
        cut = cut_model(model, layers)
        inputs = PIXELS if cut.prefix is None else run_prefix(cut.prefix, PIXELS).clone()
        sizes: list[int] = []

        def keep(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = cut.suffix.train()(inputs).square().sum()
        stored.append(sum(sizes))
        loss.backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])

    assert stored[1] < 0.7 * stored[0]
    torch.testing.assert_close(gradients[0], gradients[1], atol=0, rtol=0)


@pytest.fixture
def timm_vit() -> TimmModel:
    torch.manual_seed(0)
    config = TimmConfig(timm="test_vit", image_size=(160, 160), num_classes=3)
    return TimmModel(config).eval()


@pytest.mark.parametrize("layers", ["head", "blocks:1", "blocks:2"])
def test_a_timm_model_is_cut_at_the_same_places(timm_vit: TimmModel, layers: str) -> None:
    pixels = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    freeze_model(timm_vit, layers)
    cut = cut_model(timm_vit, layers)
    assert cut.prefix is not None

    inputs = run_prefix(cut.prefix, pixels).clone()
    lean = cut.prefix.in_precision("bf16")
    coarse = run_prefix(lean, pixels)

    torch.testing.assert_close(cut.suffix.eval()(inputs), timm_vit(pixels), atol=1e-4, rtol=1e-4)
    assert inputs.shape[1:] == cut.prefix.shape
    assert cut.prefix.leading == inputs.shape[-1]
    assert not cut.prefix.autocast
    assert lean.autocast
    assert coarse.dtype == torch.bfloat16
    assert next(lean.parameters()).dtype == torch.float32
    assert ((coarse.float() - inputs).norm() / inputs.norm()).item() < 0.05


def test_features_of_several_blocks_begin_with_those_of_the_last(tiny_config: ViTConfig) -> None:
    torch.manual_seed(0)
    model = VisionTransformer(tiny_config).eval()
    last = run_prefix(cut_model(model, "head").prefix, PIXELS)  # type: ignore[arg-type]
    model.read_last_blocks(2)
    prefix = cut_model(model, "head").prefix
    assert prefix is not None

    found = run_prefix(prefix, PIXELS)

    assert found.shape[1:] == prefix.shape
    assert prefix.leading == model.last_block_size == last.shape[1] < found.shape[1]
    torch.testing.assert_close(found[:, : prefix.leading], last)


def test_both_heads_score_features_and_pixels_alike(tiny_config: ViTConfig) -> None:
    torch.manual_seed(0)
    model = VisionTransformer(tiny_config).eval()
    model.read_last_blocks(2)
    assert model.last_head is not None
    model.head.weight.data.normal_()
    model.last_head.weight.data.normal_()
    features = run_prefix(cut_model(model, "head").prefix, PIXELS).clone()  # type: ignore[arg-type]

    found = BothHeads(model)(features)

    assert found.shape == (5, 2, 3)
    torch.testing.assert_close(found[:, 0], model(PIXELS), atol=1e-5, rtol=1e-5)
    last = features[:, : model.last_block_size]
    torch.testing.assert_close(found[:, 1], model.last_head(model.pre_logits(last)))
    torch.testing.assert_close(BothHeads(model)(PIXELS), found, atol=1e-5, rtol=1e-5)


def test_feature_maps_of_a_timm_model_are_cut_in_their_own_shape() -> None:
    torch.manual_seed(0)
    model = TimmModel(TimmConfig(timm="test_resnet", image_size=(64, 32), num_classes=3)).eval()
    pixels = torch.randn(2, 3, 64, 32, generator=torch.Generator().manual_seed(0))
    freeze_model(model, "blocks:2")
    cut = cut_model(model, "blocks:2")
    assert cut.prefix is not None

    maps = run_prefix(cut.prefix, pixels).clone()

    assert maps.ndim == 4  # images, channels, height and width
    assert cut.prefix.shape == maps.shape[1:]
    assert cut.prefix.leading == maps.shape[3] < maps.shape[2]
    torch.testing.assert_close(cut.suffix.eval()(maps), model(pixels), atol=1e-4, rtol=1e-4)
    cut.suffix.train()
    trained = [m for m in model.net.modules() if isinstance(m, torch.nn.BatchNorm2d) and m.training]
    assert 0 < len(trained) < sum(isinstance(m, torch.nn.BatchNorm2d) for m in model.net.modules())
