"""Options of `vitft finetune` and arguments of `vitft.finetune`, as settings."""

from pathlib import Path
from typing import Any

import pytest

from vitft.config.options import (
    FINETUNE_OPTIONS,
    check_argument_types,
    option_settings,
    refuse_unknown_arguments,
    suggest_argument,
)
from vitft.system.errors import UsageError

OPTIONS = {option.setting: option for option in FINETUNE_OPTIONS}
PATHS: dict[str, object] = dict.fromkeys(
    ("data", "weights", "out", "recipe", "classes", "like", "fixes", "cache")
)


@pytest.mark.parametrize(
    ("setting", "flag", "group", "placeholder", "text"),
    [
        ("data.path", "--data", "images", "PATH", ", or demo"),
        ("data.val_from", "--val-from", "images", "auto|test", "uses the test set (default: auto)"),
        ("weights.pre_logits", "--pre-logits", "weights", "keep|drop", " head (default: drop)"),
        ("optim.epochs", "--epochs", "training", "N", "(default: 20 for a head or pre_"),
        ("optim.lr", "--lr", "training", "X", "peak learning rate (default: depends on"),
        ("train.views", "--views", "training", "N", "image to cache (default: 0)"),
        ("train.device", "--device", "run", "DEVICE", "cuda:1 or mps (default: auto)"),
        ("train.cache", "--cache", "run", "DIR", "(default: ~/.cache/vitft/features)"),
        ("train.keep_adapter", "--keep-adapter", "training", "X", "peft (with --freeze lora)"),
    ],
)
def test_the_help_of_an_option_shows_its_values_and_its_default(
    setting: str, flag: str, group: str, placeholder: str, text: str
) -> None:
    option = OPTIONS[setting]

    assert (option.flag, option.group, option.placeholder) == (flag, group, placeholder)
    assert text in option.text
    assert ("(default: " in option.text) == ("(default: " in text)


@pytest.mark.parametrize(
    ("values", "settings"),
    [
        pytest.param({"epochs": None}, {}, id="not given"),
        pytest.param({"epochs": 3, "lr": 0.1}, {"optim.epochs": 3, "optim.lr": 0.1}, id="numbers"),
        pytest.param({"data": Path("a") / "b"}, {"data.path": str(Path("a") / "b")}, id="a path"),
        pytest.param({"tracker": ["wandb", "mlflow"]}, {"train.tracker": "wandb,mlflow"}, id="two"),
        pytest.param({"image_size": [224]}, {"weights.image_size": 224}, id="one side"),
        pytest.param({"image_size": [224, 96]}, {"weights.image_size": [224, 96]}, id="two sides"),
        pytest.param({"mean": [0.5]}, {"weights.mean": [0.5]}, id="one channel is a list"),
        pytest.param({"views": 0}, {"train.views": 0}, id="zero is a value"),
        pytest.param({"seed": 0}, {"data.seed": 0, "train.seed": 0}, id="one seed for two"),
        pytest.param({"seed": None}, {}, id="no seed"),
    ],
)
def test_options_are_settings(values: dict[str, Any], settings: dict[str, Any]) -> None:
    assert dict(option_settings(values)) == settings


def test_an_empty_name_of_weights_is_refused() -> None:
    with pytest.raises(UsageError, match="the name of the weights is empty"):
        option_settings({"weights": ""})


@pytest.mark.parametrize("name", PATHS)
def test_an_argument_that_must_be_a_path_is_refused_with_its_type(name: str) -> None:
    check_argument_types(PATHS | {name: "a"}, None)
    check_argument_types(PATHS | {name: Path("a")}, {"optim.ema": 0.9})

    with pytest.raises(UsageError, match=rf"invalid {name}: .* got list"):
        check_argument_types(PATHS | {name: ["a"]}, None)


def test_settings_of_an_argument_must_be_a_mapping() -> None:
    with pytest.raises(UsageError, match=r"expected a mapping, got list"):
        check_argument_types(PATHS, ["optim.ema=0.9"])


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("frezee", "use freeze"),
        ("image_sizes", "use image_size"),
        ("learning_rate", "use lr"),
        ("IMAGES", "use data"),  # and not `image_size`
        ("ema", 'use settings={"optim.ema": ...}'),
        ("label_smoothing_factor", 'use settings={"optim.label_smoothing": ...}'),
        ("zzz", "use one of data, image_size, lr, freeze"),
    ],
)
def test_an_unknown_argument_is_answered_with_the_one_that_was_meant(name: str, fix: str) -> None:
    assert suggest_argument(name, ("data", "image_size", "lr", "freeze")) == fix


def test_unknown_and_unnamed_arguments_are_refused_before_the_call() -> None:
    called: list[dict[str, Any]] = []

    @refuse_unknown_arguments
    def tried(*, data: str = "", lr: float = 1.0) -> int:
        called.append({"data": data, "lr": lr})
        return len(called)

    assert tried(lr=0.5) == 1
    with pytest.raises(UsageError, match="unknown argument lrate") as refused:
        tried(lrate=3)  # type: ignore[call-arg]
    assert refused.value.fix == "use lr"
    with pytest.raises(UsageError, match="the arguments of finetune are named") as refused:
        tried("d", 3)  # type: ignore[call-arg]
    assert refused.value.fix == "use data='d', lr=3"
    assert called == [{"data": "", "lr": 0.5}]
    assert tried.__name__ == "tried"
