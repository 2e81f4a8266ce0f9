"""Loading: the report, the statistics, checkpoints, and real weights."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.contract.built.weights import random_weights
from tests.models.pretrained.test_flavours import CONFIG, write_timm_config
from vitft import load_pretrained
from vitft.data import EvalTransform
from vitft.models import (
    Card,
    VisionTransformer,
    ViTConfig,
    check_weights_name,
    load_backbone,
    save_checkpoint,
)
from vitft.system import UsageError, WeightsError


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


# our own


def test_our_own_checkpoint_brings_its_card(tmp_path: Path, images: Tensor) -> None:
    transform = EvalTransform(image_size=(32, 32), mean=(0.1,) * 3, std=(0.3,) * 3, crop=0.8)
    architecture = replace(CONFIG, pool="mean", heads=2, drop_path=0.1)
    card = Card(
        architecture=architecture,
        transform=transform,
        classes=tuple("abcdefg"),
        weights={"name": "vit_tiny_patch16_224.augreg_in21k"},
    )
    state = random_weights(architecture)
    save_checkpoint(tmp_path / "model.safetensors", state, card)

    model, report = load_pretrained(tmp_path)

    assert model.config == replace(architecture, drop_path=0.0)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert (report.flavour, report.transform, report.classes) == ("vitft", transform, card.classes)
    assert report.provenance["from"] == "vit_tiny_patch16_224.augreg_in21k"


# the report


def test_num_classes_always_gives_a_new_zero_head(tmp_path: Path, images: Tensor) -> None:
    save_file(random_weights(CONFIG), tmp_path / "model.safetensors")

    model, report = load_pretrained(tmp_path, num_classes=7, drop_path=0.1)

    assert not model(images).any()
    assert report.head == "new, 7 classes, initialised to zero"
    assert report.dropped == ("head.bias (7,)", "head.weight (7, 192)")
    assert model.config.drop_path == 0.1
    assert not model.training


def test_statistics_come_from_the_user_then_the_file_then_nowhere(tmp_path: Path) -> None:
    save_file(random_weights(CONFIG), tmp_path / "model.safetensors")

    _, unstated = load_pretrained(tmp_path)
    write_timm_config(tmp_path)
    _, stated = load_pretrained(tmp_path)
    _, given = load_pretrained(tmp_path, mean=(0.1, 0.2, 0.3), std=(1.0, 1.0, 1.0))

    assert unstated.transform.mean == (0.5, 0.5, 0.5)
    assert "0.5 is assumed" in unstated.statistics_source
    assert stated.transform.std == (0.2, 0.2, 0.2)
    assert stated.statistics_source == f"from {tmp_path / 'config.json'}"
    assert given.transform.mean == (0.1, 0.2, 0.3)
    assert given.statistics_source == "given by --mean and --std"
    assert given.transform.crop == 1.0  # still the file's


@pytest.mark.parametrize(
    ("options", "mean", "why"),
    [
        pytest.param({}, 0.5, "0.5 is assumed", id="nothing is known"),
        pytest.param({"pre_logits": True}, 0.5, "as in all of Google's", id="pre_logits"),
        pytest.param({"layer_scale": 1e-5}, 0.485, "with LayerScale or", id="DINOv2"),
        pytest.param({"distilled": True}, 0.485, "or distillation", id="distilled DeiT"),
    ],
)
def test_statistics_are_told_by_the_maker_where_only_one_makes_such_files(
    options: dict[str, Any], mean: float, why: str, tmp_path: Path
) -> None:
    save_file(random_weights(replace(CONFIG, **options)), tmp_path / "model.safetensors")

    _, report = load_pretrained(tmp_path, num_classes=3)

    assert report.transform.mean[0] == mean
    assert why in report.statistics_source


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


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        *[
            (name, "weights not found: ")
            for name in ("./vit", "~/vit", "/nowhere/vit", "vit/", "vit.safetensors", "vit.PTH",
                         "vit.onnx", "vit.h5", "vit.gguf", "vit.zip", "vit.npz", Path("vit"))
        ],
        *[(name, "unknown weights") for name in ("vit_tinny", "vit.tinny", "a/b")],
        *[
            (name, "invalid hub name")
            for name in ("hf:", "hf:a", "hf:a/b/c", "hf:a/b@", "hf:a/..", "hf:ä/b")
        ],
        *[
            (name, "invalid timm name")
            for name in ("timm:", f"timm:{'x' * 101}", f"timm:x.{'y' * 101}", "timm:ResNet",
                         "timm:a/b", "timm:a.")
        ],
        (" ", "name of the weights is empty"),
        ("random:demo", "random"),
        ("random:nonesuch", "random"),
    ],
)  # fmt: skip
def test_a_name_that_stands_for_no_weights_is_refused_as_what_it_looks_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | Path, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(WeightsError) as caught:
        check_weights_name(name)

    assert problem in caught.value.problem


@pytest.mark.parametrize(
    "name",
    ["hf:a/b", "hf:a-1/b.c_d@v1.0/x", f"timm:{'x' * 100}", f"timm:x.{'y' * 100}",
     "timm:resnet50.a1-in1k", "timm:a_1", "demo", "random:demo"],
)  # fmt: skip
def test_other_names_of_the_catalogue_the_hub_and_timm_are_accepted(name: str) -> None:
    check_weights_name(name, allow_pickle=False, allow_random=True)
