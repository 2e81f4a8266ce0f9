"""The notation of train.freeze: stages in order, and misspelt ones."""

import pytest

from vitft.config.run import config_from_table
from vitft.config.stages import is_valid
from vitft.system.errors import UsageError


@pytest.mark.parametrize(
    ("freeze", "valid"),
    [
        ("head,pre_logits", True),
        ("pre_logits,lora", True),
        ("lora,blocks:1", True),
        ("blocks:1,blocks:2,none", True),
        ("blocks:1000,none", True),
        ("blocks:2, blocks:10", True),
        ("pre_logits,head", False),
        ("lora,pre_logits", False),
        ("blocks:1,pre_logits", False),
        ("blocks:10,blocks:9", False),
        ("none,blocks:9", False),
        ("lora,lora", False),
        ("block:1,none", False),
        ("blocks,none", False),
        ("blocks:-1", False),
    ],
)
def test_each_stage_trains_more_than_the_one_before(freeze: str, valid: bool) -> None:
    assert is_valid(freeze) is valid


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
        ("heads, Block-4, NONE", "head,blocks:4,none"),
        ("lastblocks:2", "blocks:2"),
    ],
)
def test_a_misspelt_value_of_freeze_is_answered_with_the_one_that_was_meant(
    typed: str, meant: str
) -> None:
    with pytest.raises(UsageError) as caught:
        config_from_table({"train": {"freeze": typed}})

    assert caught.value.fix == f"use --freeze {meant}"


@pytest.mark.parametrize(
    "typed", ["block:0", "all", "layers", "none,head", "4", "black:3x", "b:3", "line"]
)
def test_no_value_of_freeze_is_guessed_without_a_near_one(typed: str) -> None:
    with pytest.raises(UsageError, match=r"train\.freeze") as caught:
        config_from_table({"train": {"freeze": typed}})

    assert "blocks:N, lora or none" in caught.value.fix
