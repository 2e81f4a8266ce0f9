"""Default settings."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from vitft.config.defaults import default_batch_size, default_lr
from vitft.config.request import requested_config
from vitft.config.run import config_from_table, flat_settings
from vitft.system.errors import UsageError

SETTINGS_PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def documented(layers: str) -> dict[str, Any]:
    """Return the default settings of trained layers, as documented in docs/settings.md."""
    (row,) = re.findall(rf"^\| {layers} \| (.*) \|$", SETTINGS_PAGE.read_text(), re.M)
    pairs = [cell.partition("=") for cell in re.findall("`([^`]*)`", row)]
    return {key: tomllib.loads(f"x = {value}")["x"] if re.match(r"[\d.]+$", value) else value
            for key, _, value in pairs}  # fmt: skip


@pytest.mark.parametrize(
    ("freeze", "width", "lr"),
    [
        pytest.param("none", 192, 5e-4, id="ViT-Ti, measured"),
        pytest.param("none", 768, 1.25e-4, id="ViT-B: four times as wide, a quarter"),
        pytest.param("none", 64, 5e-4, id="never more than measured"),
        pytest.param("head,none", 192, 5e-4, id="the last stage decides"),
        pytest.param("blocks:2", 384, 5e-5, id="some blocks"),
        pytest.param("lora", 384, 5e-4, id="adapters"),
        pytest.param("head", 768, 1e-2, id="a head does not depend on the width"),
        pytest.param("pre_logits", 768, 1e-3, id="nor does pre_logits"),
    ],
)
def test_wider_models_take_smaller_steps(freeze: str, width: int, lr: float) -> None:
    assert default_lr(freeze, width) == pytest.approx(lr)


@pytest.mark.parametrize(
    ("freeze", "images", "size"),
    [
        pytest.param("none", 20, 8, id="never below 8"),
        pytest.param("head,none", 639, 8, id="39 steps of 16"),
        pytest.param("lora", 640, 16, id="40 steps of 16"),
        pytest.param("blocks:4", 1279, 16, id="39 steps of 32"),
        pytest.param("none", 1280, 32, id="40 steps of 32"),
        pytest.param("none", 10**6, 32, id="never above 32"),
        pytest.param("head", 100, 32, id="a head does not depend on the images"),
        pytest.param("pre_logits", 100, 32, id="nor does pre_logits"),
    ],
)
def test_few_images_are_trained_in_small_batches(freeze: str, images: int, size: int) -> None:
    assert default_batch_size(freeze, images, batch_norm=False) == size
    assert default_batch_size(freeze, images, batch_norm=True) == 32


def test_training_everything_augments_and_decays_by_layer() -> None:
    config = config_from_table({"train": {"freeze": "head,none"}})

    assert config.train.augment == "crop"
    assert config.train.crop_scale == 0.4
    assert (config.optim.solver, config.optim.layer_decay) == ("adamw", 0.75)
    assert config.solves("head")
    assert not config.solves("none")


def test_given_settings_override_defaults() -> None:
    config = config_from_table(
        {"train": {"freeze": "none", "augment": "none"}, "optim": {"layer_decay": 1.0}}
    )

    assert config.train.augment == "none"
    assert config.optim.layer_decay == 1.0


@pytest.mark.parametrize("key", ["mixup", "cutmix", "erasing", "drop_path"])
def test_augmentation_of_pixels_is_refused_on_cached_features(key: str) -> None:
    with pytest.raises(UsageError, match=rf"train\.{key}"):
        config_from_table({"train": {"freeze": "head", key: 0.5}})


@pytest.mark.parametrize(
    ("layers", "given"),
    [
        ("head", {"train": {"freeze": "head"}, "optim": {"solver": "adamw"}}),
        ("pre_logits", {"train": {"freeze": "pre_logits"}, "weights": {"pre_logits": "keep"}}),
        ("blocks", {"train": {"freeze": "head,blocks:3"}}),
        ("none", {"train": {"freeze": "none"}}),
        ("lora", {"train": {"freeze": "head,lora"}}),
        ("weights none", {"weights": {"name": "none"}}),
    ],
)
def test_a_run_has_the_documented_defaults_of_the_layers_that_it_trains(
    layers: str, given: Mapping[str, Any]
) -> None:
    settings = flat_settings(config_from_table(given))
    expected = documented(layers)

    if layers != "weights none":
        assert default_lr(layers, 192) == expected.pop("optim.lr")
    assert {key: settings[key] for key in expected} == expected


def test_a_head_on_augmented_images_is_trained_in_steps() -> None:
    config = config_from_table({"train": {"augment": "crop"}})

    assert config.optim.solver == "adamw"
    assert not config.solves("head")
    assert config.train.crop_scale == 0.08


@pytest.mark.parametrize(
    ("solver", "freeze", "key", "fix"),
    [
        pytest.param("lbfgs", "head", "optim.lr", "remove it, or use --solver adamw", id="lbfgs"),
        pytest.param("adamw", "head", "optim.l2", "remove it, or use --solver lbfgs", id="adamw"),
        pytest.param("sgd", "head", "optim.l2", "remove it, or use --solver lbfgs", id="sgd"),
        pytest.param("adamw", "head,none", "optim.l2", "", id="the head before others is solved"),
        pytest.param("lbfgs", "head", "optim.l2", "", id="its own setting"),
        pytest.param("adamw", "head", "optim.lr", "", id="the setting of a training loop"),
    ],
)
def test_a_setting_that_has_no_effect_is_refused(
    solver: str, freeze: str, key: str, fix: str
) -> None:
    named = [("train.freeze", freeze), ("optim.solver", solver), (key, 0.1)]
    if not fix:
        assert requested_config(None, named).optim.solver == solver
        return

    with pytest.raises(UsageError, match=rf"{key} has no effect with solver {solver}") as caught:
        requested_config(None, named)

    assert caught.value.fix == fix


@pytest.mark.parametrize("section", ["train", "optim", "weights"])
def test_a_section_that_is_not_a_table_is_refused(section: str) -> None:
    with pytest.raises(UsageError, match=f"{section} is a section, not a value"):
        config_from_table({section: 3})
