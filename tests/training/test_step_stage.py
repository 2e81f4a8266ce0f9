"""Parts of a stage of steps: when it saves and stops, what it logs, how it weighs the classes."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from tests.support.training_data import data_set, digest, pooled_inputs, row, watched_progress
from vitft.config.run import config_from_table
from vitft.metrics.verdict import BEST_RULE
from vitft.system.errors import ResourceError
from vitft.system.signals import Stopper
from vitft.training import stages as module
from vitft.training.best import RunningMetrics
from vitft.training.dataset import StageInputs
from vitft.training.distributed import ProcessGroup
from vitft.training.loop import StepResult
from vitft.training.stages import StepStage, class_weights, image_logits, make_trainer


def bare(**parts: Any) -> Any:
    """Return a stage that has only the given parts."""
    stage: Any = object.__new__(StepStage)
    for name, value in parts.items():
        setattr(stage, name, value)
    return stage


@pytest.mark.parametrize(
    ("elapsed", "save_s", "saves"),
    [
        pytest.param(30.0, 0.1, False, id="30 s"),
        pytest.param(30.1, 0.1, True, id="more than 30 s"),
        pytest.param(40.0, 2.0, False, id="a save that takes 2 s, every 40 s"),
        pytest.param(40.1, 2.0, True, id="5% of the time"),
    ],
)
def test_states_are_saved_every_half_minute_or_in_a_twentieth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, elapsed: float, save_s: float, saves: bool
) -> None:
    saved, sent, shown = list[str](), list[Any](), list[Any]()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 100 + elapsed))
    stage = bare(
        metrics=RunningMetrics(),
        progress=SimpleNamespace(advance=lambda n, **named: shown.append((n, named))),
        context=SimpleNamespace(
            trackers=SimpleNamespace(log_step=lambda *given: sent.append(given))
        ),
        steps_before=20,
        saved_at=100.0,
        save_s=save_s,
        data=SimpleNamespace(group=ProcessGroup()),
        trainer=SimpleNamespace(sharded=False),
        save=lambda: saved.append("saved"),
    )

    stage.on_step(StepResult(step=4, lr=0.1, loss=2.0, correct=1, images=4))

    assert saved == ["saved"] * saves
    assert sent == [(25, {"loss": 2.0, "lr": 0.1})]
    assert shown == [(4, {"loss": "2.000", "accuracy": "25.0%"})]


@pytest.mark.parametrize(("rank", "sharded", "saves"), [(1, False, False), (1, True, True)])
def test_other_processes_take_part_in_saving_sharded_weights_only(
    rank: int, sharded: bool, saves: bool
) -> None:
    saved: list[str] = []
    group: Any = ProcessGroup(rank, 2)
    group.all_reduce_max = lambda _: 1
    stage = bare(
        saved_at=0.0,
        data=SimpleNamespace(group=group),
        trainer=SimpleNamespace(sharded=sharded),
        save=lambda: saved.append("saved"),
    )

    stage.save_if_due(0.0)

    assert saved == ["saved"] * saves


@pytest.mark.parametrize(
    ("patience", "since", "stops"), [(0, 5, False), (2, 1, False), (2, 2, True), (2, 3, True)]
)
def test_training_stops_after_as_many_epochs_as_the_patience(
    patience: int, since: int, stops: bool
) -> None:
    stage = bare(
        config=SimpleNamespace(optim=SimpleNamespace(patience=patience)),
        context=SimpleNamespace(best=SimpleNamespace(epochs_since_best=since)),
    )

    assert stage.is_out_of_patience() is stops


@pytest.mark.parametrize(
    ("finished", "ends_at", "is_last"),
    [
        # the epoch took 3 s and ends at 10 s: another one and the evaluation would end at 16 s
        pytest.param(2, 16.0, False, id="just in time"),
        pytest.param(2, 15.9, True, id="too late"),
        pytest.param(5, 1.0, False, id="the last epoch anyway"),
    ],
)
def test_another_epoch_and_the_evaluation_must_fit_into_the_budget(
    monkeypatch: pytest.MonkeyPatch, finished: int, ends_at: float, is_last: bool
) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 10.0))
    context = SimpleNamespace(budget={"seconds": ends_at - 1.0, "epochs": 5}, started=1.0)
    stage = bare(
        context=context,
        config=SimpleNamespace(optim=SimpleNamespace(epochs=5)),
        data=SimpleNamespace(group=ProcessGroup()),
        epochs=finished,
        epoch_started=7.0,
    )

    assert stage.is_last_in_budget() is is_last
    assert context.budget["epochs"] == (2 if is_last else 5)
    context.budget = None
    assert stage.is_last_in_budget() is False


ENTRY = {"epoch": 2.0, "train_loss": 1.5, "train_top1": 0.5, "val_loss": 0.25, "val_top1": 0.875}


@pytest.mark.parametrize(
    ("selects", "since", "when", "is_marked"),
    [
        (True, 0, "3 s", True),
        (True, 1, "3 s", False),
        (False, 0, "3 s", False),
        (True, 0, "earlier", False),
    ],
)
def test_each_epoch_is_a_row_and_the_best_is_marked(
    caplog: pytest.LogCaptureFixture, selects: bool, since: int, when: str, is_marked: bool
) -> None:
    stage = bare(
        has_header=False,
        config=SimpleNamespace(optim=SimpleNamespace(epochs=7)),
        context=SimpleNamespace(best=SimpleNamespace(selects=selects, epochs_since_best=since)),
    )

    with caplog.at_level("INFO", "vitft"):
        stage.log_epoch(ENTRY, when)
        stage.log_epoch(ENTRY, when)

    header, *rows = [m for m in caplog.messages if BEST_RULE not in m]
    assert len(caplog.messages) == 3 + selects
    assert header.split() == [
        *("epoch", "train", "loss", "train", "accuracy", "val.", "loss", "val.", "accuracy"),
        "time",
    ]
    cells = ["2/7", "1.5000", "50.0%", "0.2500", "87.5%", *when.split(), *["best"] * is_marked]
    assert [line.split() for line in rows] == [cells] * 2


@pytest.mark.parametrize("option", ["mixup", "cutmix", "erasing"])
@pytest.mark.parametrize("reads_pixels", [True, False])
def test_batches_of_pixels_are_augmented_and_those_of_features_are_not(
    option: str, reads_pixels: bool
) -> None:
    train = {"freeze": "none", "augment": "none", option: 0.5}

    trainer = trainer_of(settings(train=train), reads_pixels=reads_pixels)

    assert (trainer.mix is not None) is reads_pixels


def test_every_class_has_the_same_total_weight_and_the_mean_is_one() -> None:
    labels = [0, 0, 0, 0, 0, 1, 1, 2]
    rows = [row(str(i), label) for i, label in enumerate(labels)] + [row("val", 2, "val")]

    weights = class_weights(data_set(rows))

    each = weights[torch.tensor(labels)]
    assert each.mean().item() == pytest.approx(1.0)
    assert [weights[c].item() * labels.count(c) for c in range(3)] == pytest.approx([8 / 3] * 3)


def settings(**table: Any) -> Any:
    return config_from_table(
        {"train": {"freeze": "none", "augment": "none"}, "optim": {"lr": 0.1, "batch_size": 3}}
        | table
    )


def trainer_of(config: Any, *, reads_pixels: bool = True, **more: Any) -> Any:
    rows = [row(str(i), i % 3) for i in range(7)]
    data = data_set(rows, **more)
    inputs = pooled_inputs(data, {})
    if reads_pixels:
        inputs.cut.prefix.pooled = False
    prefix = None if reads_pixels else inputs.cut.prefix
    cut = inputs.cut._replace(prefix=prefix, suffix=nn.Linear(2, 3))
    inputs = StageInputs(data=data, cut=cut, extractor=None)
    return make_trainer(config.train, config.optim, inputs, "fp32")


def test_an_epoch_ends_with_a_smaller_batch() -> None:
    trainer = trainer_of(settings())

    assert trainer.steps_per_epoch == 3
    assert trainer.mix is None
    assert (trainer.loss.class_weights, trainer.loss.several) == (None, False)
    assert (trainer.sharded, trainer.seed) == (False, 0)


def test_pixels_may_be_mixed_but_features_may_not() -> None:
    mixed = settings(train={"freeze": "none", "augment": "none", "mixup": 0.2, "seed": 5})

    assert trainer_of(mixed).mix is not None
    assert trainer_of(mixed).seed == 5
    assert trainer_of(mixed, reads_pixels=False).mix is None


def test_the_loss_has_class_weights_on_request_and_knows_several_labels() -> None:
    weighted = settings(optim={"lr": 0.1, "batch_size": 3, "class_weights": True})

    weights = trainer_of(weighted).loss.class_weights
    assert weights.tolist() == pytest.approx([7 / 9, 7 / 6, 7 / 6])
    several = trainer_of(settings(), classes=("x", "y", "x|y"), labels=("x", "y"))
    assert several.loss.several is True


def test_a_stage_counts_the_steps_of_the_stages_before_it() -> None:
    config = settings(train={"freeze": "head,blocks:1,none", "augment": "none"})
    rows = [row(str(i), i % 3) for i in range(7)]
    inputs = pooled_inputs(data_set(rows), {})
    inputs = StageInputs(
        data=inputs.data, cut=inputs.cut._replace(suffix=nn.Linear(2, 3)), extractor=None
    )
    context: Any = SimpleNamespace(config=config, inputs=inputs, precision="bf16")

    first, second, third = (StepStage(context, number) for number in range(3))

    epochs = config.optim.epochs
    assert (first.steps_before, second.steps_before) == (0, 0)  # a head is solved, not stepped
    assert third.steps_before == 3 * epochs
    assert first.precision == "fp32"  # of cached features


@pytest.mark.parametrize("rank", [0, 1])
def test_each_process_computes_its_share_of_the_logits(rank: int) -> None:
    rows = [row(str(i), 0, "val") for i in range(600)]
    features = {digest(str(i)): torch.tensor([float(i), 0.0]) for i in range(600)}
    group: Any = ProcessGroup(rank, 2)
    gathered: list[Any] = []
    group.all_gather = lambda own, count, unit: gathered.append((own[:, 0].tolist(), count, unit))
    inputs = pooled_inputs(data_set(rows, group=group), features)

    image_logits(inputs, rows)

    own = [*range(256), *range(512, 600)] if rank == 0 else [*range(256, 512)]
    assert gathered == [(own, 600, 256)]


def interrupted_stage(
    error: BaseException, saved: list[str], *, sharded: bool = False, urgent: bool = False
) -> Any:
    """Return a stage of 7 images that raises an error instead of training."""

    def train() -> None:
        raise error

    stopper = Stopper(0.0)
    if urgent:
        stopper = cast("Any", SimpleNamespace(**{
            name: getattr(stopper, name)
            for name in ("deferred", "deferred_locally", "deferred_to_next")
        }, is_urgent=True))  # fmt: skip
    return bare(
        context=SimpleNamespace(stopper=stopper),
        config=settings(),
        data=data_set([row(str(i), i % 3) for i in range(7)]),
        inputs=SimpleNamespace(cut=SimpleNamespace(pooled=True)),
        trainer=SimpleNamespace(steps=0, steps_per_epoch=3, sharded=sharded),
        train_epochs=train,
        save=lambda: saved.append("saved"),
    )


LOST = ResourceError("a process was lost", fix="")


@pytest.mark.parametrize(
    ("error", "sharded", "urgent", "saves"),
    [
        pytest.param(KeyboardInterrupt(), False, False, True, id="a signal"),
        pytest.param(KeyboardInterrupt(), True, False, True, id="a signal, sharded"),
        pytest.param(KeyboardInterrupt(), False, True, False, id="a second signal"),
        pytest.param(LOST, False, False, True, id="a lost process"),
        pytest.param(LOST, True, False, False, id="a lost part of the weights"),
        pytest.param(ValueError(), False, False, False, id="another error"),
    ],
)
def test_the_state_is_saved_if_it_is_complete(
    error: BaseException, sharded: bool, urgent: bool, saves: bool
) -> None:
    saved: list[str] = []
    stage = interrupted_stage(error, saved, sharded=sharded, urgent=urgent)

    with pytest.raises(type(error)):
        stage.run()

    assert saved == ["saved"] * saves


@pytest.mark.parametrize(("steps", "done"), [(0, 0), (1, 3), (2, 6), (3, 7), (8, 20), (9, 21)])
def test_a_resumed_stage_shows_the_images_of_its_earlier_steps(
    monkeypatch: pytest.MonkeyPatch, steps: int, done: int
) -> None:
    bars = watched_progress(monkeypatch)
    stage = interrupted_stage(KeyboardInterrupt(), [])
    stage.trainer.steps = steps

    with pytest.raises(KeyboardInterrupt):
        stage.run()

    assert [(bar.total, bar.done) for bar in bars] == [(7 * stage.config.optim.epochs, done)]
