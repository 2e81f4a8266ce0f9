"""Parts that later models add: rotary positions, SwiGLU, attention pooling, other norms."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from vitft import load_pretrained
from vitft.config import OptimSpec, TrainSpec
from vitft.data import EvalTransform
from vitft.explain import Method, attention_maps, explain, rollout
from vitft.export import ExportPlan, Int8Format, OnnxFormat, TorchExportFormat, TrainedRun
from vitft.models import (
    Card,
    RopeConfig,
    VisionTransformer,
    ViTConfig,
    add_adapters,
    build_model,
    freeze_model,
    load_checkpoint,
    merge_adapters,
    save_checkpoint,
)
from vitft.training import parameter_groups

METHODS: tuple[Literal["relevance", "rollout", "attention"], ...] = (
    "relevance", "rollout", "attention",
)  # fmt: skip
SMALL = ViTConfig(image_size=(16, 24), patch_size=(4, 4), width=64, depth=2, heads=4, num_classes=3)
INDEX = RopeConfig(unit=False, base=10000.0, offset=1.0, grid=(8, 8), x_first=True, halves=False)
PARTS = [
    pytest.param({}, id="plain"),
    pytest.param({"pool": "map"}, id="attention pooling"),
    pytest.param({"pool": "map", "pool_heads": 8, "embed_norm": True}, id="PE's pooling"),
    pytest.param({"final_norm": False}, id="no final norm"),
    pytest.param({"final_norm": False, "pool": "mean"}, id="no norm of the mean"),
    pytest.param(
        {"norm_layer": "rmsnorm", "patch_norm": True, "proj_bias": False, "gated_mlp": True},
        id="AIMv2",
    ),
    pytest.param({"gated_mlp": True, "mlp_ratio": 8 / 3, "layer_scale": 1e-5}, id="SwiGLU"),
    pytest.param({"attn_norm": True, "mlp_norm": True}, id="norms inside a block"),
    pytest.param({"gated_mlp": True, "mlp_norm": True, "rope": INDEX}, id="EVA-02"),
    pytest.param(
        {"positions": False, "rope": RopeConfig(), "registers": 4, "layer_scale": 1e-5}, id="DINOv3"
    ),
]


def random_model(**fields: Any) -> VisionTransformer:
    """Return a model of `SMALL` with other fields and random weights, so that each part counts."""
    model: VisionTransformer = randomised(VisionTransformer(replace(SMALL, **fields)))
    return model


def randomised(model: Any) -> Any:
    """Draw weights of the order of published ones, with norms near one."""
    random = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        is_gain = "norm" in name and name.endswith("weight")
        parameter.data.normal_(mean=float(is_gain), std=0.2, generator=random)
    return model.eval()


def pixels_for(model: VisionTransformer, count: int = 2) -> Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, *model.config.image_size, generator=random)


def trained_run(model: VisionTransformer, folder: Path) -> TrainedRun:
    transform = EvalTransform(image_size=model.config.image_size)
    card = Card(architecture=model.config, transform=transform, classes=("a", "b", "c"))
    return TrainedRun(folder, model.state_dict(), card)


@pytest.mark.parametrize("fields", PARTS)
@torch.no_grad()
def test_a_checkpoint_of_every_part_gives_the_same_logits(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    run = trained_run(model := random_model(**fields), tmp_path)

    save_checkpoint(tmp_path / "m.safetensors", run.state, run.card)
    state, card = load_checkpoint(tmp_path / "m.safetensors")
    opened = build_model(state, card.architecture)

    assert torch.equal(opened(pixels_for(model)), model(pixels_for(model)))


@pytest.mark.parametrize("fields", PARTS)
@torch.no_grad()
def test_merging_lora_into_every_part_keeps_the_logits(fields: dict[str, Any]) -> None:
    model = random_model(**fields)
    names = [*model.state_dict()]
    pixels, before = pixels_for(model), model(pixels_for(model))

    add_adapters(model, TrainSpec(layers="lora", lora_rank=4))
    assert torch.allclose(model(pixels), before, atol=1e-6)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.normal_(std=0.1)
    adapted, features = model(pixels), model.classify(model.features(pixels))
    assert sum(name.endswith("lora_A") for name, _ in model.named_modules()) >= 8
    merge_adapters(model)

    assert (adapted - before).abs().max() > 0.01
    assert [*model.state_dict()] == names
    allowed = 3e-6 * adapted.abs().max()  # of the largest logit: a small one is a difference
    assert (model(pixels) - adapted).abs().max() < allowed
    assert (features - adapted).abs().max() < allowed  # by way of the class token's shortcut


@pytest.mark.long
@pytest.mark.parametrize("fields", [PARTS[i] for i in (2, 5, 8, 9)])
@torch.no_grad()
def test_graphs_of_every_part_give_the_same_logits(fields: dict[str, Any], tmp_path: Path) -> None:
    run = trained_run(model := random_model(**fields), tmp_path)
    pixels = pixels_for(model, count=3)
    expected = model(pixels).numpy()
    folders = {name: tmp_path / name for name in ("onnx", "int8", "program")}
    for folder in folders.values():
        folder.mkdir()

    plan = ExportPlan(formats=(), out=tmp_path)
    OnnxFormat(run, plan).write(folders["onnx"])
    Int8Format(run, plan).write(folders["int8"])
    TorchExportFormat(run, plan).write(folders["program"])
    program = TorchExportFormat(run, plan).open(folders["program"])
    graphs = {
        name: onnxruntime.InferenceSession(folders[name] / "model.onnx").run(
            None, {"pixels": pixels.numpy()}
        )[0]
        for name in ("onnx", "int8")
    }

    assert program.logits(pixels.numpy()) == pytest.approx(expected, abs=1e-5)
    assert graphs["onnx"] == pytest.approx(expected, abs=1e-4)
    assert graphs["int8"] == pytest.approx(expected, abs=0.1 * float(np.abs(expected).max()))


@pytest.mark.parametrize("fields", PARTS)
def test_every_part_is_explained_by_each_method(fields: dict[str, Any]) -> None:
    model = random_model(**fields)
    pixels = pixels_for(model)

    maps, _ = attention_maps(model, pixels)
    mixed, _ = rollout(model, pixels)
    found = [explain(model, pixels, Method(name=name)) for name in METHODS]

    assert all(torch.allclose(rows.sum(dim=-1), torch.ones(())) for rows in (*maps, mixed))
    for values, logits in found:
        assert values.shape == (2, *model.config.grid)
        assert values.max() > 0
        assert logits == pytest.approx(model(pixels).detach().numpy(), abs=1e-5)


def test_relevance_of_attention_pooling_ignores_a_patch_that_is_not_pooled() -> None:
    model = random_model(pool="map", depth=1, attn_norm=False)
    block: Any = model.blocks[0]
    block.attn.proj.weight.data.zero_()  # so that patches do not mix
    assert model.attn_pool is not None
    model.attn_pool.latent.data.mul_(100)
    pixels = pixels_for(model, count=1)
    x = model.norm(model.encode(model.embed(pixels)))
    q, k, _ = model.attn_pool.split_heads(x)
    weights = (q @ k.mT / 4).softmax(dim=-1).amax(dim=1)[0, 0]  # (P,)

    heat = explain(model, pixels, Method())[0].ravel()

    assert heat[int(weights.argmin())] <= 1e-3 * heat.max()


def test_every_way_to_freeze_trains_attention_pooling_with_the_last_blocks_only() -> None:
    model = random_model(pool="map")

    trained = {name: freeze_model(model, name) for name in ("head", "blocks:1", "all")}

    pooling = {name: sum("attn_pool" in n for n in names) for name, names in trained.items()}
    assert pooling == {"head": 0, "blocks:1": 13, "all": 13}
    groups = parameter_groups(model, OptimSpec(layer_decay=0.5))
    last = {id(p) for group in groups if group["lr_scale"] == 1 for p in group["params"]}
    assert {id(model.norm.weight), id(model.get_parameter("attn_pool.q.weight"))} <= last


# rotary positions ---------------------------------------------------------------------------------


def turned(config: ViTConfig, rope: RopeConfig, x: Tensor) -> Tensor:
    """Return vectors x (K,), turned for every token: (N, K)."""
    count = config.num_prefix + config.grid[0] * config.grid[1]
    block: Any = VisionTransformer(replace(config, rope=rope)).blocks[0]
    return block.attn.rotary(x.expand(1, 1, count, -1))[0, 0]


@pytest.mark.parametrize("rope", [RopeConfig(), INDEX], ids=["DINOv3", "PE"])
def test_scores_of_turned_queries_and_keys_depend_only_on_the_offset(rope: RopeConfig) -> None:
    config = replace(SMALL, registers=2)
    query, key = torch.randn(2, 16).unbind()

    scores = turned(config, rope, query) @ turned(config, rope, key).T
    patches = scores[3:, 3:].unflatten(0, (4, 6)).unflatten(2, (4, 6))  # (4, 6, 4, 6)

    assert scores[0, 0] == pytest.approx(float(query @ key), rel=1e-5)  # prefixes are not turned
    assert torch.allclose(
        patches[0, 0, 1, 2], patches[2, 3, 3, 5], atol=1e-4
    )  # one down, two right
    assert not torch.allclose(patches[0, 0, 1, 2], patches[0, 0, 2, 1], atol=1e-2)


@torch.no_grad()
def test_a_rotary_model_takes_images_of_another_size_without_resampling(tmp_path: Path) -> None:
    run = trained_run(model := random_model(positions=False, rope=RopeConfig()), tmp_path)
    save_checkpoint(tmp_path / "m.safetensors", run.state, run.card)

    larger, report = load_pretrained(tmp_path / "m.safetensors", image_size=(32, 20))

    assert report.positions == "8x5 rotary, not learned"
    assert "rotary positions" in report.architecture
    assert larger(torch.randn(1, 3, 32, 20)).shape == (1, 3)
    assert all(torch.equal(larger.state_dict()[n], t) for n, t in model.state_dict().items())
