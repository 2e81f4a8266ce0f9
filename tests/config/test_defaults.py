"""Default settings."""

import pytest

from vitft.config.defaults import default_batch_size, default_lr
from vitft.config.run import config_from_table
from vitft.system.errors import UsageError


@pytest.mark.parametrize(
    ("freeze", "width", "lr"),
    [
        pytest.param("none", 192, 5e-4, id="ViT-Ti, measured"),
        pytest.param("none", 768, 1.25e-4, id="ViT-B: four times as wide, a quarter"),
        pytest.param("none", 64, 5e-4, id="never more than measured"),
        pytest.param("head,none", 192, 5e-4, id="the last stage decides"),
        pytest.param("blocks:2", 384, 5e-5, id="some blocks"),
        pytest.param("head", 768, 1e-2, id="a head does not depend on the width"),
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


@pytest.mark.parametrize(
    "freeze", ["none,head", "head,head", "blocks:2,blocks:1", "head,", "head,all", ",", "blocks:0"]
)
def test_stages_go_from_few_to_many(freeze: str) -> None:
    with pytest.raises(UsageError, match=r"train\.freeze"):
        config_from_table({"train": {"freeze": freeze}})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("block:2", "blocks:2"),
        ("blocks=2", "blocks:2"),
        ("Blocks:12", "blocks:12"),
        ("heads", "head"),
        ("head,block:4", "head,blocks:4"),
        ("prelogits", "pre_logits"),
        ("lroa", "lora"),
    ],
)
def test_a_misspelt_value_of_freeze_is_answered_with_the_one_that_was_meant(
    typed: str, meant: str
) -> None:
    with pytest.raises(UsageError) as caught:
        config_from_table({"train": {"freeze": typed}})

    assert caught.value.fix == f"use --freeze {meant}"


@pytest.mark.parametrize("typed", ["block:0", "all", "layers", "none,head", "4"])
def test_no_value_of_freeze_is_guessed_without_a_near_one(typed: str) -> None:
    with pytest.raises(UsageError, match=r"train\.freeze") as caught:
        config_from_table({"train": {"freeze": typed}})

    assert "blocks:N, lora or none" in caught.value.fix


@pytest.mark.parametrize("key", ["mixup", "cutmix", "erasing", "drop_path"])
def test_augmentation_of_pixels_is_refused_on_cached_features(key: str) -> None:
    with pytest.raises(UsageError, match=rf"train\.{key}"):
        config_from_table({"train": {"freeze": "head", key: 0.5}})
