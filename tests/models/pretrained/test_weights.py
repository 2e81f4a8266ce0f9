"""Weights opened for use: what is refused, and random ones."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vitft import load_pretrained
from vitft.models import VisionTransformer, ViTConfig, load_backbone
from vitft.system import UsageError, WeightsError


def test_pickles_are_refused_by_default_everywhere(tmp_path: Path, tiny_config: ViTConfig) -> None:
    path = tmp_path / "x.pth"
    torch.save(VisionTransformer(tiny_config).state_dict(), path)
    (tmp_path / "config.json").write_text(json.dumps({"model_args": {"num_heads": 2}}))

    with pytest.raises(WeightsError, match="is a Python pickle"):
        load_pretrained(path)
    with pytest.raises(WeightsError, match="is a Python pickle"):
        load_backbone(str(path), num_classes=2)
    model, report = load_backbone(str(path), num_classes=2, allow_pickle=True)
    assert (model.config.num_classes, report.loaded) == (2, len(model.state_dict()) - 2)


def test_random_weights_are_those_of_the_seed_and_timm_models_refuse_some_settings() -> None:
    name = "random:timm:test_resnet"
    states = [
        load_backbone(name, num_classes=2, image_size=32, seed=seed)[0].state_dict()
        for seed in (0, 0, 1)
    ]
    first = next(n for n, t in states[0].items() if t.is_floating_point() and t.ndim == 4)

    assert torch.equal(states[0][first], states[1][first])
    assert not torch.equal(states[0][first], states[2][first])
    own = [load_backbone("random:demo", num_classes=2, seed=seed)[0] for seed in (0, 0, 1)]
    a, b, c = (model.get_parameter("pos_embed") for model in own)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert not own[0].training
    refused: list[dict[str, Any]] = [{"pre_logits": "keep"}, {"pos_embed": "jax"}]
    for options in refused:
        with pytest.raises(UsageError, match="timm models do not support"):
            load_backbone("timm:test_resnet", num_classes=2, **options)
