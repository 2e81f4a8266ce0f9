"""Loading: the report, the statistics, checkpoints, and real weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.models.pretrained.test_flavours import CONFIG, random_weights, write_timm_config
from vitft import load_pretrained
from vitft.data import EvalTransform
from vitft.models import Card, save_checkpoint


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
