"""Weights that are named as published: ImageNet's class names and the published mean and std."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import vitft
from vitft.models import find_model, load_classifier
from vitft.system import RunError

NAME = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
IMAGENET = ("tench", "goldfish", "great white shark")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViT-Tiny of ImageNet's 1,000 classes with random weights, in timm's format."""
    torch.manual_seed(0)
    model = vitft.create_model("vit_tiny_patch16_224", num_classes=1000)
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    path = tmp_path_factory.mktemp("tiny") / "weights.safetensors"
    save_file(model.state_dict(), path)
    return path


def placed(tiny: Path, target: Path, config: Mapping[str, object] | None = None) -> Path:
    """Link the weights to a path, with a config.json if there is one; return the path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(tiny, target)
    if config is not None:
        (target.parent / "config.json").write_text(json.dumps(config))
    return target


def timm_config(tag: str, classes: int = 1000, **more: object) -> dict[str, object]:
    cfg = {"tag": tag, "num_classes": classes, "mean": [0.5] * 3, "std": [0.5] * 3, **more}
    return {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": cfg}


@pytest.mark.parametrize(
    "place",
    [
        f"{NAME}/model.safetensors",
        "vit_tiny_patch16_224/model.safetensors",
        f"downloads/{NAME}.safetensors",
    ],
)
def test_weights_with_a_published_name_have_the_names_of_imagenet(
    tiny: Path, tmp_path: Path, place: str
) -> None:
    path = placed(tiny, tmp_path / place)

    _, card = load_classifier(find_model(str(path)))

    assert card.classes[:3] == IMAGENET
    assert len({*card.classes}) == 1000


@pytest.mark.parametrize(
    ("place", "config"),
    [
        pytest.param("weights/model.safetensors", None, id="no name"),
        pytest.param("vit_base_patch16_224/model.safetensors", None, id="another shape"),
        pytest.param("any/model.safetensors", timm_config("mine_in1k"), id="unknown tag"),
        pytest.param("any/model.safetensors", timm_config("augreg_in21k"), id="21k classes"),
        pytest.param("any/model.safetensors", timm_config(""), id="no tag"),
    ],
)
def test_without_certainty_the_classes_have_no_names(
    tiny: Path, tmp_path: Path, place: str, config: dict[str, object] | None
) -> None:
    path = placed(tiny, tmp_path / place, config)

    with pytest.raises(RunError, match=r"no config\.json next to it lists the classes"):
        load_classifier(path)
