"""Facts about a run that travel in the config.json next to exported weights."""

import json
from pathlib import Path
from typing import Any

import pytest

from vitft.models.run_facts import facts_beside, parse_facts

FACTS = {"name": "roses", "images": 43, "top1": 0.98, "top1_interval": [0.9, 1.0]}


def facts_in(folder: Path, text: str) -> Any:
    (folder / "config.json").write_text(text)
    return facts_beside(folder / "model.safetensors")


def test_facts_are_read_from_the_config_next_to_the_weights(tmp_path: Path) -> None:
    found = facts_in(tmp_path, json.dumps({"vitft_run": FACTS, "architecture": "x"}))

    assert found == FACTS | {"top1_interval": (0.9, 1.0)}


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"vitft_run": 3}', '{"vitft_run": {"top1": 1.5}}', "3"]
)
def test_damaged_facts_are_unknown_facts(tmp_path: Path, text: str) -> None:
    assert facts_in(tmp_path, text) == {}


def test_weights_without_a_config_have_no_facts(tmp_path: Path) -> None:
    assert facts_beside(tmp_path / "model.safetensors") == {}


@pytest.mark.parametrize(
    "value", [{"images": -1}, {"images": 1.5}, {"top1": -0.1}, {"rounded": 1}, None]
)
def test_facts_of_a_wrong_type_are_dropped_together(value: Any) -> None:
    assert parse_facts(value) == {}
    assert parse_facts({"images": 0, "top1": 1.0, "rounded": True}) == {
        "images": 0, "top1": 1.0, "rounded": True,
    }  # fmt: skip


def test_the_facts_of_a_config_of_more_than_16_mib_are_not_read(tmp_path: Path) -> None:
    text = json.dumps({"vitft_run": {"name": "x"}}).ljust(2**24)

    assert facts_in(tmp_path, text) == {"name": "x"}
    assert facts_in(tmp_path, f"{text} ") == {}
