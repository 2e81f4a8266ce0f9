"""Settings: read, checked, overridden, written."""

import tomllib
from typing import Any

import pytest

from vitft.config.names import SETTINGS
from vitft.config.run import (
    Config,
    config_from_table,
    flat_settings,
    merge_settings,
    parse_setting,
    to_toml,
)
from vitft.system.errors import UsageError


def test_settings_written_as_toml_read_back_equal() -> None:
    config = config_from_table(
        {"data": {"path": "d"}, "weights": {"name": "w", "image_size": 32, "mean": [0.1, 0.2, 0.3],
                                            "std": [1.0, 1.0, 1.0]}}
    )  # fmt: skip

    again = config_from_table(tomllib.loads(to_toml(config)))

    assert again == config
    assert again.weights.image_size == (32, 32)


def test_one_value_stands_for_both_sides_or_for_a_list_of_one() -> None:
    weights = config_from_table({"weights": {"image_size": 32, "mean": 0.5, "std": (1, 2)}}).weights

    assert weights.image_size == (32, 32)
    assert weights.mean == (0.5,)
    assert weights.std == (1, 2)
    assert config_from_table({"weights": {"image_size": None}}).weights.image_size is None
    assert config_from_table({"optim": {"clip": 1}}).optim.clip == 1.0
    assert type(config_from_table({"optim": {"clip": 1}}).optim.clip) is float


@pytest.mark.parametrize(("name", "with_shape"), [("none", True), ("demo", False)])
def test_only_the_settings_of_a_new_model_contain_its_shape(name: str, with_shape: bool) -> None:
    config = config_from_table({"data": {"path": "d"}, "weights": {"name": name}})

    assert ("[model]" in to_toml(config)) is with_shape
    assert config_from_table(tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        pytest.param("optim.lr=-1", "invalid optim.lr=-1.0", id="negative rate"),
        pytest.param("optim.lr=0", "invalid optim.lr=0.0", id="no rate"),
        pytest.param("optim.lr=nan", "invalid optim.lr=nan", id="rate is NaN"),
        pytest.param("optim.lr=inf", "invalid optim.lr=inf", id="infinite rate"),
        pytest.param("optim.lr=true", "invalid optim.lr=true", id="rate is a truth value"),
        pytest.param("optim.lr=1e400", "invalid optim.lr=inf", id="rate too large for a float"),
        pytest.param("optim.lr=fast", "invalid optim.lr=fast", id="rate is a word"),
        pytest.param("optim.epochs=0", "invalid optim.epochs=0", id="no epochs"),
        pytest.param("optim.epochs=2.5", "invalid optim.epochs=2.5", id="half epoch"),
        pytest.param("optim.batch_size=0", "invalid optim.batch_size=0", id="empty batch"),
        pytest.param("optim.warmup=1", "invalid optim.warmup=1.0", id="nothing but warm-up"),
        pytest.param("optim.momentum=1", "invalid optim.momentum=1.0", id="momentum never ends"),
        pytest.param("optim.solver=adam", "invalid optim.solver=adam", id="unknown solver"),
        pytest.param("optim.weight_decay=-1", "invalid optim.weight_decay=-1.0", id="below 0"),
        pytest.param("optim.final_lr=2", "invalid optim.final_lr=2.0", id="ends above the peak"),
        pytest.param("optim.clip=-1", "invalid optim.clip=-1.0", id="negative clip"),
        pytest.param("data.val_rate=0", "invalid data.val_rate=0.0", id="nothing held back"),
        pytest.param("data.val_rate=1", "invalid data.val_rate=1.0", id="all held back"),
        pytest.param("data.split=wzm", "invalid data.split=wzm", id="unknown split"),
        pytest.param("data.max_pixels=0", "invalid data.max_pixels=0", id="no pixels"),
        pytest.param("train.freeze=blocks:0", "invalid train.freeze=blocks:0", id="last 0 blocks"),
        pytest.param(
            "train.freeze=blocks:x", "invalid train.freeze=blocks:x", id="blocks of a letter"
        ),
        pytest.param("train.freeze=body", "invalid train.freeze=body", id="unknown part"),
        pytest.param("train.augment=mixup", "invalid train.augment=mixup", id="unknown kind"),
        pytest.param("train.precision=fp8", "invalid train.precision=fp8", id="unknown precision"),
        pytest.param("weights.image_size=0", "invalid weights.image_size=[0, 0]", id="no image"),
        pytest.param("weights.image_size=1.5", "invalid weights.image_size=1.5", id="half a pixel"),
        pytest.param("weights.pre_logits=yes", "invalid weights.pre_logits=yes", id="keep or drop"),
        pytest.param("weights.pos_embed=nearest", "invalid weights.pos_embed", id="unknown rule"),
        pytest.param("model.convs=[32, 0]", "invalid model.convs=[32, 0]", id="no channels"),
        pytest.param("model.convs=[3.5]", "invalid model.convs=[3.5]", id="half"),
        pytest.param("weights.mean=[0.5]", "weights.mean and weights.std", id="mean without std"),
        pytest.param("weights.allow_pickle=maybe", "invalid weights.allow_pickle", id="not a bool"),
        pytest.param("optim.lrate=1", "unknown setting optim.lrate", id="unknown key"),
        pytest.param("lr=1", "unknown setting lr", id="key without a section"),
        pytest.param("shape.depth=1", "unknown setting shape.depth", id="unknown section"),
    ],
)
def test_an_invalid_setting_is_refused_with_its_name_and_a_fix(setting: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        config_from_table(merge_settings({}, [parse_setting(setting)]))

    assert caught.value.problem.startswith(message)
    assert caught.value.fix


def test_a_number_in_quotes_is_answered_without_them() -> None:
    with pytest.raises(UsageError, match="fix: use an integer of 1 or more, without quotes"):
        config_from_table({"optim": {"epochs": "3"}})
    with pytest.raises(UsageError, match=r"fix: use an integer of 1 or more$"):
        config_from_table({"optim": {"epochs": "three"}})
    with pytest.raises(UsageError, match=r"fix: use a number above 0, without quotes$"):
        config_from_table({"optim": {"lr": "-.1"}})
    with pytest.raises(UsageError, match=r"fix: use true or false, without quotes$"):
        config_from_table({"train": {"compile": "true"}})
    with pytest.raises(UsageError, match=r"fix: use a finite number above 0$"):
        config_from_table({"optim": {"lr": float("inf")}})
    with pytest.raises(UsageError, match=r"fix: use head, (.*) e\.g\. head,none$"):
        config_from_table({"train": {"freeze": "5"}})


@pytest.mark.parametrize(
    ("setting", "allowed"),
    [
        pytest.param("optim.lr=0", "a number above 0", id="above"),
        pytest.param("optim.warmup=1", "a number from 0 up to but not including 1", id="half-open"),
        pytest.param("train.flip=2", "a number from 0 to 1", id="closed"),
        pytest.param("optim.epochs=0", "an integer of 1 or more", id="count"),
        pytest.param("train.sampling=x", "shuffled or balanced", id="choices"),
        pytest.param("model.channels=2", "0, 1 or 3", id="numbers to choose from"),
        pytest.param("train.compile=1", "true or false", id="truth"),
        pytest.param(
            "weights.image_size=[1, 2, 3]",
            "an integer from 1 to 4096, or a list of 2 integers",
            id="one or two",
        ),
        pytest.param("weights.mean=x", "a list of numbers", id="list"),
        pytest.param("data.path=3", "a string", id="text"),
    ],
)
def test_the_allowed_values_are_read_from_the_annotation(setting: str, allowed: str) -> None:
    with pytest.raises(UsageError) as caught:
        config_from_table(merge_settings({}, [parse_setting(setting)]))

    assert caught.value.fix == f"use {allowed}"


@pytest.mark.parametrize("text", ["optim.lr", "=3", ""])
def test_a_setting_without_a_name_or_an_equals_sign_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected KEY=VALUE"):
        parse_setting(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("a.b=3", 3, id="number"),
        pytest.param("a.b=[1, 2]", [1, 2], id="list"),
        pytest.param("a.b=true", True, id="truth"),
        pytest.param("a.b=head", "head", id="word"),
        pytest.param("a.b=", "", id="nothing"),
        pytest.param(" a.b = head ", "head", id="spaces"),
        pytest.param("a.b=x=3", "x=3", id="two equals signs"),
    ],
)
def test_a_setting_is_toml_or_a_word(text: str, value: object) -> None:
    assert parse_setting(text) == ("a.b", value)


def test_every_setting_has_a_section_and_a_default() -> None:
    assert "optim.lr" in SETTINGS
    assert config_from_table({}) == Config()


def test_later_values_of_a_setting_take_precedence() -> None:
    base = {"optim": {"lr": 0.1, "epochs": 3}, "data": 3}

    merged = merge_settings(base, [("optim.lr", 0.2), ("optim.lr", 0.3), ("data.seed", 1)])

    assert merged == {"optim": {"lr": 0.3, "epochs": 3}, "data": 3}
    assert base["optim"] == {"lr": 0.1, "epochs": 3}
    with pytest.raises(UsageError, match="data is a section, not a value"):
        config_from_table(merged)


def test_settings_are_listed_by_dotted_name() -> None:
    flat = flat_settings(config_from_table({"optim": {"epochs": 7}}))

    assert {*flat} == {*SETTINGS}
    assert flat["optim.epochs"] == 7


@pytest.mark.parametrize(
    ("size", "patch", "sides"),
    [
        pytest.param([28, 28], 5, "4 or 7", id="the next smaller and larger side"),
        pytest.param([28, 28], 3, "2 or 4", id="never a patch of one pixel beside others"),
        pytest.param([12, 18], 4, "3 or 6", id="sides of both dimensions"),
        pytest.param([14, 28], 20, "14", id="larger than the image"),
        pytest.param([7, 7], 2, "7", id="the whole image"),
        pytest.param([7, 5], 2, "1", id="only pixels"),
        pytest.param([16, 32], 16, "", id="as large as the image"),
        pytest.param([7, 5], 1, "", id="pixels"),
    ],
)
def test_patches_must_cover_the_image(size: list[int], patch: int, sides: str) -> None:
    table = {"weights": {"name": "none", "image_size": size}, "model": {"patch_size": patch}}
    if not sides:
        assert config_from_table(table).model.patch_size == patch
        return

    with pytest.raises(UsageError, match=f"cannot be cut into patches of {patch} x ") as caught:
        config_from_table(table)

    assert caught.value.fix.startswith(f"use --set model.patch_size={sides}, or another")


def test_patches_of_pretrained_weights_are_not_those_of_a_new_model() -> None:
    config_from_table({"weights": {"name": "w", "image_size": 15}})


def test_the_shape_of_a_new_model_may_be_set_before_the_weights() -> None:
    assert config_from_table({"model": {"depth": 3}}).model.depth == 3


Table = dict[str, dict[str, Any]]
STEPS: Table = {"optim": {"solver": "adamw"}, "train": {"freeze": "none"}}


def combined(*tables: Table) -> Table:
    """Return the tables with the settings of each section together."""
    found: Table = {}
    for table in tables:
        for section, values in table.items():
            found[section] = {**found.get(section, {}), **values}
    return found


@pytest.mark.parametrize(
    ("accepted", "change", "message"),
    [
        pytest.param(
            combined(STEPS, {"weights": {"name": "none"}}),
            {"train": {"freeze": "head"}},
            "would freeze randomly initialised weights",
            id="frozen random weights",
        ),
        pytest.param(
            combined(STEPS, {"weights": {"name": "none"}, "model": {"depth": 3}}),
            {"weights": {"name": "w"}},
            r"section \[model\] .* have no effect",
            id="the shape of pretrained weights",
        ),
        pytest.param(
            {"weights": {"pre_logits": "keep"}, "train": {"freeze": "pre_logits"}},
            {"weights": {"pre_logits": "drop"}},
            "needs the pre_logits layer, but weights.pre_logits=drop",
            id="dropped pre_logits",
        ),
        pytest.param(
            {"train": {"freeze": "head,lora"}},
            {"train": {"freeze": "lora,none"}},
            "has a stage after lora",
            id="a stage after lora",
        ),
        pytest.param(
            {"optim": {"solver": "lbfgs"}},
            {"train": {"freeze": "blocks:1"}},
            "can only fit a head on cached features",
            id="lbfgs for blocks",
        ),
        pytest.param(
            {"optim": {"solver": "lbfgs"}},
            {"train": {"augment": "crop"}},
            "can only fit a head on cached features",
            id="lbfgs for crops",
        ),
        pytest.param(
            {"train": {"sampling": "balanced"}, "optim": {"solver": "adamw"}},
            {"optim": {"solver": "lbfgs"}},
            "sampling=balanced cannot be used with optim.solver=lbfgs",
            id="balanced lbfgs",
        ),
        pytest.param(
            combined(STEPS, {"train": {"sampling": "balanced"}}),
            {"optim": {"class_weights": True}},
            "both balance the classes",
            id="balanced twice",
        ),
        pytest.param(
            {"train": {"views": 2}},
            {"train": {"augment": "crop"}, "optim": {"solver": "adamw"}},
            "views=2 needs cached features",
            id="views of crops",
        ),
        pytest.param(
            {"train": {"views": 2}},
            {"train": {"freeze": "head,blocks:1"}},
            "views=2 needs cached features",
            id="views of two stages",
        ),
        pytest.param(
            combined(STEPS, {"train": {"augment": "shift"}}),
            {"train": {"freeze": "blocks:1"}},
            "augment=shift cannot be combined",
            id="shift of frozen blocks",
        ),
        pytest.param(
            {"train": {"views": 2, "freeze": "blocks:1"}},
            {"train": {"freeze": "none", "augment": "none"}},
            "views=2 needs cached features",
            id="views of all layers",
        ),
        pytest.param(
            {"train": {"views": 2}},
            {"train": {"freeze": "lora", "augment": "none"}},
            "views=2 needs cached features",
            id="views of adapters",
        ),
        pytest.param(
            {"train": {"budget": "5m"}},
            {"optim": {"epochs": 3}},
            "budget=5m chooses the layers to train",
            id="a budget for a training loop",
        ),
        pytest.param(
            combined(STEPS, {"train": {"augment": "shift", "freeze": "head,lora"}}),
            {"train": {"freeze": "head,blocks:1"}},
            "augment=shift cannot be combined",
            id="shift of adapters",
        ),
        *(
            pytest.param(
                combined(STEPS, {"train": {name: 0.2, "freeze": freeze}}),
                {"train": {"freeze": "blocks:1"}},
                f"train.{name}=0.2 cannot be combined",
                id=f"{name} of {freeze}, not of frozen blocks",
            )
            for name in ("mixup", "cutmix", "erasing", "drop_path")
            for freeze in ("none", "lora")
        ),
    ],
)
def test_settings_that_exclude_each_other_are_refused(
    accepted: Table, change: Table, message: str
) -> None:
    config_from_table(accepted)

    with pytest.raises(UsageError, match=message):
        config_from_table(combined(accepted, change))


@pytest.mark.parametrize(
    ("table", "balances"),
    [
        pytest.param({}, False, id="by default"),
        pytest.param({"optim": {"class_weights": True}}, True, id="by loss weights"),
        pytest.param(combined(STEPS, {"train": {"sampling": "balanced"}}), True, id="by sampling"),
    ],
)
def test_classes_are_balanced_by_loss_weights_or_sampling(table: Table, balances: bool) -> None:
    assert config_from_table(table).balances is balances
