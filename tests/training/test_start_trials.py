"""Other starts of a run with a time budget: a larger input and its choice, other weights."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import tiny_home
from vitft.config import Config, config_from_table, read_toml
from vitft.report import read_run
from vitft.training import Result, run_finetuning

LARGER = 24
"""Input size tried for the weights of the tests, which were made for 16 pixels."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder with data (3 classes of 30 images) and weights of two blocks."""
    return tiny_home(tmp_path, per_class=30)


@pytest.fixture
def heads_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no layers but the head be tried."""
    monkeypatch.setattr("vitft.training.budget.layers_to_try", lambda _: [])


def settings(home: Path, *, image_size: tuple[int, int] | None = None, **train: Any) -> Config:
    weights: dict[str, Any] = {"name": str(home / "w.safetensors")}
    if image_size is not None:
        weights["image_size"] = list(image_size)
    train = {"precision": "fp32", "budget": "5m", **train}
    return config_from_table(
        {"data": {"path": str(home / "data")}, "weights": weights, "train": train}
    )


def finetune(home: Path, name: str, **given: Any) -> Result:
    return run_finetuning(settings(home, **given), out=home / name)


def prefer(monkeypatch: pytest.MonkeyPatch, *, larger: bool) -> None:
    """Decide the comparison: no evidence is needed, or none is enough."""
    monkeypatch.setattr("vitft.training.budget.EVIDENCE", -1e9 if larger else 1e9)


def sides(result: Result) -> tuple[int, int]:
    card = read_run(result.run).card
    assert card is not None
    return card.transform.image_size


@pytest.mark.usefixtures("heads_only")
def test_a_larger_size_that_is_better_is_that_of_the_run(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer(monkeypatch, larger=True)

    chosen = finetune(home, "chosen")
    asked = finetune(home, "asked", image_size=(LARGER, LARGER), budget="")

    assert sides(chosen) == (LARGER, LARGER)
    assert read_toml(chosen.run / "config.toml")["weights"]["image_size"] == [LARGER, LARGER]
    assert chosen.figures["loss"] == asked.figures["loss"]
    size = chosen.figures["budget"]["size"]
    assert size["image_size"] == (LARGER, LARGER)
    assert size["usual_size"] == [16, 16]
    assert size["images"] == 72


@pytest.mark.usefixtures("heads_only")
def test_a_larger_size_that_is_no_better_changes_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer(monkeypatch, larger=False)

    tried, plain = finetune(home, "tried"), finetune(home, "plain", budget="")

    assert sides(tried) == (16, 16)
    assert tried.figures["loss"] == plain.figures["loss"]
    assert not tried.figures["budget"]["size"]["chosen"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        pytest.param({"image_size": (16, 16)}, "a size was asked for", id="a given size"),
        pytest.param({"budget": ""}, "there is no budget", id="no budget"),
    ],
)
def test_no_other_size_is_tried_where_it_was_not_asked_for(
    home: Path, monkeypatch: pytest.MonkeyPatch, heads_only: None, given: Any, why: str
) -> None:
    prefer(monkeypatch, larger=True)

    result = finetune(home, "run", **given)

    assert "size" not in result.figures.get("budget", {}), why
    assert sides(result) == (16, 16)
