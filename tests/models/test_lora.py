"""LoRA: adding, training, merging and exporting adapters."""

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_run import run_it
from vitft import load_pretrained
from vitft.config import TrainSpec
from vitft.data import EvalTransform
from vitft.models import (
    Card,
    VisionTransformer,
    ViTConfig,
    add_adapters,
    build_model,
    freeze_model,
    load_checkpoint,
    save_checkpoint,
)

SPEC = TrainSpec(layers="lora", lora_rank=4)
PIXELS = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_only_adapters_and_the_head_train(tiny_vit: VisionTransformer) -> None:
    add_adapters(tiny_vit, SPEC)

    trained = freeze_model(tiny_vit, "lora")

    assert [name for name in trained if ".lora_" not in name] == ["head.weight", "head.bias"]
    assert len(trained) == 2 + 16


def test_new_adapters_are_drawn_from_the_seed(tiny_config: ViTConfig) -> None:
    drawn = []
    for seed in (0, 0, 1):
        model = VisionTransformer(tiny_config)
        torch.manual_seed(99)
        add_adapters(model, replace(SPEC, seed=seed))
        drawn.append(model.get_parameter("blocks.1.mlp.fc1.lora_A.default.weight"))

    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("layers", ["lora", "head,lora"])
def test_peft_reproduces_the_run_from_its_adapter(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, layers: str
) -> None:
    from peft import PeftModel

    done = run_it(
        image_folder,
        tiny_weights,
        tmp_path / "run",
        train={"layers": layers, "keep_adapter": True, "lora_rank": 4},
        optim={"lr": 1e-2},
    )

    base, _ = load_pretrained(str(tiny_weights), num_classes=3)
    with torch.no_grad():
        base.head.weight.normal_()  # whatever was there
        adapted = PeftModel.from_pretrained(base, str(done.run / "adapter")).eval()
        state, card = load_checkpoint(done.run / "model.safetensors")
        wanted = build_model(state, card.architecture)(PIXELS)
        assert wanted.abs().max() > 0.1
        torch.testing.assert_close(adapted(PIXELS), wanted, atol=1e-5, rtol=0)
    assert sorted(p.name for p in (done.run / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    modes = {stat.S_IMODE(p.stat().st_mode) for p in (done.run / "adapter").iterdir()}
    assert modes == {stat.S_IMODE((done.run / "config.toml").stat().st_mode)}
    written = json.loads((done.run / "adapter" / "adapter_config.json").read_text())
    assert (written["r"], written["lora_alpha"]) == (4, TrainSpec().lora_alpha)
    layers = ("attn.proj", "attn.qkv", "mlp.fc1", "mlp.fc2")
    adapted_names = {f"blocks.{i}.{layer}" for i in range(2) for layer in layers}
    assert {*written["target_modules"]} <= adapted_names
    assert written["modules_to_save"] == ["head"]
    assert written["base_model_name_or_path"] == card.weights["name"]
    assert written["inference_mode"] is True


def test_a_fraction_of_the_adapters_is_that_fraction_of_the_change_in_the_weights(
    image_folder: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    before, _ = load_checkpoint(tiny_weights)
    changes = []
    for fraction in (1.0, 0.5):
        optim = {"lr": 0.1, "epochs": 1, "schedule": "constant", "interpolation": fraction}
        out = tmp_path / str(fraction)
        run_it(image_folder, tiny_weights, out, train={"layers": "lora"}, optim=optim)
        after, _ = load_checkpoint(out / "model.safetensors")
        changes.append(after["blocks.1.mlp.fc1.weight"] - before["blocks.1.mlp.fc1.weight"])

    assert changes[0].abs().max() > 0.1
    torch.testing.assert_close(changes[1], changes[0] / 2, atol=1e-6, rtol=1e-5)


def test_the_adapter_applies_to_the_model_of_timm(
    image_folder: Path, tmp_path: Path, tiny_config: ViTConfig
) -> None:
    import timm
    from peft import PeftModel

    shape: dict[str, Any] = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "num_heads": 2}
    net = timm.models.VisionTransformer(**shape, depth=2, num_classes=0)
    weights = tmp_path / "timm.safetensors"
    card = Card(
        architecture=replace(tiny_config, num_classes=0),
        transform=EvalTransform(image_size=(16, 16)),
    )
    save_checkpoint(weights, net.state_dict(), card)
    done = run_it(
        image_folder, weights, tmp_path / "run", train={"layers": "lora", "keep_adapter": True}
    )

    base = timm.models.VisionTransformer(**shape, depth=2, num_classes=3)
    base.load_state_dict(net.state_dict(), strict=False)
    adapted = PeftModel.from_pretrained(base, str(done.run / "adapter")).eval()
    state, card = load_checkpoint(done.run / "model.safetensors")
    with torch.no_grad():
        wanted = build_model(state, card.architecture)(PIXELS)
        torch.testing.assert_close(adapted(PIXELS), wanted, atol=1e-4, rtol=0)
