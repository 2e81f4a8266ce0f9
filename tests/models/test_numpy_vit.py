"""The NumPy model: the same outputs as torch, and refusal of unsupported models."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import save_model
from vitft.data import EvalTransform
from vitft.models import (
    Card,
    NumpyModel,
    RopeConfig,
    VisionTransformer,
    ViTConfig,
    normalise,
    save_checkpoint,
)
from vitft.predict import NumpyEngine
from vitft.system import RunError

SMALL = ViTConfig(image_size=(24, 32), patch_size=(8, 8), width=32, depth=3, heads=2, num_classes=5)


def model_of(**settings: Any) -> VisionTransformer:
    """Random weights of the order of published ones, biases and tokens too."""
    model = VisionTransformer(replace(SMALL, **settings)).eval()
    random = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.2, generator=random)
    return model


KINDS = [
    pytest.param({}, id="plain"),
    pytest.param({"norm": "post"}, id="post-norm"),
    pytest.param({"pre_logits": True}, id="pre_logits"),
    pytest.param({"pool": "mean"}, id="mean of the patches"),
    pytest.param({"registers": 4, "prefix_positions": False}, id="registers"),
    pytest.param({"layer_scale": 1e-5}, id="LayerScale"),
    pytest.param({"distilled": True}, id="distilled"),
    pytest.param({"qkv_bias": False}, id="no bias of queries"),
    pytest.param({"norm_eps": 1e-2}, id="another eps"),
    pytest.param({"read_blocks": 3}, id="a head that reads every block"),
    pytest.param({"read_blocks": 2, "registers": 4}, id="a head that reads two blocks"),
    pytest.param({"read_blocks": 2, "pool": "mean"}, id="mean, a head that reads two blocks"),
    pytest.param(
        {"read_blocks": 3, "pool": "mean", "norm_before_pool": True, "class_token": False},
        id="norm before the mean, no class token, a head that reads three blocks",
    ),
    pytest.param({"mlp_ratio": 3.5, "heads": 4, "depth": 1}, id="other sizes"),
]
PARTS = [
    pytest.param({"pool": "map", "class_token": False}, id="attention pooling"),
    pytest.param({"pool": "map", "pool_heads": 8, "gated_mlp": True}, id="its own heads"),
    pytest.param({"final_norm": False, "embed_norm": True}, id="norm first instead of last"),
    pytest.param({"norm_layer": "rmsnorm", "patch_norm": True, "proj_bias": False}, id="RMSNorm"),
    pytest.param({"gated_mlp": True, "mlp_norm": True, "attn_norm": True}, id="SwiGLU, norms"),
    pytest.param({"activation": "gelu_tanh"}, id="GELU with tanh"),
    pytest.param({"activation": "quick_gelu"}, id="GELU with a sigmoid"),
    pytest.param({"rope": RopeConfig(), "positions": False, "registers": 2}, id="DINOv3"),
    pytest.param(
        {"rope": RopeConfig(unit=False, base=50.0, offset=1.0, x_first=True, halves=False)},
        id="rotation by numbers of rows and columns",
    ),
    pytest.param(
        {"rope": RopeConfig(unit=False, grid=(6, 5), x_first=True), "pool": "mean"},
        id="rotation scaled to another grid",
    ),
    pytest.param({"in_channels": 1}, id="one channel"),
]


@pytest.mark.parametrize("settings", [*KINDS, *PARTS])
def test_numpy_answers_as_torch_does(settings: dict[str, Any]) -> None:
    model = model_of(**settings)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    views = np.random.default_rng(0).integers(0, 256, (3, 24, 32, 3), np.uint8)
    channels = model.config.in_channels
    transform = EvalTransform(
        image_size=(24, 32), mean=(0.4, 0.5, 0.6)[:channels], std=(0.2, 0.25, 0.3)[:channels]
    )

    ours = NumpyModel(model.config, weights, threads=2)
    features = ours.features(normalise(views, transform))
    logits = ours.classify(features)

    with torch.no_grad():
        pixels = transform.normalise(torch.from_numpy(views))
        expected_features, expected = model.features(pixels), model(pixels)
    assert ours.feature_size == model.feature_size == features.shape[1]
    assert features == pytest.approx(expected_features.numpy(), abs=1e-5)
    assert logits == pytest.approx(expected.numpy(), abs=1e-5)
    assert np.abs(logits).max() > 0.1  # it says something
    if blocks := model.config.depth - model.config.read_blocks:
        both = ours.features(normalise(views, transform), blocks)
        with torch.no_grad():
            expected_both = model.features(pixels, blocks)
        assert both.shape == (3, model.feature_size + model.config.width)
        assert both == pytest.approx(expected_both.numpy(), abs=1e-5)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model.safetensors", model_of(), "abcde")


@pytest.mark.parametrize("place", [0.3, 0.6, 0.99])
def test_one_changed_bit_of_the_weights_is_no_answer(saved: Path, place: float) -> None:
    data = bytearray(saved.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    data[start + int(place * (len(data) - start))] ^= 1
    saved.write_bytes(data)

    engine = NumpyEngine.open(saved)

    assert engine is not None
    with pytest.raises(RunError, match="damaged checkpoint"):
        engine.scores(np.zeros((1, 24, 32, 3), np.uint8))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"stem": (2, 2)}, id="hybrid"),
        pytest.param({"convs": (8, 16)}, id="convolutions"),
        pytest.param({"in_channels": 2}, id="two channels"),
        pytest.param({"num_classes": 0}, id="no head"),
    ],
)
def test_what_it_cannot_run_it_leaves_to_torch(tmp_path: Path, change: dict[str, Any]) -> None:
    config = replace(SMALL, patch_size=(16, 16), image_size=(32, 32), **change)
    half = (0.5,) * config.in_channels
    transform = EvalTransform(image_size=(32, 32), mean=half, std=half)
    card = Card(
        architecture=config, transform=transform, classes=tuple("abcde")[: config.num_classes]
    )
    save_checkpoint(tmp_path / "m.safetensors", VisionTransformer(config).state_dict(), card)

    assert NumpyEngine.open(tmp_path / "m.safetensors") is None


@pytest.mark.parametrize(("factor", "is_supported"), [(1e3, True), (1e8, False), (1e30, False)])
def test_weights_that_may_overflow_are_left_to_torch(
    factor: float, is_supported: bool, tmp_path: Path
) -> None:
    model = model_of()
    model.blocks[1].mlp.fc1.weight.data *= factor  # 4,096 values of 0.2: a norm of 12.8
    save_model(tmp_path / "model.safetensors", model, "abcde")

    engine = NumpyEngine.open(tmp_path / "model.safetensors")

    assert (engine is not None) == is_supported


def test_a_token_whose_variance_overflows_is_an_error() -> None:
    model = model_of()
    ours = NumpyModel(SMALL, {name: t.numpy() for name, t in model.state_dict().items()})
    x = np.zeros((1, 2, 32), np.float32)
    assert np.isfinite(ours.norm(x, "norm.")).all()
    x[0, 1, 0] = 1e25

    with np.errstate(over="ignore"), pytest.raises(FloatingPointError, match="overflows"):
        ours.norm(x, "norm.")
