"""Runs with a time budget: trials on the training images, the choice, and what is written."""

import json
import math
import os
import signal
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import tiny_home
from vitft.cli.main import main
from vitft.config import defaults
from vitft.config.run import Config, config_from_table, read_toml
from vitft.features import mixture
from vitft.metrics.budget_results import TrialResults
from vitft.metrics.results import MIXTURE
from vitft.models.checkpoint import load_checkpoint
from vitft.models.vit import VisionTransformer
from vitft.report.run_files import read_run
from vitft.report.summary import key_figures, summary_sentences
from vitft.system.errors import UsageError
from vitft.training import budget, stages, trial
from vitft.training.best import RunningMetrics
from vitft.training.budget import best_trial
from vitft.training.distributed import ProcessGroup
from vitft.training.loop import Batch, StepResult, Trainer
from vitft.training.run import Result, run_finetuning
from vitft.training.trial import MAX_EPOCHS, Trial, pooled, tempered_losses

RESULTS: TrialResults = {
    "layers": "none", "epochs": 3, "images": 200, "held_out": 100, "top1": 0.9, "head_top1": 0.8,
    "loss": 0.3, "head_loss": 0.5, "error": 0.05, "seconds": 10.0, "final_seconds": 20.0,
}  # fmt: skip


def with_fractions(trial: TrialResults, fractions: Sequence[float] = (1.0,)) -> TrialResults:
    """Return the results of a trial that are the same for all fractions of the trained weights."""
    own = {name: trial[name] for name in ("top1", "loss", "error")}
    tried: Any = [{**own, "fraction": fraction} for fraction in fractions]
    return {**trial, "interpolation": fractions[0], "tried": tried}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder with data (3 classes of 30 images) and weights of two blocks."""
    return tiny_home(tmp_path, per_class=30)


@pytest.fixture(autouse=True)
def twelve_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all trials on the small data have 12 epochs of 2 steps, which is fast."""
    monkeypatch.setattr(defaults, "BATCH_SIZES", (32, 32))
    for module, name in ((trial, "MAX_STEPS"), (budget, "FIRST_STEPS"), (budget, "MIN_STEPS")):
        monkeypatch.setattr(module, name, 2 * MAX_EPOCHS)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every step take a millisecond per image, so that plans do not depend on the machine."""
    monkeypatch.setattr(Trial, "time_steps", lambda *_: (0.0, 0.001))


def settings(home: Path, **train: Any) -> Config:
    return config_from_table(
        {
            "data": {"path": str(home / "data")},
            "weights": {"name": str(home / "w.safetensors"), "image_size": [16, 16]},
            "train": {"precision": "fp32", "budget": "5m", **train},
        }
    )


def run(home: Path, name: str, **train: Any) -> Result:
    return run_finetuning(settings(home, **train), out=home / name)


def results_of(run: Path) -> Any:
    return json.loads((run / "eval.json").read_text())


def judged(monkeypatch: pytest.MonkeyPatch, **changes: float) -> list[str]:
    """Replace the scores of every trial; return a list to which their layers are added."""
    seen: list[str] = []
    original = Trial.results

    def results(self: Trial, *args: Any) -> TrialResults:
        seen.append(self.candidate.layers)
        return with_fractions({**original(self, *args), **changes})  # type: ignore[typeddict-item]

    monkeypatch.setattr(Trial, "results", results)
    return seen


BETTER = {"loss": 0.1, "head_loss": 0.5, "error": 0.1}
BEHIND = {"loss": 0.6, "head_loss": 0.5, "error": 0.04}


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        pytest.param([{}], "none", id="four standard errors below the head"),
        pytest.param([{"loss": 0.46, "top1": 0.79}], None, id="ahead, but less accurate"),
        pytest.param([{"loss": 0.44}], "none", id="ahead by more than one standard error"),
        pytest.param([{"loss": 0.46}], None, id="ahead by less"),
        pytest.param([{"loss": 0.6, "top1": 0.99}], None, id="the loss decides, not the accuracy"),
        pytest.param([{"layers": "blocks:4", "loss": 0.31}, {}], "none", id="the larger gain wins"),
        pytest.param([{"layers": "blocks:4", "loss": 0.2}, {}], "blocks:4", id="in either order"),
        pytest.param([{"loss": 0.49, "folds": 2}], "none", id="ahead after it was repeated"),
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


def test_a_trial_sees_no_validation_image_and_leaves_the_model_alone(
    home: Path, steady: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Trial] = []
    original = Trial.run

    def watched(self: Trial, epochs: int) -> TrialResults:
        before = {k: v.clone() for k, v in self.context.best.model.state_dict().items()}
        found = original(self, epochs)
        after = self.context.best.model.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        seen.append(self)
        return found

    monkeypatch.setattr(Trial, "run", watched)
    judged(monkeypatch, **BEHIND)

    result = run(home, "run")

    (done,) = seen
    fitted, held = done.held_out.manifest.train, done.held_out.manifest.val
    split = {row.path for row in done.context.inputs.data.manifest.val}
    assert len(fitted) == 57
    assert len(held) == 15  # a fifth of 72 training images, 5 per class
    assert not {row.path for row in (*fitted, *held)} & split
    assert result.figures["budget"]["trials"][0]["images"] == 57


def test_an_unclear_trial_is_repeated_until_every_training_image_was_held_out(
    home: Path, steady: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[set[str]] = []
    original = Trial.run

    def watched(self: Trial, epochs: int) -> TrialResults:
        held.append({row.path for row in self.held_out.manifest.val})
        return original(self, epochs)

    monkeypatch.setattr(Trial, "run", watched)
    judged(monkeypatch, loss=0.4, head_loss=0.5, error=0.2, top1=0.9, head_top1=0.9)

    done = run(home, "run")

    assert len(held) == 5
    assert len(set.union(*held)) == 72
    (found,) = results_of(done.run)["budget"]["trials"]
    assert found["folds"] == 5
    assert found["held_out"] == 72
    assert results_of(done.run)["budget"]["chosen"] == "none"


BLOCKS = {"layers": "blocks:4"}


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        pytest.param([{"loss": 0.45}], ["none"], id="ahead, but not clearly"),
        pytest.param([{"loss": 0.45, "folds": 5}], [], id="repeated as often as possible"),
        pytest.param([{"loss": 0.55}], ["none"], id="behind the head, but not clearly"),
        pytest.param([{"loss": 0.61}], [], id="clearly behind the head"),
        pytest.param([{}, {**BLOCKS, "loss": 0.45, "error": 0.02}], [], id="a clear leader"),
        pytest.param(
            [{}, {**BLOCKS, "loss": 0.45}],
            ["none", "blocks:4"],
            id="a trial that may be better than the leader",
        ),
        pytest.param(
            [{}, {**BLOCKS, "loss": 0.45, "folds": 4}],
            ["none", "blocks:4"],
            id="the leader has fewer folds",
        ),
        pytest.param(
            [{"folds": 4}, {**BLOCKS, "loss": 0.45}],
            ["blocks:4", "none"],
            id="the leader has more folds",
        ),
        pytest.param(
            [{}, {**BLOCKS, "loss": 0.45, "folds": 5}],
            ["none"],
            id="a rival that has held out every image",
        ),
        pytest.param(
            [{"loss": 0.42}, {**BLOCKS, "loss": 0.43, "error": 0.06}],
            ["blocks:4", "none"],
            id="the larger possible gain is first",
        ),
        pytest.param([], [], id="no trial"),
    ],
)
def test_trials_that_may_be_the_best_are_repeated(
    changes: list[dict[str, Any]], layers: list[str]
) -> None:
    trials: list[Any] = [{**RESULTS, **change} for change in changes]

    assert [trial["layers"] for trial in budget.undecided(trials)] == layers


def test_repeated_trials_are_combined_by_their_numbers_of_images() -> None:
    one = with_fractions({**RESULTS, "held_out": 300, "loss": 0.2, "error": 0.03})
    other = with_fractions({**RESULTS, "held_out": 100, "loss": 0.6, "error": 0.05})

    both = pooled(one, other)

    assert both["folds"] == 2
    assert both["held_out"] == 400
    assert both["loss"] == pytest.approx(0.3)
    assert both["error"] == pytest.approx((9**2 + 5**2) ** 0.5 / 400)
    assert both["seconds"] == 20.0


def test_repeated_trials_choose_the_interpolation_anew() -> None:
    one, other = (with_fractions(RESULTS, (0.5, 1.0)) for _ in range(2))
    one["tried"][0]["loss"], one["tried"][1]["loss"] = 0.2, 0.3
    other["tried"][0]["loss"], other["tried"][1]["loss"] = 0.6, 0.4

    both = pooled(one, other)

    assert both["interpolation"] == 1.0
    assert both["loss"] == pytest.approx(0.35)


def test_a_trial_has_enough_steps_and_its_winner_is_tried_for_more_epochs(
    home: Path, steady: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "FIRST_STEPS", 7)  # 4 epochs of 2 steps
    monkeypatch.setattr(budget, "MIN_STEPS", 5)
    judged(monkeypatch, **BETTER)

    done = run(home, "run")

    assert [t["epochs"] for t in results_of(done.run)["budget"]["trials"]] == [4, MAX_EPOCHS]


@pytest.mark.parametrize(
    ("affordable", "epochs"),
    [
        pytest.param(100, 12, id="three times as many as in the trial"),
        pytest.param(6, 6, id="as time allows"),
        pytest.param(0, 4, id="never fewer than in the trial"),
    ],
)
def test_time_that_is_left_goes_into_longer_training_of_the_choice(
    home: Path, steady: None, monkeypatch: pytest.MonkeyPatch, affordable: int, epochs: int
) -> None:
    monkeypatch.setattr(budget, "FIRST_STEPS", 7)  # 4 epochs of 2 steps
    monkeypatch.setattr(budget, "MIN_STEPS", 5)
    monkeypatch.setattr(budget, "LONGER", 100)
    judged(monkeypatch, **BETTER)
    original = Trial.results

    def results(self: Trial, *args: Any) -> TrialResults:
        monkeypatch.setattr(Trial, "final_seconds", lambda _, n: 1e9 * (n > affordable))
        return original(self, *args)

    monkeypatch.setattr(Trial, "results", results)

    found = results_of(run(home, "run").run)

    assert [trial["epochs"] for trial in found["budget"]["trials"]] == [4]
    assert found["budget"]["epochs"] == epochs
    assert found["epochs"] == 1 + epochs


def test_a_run_that_is_late_trains_fewer_epochs_and_says_how_many(
    home: Path, steady: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(monkeypatch, **BETTER)
    original = budget.try_candidates
    monkeypatch.setattr(
        budget, "try_candidates", lambda *given: {**original(*given), "seconds": 0.0}
    )
    given = ["--data", str(home / "data"), "--weights", str(home / "w.safetensors")]

    assert main(["finetune", *given, "--budget", "5m", "--out", str(home / "run")]) == 0

    shown = capsys.readouterr()
    assert "stopped after 1 of 12 epochs: training is slower than expected" in shown.err
    assert "the run trained all layers for 1 epoch\n" in shown.out
    assert results_of(home / "run")["budget"]["epochs"] == 1
    assert results_of(home / "run")["epochs"] == 2  # the fitted head counts as the first
    assert "the head alone, before further training: cross-validated accuracy" in shown.out
    assert "with twice as many images" not in shown.out
    names = [figure.name for figure in key_figures(read_run(home / "run"))]
    assert "cross-validated accuracy of the head alone, before further training" in names
    page = (home / "run" / "report.html").read_text()
    assert "Because this run trained more than a head" not in page


def test_a_resumed_run_does_not_try_more_epochs_twice(
    home: Path, steady: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "FIRST_STEPS", 7)
    monkeypatch.setattr(budget, "MIN_STEPS", 5)
    seen = judged(monkeypatch, **{**BETTER, "error": 0.0})  # so that none is repeated
    original = budget.best_trial

    def killed(*_: Any) -> None:
        raise OSError("killed")

    monkeypatch.setattr(budget, "best_trial", killed)  # before the choice is saved
    with pytest.raises(OSError, match="killed"):
        run(home, "half")
    monkeypatch.setattr(budget, "best_trial", original)

    run_finetuning(settings(home), out=home / "half", resume=True)

    assert seen == ["none", "none"]


def test_without_a_gain_the_run_is_that_of_the_head_alone(
    home: Path, steady: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, **BEHIND)

    tried, plain = run(home, "tried"), run(home, "plain", budget="")

    one, _ = load_checkpoint(tried.run / "model.safetensors")
    other, _ = load_checkpoint(plain.run / "model.safetensors")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert results_of(tried.run)["budget"]["chosen"] == "head"
    assert read_toml(tried.run / "config.toml")["train"]["freeze"] == "head"


def test_a_gain_is_followed_by_training_on_all_training_images(
    home: Path, steady: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, **BETTER)

    done = run(home, "run")

    found, written = results_of(done.run), read_toml(done.run / "config.toml")
    assert found["budget"]["chosen"] == "none"
    assert found["budget"]["epochs"] == MAX_EPOCHS
    assert found["epochs"] == found["best_epoch"] == 1 + MAX_EPOCHS  # the last epoch is kept
    assert found["selected_on_validation"] is False
    assert written["train"]["freeze"] == "head,none"
    assert written["train"]["budget"] == ""
    assert not (done.run / "resume").exists()
    state, _ = load_checkpoint(done.run / "model.safetensors")
    before, _ = load_checkpoint(home / "w.safetensors")
    assert not torch.equal(state["blocks.0.attn.qkv.weight"], before["blocks.0.attn.qkv.weight"])


def test_the_settings_of_a_finished_run_give_the_same_model_without_trials(
    home: Path, steady: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, **BETTER)
    first = run(home, "run")

    again = run_finetuning(
        config_from_table(read_toml(first.run / "config.toml")), out=home / "again"
    )

    one, _ = load_checkpoint(first.run / "model.safetensors")
    other, _ = load_checkpoint(again.run / "model.safetensors")
    best = results_of(again.run)["best_epoch"]
    assert best < 1 + MAX_EPOCHS or all(torch.equal(one[name], other[name]) for name in one)
    logs = [(r.run / "metrics.jsonl").read_text().splitlines() for r in (first, again)]
    assert logs[0][-1] == logs[1][-1]


def test_a_resumed_run_does_not_repeat_a_finished_trial(
    home: Path, steady: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = judged(monkeypatch, **BETTER)
    whole = run(home, "whole")
    original = budget.with_choice

    def killed(*_: Any) -> Config:
        raise OSError("killed")

    monkeypatch.setattr(budget, "with_choice", killed)
    with pytest.raises(OSError, match="killed"):
        run(home, "half")
    monkeypatch.setattr(budget, "with_choice", original)
    assert seen == ["none", "none"]

    resumed = run_finetuning(settings(home), out=home / "half", resume=True)

    assert seen == ["none", "none"]
    one, _ = load_checkpoint(whole.run / "model.safetensors")
    other, _ = load_checkpoint(resumed.run / "model.safetensors")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_stopped_while_it_trains_the_choice_continues_there(
    home: Path, steady: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = judged(monkeypatch, **BETTER)
    whole = run(home, "whole")
    add = RunningMetrics.add

    def stopped(self: RunningMetrics, step: StepResult) -> None:
        add(self, step)
        if self.steps == 17:  # of 36 steps of the stage; trials have no running metrics
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(RunningMetrics, "add", stopped)
    assert run(home, "half").status == "terminated"
    monkeypatch.setattr(RunningMetrics, "add", add)

    assert main(["finetune", "--resume", str(home / "half")]) == 0

    assert seen == ["none", "none"]
    one, _ = load_checkpoint(whole.run / "model.safetensors")
    other, _ = load_checkpoint(home / "half" / "model.safetensors")
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert results_of(home / "half")["selected_on_validation"] is False


def test_what_does_not_fit_into_the_budget_is_named_with_the_time_it_needs(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Trial, "time_steps", lambda *_: (0.0, 10.0))

    given = ["--data", str(home / "data"), "--weights", str(home / "w.safetensors")]
    assert main(["finetune", *given, "--budget", "1m", "--out", str(home / "run")]) == 0

    found = results_of(home / "run")["budget"]
    # 12 epochs, and passes over 15 held-out, 14 x 18 validation, 2 x 72 others
    seconds = 10 * (12 * 57 + 12 * 72 + (15 + 14 * 18 + 2 * 72) / 3)
    assert found["trials"] == []
    (skipped,) = found["skipped"]
    assert skipped["seconds_needed"] == pytest.approx(seconds / 0.85, rel=0.02)
    shown = capsys.readouterr()
    assert "only the head was trained\n" in shown.out
    minutes = math.ceil(skipped["seconds_needed"] / 60)
    refusal = f"raining all layers was not tried: this needs about --budget {minutes}m"
    assert (shown.out + shown.err).count("raining all layers was not tried") == 1
    assert refusal in shown.err
    assert refusal in " ".join(summary_sentences(read_run(home / "run")))


def test_few_training_images_get_a_head_without_trials(tmp_path: Path) -> None:
    tiny_home(tmp_path)

    done = run(tmp_path, "run")

    assert done.figures["budget"]["trials"] == []
    assert done.figures["budget"]["chosen"] == "head"


@pytest.mark.parametrize(
    ("train", "optim", "message"),
    [
        ({"budget": "soon"}, {}, "train.budget=soon"),
        ({"budget": "0m"}, {}, "train.budget=0m"),
        ({"budget": "5m", "freeze": "none"}, {}, "already choose"),
        ({"budget": "5m"}, {"epochs": 3}, "already choose"),
        ({"budget": "5m", "augment": "crop"}, {}, "already choose"),
    ],
)
def test_a_budget_excludes_settings_that_choose_the_layers(
    train: dict[str, Any], optim: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        config_from_table({"train": train, "optim": optim})


def test_chosen_layers_start_from_the_head_on_the_last_block(
    home: Path, steady: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, **BETTER)
    monkeypatch.setattr(
        mixture, "choose_candidate", lambda *c: next(x for x in c[:3] if x.name == MIXTURE)
    )

    several = run(home, "several")

    state, card = load_checkpoint(several.run / "model.safetensors")
    assert card.architecture.read_blocks == 1
    assert "last_head.weight" not in state
    assert "head" not in results_of(several.run)
    last = run(home, "last", head_blocks=1)
    other, _ = load_checkpoint(last.run / "model.safetensors")
    assert all(torch.equal(state[name], other[name]) for name in state)


Plan = Callable[[float, float], int]


@pytest.mark.parametrize(
    ("seconds", "after", "epochs"),
    [
        pytest.param(0.0, 0.0, 0, id="no time"),
        pytest.param(0.216, 0.0, 1, id="just one epoch"),
        pytest.param(1e6, 0.0, MAX_EPOCHS, id="at most the maximum"),
        pytest.param(1.0, 0.95, 0, id="time is kept for a better candidate"),
    ],
)
def test_epochs_are_planned_from_the_time_of_a_step(
    home: Path,
    steady: None,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    after: float,
    epochs: int,
) -> None:
    trials: list[Trial] = []
    judged(monkeypatch, **BEHIND)
    original = Trial.run

    def watched(self: Trial, epochs: int) -> TrialResults:
        trials.append(self)
        return original(self, epochs)

    monkeypatch.setattr(Trial, "run", watched)
    run(home, "run")

    # one epoch: 57 + 72 images and a third of 4 x 15 + 3 x 18 + 2 x 72 others: 0.21 s
    assert trials[0].affordable_epochs(seconds, after=after) == epochs


@pytest.mark.parametrize(
    ("epoch_started", "epochs", "is_last"),
    [
        pytest.param(88.5, 3, False, id="an epoch and the evaluation still fit"),
        pytest.param(87.0, 3, True, id="only one of them fits"),
        pytest.param(0.0, 12, False, id="no epoch follows anyway"),
    ],
)
def test_training_ends_if_another_epoch_and_the_evaluation_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, epoch_started: float, epochs: int, is_last: bool
) -> None:
    stage: Any = object.__new__(stages.StepStage)
    stage.context = types.SimpleNamespace(budget={"seconds": 100.0, "epochs": 12}, started=0.0)
    stage.config = types.SimpleNamespace(optim=types.SimpleNamespace(epochs=12))
    stage.data = types.SimpleNamespace(group=ProcessGroup())
    stage.epochs, stage.epoch_started = epochs, epoch_started
    monkeypatch.setattr(stages, "time", types.SimpleNamespace(monotonic=lambda: 92.0))

    assert stage.is_last_in_budget() == is_last
    assert stage.context.budget["epochs"] == (3 if is_last else 12)


@pytest.mark.parametrize(("steps_per_epoch", "epochs"), [(100, 12), (4, 50)])
def test_few_images_may_be_trained_for_more_epochs(
    monkeypatch: pytest.MonkeyPatch, steps_per_epoch: int, epochs: int
) -> None:
    monkeypatch.setattr(trial, "MAX_STEPS", 200)
    monkeypatch.setattr(Trial, "epochs_of", lambda _, steps: math.ceil(steps / steps_per_epoch))

    assert Trial.most_epochs(object.__new__(Trial)) == epochs


def test_the_time_of_a_step_is_the_mean_without_the_first_step(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, **BEHIND)
    clock, images, measured = [0.0], list[int](), list[float]()
    step, original = Trainer.step, Trial.time_steps

    def slow(self: Trainer, batch: Batch) -> StepResult:
        result = step(self, batch)
        images.append(result.images)
        clock[0] += 1.0 if len(images) > 1 else 100.0
        return result

    def watched(self: Trial, seconds: float) -> tuple[float, float]:
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "step", slow)
            patch.setattr(trial, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
            measured.append(original(self, 1e9)[1])
        return 0.0, 0.001

    monkeypatch.setattr(Trial, "time_steps", watched)

    run(home, "run")

    assert len(images) > 2
    assert measured == [pytest.approx((len(images) - 1) / sum(images[1:]))]


def test_losses_are_compared_after_temperature_scaling() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 3, generator=generator)
    y = torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)[:, 0].numpy()

    losses, overconfident = tempered_losses(logits, y), tempered_losses(10 * logits, y)

    assert overconfident.mean() == pytest.approx(losses.mean(), rel=0.01)
    untempered = torch.nn.functional.cross_entropy(10 * logits, torch.from_numpy(y))
    assert overconfident.mean() < 0.5 * untempered


def test_the_last_blocks_are_tried_only_if_others_stay_frozen(tiny_vit: VisionTransformer) -> None:
    deep = VisionTransformer(replace(tiny_vit.config, depth=8))

    last, everything = budget.layers_to_try(deep)
    assert (last.layers, everything.layers) == ("blocks:4", "none")
    assert last.optim == {"weight_decay": 0.05, "clip": 1.0, "ema": 0.99, "lr": 0.0003}
    assert everything.optim == {"weight_decay": 0.05, "clip": 1.0, "ema": 0.99, "layer_decay": 0.75}
    assert (last.train, everything.train) == ({}, {"augment": "crop", "crop_scale": 0.4})
    assert budget.layers_to_try(tiny_vit) == [everything]
