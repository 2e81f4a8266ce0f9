"""Runs with a time budget: trials on the training images, the choice, and what is written."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import tiny_home
from vitft.config import config_from_table, read_toml
from vitft.metrics import TrialResults
from vitft.training import best_trial, pooled, run_finetuning, undecided

RESULTS: TrialResults = {
    "layers": "all", "epochs": 3, "folds": 1, "images": 200, "held_out": 100,
    "top1": 0.9, "head_top1": 0.8, "interpolation": 1.0, "tried": [],
    "loss": 0.3, "head_loss": 0.5, "error": 0.05, "seconds": 10.0, "final_seconds": 20.0,
}  # fmt: skip


def with_fractions(trial: TrialResults, fractions: Sequence[float] = (1.0,)) -> TrialResults:
    """Return the results of a trial that are the same for all fractions of the trained weights."""
    own = {name: trial[name] for name in ("top1", "loss", "error")}
    tried: Any = [{**own, "fraction": fraction} for fraction in fractions]
    return {**trial, "interpolation": fractions[0], "tried": tried}


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        pytest.param([{}], "all", id="four standard errors below the head"),
        pytest.param([{"loss": 0.46, "top1": 0.79}], None, id="ahead, but less accurate"),
        pytest.param([{"loss": 0.44}], "all", id="ahead by more than one standard error"),
        pytest.param([{"loss": 0.46}], None, id="ahead by less"),
        pytest.param([{"loss": 0.6, "top1": 0.99}], None, id="the loss decides, not the accuracy"),
        pytest.param([{"layers": "blocks:4", "loss": 0.31}, {}], "all", id="the larger gain wins"),
        pytest.param([{"layers": "blocks:4", "loss": 0.2}, {}], "blocks:4", id="in either order"),
        pytest.param([{"loss": 0.49, "folds": 2}], "all", id="ahead after it was repeated"),
        pytest.param([{"loss": 0.51, "folds": 5}], None, id="behind after it was repeated"),
        pytest.param([{"loss": 0.41, "top1": 0.79, "folds": 3}], None, id="less accurate"),
        pytest.param([], None, id="no trial"),
    ],
)
def test_the_best_trial_must_be_clearly_better_than_the_head(
    changes: list[dict[str, Any]], layers: str | None
) -> None:
    trials: list[Any] = [{**RESULTS, **change} for change in changes]

    best = best_trial(trials)

    assert (best and best["layers"]) == layers


BLOCKS = {"layers": "blocks:4", "loss": 0.45}


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        pytest.param([{"loss": 0.45}], ["all"], id="ahead, but not clearly"),
        pytest.param([{"loss": 0.45, "folds": 5}], [], id="repeated as often as possible"),
        pytest.param([{"loss": 0.55}], ["all"], id="behind the head, but not clearly"),
        pytest.param([{"loss": 0.61}], [], id="clearly behind the head"),
        pytest.param([{}, {**BLOCKS, "error": 0.02}], [], id="a clear leader"),
        pytest.param(
            [{}, BLOCKS], ["all", "blocks:4"], id="one that may be better than the leader"
        ),
        pytest.param(
            [{}, {**BLOCKS, "folds": 4}], ["all", "blocks:4"], id="a leader of fewer folds"
        ),
        pytest.param([{"folds": 4}, BLOCKS], ["blocks:4", "all"], id="a leader of more folds"),
        pytest.param([{}, {**BLOCKS, "folds": 5}], ["all"], id="a rival that held out every image"),
        pytest.param(
            [{"loss": 0.42}, {**BLOCKS, "loss": 0.43, "error": 0.06}],
            ["blocks:4", "all"],
            id="the larger possible gain is first",
        ),
        pytest.param([], [], id="no trial"),
    ],
)
def test_trials_that_may_be_the_best_are_repeated(
    changes: list[dict[str, Any]], layers: list[str]
) -> None:
    trials: list[Any] = [{**RESULTS, **change} for change in changes]

    assert [trial["layers"] for trial in undecided(trials)] == layers


def test_repeated_trials_are_combined_by_their_numbers_of_images() -> None:
    one: Any = {**RESULTS, "held_out": 300, "loss": 0.2, "error": 0.03, "folds": 2}
    other: Any = {**RESULTS, "held_out": 100, "loss": 0.6, "head_loss": 0.7, "error": 0.05}
    other |= {"top1": 0.5, "head_top1": 0.6}

    both = pooled(with_fractions(one, (0.5,)), with_fractions(other, (0.5,)))

    assert (both["folds"], both["held_out"], both["interpolation"]) == (3, 400, 0.5)
    assert both["images"] == 200
    assert both["loss"] == pytest.approx(0.3)
    assert both["head_loss"] == pytest.approx(0.55)
    assert both["top1"] == pytest.approx(0.8)
    assert both["head_top1"] == pytest.approx(0.75)
    assert both["error"] == pytest.approx((9**2 + 5**2) ** 0.5 / 400)
    assert both["seconds"] == 20.0


@pytest.mark.long
def test_the_settings_of_a_finished_run_give_the_same_steps_without_trials(tmp_path: Path) -> None:
    home = tiny_home(tmp_path, per_class=30)
    weights = {"name": str(home / "w.safetensors"), "image_size": [16, 16]}
    train = {"precision": "fp32", "budget": "5m"}
    table = {"data": {"path": str(home / "data")}, "weights": weights, "train": train}
    first = run_finetuning(config_from_table(table), out=home / "run")
    written = read_toml(first.run / "config.toml")

    again = run_finetuning(config_from_table(written), out=home / "again")

    assert first.figures["budget"]["trials"]
    assert "budget" not in again.figures
    logs = [(r.run / "metrics.jsonl").read_text().splitlines() for r in (first, again)]
    assert logs[0][-1] == logs[1][-1]
