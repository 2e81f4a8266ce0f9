"""Unknown names of settings, answered with the settings that were meant."""

import pytest

from vitft.config.names import ALIASES, SETTINGS, find_setting
from vitft.config.run import config_from_table
from vitft.system.errors import UsageError


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        pytest.param("optim.batchsize", "optim.batch_size", id="typing error"),
        pytest.param("train.lr", "optim.lr", id="wrong section"),
        pytest.param("seed", "data.seed", id="no section"),
        pytest.param("train.sed", "train.seed", id="same section first"),
        pytest.param("train.learning_rate", "optim.lr", id="another tool's name"),
        pytest.param("optim.optimizer", "optim.solver", id="optimizer"),
        pytest.param("train.gpu", "train.device", id="gpu"),
        pytest.param("model.embed_dim", "model.width", id="embed_dim"),
        pytest.param("model.dropout", "train.drop_path", id="dropout"),
        pytest.param("optim.wd", "optim.weight_decay", id="wd"),
        pytest.param("bs", "optim.batch_size", id="bs"),
        pytest.param("train.num-epochs", "optim.epochs", id="dashes"),
        pytest.param("train.zzz", None, id="nothing like it"),
        pytest.param("train.head", "train.head_blocks", id="first word of a name"),
        pytest.param("data.val", None, id="too short for the first word of a name"),
        pytest.param("optim.smooth", "optim.label_smoothing", id="just similar enough"),
        pytest.param("optim.xmomx", None, id="less similar"),
        pytest.param("optim.mom", "optim.momentum", id="first letters of one name"),
        pytest.param("data.max", "data.max_pixels", id="first letters, not a name elsewhere"),
        pytest.param("optim.max", None, id="short and only by chance similar to ema"),
        pytest.param("optim.beta", None, id="not similar to a short name of another tool"),
        pytest.param("train.workers", None, id="nothing in the section or close elsewhere"),
        pytest.param("train.epoch", "optim.epochs", id="close in another section"),
        pytest.param("train.momont", None, id="not close enough for another section"),
        pytest.param("optim.LR", "optim.lr", id="capitals"),
        pytest.param("image-folder", "data.path", id="another tool's name without a section"),
    ],
)
def test_the_last_part_of_an_unknown_name_is_matched_first(name: str, setting: str | None) -> None:
    assert find_setting(name) == setting


@pytest.mark.parametrize(
    ("section", "fix"),
    [
        ("optimizer", "use the section [optim]"),
        ("trian", "use the section [train]"),
        ("zzz", "use one of data,"),
        ("optim2", "use the section [optim]"),
        ("mdel", "use the section [model]"),
    ],
)
def test_an_unknown_section_is_compared_with_sections(section: str, fix: str) -> None:
    with pytest.raises(UsageError, match=f"unknown section {section}") as caught:
        config_from_table({section: {"lr": 0.1}})

    assert caught.value.fix.startswith(fix)


def test_aliases_are_names_of_existing_settings() -> None:
    last = {setting.partition(".")[2] for setting in SETTINGS}

    assert {*ALIASES} <= {*SETTINGS}
    assert not last & {alias for aliases in ALIASES.values() for alias in aliases}


def test_the_suggestion_is_in_the_error() -> None:
    with pytest.raises(UsageError, match=r"setting train\.lr\n  fix: use optim\.lr$"):
        config_from_table({"train": {"lr": 3}})
    with pytest.raises(UsageError, match=r"use one of data\.path, data\.root, "):
        config_from_table({"data": {"mix": 3}})
    with pytest.raises(UsageError, match=r"use one of train\.freeze, train\.augment, "):
        config_from_table({"train": {"zzz": 3}})
    with pytest.raises(UsageError, match=r"use one of the sections data, weights, model, optim"):
        config_from_table({"zzz": 3})
