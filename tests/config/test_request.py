"""Settings of a new run, from a recipe and from options."""

import logging
from pathlib import Path
from typing import Any

import pytest

from vitft.cli.main import main
from vitft.config.request import requested_config
from vitft.system.errors import UsageError


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[optim]\nlearning_rate = 0.1\n", "unknown setting optim.learning_rate"),
        ("[optimizer]\nlr = 0.1\n", "unknown section optimizer"),
        ("[optim]\nlr = 'high'\n", "optim.lr"),
        ("[optim]\nepochs = -1\n", "optim.epochs"),
        ("[train]\nfreeze = 'pre_logits'\n", "train.freeze=pre_logits needs"),
    ],
)
def test_an_error_in_a_recipe_names_the_file_and_the_setting(
    tmp_path: Path, text: str, problem: str
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(text)

    with pytest.raises(UsageError) as caught:
        requested_config(str(recipe), [("train.seed", 1)])

    assert caught.value.problem.startswith(f"{recipe}: ")
    assert problem in caught.value.problem
    assert caught.value.fix


@pytest.mark.parametrize("weights", ["demo", ""])
@pytest.mark.parametrize(("key", "value"), [("model.depth", 6), ("model.depth", 5)])
def test_a_setting_of_the_model_is_refused_with_pretrained_weights_even_if_it_is_the_default(
    weights: str, key: str, value: int
) -> None:
    with pytest.raises(UsageError, match=r"\[model\] .* have no effect on pretrained weights"):
        requested_config(None, [("weights.name", weights), (key, value)])

    assert requested_config(None, [("weights.name", "none"), (key, value)]).model.depth == value


def test_an_error_in_an_option_does_not_blame_the_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text("[optim]\nepochs = 3\n")

    for named in ([("optim.epochs", -1)], [("optim.epoch", 1)], [("train.views", 3)] * 2):
        with pytest.raises(UsageError) as caught:
            requested_config(str(recipe), [*named, ("train.augment", "crop")])
        assert "mine.toml" not in caught.value.problem


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"optim.lr": 0.1}, "adamw for 20 epochs, because optim.lr needs a training loop"),
        ({"optim.lr": 0.1, "optim.epochs": 3}, "adamw for 3 epochs, because optim.lr and optim.ep"),
        ({"optim.lr": 0.1, "optim.solver": "adamw"}, ""),
        ({"optim.lr": 0.1, "train.freeze": "blocks:1"}, ""),
        ({"train.augment": "crop", "optim.lr": 0.1}, ""),
        ({"optim.l2": 0.1}, ""),
        ({"optim.epochs": 1}, "adamw for 1 epoch, because optim.epochs needs a training loop;"),
        ({"optim.lr": 0.1, "optim.ema": 0.5}, "because optim.lr and optim.ema need a training"),
    ],
)
def test_a_setting_that_replaces_the_solver_of_a_head_is_named(
    caplog: pytest.LogCaptureFixture, named: dict[str, Any], words: str
) -> None:
    with caplog.at_level(logging.INFO, "vitft"):
        requested_config(None, [*named.items()])

    assert len(caplog.messages) == bool(words)
    assert words in "".join(caplog.messages)


@pytest.mark.parametrize(("rank", "logs"), [("0", 1), ("1", 0)])
def test_only_the_main_process_names_the_replaced_solver(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, rank: str, logs: int
) -> None:
    monkeypatch.setenv("RANK", rank)

    with caplog.at_level(logging.INFO, "vitft"):
        requested_config(None, [("optim.lr", 0.1)])

    assert len(caplog.messages) == logs


def test_a_recipe_may_contain_settings_that_named_ones_leave_without_effect(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text("[optim]\nl2 = 0.5\n")

    config = requested_config(str(recipe), [("train.freeze", "none")])

    assert (config.optim.l2, config.optim.solver) == (0.5, "adamw")
    with pytest.raises(UsageError, match=r"optim\.l2 has no effect with solver adamw"):
        requested_config(None, [("train.freeze", "none"), ("optim.l2", 0.5)])


def test_finetune_says_that_a_learning_rate_selects_a_training_loop(
    image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["finetune", "--data", str(image_folder), "--weights", "demo", "--dry-run"]

    assert main([*common, "--lr", "0.01"]) == 0
    assert "solver:     adamw for 20 epochs, because optim.lr" in capsys.readouterr().err
    assert main(common) == 0
    assert "solver:" not in capsys.readouterr().err
