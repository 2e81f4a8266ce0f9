"""Sections of the settings: documented values and defaults, and values that exclude each other."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from vitft.config.run import config_from_table
from vitft.config.sections import TrainSpec, layers_text
from vitft.system.errors import UsageError

DOCS = Path(__file__).parents[2] / "docs"


def test_the_settings_page_is_current() -> None:
    page = runpy.run_path(str(DOCS / "settings.py"))["page"]

    assert page() == (DOCS / "settings.md").read_text()  # otherwise: make docs


@pytest.mark.parametrize(
    ("section", "accepted", "change", "message"),
    [
        ("data", {"separator": " "}, {"separator": ""}, "data.separator is empty"),
        ("data", {"separator": "", "labels": "one"}, {"labels": "auto"}, "separator is empty"),
        (
            "data",
            {"group_duplicates": True, "split": "random"},
            {"split": "reference"},
            "group_duplicates cannot be used with the reference split",
        ),
        (
            "data",
            {"group_by": "(.)", "split": "random"},
            {"split": "reference"},
            "group_by cannot be used with the reference split",
        ),
        (
            "data",
            {"classes": "c.csv", "split": "random"},
            {"split": "reference"},
            "data.classes cannot be used with the reference split",
        ),
        (
            "data",
            {"like": "runs/1"},
            {"split": "random"},
            "data.like cannot be combined with data.split=random",
        ),
        (
            "data",
            {"group_by": "(.)"},
            {"group": "patient"},
            "data.group_by and data.group both define",
        ),
        ("data", {"group_by": "p(.)"}, {"group_by": "p."}, "has 0 capturing groups"),
        ("data", {"group_by": "p(?:.)(.)"}, {"group_by": "(p)(.)"}, "has 2 capturing groups"),
        ("data", {"group_by": "p(.)"}, {"group_by": "p("}, r"invalid data.group_by=p\("),
        (
            "weights",
            {"mean": [0.5], "std": [0.5]},
            {"std": None},
            "mean and weights.std must be set together",
        ),
        ("weights", {}, {"std": [0.5]}, "weights.std must be set together"),
        ("train", {"lora_targets": "qkv"}, {"lora_targets": "qkv,"}, "invalid train.lora_targets"),
        (
            "train",
            {"keep_adapter": True, "freeze": "head,lora"},
            {"freeze": "none"},
            "keep_adapter=true needs train.freeze=lora, not none",
        ),
        ("train", {"budget": "1s"}, {"budget": "0s"}, "invalid train.budget=0s"),
        ("train", {"budget": "2h"}, {"budget": "2"}, "invalid train.budget=2"),
        ("train", {"tracker": "wandb, mlflow"}, {"tracker": "wandb, comet"}, "train.tracker"),
        ("train", {"tracker": "wandb"}, {"tracker": "wandb,wandb"}, "train.tracker"),
        (
            "train",
            {"tracker": "tensorboard,mlflow,wandb"},
            {"tracker": "tensorboard,mlflow,wandb,mlflow"},
            "train.tracker",
        ),
    ],
)
def test_values_of_a_section_that_exclude_each_other_are_refused(
    section: str, accepted: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    config_from_table({section: accepted})

    with pytest.raises(UsageError, match=message):
        config_from_table({section: accepted | change})


@pytest.mark.parametrize(
    ("accepted", "change", "message"),
    [
        ({"width": 12, "heads": 4}, {"heads": 5}, "width=12 is not a multiple of model.heads=5"),
        ({"mlp_ratio": 1 / 96}, {"mlp_ratio": 0.99 / 96}, "a width of 0.99"),
        (
            {"width": 2**14, "heads": 1, "mlp_ratio": 64.0},
            {"mlp_ratio": 64.1},
            r"a width of 1.05e\+06",
        ),
        (
            {"width": 12, "positions": "waves"},
            {"width": 18},
            "waves needs a model.width that is a multiple of 4, not 18",
        ),
        ({"width": 18}, {"positions": "waves"}, "waves needs a model.width"),
        ({"convs": [8] * 16}, {"convs": [8] * 17}, "lists 17 convolutions, but the maximum is 16"),
    ],
)
def test_an_impossible_shape_of_a_new_model_is_refused(
    accepted: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    config_from_table({"weights": {"name": "none"}, "model": accepted})

    with pytest.raises(UsageError, match=message):
        config_from_table({"weights": {"name": "none"}, "model": accepted | change})


@pytest.mark.parametrize(
    ("model", "widths"),
    [
        ({"width": 48, "heads": 5, "positions": "waves"}, "model.width=40 or model.width=60, or"),
        ({"width": 50, "heads": 5, "positions": "waves"}, "model.width=40 or model.width=60, or"),
        ({"width": 48, "heads": 5, "positions": "noise"}, "model.width=45 or model.width=50, or"),
        ({"width": 3, "heads": 7, "positions": "noise"}, "use model.width=7, or"),
    ],
)
def test_the_nearest_valid_widths_are_proposed(model: dict[str, Any], widths: str) -> None:
    with pytest.raises(UsageError) as refused:
        config_from_table({"weights": {"name": "none"}, "model": model})

    assert widths in (refused.value.fix or "")


def test_a_train_section_is_read_into_stages_seconds_and_trackers() -> None:
    spec = TrainSpec(freeze="head, blocks:2", budget="2m", tracker="wandb, mlflow")

    assert spec.stages == ("head", "blocks:2")
    assert spec.budget_s == 120.0
    assert spec.trackers == ("wandb", "mlflow")
    assert TrainSpec().budget_s == 0.0
    assert TrainSpec().trackers == ()


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        ("blocks:1", "the last block"),
        ("blocks:12", "the last 12 blocks"),
        ("none", "all layers"),
        ("lora", "LoRA adapters"),
        ("head", "the head"),
        ("pre_logits", "the pre_logits"),
    ],
)
def test_a_stage_is_named_by_the_layers_that_it_trains(stage: str, text: str) -> None:
    assert layers_text(stage) == text


def test_the_batch_size_of_a_step_must_have_been_resolved() -> None:
    assert config_from_table({"optim": {"batch_size": 5}}).optim.images_per_step == 5
