"""Trials of a run with a time budget: what they hold out, how long they take, what they report."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.training_data import (
    data_set,
    digest,
    noted,
    pooled_inputs,
    row,
    watched_progress,
)
from vitft.config.run import config_from_table
from vitft.data.transforms import eval_view
from vitft.features.head import solve_by_method
from vitft.features.mixture import HeadMethod
from vitft.models.vit import VisionTransformer
from vitft.system.signals import Stopper
from vitft.training import trial as module
from vitft.training.loop import StepResult
from vitft.training.optim import WeightAverage
from vitft.training.trial import (
    HeldOut,
    LayerSettings,
    Trial,
    hold_out,
    pooled,
    tempered_losses,
)

CONFIG = config_from_table({"train": {"budget": "10m", "seed": 3}})


def test_a_candidate_trains_its_layers_after_the_head(tiny_vit: VisionTransformer) -> None:
    candidate = LayerSettings(layers="none", optim={"ema": 0.9}, train={"augment": "crop"})

    found = candidate.config(CONFIG, 7, tiny_vit, 500, fraction=0.5)

    assert found.train.stages == ("head", "none")
    assert (found.train.views, found.train.budget, found.train.augment) == (0, "", "crop")
    assert (found.optim.solver, found.optim.epochs, found.optim.ema) == ("adamw", 7, 0.9)
    assert (found.optim.lr, found.optim.batch_size) == (5e-4, 8)
    assert found.optim.interpolation == 0.5
    assert candidate.config(CONFIG, 7, tiny_vit, 5000).optim.batch_size == 32
    assert candidate.config(CONFIG, 7, tiny_vit, 500).optim.interpolation == 1.0
    fixed = LayerSettings(layers="blocks:1", optim={"lr": 0.3})
    assert fixed.config(CONFIG, 7, tiny_vit, 500).optim.lr == 0.3


def held_out_images(fitted: int, held: int) -> HeldOut:
    rows = [row(f"t{i}", i % 3) for i in range(fitted)]
    rows += [row(f"v{i}", i % 3, "val") for i in range(held)]
    nothing: Any = None
    return HeldOut(manifest=data_set(rows).manifest, last_head=nothing, logits=nothing)


def planned(model: Any = None, *, training: int = 90, validation: int = 30) -> Trial:
    """Return a trial of all layers: 72 images to train, 18 held out, 0.1 s per image of a step."""
    rows = [row(f"t{i}", 0) for i in range(training)]
    rows += [row(f"v{i}", 0, "val") for i in range(validation)]
    data = data_set(rows)
    context: Any = SimpleNamespace(
        config=CONFIG, inputs=SimpleNamespace(data=data), best=SimpleNamespace(model=model)
    )
    candidate = LayerSettings(layers="none")
    return Trial(context, candidate, held_out_images(72, 18), seconds=100, times=(0.05, 0.1))


@pytest.mark.parametrize(
    ("training", "epochs", "seconds"),
    [
        # epochs of training, and a third of the time for validation and two passes at the end
        pytest.param(90, 3, 0.1 * (3 * 90 + (5 * 30 + 2 * 90) / 3), id="few images"),
        pytest.param(90, 1, 0.1 * (1 * 90 + (3 * 30 + 2 * 90) / 3), id="an epoch"),
        pytest.param(5000, 2, 0.1 * (2 * 5000 + (4 * 30 + 2 * 2000) / 3), id="2,000 at the end"),
    ],
)
def test_the_final_training_takes_steps_and_passes(
    training: int, epochs: int, seconds: float
) -> None:
    assert planned(training=training).final_seconds(epochs) == pytest.approx(seconds)


def test_a_trial_takes_features_steps_and_four_evaluations_before_the_final_training() -> None:
    trial = planned()
    alone = 0.05 * 90 + 0.1 * (3 * 72 + 4 * 18 / 3)

    assert trial.seconds(3) == pytest.approx(alone + trial.final_seconds(3))
    assert trial.seconds(3, after=1.0) == pytest.approx(alone + trial.final_seconds(3))
    assert trial.seconds(3, after=50.0) == pytest.approx(alone + 50.0)


def test_epochs_are_counted_in_steps_and_in_time(tiny_vit: VisionTransformer) -> None:
    trial = planned(tiny_vit)  # 9 steps of 8 images per epoch

    assert [trial.epochs_of(steps) for steps in (1, 9, 10, 80, 81, 82)] == [1, 1, 2, 9, 9, 10]
    assert trial.most_epochs() == 23  # 200 steps
    assert [trial.further_epochs(n) for n in (1, 4, 7, 8, 23, 30)] == [3, 12, 21, 23, 23, 30]
    times = [trial.seconds(n) for n in range(1, 31)]
    assert trial.affordable_epochs(times[0], after=0) == 1
    assert trial.affordable_epochs(times[0] - 1e-6, after=0) == 0
    assert trial.affordable_epochs(times[6], after=0) == 7
    assert trial.affordable_epochs(1e9, after=0) == 23
    assert trial.affordable_epochs(times[6], after=times[6]) == 0
    assert trial.config(5).optim.interpolation < 1  # the weights before training are kept
    assert trial.config(5).optim.epochs == 5


def test_small_data_is_tried_for_at_most_200_steps(tiny_vit: VisionTransformer) -> None:
    trial = planned(tiny_vit)
    trial.held_out = held_out_images(64, 16)

    assert trial.most_epochs() == 25  # 8 steps each
    assert [trial.further_epochs(n) for n in (8, 9, 26)] == [24, 25, 26]


def test_large_data_is_tried_for_at_most_12_epochs(tiny_vit: VisionTransformer) -> None:
    trial = planned(tiny_vit)
    trial.held_out = held_out_images(4000, 1000)
    trial.images = 5000

    assert trial.epochs_of(81) == 1  # steps of 32
    assert trial.most_epochs() == 12


def test_times_are_measured_in_a_twentieth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def time_steps(_: Trial, seconds: float) -> tuple[float, float]:
        asked.append(seconds)
        return 0.5, 0.25

    monkeypatch.setattr(Trial, "time_steps", time_steps)
    known = planned()

    measured = Trial(
        known.context, LayerSettings(layers="none"), held_out_images(72, 18), seconds=60
    )

    assert asked == [pytest.approx(3.0)]
    assert (measured.extraction_s, measured.step_s) == (0.5, 0.25)
    assert (known.extraction_s, known.step_s) == (0.05, 0.1)
    assert measured.images == 90


def test_steps_are_timed_on_at_most_96_images(
    tiny_vit: VisionTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = planned(tiny_vit)
    trial.held_out = held_out_images(200, 50)
    asked: list[Any] = []

    def inputs(_: Trial, config: Any, manifest: Any, what: str) -> Any:
        asked.append((config.optim.epochs, manifest.rows, what))
        raise InterruptedError

    monkeypatch.setattr(Trial, "inputs", inputs)
    with pytest.raises(InterruptedError):
        trial.time_steps(1.0)

    ((epochs, rows, what),) = asked
    assert epochs == 1
    assert 80 <= len(rows) <= 96
    assert {one.split for one in rows} == {"train"}
    assert what == "measuring the time to train all layers"


@pytest.mark.parametrize(
    ("seconds", "steps", "each"),
    [
        pytest.param(100.0, 3, 2 / 12, id="without the first step"),
        pytest.param(15.0, 2, 1 / 8, id="no step begins once the time is over"),
        pytest.param(14.9, 1, 5 / 8, id="the first step if there is no other"),
    ],
)
@pytest.mark.parametrize("is_frozen", [True, False])
def test_the_times_of_features_and_of_steps_are_means_over_images(
    tiny_vit: VisionTransformer,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    steps: int,
    each: float,
    is_frozen: bool,
) -> None:
    clock, taken = [100.0], list[int]()

    def inputs(_: Trial, __: Any, manifest: Any, ___: str) -> Any:
        clock[0] += 10.0
        return SimpleNamespace(extractor="some" if is_frozen else None), None

    def step(images: int) -> Any:
        taken.append(images)
        clock[0] += 1.0 if len(taken) > 1 else 5.0
        return SimpleNamespace(images=images)

    monkeypatch.setattr(Trial, "inputs", inputs)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(module, "make_trainer", lambda *_: SimpleNamespace(step=step))
    monkeypatch.setattr(module, "training_batches", lambda *_: lambda *_: iter([8, 8, 4]))
    trial = planned(tiny_vit)
    trial.context.stopper, trial.context.precision = Stopper(0.0), "fp32"

    extraction_s, step_s = trial.time_steps(seconds)

    assert len(taken) == steps
    assert step_s == pytest.approx(each)
    assert extraction_s == pytest.approx(10 / 90 if is_frozen else 0.0)


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_trial_reads_the_last_block_and_caches_features_of_all_its_images(
    tiny_vit: VisionTransformer, monkeypatch: pytest.MonkeyPatch, is_frozen: bool
) -> None:
    trial, calls = planned(tiny_vit), list[Any]()
    trial.context.precision = "bf16"
    head, manifest = object(), trial.held_out.manifest
    trial.held_out = replace(trial.held_out, last_head=cast("Any", head))
    extractor: Any = object() if is_frozen else None
    pipeline = SimpleNamespace(cut="cut", open_extractor=lambda *_, **__: extractor)
    monkeypatch.setattr(module, "read_last_block", lambda *given: calls.append(given))
    monkeypatch.setattr(module, "compute_views", lambda *given: calls.append(given))
    monkeypatch.setattr(module, "with_stage_data", lambda inputs, *_: inputs)
    monkeypatch.setattr(
        module,
        "build_pipeline",
        lambda *given, **named: noted(calls, (*given, *named.values()), pipeline),
    )

    inputs, model = trial.inputs(trial.config(1), manifest)

    data = trial.data
    assert model is not tiny_vit
    assert calls[0] == (model, head)
    assert calls[1] == (
        *(model, data.transform, "none", trial.config(1).train),
        *(torch.device("cpu"), "bf16"),
    )
    view = eval_view(data.transform)
    asked = (extractor, manifest, manifest.rows, [view], "extracting features", data.group)
    assert calls[2:] == [asked] * is_frozen
    found: Any = inputs
    assert (found.data.manifest, found.cut, found.extractor) == (manifest, "cut", extractor)


def test_a_trial_trains_for_its_epochs_and_scores_four_fractions_of_the_trained_weights(
    tiny_vit: VisionTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, clock, weight = planned(tiny_vit), [100.0], nn.Parameter(torch.zeros(1))
    trial.context.stopper, trial.context.precision = Stopper(0.0), "fp32"
    bars, begun = watched_progress(monkeypatch), list[tuple[int, int]]()
    average = WeightAverage({"w": weight}, 0.0, 0.25)

    def step(images: int) -> StepResult:
        clock[0] += 1.0
        weight.data += 1
        return StepResult(step=0, lr=0.1, loss=1.0, correct=0, images=images)

    def batches(epoch: int, first: int) -> Iterator[int]:
        begun.append((epoch, first))
        return iter([40, 32])

    def scored(_: Any, *, precision: str) -> tuple[Tensor, None]:
        assert precision == "fp32"
        return weight.detach().clone(), None

    trainer = SimpleNamespace(step=step, average=average)
    inputs = SimpleNamespace(data=trial.data)
    monkeypatch.setattr(Trial, "inputs", lambda *_: (inputs, None))
    monkeypatch.setattr(Trial, "results", lambda _, *given: given)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(module, "make_trainer", lambda *_: trainer)
    monkeypatch.setattr(module, "training_batches", lambda *_: batches)
    monkeypatch.setattr(module, "validation_logits", scored)

    epochs, logits, seconds = cast("Any", trial.run(3))

    assert begun == [(0, 0), (1, 0), (2, 0)]
    assert (epochs, seconds) == (3, 6.0)
    found = {fraction: value.item() for fraction, value in logits.items()}
    assert found == pytest.approx({0.25: 1.5, 0.5: 3.0, 0.75: 4.5, 1.0: 6.0})
    assert [(bar.label, bar.total, bar.done) for bar in bars] == [
        ("trial: training all layers", 3 * 72, 3 * 72)
    ]


def clusters() -> tuple[Any, Tensor, Tensor]:
    """Return a context with 30 training images in three clusters, their features and labels."""
    noise = torch.Generator().manual_seed(0)
    labels = torch.arange(30) % 3
    x = torch.cat([2 * torch.eye(3)[labels], torch.zeros(30, 1)], dim=1)
    x += 0.5 * torch.randn(30, 4, generator=noise)
    rows = [row(str(i), i % 3) for i in range(30)] + [row("val", 0, "val")]
    data = data_set(rows, groups={digest("0"): "g", digest("3"): "g"})
    features = {digest(str(i)): x[i] for i in range(30)}
    model = SimpleNamespace(pre_logits=nn.Identity())
    context: Any = SimpleNamespace(
        config=CONFIG,
        inputs=pooled_inputs(data, features),
        best=SimpleNamespace(model=model),
    )
    return context, x, labels


def test_each_fold_holds_out_a_fifth_and_scores_it_with_a_head_that_has_not_seen_it() -> None:
    context, x, labels = clusters()
    method = HeadMethod(l2=0.1, read=3)
    seen: list[str] = []

    for fold in range(5):
        found = hold_out(context, method, fold)

        assert all(one.path != "val" for one in found.manifest.rows)
        held = torch.tensor([one.split == "val" for one in found.manifest.rows])
        (weight, bias), last = solve_by_method(
            x[~held], labels[~held], method=method, classes=3, balanced=False
        )
        torch.testing.assert_close(found.logits, x[held][:, :3] @ weight.T + bias)
        assert torch.equal(found.last_head[0], last[0])
        seen += [one.path for one in found.manifest.val]
        together = {"0", "3"} & {one.path for one in found.manifest.val}
        assert len(together) in (0, 2)
    assert sorted(seen, key=int) == [str(i) for i in range(30)]


def test_the_results_are_those_of_the_best_fraction_of_the_trained_weights() -> None:
    context, _, _ = clusters()
    held = hold_out(context, HeadMethod(l2=0.1, read=3), 1)
    trial = Trial(context, LayerSettings(layers="none"), held, seconds=1, times=(0.0, 0.1))
    y = torch.tensor([one.label for one in held.manifest.val])
    generator = torch.Generator().manual_seed(1)
    good = 2 * torch.eye(3)[y] + torch.randn(len(y), 3, generator=generator)
    bad = torch.randn(len(y), 3, generator=generator)

    found = trial.results(4, {0.25: bad, 0.5: good, 1.0: bad}, 9.0)

    losses = [tempered_losses(logits, y.numpy()) for logits in (held.logits, good)]
    assert found["loss"] == pytest.approx(losses[1].mean())
    assert found["head_loss"] == pytest.approx(losses[0].mean())
    difference = losses[0] - losses[1]
    variance = ((difference - difference.mean()) ** 2).sum() / (len(y) - 1)
    assert found["error"] == pytest.approx((variance / len(y)) ** 0.5)
    assert found["top1"] == pytest.approx(float((good.argmax(dim=1) == y).float().mean()))
    assert found["head_top1"] == pytest.approx(float((held.logits.argmax(1) == y).float().mean()))
    assert found["interpolation"] == 0.5
    assert [one["fraction"] for one in found["tried"]] == [0.25, 0.5, 1.0]
    assert (found["epochs"], found["folds"], found["seconds"]) == (4, 1, 9.0)
    assert (found["images"], found["held_out"]) == (30 - len(y), len(y))
    assert found["final_seconds"] == pytest.approx(trial.final_seconds(4))


def test_combined_accuracies_are_those_of_all_held_out_images() -> None:
    def results(held_out: int, top1: float, head: float, folds: int) -> Any:
        own = {"top1": top1, "loss": 0.5, "error": 0.1}
        return {
            **own, "layers": "none", "epochs": 3, "folds": folds, "images": 10, "head_loss": 0.7,
            "held_out": held_out, "head_top1": head, "seconds": 1.0, "final_seconds": 2.0,
            "interpolation": 0.5, "tried": [{**own, "fraction": 0.5}],
        }  # fmt: skip

    both = pooled(results(30, 0.9, 0.6, 2), results(10, 0.5, 0.8, 1))

    assert both["top1"] == pytest.approx(0.8)
    assert both["head_top1"] == pytest.approx(0.65)
    assert both["head_loss"] == pytest.approx(0.7)
    assert (both["folds"], both["held_out"], both["interpolation"]) == (3, 40, 0.5)
    assert both["images"] == 10


def test_losses_are_those_at_the_best_temperature() -> None:
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, 100)
    logits = torch.from_numpy(generator.normal(size=(100, 3)))
    logits[range(100), y] += 1

    found = tempered_losses(3 * logits, y)

    truth = torch.from_numpy(y)
    at = [nn.functional.cross_entropy(logits * k / 50, truth).item() for k in range(10, 151)]
    assert found.mean() == pytest.approx(min(at), abs=1e-3)
    assert found.shape == (100,)
