"""Settings: read, checked, overridden, written."""

import tomllib
from pathlib import Path

import pytest

from vitft.config.run import (
    Config,
    from_table,
    merged,
    parse_setting,
    read_recipe,
    setting_names,
    to_toml,
)
from vitft.system.errors import UsageError


def test_settings_written_as_toml_read_back_equal() -> None:
    config = from_table(
        {"data": {"path": "d"}, "weights": {"name": "w", "image_size": 32, "mean": [0.1, 0.2, 0.3],
                                            "std": [1.0, 1.0, 1.0]}}
    )  # fmt: skip

    again = from_table(tomllib.loads(to_toml(config)))

    assert again == config
    assert again.weights.image_size == (32, 32)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        pytest.param("optim.lr=-1", "optim.lr is -1.0", id="negative rate"),
        pytest.param("optim.lr=0", "optim.lr is 0.0", id="no rate"),
        pytest.param("optim.lr=nan", "optim.lr is nan", id="rate is no number"),
        pytest.param("optim.lr=inf", "optim.lr is inf", id="infinite rate"),
        pytest.param("optim.lr=1e400", "optim.lr is inf", id="rate too large for a float"),
        pytest.param("optim.lr=fast", "optim.lr is 'fast', of the wrong kind", id="rate is a word"),
        pytest.param("optim.epochs=0", "optim.epochs is 0", id="no epochs"),
        pytest.param("optim.epochs=2.5", "optim.epochs is 2.5, of the wrong kind", id="half epoch"),
        pytest.param("optim.batch_size=0", "optim.batch_size is 0", id="empty batch"),
        pytest.param("optim.warmup=1", "optim.warmup is 1.0", id="nothing but warm-up"),
        pytest.param("optim.momentum=1", "optim.momentum is 1.0", id="momentum never ends"),
        pytest.param("optim.solver=adam", "optim.solver is 'adam'", id="unknown solver"),
        pytest.param("optim.weight_decay=-1", "optim.weight_decay is -1.0", id="negative decay"),
        pytest.param("optim.final_lr=2", "optim.final_lr is 2.0", id="ends above the peak"),
        pytest.param("optim.clip=-1", "optim.clip is -1.0", id="negative clip"),
        pytest.param("data.val_rate=0", "data.val_rate is 0.0", id="nothing held back"),
        pytest.param("data.val_rate=1", "data.val_rate is 1.0", id="all held back"),
        pytest.param("data.split=wzm", "data.split is 'wzm'", id="unknown split"),
        pytest.param("data.max_pixels=0", "data.max_pixels is 0", id="no pixels"),
        pytest.param("train.freeze=blocks:0", "train.freeze is 'blocks:0'", id="last 0 blocks"),
        pytest.param(
            "train.freeze=blocks:x", "train.freeze is 'blocks:x'", id="blocks of a letter"
        ),
        pytest.param("train.freeze=body", "train.freeze is 'body'", id="unknown part"),
        pytest.param("train.augment=mixup", "train.augment is 'mixup'", id="unknown augmentation"),
        pytest.param("train.precision=fp8", "train.precision is 'fp8'", id="unknown precision"),
        pytest.param("weights.image_size=0", "weights.image_size is (0, 0)", id="no image"),
        pytest.param("weights.image_size=1.5", "weights.image_size is 1.5, of", id="half a pixel"),
        pytest.param("weights.pre_logits=yes", "weights.pre_logits is 'yes'", id="keep or drop"),
        pytest.param("weights.pos_embed=nearest", "weights.pos_embed is", id="unknown rule"),
        pytest.param("model.convs=[32, 0]", "model.convs is (32, 0)", id="no channels"),
        pytest.param("model.convs=[3.5]", "model.convs is [3.5], of the wrong kind", id="half"),
        pytest.param("weights.mean=[0.5]", "weights.mean is (0.5,)", id="mean without std"),
        pytest.param("weights.allow_pickle=maybe", "weights.allow_pickle is 'maybe'", id="maybe"),
        pytest.param("optim.lrate=1", "optim.lrate is no setting", id="unknown key"),
        pytest.param("lr=1", "lr is no setting", id="key without a section"),
        pytest.param("shape.depth=1", "shape is no setting", id="unknown section"),
    ],
)
def test_an_impossible_setting_is_named_with_what_is_possible(setting: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_table(merged({}, [parse_setting(setting)]))

    assert caught.value.problem.startswith(message)
    assert caught.value.fix


def test_an_unknown_key_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"did you mean optim\.batch_size"):
        from_table({"optim": {"batchsize": 3}})


def test_a_setting_without_an_equals_sign_is_refused() -> None:
    with pytest.raises(UsageError, match="is not key=value"):
        parse_setting("optim.lr")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("a.b=3", 3, id="number"),
        pytest.param("a.b=[1, 2]", [1, 2], id="list"),
        pytest.param("a.b=true", True, id="truth"),
        pytest.param("a.b=head", "head", id="word"),
        pytest.param("a.b=", "", id="nothing"),
    ],
)
def test_a_setting_is_toml_or_a_word(text: str, value: object) -> None:
    assert parse_setting(text) == ("a.b", value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"[data\n", "is not TOML", id="torn"),
        pytest.param(b"\xff\xfe", "is not TOML", id="not UTF-8"),
        pytest.param(b"[data]\npath = 1\npath = 2\n", "is not TOML", id="key twice"),
        pytest.param(b"data = 3\n", "data is a table", id="section is a number"),
    ],
)
def test_a_broken_recipe_names_the_place(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)

    with pytest.raises(UsageError, match=message):
        from_table(read_recipe(str(path)))


def test_an_unknown_recipe_lists_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"recipes: .*demo, "):
        read_recipe("nonsense")


def test_every_setting_has_a_section_and_a_default() -> None:
    names = setting_names()

    assert "optim.lr" in names
    assert from_table({}) == Config()
