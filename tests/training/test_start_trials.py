"""Other starts of a run with a time budget: a larger input and its choice, other weights."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conftest import tiny_home
from vitft.cli.main import main
from vitft.config.run import Config, config_from_table, read_toml, to_toml
from vitft.data.split import Row
from vitft.data.transforms import EvalTransform
from vitft.metrics.budget_results import StartTrial
from vitft.models.card import Card
from vitft.models.checkpoint import save_checkpoint
from vitft.models.pretrained.recommended import Recommendation
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.report.run_files import read_run
from vitft.report.summary import summary_sentences
from vitft.training import start_trials
from vitft.training.run import Result, run_finetuning
from vitft.training.setup import Start
from vitft.training.start_trials import SIZE_FRACTION

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


def prefer(monkeypatch: pytest.MonkeyPatch, *, larger: bool) -> list[Start]:
    """Decide the comparison; return a list to which the larger start is added."""
    seen: list[Start] = []
    original = start_trials.compare

    def decided(usual: Start, other: Start) -> StartTrial | None:
        seen.append(other)
        found = original(usual, other)
        return None if found is None else {**found, "chosen": larger}

    monkeypatch.setattr(start_trials, "compare", decided)
    return seen


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


@pytest.mark.usefixtures("heads_only")
def test_validation_images_take_no_part_in_the_choice(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    original = start_trials.extract

    def watched(start: Start, rows: Sequence[Row]) -> None:
        seen.extend(row.split for row in rows)
        original(start, rows)

    monkeypatch.setattr(start_trials, "extract", watched)
    prefer(monkeypatch, larger=False)

    finetune(home, "run")

    assert set(seen) == {"train"}


@pytest.mark.parametrize(
    ("certainty", "chosen"),
    [
        pytest.param(4.0, True, id="surer of the right classes"),
        pytest.param(2.0, False, id="the same answers"),
    ],
)
def test_a_clearly_lower_loss_decides(
    home: Path,
    heads_only: None,
    monkeypatch: pytest.MonkeyPatch,
    certainty: float,
    chosen: bool,
) -> None:
    """A third of the answers at the usual size are wrong, and none or as many at the larger one."""

    def scores(start: Start) -> tuple[np.ndarray[Any, Any], Tensor]:
        data = start.inputs.data
        y = data.labels(data.manifest.train)
        is_larger = data.transform.image_size[0] == LARGER
        shift = (torch.arange(len(y)) % 3 == 0) & (not is_larger or certainty == 2.0)
        answers = (y + shift.long()) % 3
        return np.arange(len(y)), 3 * torch.nn.functional.one_hot(answers, 3).float()

    monkeypatch.setattr(start_trials, "held_out_scores", scores)
    seen: list[StartTrial | None] = []
    original = start_trials.compare
    monkeypatch.setattr(start_trials, "compare", lambda *a: seen.append(original(*a)))

    finetune(home, "run")

    (found,) = seen
    assert found is not None
    assert found["chosen"] is chosen
    assert found["usual_top1"] == pytest.approx(2 / 3)


@pytest.mark.usefixtures("heads_only")
def test_cached_features_do_not_make_a_size_look_fast(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: list[float] = []
    original = start_trials.expected_seconds

    def watched(start: Any) -> float:
        expected.append(original(start))
        return expected[-1]

    monkeypatch.setattr(start_trials, "expected_seconds", watched)
    monkeypatch.setattr(start_trials, "forward_seconds", lambda _: 4.0)  # 1 s per image
    for name in ("first", "again"):
        finetune(home, name)

    assert len(expected) == 2
    assert all(seconds >= 60 for seconds in expected)


@pytest.mark.usefixtures("heads_only")
def test_a_size_that_takes_too_long_is_not_tried_and_the_results_say_so(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start_trials, "expected_seconds", lambda _: 60.0)
    seen = prefer(monkeypatch, larger=True)
    recipe = home / "recipe.toml"
    recipe.write_text(to_toml(settings(home)))

    assert main(["finetune", "--recipe", str(recipe), "--out", str(home / "r")]) == 0

    assert seen == []
    size = json.loads((home / "r" / "eval.json").read_text())["budget"]["size"]
    assert size["seconds_needed"] > 60.0 / SIZE_FRACTION
    sentence = "an input of 24 pixels was not tried: this needs about --budget 17m"
    printed = capsys.readouterr()
    assert " ".join((printed.out + printed.err).split()).count(sentence) == 1
    assert sentence[1:] in " ".join(summary_sentences(read_run(home / "r")))


def test_a_resumed_run_keeps_its_size_and_tries_no_other(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = prefer(monkeypatch, larger=True)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopping:
        stopping.setattr("vitft.training.run.choose_layers", stop)
        assert finetune(home, "run").interrupted
    monkeypatch.setattr("vitft.training.budget.layers_to_try", lambda _: [])
    config = config_from_table(read_toml(home / "run" / "config.toml"))

    result = run_finetuning(config, out=home / "run", resume=True)

    assert len(seen) == 1
    assert sides(result) == (LARGER, LARGER)
    assert result.figures["budget"]["size"]["chosen"]


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
    seen = prefer(monkeypatch, larger=True)

    result = finetune(home, "run", **given)

    assert seen == [], why
    assert sides(result) == (16, 16)


# other weights ----------------------------------------------------------------------------------


@pytest.fixture
def cached_weights(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a second, wider model of random weights; it is the recommended one in the cache."""
    torch.manual_seed(1)
    config = ViTConfig(
        image_size=(24, 24), patch_size=(8, 8), width=48, depth=1, heads=2, num_classes=0
    )
    path = home / "wide.safetensors"
    card = Card(architecture=config, transform=EvalTransform(image_size=(24, 24)))
    save_checkpoint(path, VisionTransformer(config).state_dict(), card)
    one = Recommendation(name=str(path), tier="best", megabytes=1, gmacs=1e-6)
    monkeypatch.setattr(start_trials, "cached_alternatives", lambda *_: [one])
    return path


@pytest.mark.usefixtures("heads_only")
def test_other_weights_in_the_cache_are_scored_on_training_images_and_only_reported(
    home: Path, cached_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()
    original = start_trials.extract

    def watched(start: Start, rows: Sequence[Row]) -> None:
        seen.update(row.split for row in rows)
        original(start, rows)

    monkeypatch.setattr(start_trials, "extract", watched)

    tried = finetune(home, "tried", image_size=(16, 16))
    plain = finetune(home, "plain", image_size=(16, 16), budget="")
    alone = cross_validated(home, cached_weights)

    budget = tried.figures["budget"]
    found = budget["weights"]
    assert "size" not in budget
    assert found["weights"] == str(cached_weights)
    assert found["image_size"] == (16, 16)
    assert not found["chosen"]
    assert found["images"] == 72
    assert found["top1"] == pytest.approx(alone, abs=0.1)  # other folds and images
    low, high = found["gain_interval"]
    assert low < found["top1"] - found["usual_top1"] < high
    assert found["relative_time"] > 0
    assert seen == {"train"}
    assert tried.figures["loss"] == plain.figures["loss"]
    assert read_toml(tried.run / "config.toml")["weights"]["name"].endswith("w.safetensors")
    assert f"the weights {cached_weights} would bring" in " ".join(
        summary_sentences(read_run(tried.run))
    ).replace("The weights", "the weights")


def cross_validated(home: Path, weights: Path) -> float:
    """Return the cross-validated accuracy of a run with other weights."""
    table = {
        "data": {"path": str(home / "data")},
        "weights": {"name": str(weights), "image_size": [16, 16]},
        "train": {"precision": "fp32"},
    }
    figures = run_finetuning(config_from_table(table), out=home / "alone").figures
    return figures["cross_validation"]["top1"]


@pytest.mark.usefixtures("heads_only")
def test_other_weights_that_take_too_long_are_not_tried_and_the_results_say_so(
    home: Path, cached_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_trials, "expected_seconds", lambda _: 60.0)

    run = finetune(home, "run", image_size=(16, 16))

    text = " ".join(summary_sentences(read_run(run.run)))
    assert f"weights {cached_weights} were not tried: this needs about --budget 17m" in text


@pytest.mark.usefixtures("heads_only")
def test_a_copy_of_the_weights_of_the_run_is_not_tried(home: Path, cached_weights: Path) -> None:
    shutil.copy(home / "w.safetensors", cached_weights)

    run = finetune(home, "run", image_size=(16, 16))

    assert "budget" in run.figures
    assert "weights" not in run.figures["budget"]


@pytest.mark.usefixtures("heads_only")
def test_a_damaged_file_of_other_weights_does_not_stop_the_run(
    home: Path, cached_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cached_weights.write_bytes(cached_weights.read_bytes()[:100])

    run = finetune(home, "run", image_size=(16, 16))

    assert "weights" not in run.figures["budget"]
    assert "were not tried" in capsys.readouterr().err
