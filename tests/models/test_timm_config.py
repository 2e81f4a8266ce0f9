"""Configurations of timm models, and the list of timm's architectures."""

from typing import Any

import pytest

from vitft.models.timm_config import TimmConfig, timm_modules
from vitft.system.errors import UsageError


def test_a_timm_model_has_by_default_three_channels_and_no_head() -> None:
    config = TimmConfig(timm="resnet18", image_size=(224, 224))

    assert (config.in_channels, config.num_classes, config.sized) == (3, 0, False)
    assert not config.pre_logits
    assert (
        TimmConfig(timm="resnet18", image_size=(224, 224), num_classes=5).without_head() == config
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"timm": "x"},
        {"timm": "x" * 100},
        {"image_size": (1, 4096)},
        {"in_channels": 1},
        {"in_channels": 1024},
        {"num_classes": 0},
    ],
    ids=lambda fields: str(fields)[:30],
)
def test_values_at_their_limits_are_accepted(fields: dict[str, Any]) -> None:
    TimmConfig(**{"timm": "resnet18", "image_size": (32, 32), **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"timm": ""},
        {"timm": "x" * 101},
        {"timm": "ResNet"},
        {"timm": "resnet18.a1_in1k"},
        {"timm": "../x"},
        {"image_size": (0, 32)},
        {"image_size": (32, 4097)},
        {"in_channels": 0},
        {"in_channels": 1025},
        {"num_classes": -1},
    ],
    ids=lambda fields: str(fields)[:30],
)
def test_values_beyond_their_limits_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        TimmConfig(**{"timm": "resnet18", "image_size": (32, 32), **fields})


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("resnet50", "resnet"),
        ("vit_base_patch16_224", "vision_transformer"),
        ("deit_tiny_distilled_patch16_224", "deit"),
        ("eva02_tiny_patch14_224", "eva"),
        ("nonesuch", ""),
        ("_cfg", ""),
    ],
)
def test_the_module_that_defines_an_architecture_is_found_in_timms_source(
    name: str, module: str
) -> None:
    assert timm_modules().get(name, "") == module


def test_all_architectures_of_timm_are_found() -> None:
    import timm

    assert {*timm_modules()} == {*timm.list_models()}


def test_without_timm_there_are_no_architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    assert timm_modules.__wrapped__() == {}
