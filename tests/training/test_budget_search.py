"""Which trials a run with a time budget makes, in an imagined time that each of them takes."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.training_data import data_set, row
from vitft.config.run import config_from_table
from vitft.metrics.budget_results import TrialResults
from vitft.models.timm_config import TimmConfig
from vitft.models.timm_model import TimmModel
from vitft.models.vit import VisionTransformer
from vitft.training import budget
from vitft.training.budget import Search, best_trial, layers_to_try, undecided, untried
from vitft.training.distributed import ProcessGroup

STEPS_PER_EPOCH = 10


class World:
    """Clock, gains and durations of the trials of an imagined run."""

    def __init__(self, seconds: float, **candidates: Any) -> None:
        """Set the budget, and of each candidate (gain, error, seconds per epoch)."""
        self.seconds, self.clock = seconds, 0.0
        self.candidates = {name.replace("_", ":"): values for name, values in candidates.items()}
        self.tried: list[tuple[str, int, int]] = []
        """Layers, epochs and fold of each trial."""
        self.prepared: list[tuple[str, float, Any]] = []
        self.written: list[dict[str, Any]] = []
        self.held: list[int] = []


class FakeTrial:
    """Trial whose final training takes as long as itself, and whose gain grows with its epochs."""

    def __init__(
        self, context: Any, candidate: Any, fold: int, *, seconds: float, times: Any
    ) -> None:
        self.world, self.layers, self.fold = context.world, candidate.layers, fold
        self.gain, self.error, self.each = self.world.candidates[self.layers]
        self.world.prepared.append((self.layers, seconds, times))
        self.times = (0.0, self.each)

    def epochs_of(self, steps: int) -> int:
        return math.ceil(steps / STEPS_PER_EPOCH)

    def final_seconds(self, epochs: int) -> float:
        return self.each * epochs

    def seconds(self, epochs: int, *, after: float = 0.0) -> float:
        return self.each * epochs + max(after, self.final_seconds(epochs))

    def affordable_epochs(self, seconds: float, *, after: float) -> int:
        fitting = (n for n in range(1, 31) if self.seconds(n, after=after) <= seconds)
        return max(fitting, default=0)

    def further_epochs(self, tried: int) -> int:
        return 3 * tried

    def run(self, epochs: int) -> Any:
        self.world.tried.append((self.layers, epochs, self.fold))
        self.world.clock += self.each * epochs
        gain = self.gain * epochs / 12 if self.gain > 0 else self.gain
        own = {"top1": 0.8, "loss": 1 - gain, "error": self.error}
        return {
            **own, "layers": self.layers, "epochs": epochs, "folds": 1, "images": 80,
            "held_out": 20, "head_top1": 0.8, "head_loss": 1.0, "interpolation": 0.5,
            "tried": [{**own, "fraction": 0.5}], "seconds": self.each * epochs,
            "final_seconds": self.each * epochs,
        }  # fmt: skip


@pytest.fixture(autouse=True)
def imagined(monkeypatch: pytest.MonkeyPatch) -> None:
    def hold_out(context: Any, _: Any, fold: int) -> int:
        context.world.held.append(fold)
        return fold

    monkeypatch.setattr(budget, "Trial", FakeTrial)
    monkeypatch.setattr(budget, "hold_out", hold_out)
    monkeypatch.setattr(budget, "used_seconds", lambda context: context.world.clock)
    monkeypatch.setattr(budget, "write_budget", lambda run, found: run.append(dict(found)))


def search(world: World, trials: list[Any] | None = None) -> Search:
    candidates = [SimpleNamespace(layers=name) for name in world.candidates]
    context: Any = SimpleNamespace(
        world=world, best=SimpleNamespace(model=None), run=world.written,
        config=SimpleNamespace(train=SimpleNamespace(budget_s=world.seconds)),
    )  # fmt: skip
    found = untried(context)
    found["trials"] = trials or []
    made: Search = object.__new__(Search)
    made.context, made.found, made.folds, made.times = context, found, {}, {}
    made.method, made.candidates = None, {one.layers: one for one in candidates}  # type: ignore[misc]
    return made


def tried(world: World, trials: list[Any] | None = None) -> list[tuple[str, int, int]]:
    search(world, trials).run()
    return world.tried


CLEAR, BEHIND = (0.5, 0.01), (-0.5, 0.01)


def test_15_percent_of_the_budget_are_reserved_for_reports() -> None:
    world = World(100.0, none=(*CLEAR, 1.0))
    world.clock = 20.0

    assert search(world).remaining() == pytest.approx(0.85 * 80)


def test_a_candidate_is_first_tried_for_120_steps_and_then_longer() -> None:
    world = World(1000.0, none=(*CLEAR, 1.0))

    assert tried(world) == [("none", 12, 0), ("none", 30, 0)]


@pytest.mark.parametrize(
    ("seconds", "epochs"),
    [
        pytest.param(2 * 12 / 0.85, [12], id="just long enough for 120 steps"),
        pytest.param(2 * 11 / 0.85, [11], id="for 110 steps"),
        pytest.param(2 * 8 / 0.85, [8], id="for 80 steps, the fewest"),
        pytest.param(2 * 7.9 / 0.85, [], id="for fewer than 80 steps"),
    ],
)
def test_trials_have_80_to_120_steps_as_time_allows(seconds: float, epochs: list[int]) -> None:
    world = World(seconds + 1e-6, none=(*BEHIND, 1.0))
    found = search(world)

    found.run()

    assert [n for _, n, _ in world.tried] == epochs
    needed = [one["seconds_needed"] for one in found.found["skipped"]]
    assert needed == ([] if epochs else [pytest.approx(2 * 8 / 0.85)])


def test_the_needed_time_counts_what_was_used_before() -> None:
    world = World(50.0, none=(*BEHIND, 3.0))
    world.clock = 10.0
    found = search(world)

    found.run()

    assert found.found["skipped"] == [
        {"layers": "none", "seconds_needed": pytest.approx(10 + 2 * 8 * 3 / 0.85)}
    ]


def test_time_is_divided_between_the_candidates() -> None:
    # 100 s are left: 50 s for the first candidate, then 75 s for the second
    world = World(100 / 0.85, blocks_4=(*BEHIND, 2.5), none=(*BEHIND, 4.0))

    assert tried(world) == [("blocks:4", 10, 0), ("none", 9, 0)]


def test_a_candidate_may_take_the_time_of_a_later_one_to_be_tried_at_all() -> None:
    world = World(100 / 0.85, blocks_4=(*BEHIND, 5.0), none=(*BEHIND, 9.0))
    found = search(world)

    found.run()

    assert world.tried == [("blocks:4", 8, 0)]
    assert [one["layers"] for one in found.found["skipped"]] == ["none"]


def test_time_is_kept_for_the_final_training_of_a_candidate_that_is_ahead() -> None:
    # of 100 s, the first takes 12 s, and its longest final training 36 s: 52 s are left
    ahead = World(100 / 0.85, blocks_4=(*CLEAR, 1.0), none=(*BEHIND, 5.0))
    behind = World(100 / 0.85, blocks_4=(*BEHIND, 1.0), none=(*BEHIND, 5.0))

    assert tried(ahead)[:2] == [("blocks:4", 12, 0), ("none", 8, 0)]
    assert tried(behind)[:2] == [("blocks:4", 12, 0), ("none", 8, 0)]
    assert search(World(1.0, none=(0.0, 0.1, 1.0))).reserved() == 0.0
    found = search(World(1.0, none=(*CLEAR, 1.0), blocks_4=(*CLEAR, 2.0)))
    found.found["trials"] = [
        FakeTrial(found.context, SimpleNamespace(layers=name), 0, seconds=0, times=None).run(5)
        for name in ("none", "blocks:4")
    ]
    assert found.reserved() == 2.0 * 15


def trial_of(layers: str, **more: Any) -> Any:
    return {
        "layers": layers, "epochs": 4, "folds": 1, "images": 80, "held_out": 20, "top1": 0.8,
        "head_top1": 0.8, "loss": 0.5, "head_loss": 1.0, "error": 0.01, "seconds": 4.0,
        "final_seconds": 4.0, "interpolation": 1.0,
        "tried": [{"top1": 0.8, "loss": 0.5, "error": 0.01, "fraction": 1.0}], **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("affordable", "more"), [pytest.param(6, True, id="half as many again"), (5, False)]
)
def test_a_candidate_is_tried_again_only_for_clearly_more_epochs(
    affordable: int, more: bool
) -> None:
    # the time of a trial of so many epochs and of the longest final training, 12 epochs
    world = World((affordable + 12) / 0.85 + 1e-6, none=(*CLEAR, 1.0))

    assert tried(world, [trial_of("none")]) == [("none", affordable, 0)] * more


@pytest.mark.parametrize(
    ("loss", "error", "again"),
    [
        pytest.param(1.125, 0.0625, False, id="two standard errors behind"),
        pytest.param(1.12, 0.0625, True, id="nearly two standard errors behind"),
        pytest.param(0.9, 0.0, True, id="ahead"),
    ],
)
def test_a_candidate_clearly_behind_the_head_is_not_tried_longer(
    loss: float, error: float, again: bool
) -> None:
    world = World(1000.0, none=(*BEHIND, 1.0))
    known = trial_of("none", loss=loss, error=error)

    assert bool(tried(world, [known])) is again


def test_a_resumed_run_skips_what_was_tried_and_tries_what_was_skipped() -> None:
    world = World(1000.0, blocks_4=(*BEHIND, 1.0), none=(*BEHIND, 2.0))
    found = search(world, [trial_of("blocks:4", loss=1.5)])
    found.found["skipped"] = [{"layers": "none", "seconds_needed": 3.0}]

    found.run()

    assert world.tried == [("none", 12, 0)]
    assert found.found["skipped"] == []


def test_the_leader_is_tried_longer_first_and_no_trial_is_longer_than_the_time() -> None:
    # after both first trials, the leader `none` takes what is left
    world = World(430.0, blocks_4=(0.2, 0.001, 1.0), none=(0.4, 0.001, 2.0))

    assert tried(world)[:3] == [("blocks:4", 12, 0), ("none", 12, 0), ("none", 30, 0)]


def test_trials_that_were_tried_longer_are_not_tried_longer_again() -> None:
    world = World(1000.0, none=(*CLEAR, 1.0))

    assert tried(world, [trial_of("none"), trial_of("none", loss=0.4)]) == []


def test_an_unclear_leader_is_repeated_on_the_other_folds() -> None:
    world = World(10_000.0, none=(0.1, 0.2, 1.0))
    found = search(world)

    found.run()

    assert world.tried[:1] == [("none", 12, 0)]
    assert [fold for _, n, fold in world.tried if n == 30] == [0, 1, 2, 3, 4]
    assert world.held == [0, 1, 2, 3, 4]  # each fold is held out, and its heads are fitted, once
    assert [trial["epochs"] for trial in found.found["trials"]] == [12, 30]
    assert found.found["trials"][1]["folds"] == 5
    assert found.found["trials"][1]["held_out"] == 100


@pytest.mark.parametrize(("extra", "repeats"), [(1e-6, True), (-1e-6, False)])
def test_a_trial_is_repeated_if_there_is_time_for_it_and_for_the_final_training(
    extra: float, repeats: bool
) -> None:
    world = World(1.0, none=(0.1, 0.2, 1.0))
    found = search(world, [trial_of("none", loss=0.9, error=0.2, seconds=8.0, folds=2)])
    # a repetition takes 4 s, and the longest final training 12 epochs of 1 s
    found.found["seconds"] = (4.0 + 12.0 + extra) / 0.85

    assert found.has_time_to_repeat(found.found["trials"][0]) is repeats


@pytest.mark.parametrize(("extra", "repeats"), [(1e-6, True), (-1e-6, False)])
def test_a_repetition_leaves_the_time_for_the_slowest_candidate_that_is_ahead(
    extra: float, repeats: bool
) -> None:
    world = World(1.0, blocks_4=(0.1, 0.2, 1.0), none=(0.1, 0.2, 3.0))
    trials = [trial_of("blocks:4", loss=0.9, error=0.2), trial_of("none", loss=0.9, error=0.2)]
    found = search(world, trials)
    found.found["seconds"] = (4.0 + 3 * 12.0 + extra) / 0.85

    assert found.has_time_to_repeat(trials[0]) is repeats


@pytest.mark.parametrize(
    ("left", "epochs"), [(1e9, 12), (12.0, 12), (11.9, 11), (4.0, 4), (3.9, 4), (0.0, 4)]
)
def test_the_choice_is_trained_for_as_many_epochs_as_there_is_time(
    left: float, epochs: int
) -> None:
    world = World(left / 0.85 + 1e-9, none=(*CLEAR, 1.0))

    assert search(world).final_epochs(trial_of("none")) == epochs


def test_the_time_of_a_step_is_measured_once_per_candidate() -> None:
    world = World(1000.0, none=(*CLEAR, 1.0))

    tried(world)

    layers, seconds, times = world.prepared[0]
    assert (layers, times) == ("none", None)
    assert seconds == pytest.approx(850.0)
    assert {times for _, _, times in world.prepared[1:]} == {(0.0, 1.0)}


def test_results_are_saved_after_each_trial() -> None:
    world = World(1000.0, blocks_4=(*BEHIND, 1.0), none=(*BEHIND, 2.0))

    tried(world)

    assert [len(found["trials"]) for found in world.written] == [2, 2]  # the list is shared
    assert [found["used"] for found in world.written] == [12.0, 36.0]


def test_no_trial_begins_once_the_time_is_used_up() -> None:
    world = World(100.0, none=(*CLEAR, 1.0))
    world.clock = 100.0
    found = search(world)

    found.run()

    assert (world.tried, world.prepared, found.found["skipped"]) == ([], [], [])


def changed(**values: Any) -> TrialResults:
    known: TrialResults = trial_of("none", loss=0.5, head_loss=1.0, error=0.25)
    return known | values  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("trial", "is_chosen"),
    [
        pytest.param(changed(top1=0.7), False, id="exactly two standard errors, less accurate"),
        pytest.param(changed(top1=0.7, loss=0.49), True, id="more than two standard errors"),
        pytest.param(changed(), True, id="two standard errors, as accurate"),
        pytest.param(changed(loss=0.75), False, id="exactly one standard error"),
        pytest.param(changed(loss=0.74), True, id="more than one standard error"),
        pytest.param(changed(loss=0.74, top1=0.79), False, id="one, but less accurate"),
        pytest.param(changed(loss=0.99, folds=2), True, id="slightly ahead in two folds"),
        pytest.param(changed(loss=1.0, folds=2), False, id="level in two folds"),
    ],
)
def test_a_trial_is_chosen_beyond_its_noise(trial: TrialResults, is_chosen: bool) -> None:
    assert (best_trial([trial]) is not None) is is_chosen


@pytest.mark.parametrize(
    ("rival", "repeated"),
    [
        # the leader is 0.5 ahead, at least 0.25 with two standard errors
        pytest.param({"loss": 0.9, "error": 0.075}, False, id="up to 0.25"),
        pytest.param({"loss": 0.9, "error": 0.08}, True, id="up to 0.26"),
    ],
)
def test_a_rival_that_may_overtake_the_leader_is_repeated_with_it(
    rival: dict[str, Any], repeated: bool
) -> None:
    leader = trial_of("none", loss=0.5, error=0.125)
    trials = [leader, trial_of("blocks:4", **rival)]

    assert (len(undecided(trials)) == 2) is repeated
    assert bool(undecided(trials)) is repeated


def test_nothing_is_repeated_that_is_behind_the_head_in_any_case() -> None:
    leader = trial_of("none", loss=1.1, error=0.2)
    rival = trial_of("blocks:4", loss=1.3, error=0.1)

    assert undecided([leader, rival]) == [leader]
    assert undecided([rival]) == []


@pytest.mark.parametrize(
    ("depth", "layers"), [(2, ["none"]), (4, ["none"]), (5, ["blocks:4", "none"])]
)
def test_the_last_four_blocks_are_tried_if_there_are_more(
    tiny_vit: VisionTransformer, depth: int, layers: list[str]
) -> None:
    model = VisionTransformer(replace(tiny_vit.config, depth=depth))

    assert [one.layers for one in layers_to_try(model)] == layers


def test_a_network_of_another_kind_is_tried_as_a_whole() -> None:
    model = TimmModel(TimmConfig(timm="test_resnet", image_size=(32, 32), num_classes=3))

    assert [one.layers for one in layers_to_try(model)] == ["none"]


def test_candidates_have_the_settings_of_the_docs(tiny_vit: VisionTransformer) -> None:
    model = VisionTransformer(replace(tiny_vit.config, depth=8))
    config = config_from_table({"train": {"budget": "5m"}})

    blocks, everything = (one.config(config, 3, model, 100) for one in layers_to_try(model))

    assert (blocks.optim.lr, blocks.train.augment) == (3e-4, "none")
    assert (everything.optim.lr, everything.optim.layer_decay) == (5e-4, 0.75)
    assert (everything.train.augment, everything.train.crop_scale) == ("crop", 0.4)
    for found in (blocks, everything):
        assert (found.optim.weight_decay, found.optim.clip, found.optim.ema) == (0.05, 1.0, 0.99)


@pytest.mark.parametrize(("images", "has_trials"), [(59, False), (60, True)])
def test_sixty_training_images_are_enough_for_trials(
    monkeypatch: pytest.MonkeyPatch, images: int, has_trials: bool
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(budget, "layers_to_try", lambda _: [])
    monkeypatch.setattr(Search, "run", lambda _: ran.append("run"))
    data = data_set([row(str(i), 0) for i in range(images)], group=ProcessGroup())
    context: Any = SimpleNamespace(
        world=World(60.0), best=SimpleNamespace(model=None), inputs=SimpleNamespace(data=data),
        config=SimpleNamespace(train=SimpleNamespace(budget_s=60.0)),
    )  # fmt: skip
    context.world.clock = 7.0

    found = budget.try_candidates(context, None, untried(context))  # type: ignore[arg-type]

    assert bool(ran) is has_trials
    assert (found["chosen"], found["used"], found["seconds"]) == ("head", 7.0, 60.0)
    assert (found["epochs"], found["trials"], found["skipped"]) == (0, [], [])
