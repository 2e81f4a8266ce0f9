"""Rules of the trials of other starts: which are tried, for how long, and what is compared."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.training_data import data_set, digest, noted, row
from vitft.config.run import config_from_table
from vitft.data.transforms import EvalTransform
from vitft.features.cut import Cut
from vitft.metrics.intervals import paired_interval
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import WeightsError
from vitft.training import start_trials as module
from vitft.training.dataset import StageInputs
from vitft.training.start_trials import (
    choose_input_size,
    compare,
    expected_seconds,
    forward_seconds,
    have_same_weights,
    held_out_scores,
    is_random,
    larger_size,
    try_start,
    try_weights,
    weights_to_try,
)
from vitft.training.trial import tempered_losses


def start_of(
    model: Any = None, *, images: int = 60, sha256: str = "x", side: int = 16, **table: Any
) -> Any:
    """Return a start of a run with a budget of 100 s."""
    rows = [row(str(i), i % 3) for i in range(images)]
    rows += [row(f"v{i}", 0, "val") for i in range(10)]
    data = data_set(rows, transform=EvalTransform(image_size=(side, side)))
    settings = {"weights": {"name": "w"}, "train": {"budget": "100s"}} | table
    provenance = {"name": "w", "licence": "mit", "sha256": sha256}
    setup = SimpleNamespace(
        config=config_from_table(settings),
        pipeline=SimpleNamespace(model=model),
        report=SimpleNamespace(provenance=provenance),
    )
    return SimpleNamespace(setup=setup, inputs=SimpleNamespace(data=data, extractor=None))


def vit(side: tuple[int, int], patch: int) -> VisionTransformer:
    config = ViTConfig(
        image_size=side, patch_size=(patch, patch), width=8, depth=1, heads=1, num_classes=3
    )
    return VisionTransformer(config)


@pytest.mark.parametrize(
    ("side", "patch", "larger"),
    [
        ((32, 32), 4, (48, 48)),
        ((28, 28), 4, (40, 40)),  # 10.5 patches
        ((20, 40), 4, (32, 60)),  # 7.5 and 15 patches
        ((42, 42), 14, (56, 56)),  # 4.5 patches
    ],
)
def test_a_larger_input_has_half_as_many_patches_again_per_side(
    side: tuple[int, int], patch: int, larger: tuple[int, int]
) -> None:
    assert larger_size(start_of(vit(side, patch))) == larger


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"train": {}}, id="no budget"),
        pytest.param({"weights": {"name": "random:w"}}, id="random weights"),
        pytest.param({"weights": {"name": "w", "image_size": 16}}, id="a given size"),
        pytest.param({"images": 59}, id="too few images"),
        pytest.param({"model": torch.nn.Linear(1, 1)}, id="a timm model"),
    ],
)
def test_no_larger_input_is_tried(changes: dict[str, Any]) -> None:
    start = start_of(**{"model": vit((16, 16), 4)} | changes)

    assert larger_size(start) is None
    chosen, size = choose_input_size(start, started=0.0)
    assert chosen is start
    assert size is None


def test_weights_are_random_by_name() -> None:
    for name, random in (("none", True), ("random:w", True), ("w", False), ("nonesuch", False)):
        weights: Any = SimpleNamespace(name=name)
        assert is_random(weights) is random


class Other(SimpleNamespace):
    def seconds(self, images: int, speed: float) -> float:
        assert (images, speed) == (70, 2.0)
        return float(self.needed)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that shows its first number."""
    now = [50.0]
    monkeypatch.setattr(
        module, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
    )
    return now


@pytest.mark.parametrize(
    ("needed", "name"),
    [
        ([1.0, 2.0, 3.0], "2"),
        ([1.0, 2.0, 3.0001], "1"),
        ([1.0, 4.0, 2.0], "2"),
        ([3.0001], None),
        ([], None),
    ],
)
def test_the_last_weights_that_take_six_percent_of_the_time_left_are_tried(
    monkeypatch: pytest.MonkeyPatch, clock: list[float], needed: list[float], name: str | None
) -> None:
    asked: list[Any] = []
    others = [Other(name=str(i), needed=seconds) for i, seconds in enumerate(needed)]
    monkeypatch.setattr(module, "cached_alternatives", lambda *g: noted(asked, g, others))
    monkeypatch.setattr(module, "machine_speed", lambda device: {"cpu": 2.0}[device])

    found = weights_to_try(start_of(), started=0.0)  # 50 s are left

    assert (found and found.name) == name
    assert asked == [("w", "mit")]
    for start in (
        start_of(train={}),
        start_of(weights={"name": "random:w"}),
        start_of(images=59),
    ):
        assert weights_to_try(start, started=0.0) is None


@pytest.mark.parametrize(
    ("expected", "is_tried"), [pytest.param(5.0, True, id="a tenth of 50 s"), (5.01, False)]
)
def test_a_start_is_tried_within_its_fraction_of_the_time_left(
    monkeypatch: pytest.MonkeyPatch, clock: list[float], expected: float, is_tried: bool
) -> None:
    extracted: list[int] = []
    monkeypatch.setattr(module, "expected_seconds", lambda _: expected)

    def extract(_: Any, rows: Any) -> None:
        extracted.append(len(rows))
        clock[0] += 7.0

    monkeypatch.setattr(module, "extract", extract)
    monkeypatch.setattr(module, "compare", lambda *_: {"chosen": True})

    found: Any = try_start(start_of(), start_of(side=24), fraction=0.1, started=0.0)

    assert extracted == [60] * is_tried
    if is_tried:
        assert found == {"chosen": True, "seconds": 7.0}
    else:
        needed = pytest.approx(50 + 10 * expected)
        assert found == {"image_size": (24, 24), "chosen": False, "seconds_needed": needed}
    monkeypatch.setattr(module, "compare", lambda *_: None)
    assert not is_tried or try_start(start_of(), start_of(), fraction=1, started=0.0) is None


@pytest.mark.parametrize(
    ("forward", "each"),
    [pytest.param(1.0, 0.5, id="the features take longest"), pytest.param(4.0, 1.0, id="a pass")],
)
def test_the_time_for_all_images_follows_from_32_of_them(
    monkeypatch: pytest.MonkeyPatch, clock: list[float], forward: float, each: float
) -> None:
    extracted: list[int] = []

    def extract(_: Any, rows: Any) -> None:
        extracted.append(len(rows))
        clock[0] += 0.5 * len(rows)

    monkeypatch.setattr(module, "extract", extract)
    monkeypatch.setattr(module, "forward_seconds", lambda _: forward)  # of four images

    assert expected_seconds(start_of(images=96)) == pytest.approx(each * 106)
    assert extracted == [32]
    assert expected_seconds(start_of(images=20)) == pytest.approx(each * 30)
    assert extracted == [32, 20]


def test_the_time_of_a_pass_is_that_of_the_second_one(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    shapes: list[Any] = []

    def run(_: Any, pixels: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(pixels.shape))
        clock[0] += 100.0 if len(shapes) == 1 else 3.0
        return pixels

    monkeypatch.setattr(module, "run_prefix", run)
    start = start_of()
    start.inputs.extractor = SimpleNamespace(device=torch.device("cpu"), prefix=None)

    assert forward_seconds(start) == 3.0
    assert shapes == [(4, 3, 16, 16)] * 2


def test_starts_are_compared_on_the_images_that_both_have_scored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual, other = start_of(), start_of(side=24)
    labels = np.arange(60) % 3
    noise = torch.Generator().manual_seed(0)
    first = torch.eye(3)[labels] + torch.randn(60, 3, generator=noise)
    second = 3 * torch.eye(3)[labels] + torch.randn(60, 3, generator=noise)
    rows, more = np.arange(0, 50), np.arange(10, 60)
    scores = {id(usual): (rows, first[rows]), id(other): (more, second[more])}
    monkeypatch.setattr(module, "held_out_scores", lambda start: scores[id(start)])
    seconds = {id(usual): 2.0, id(other): 5.0}
    monkeypatch.setattr(module, "forward_seconds", lambda start: seconds[id(start)])

    found = compare(usual, other)

    assert found is not None
    y = labels[10:50]
    losses = [tempered_losses(logits[10:50], y) for logits in (first, second)]
    gain = losses[0] - losses[1]
    right = [(logits[10:50].argmax(dim=1).numpy() == y) for logits in (first, second)]
    error = (((gain - gain.mean()) ** 2).sum() / 39 / 40) ** 0.5
    better, worse = int((right[1] & ~right[0]).sum()), int((right[0] & ~right[1]).sum())
    assert better > worse
    assert found == {
        "image_size": (24, 24),
        "usual_size": [16, 16],
        "images": 40,
        "chosen": True,
        "loss": pytest.approx(losses[1].mean()),
        "usual_loss": pytest.approx(losses[0].mean()),
        "error": pytest.approx(error),
        "top1": pytest.approx(right[1].mean()),
        "usual_top1": pytest.approx(right[0].mean()),
        "gain_interval": paired_interval(better, worse, 40),
        "relative_time": 2.5,
    }
    back = compare(other, usual)
    assert back is not None
    assert back["chosen"] is False
    for missing in (usual, other):
        monkeypatch.setattr(
            module, "held_out_scores", lambda s, m=missing: None if s is m else scores[id(s)]
        )
        assert compare(usual, other) is None


@pytest.mark.parametrize(("factor", "chosen"), [(1.9, False), (2.1, True)])
def test_a_start_must_be_two_standard_errors_better(
    monkeypatch: pytest.MonkeyPatch, factor: float, chosen: bool
) -> None:
    usual, other = start_of(), start_of()
    spread = np.tile([1.0, -1.0], 30)
    error = spread.std(ddof=1) / 60**0.5
    monkeypatch.setattr(module, "held_out_scores", lambda _: (np.arange(60), torch.zeros(60, 3)))
    monkeypatch.setattr(module, "forward_seconds", lambda _: 1.0)
    losses = iter([np.zeros(60), factor * error + spread])  # of the other start, then the usual
    monkeypatch.setattr(module, "tempered_losses", lambda *_: next(losses))

    found = compare(usual, other)

    assert found is not None
    assert found["chosen"] is chosen


def test_heads_are_cross_validated_on_the_training_images_alone() -> None:
    start = start_of(optim={"l2": 0.1})
    x = {digest(str(i)): 2 * torch.eye(3)[i % 3] + torch.randn(3) for i in range(60)}

    class Cached:
        prefix = SimpleNamespace(leading=2)

        def rows(self, digests: Any, _: Any) -> torch.Tensor:
            return torch.stack([x[one] for one in digests])

    model = SimpleNamespace(pre_logits=torch.nn.Identity())
    start.setup.pipeline.model = model
    data = start.inputs.data
    cut: Any = Cut(None, torch.nn.Identity())
    extractor: Any = Cached()
    start.inputs = StageInputs(data=data, cut=cut, extractor=extractor)

    found = held_out_scores(start)

    assert found is not None
    assert found[0].tolist() == list(range(60))
    assert found[1].shape == (60, 3)
    few = start_of(images=3)
    few.setup.pipeline.model = model
    few.inputs = StageInputs(data=few.inputs.data, cut=cut, extractor=extractor)
    assert held_out_scores(few) is None


def test_equal_files_of_weights_are_the_same_weights() -> None:
    one, copy, other = start_of(), start_of(), start_of(sha256="y")

    assert have_same_weights(one, copy)
    assert not have_same_weights(one, other)


def prepared(monkeypatch: pytest.MonkeyPatch, trial: Any, other: Any) -> list[Any]:
    """Let the trial of `other` have these results; return what is logged and extracted."""
    seen: list[Any] = []
    chosen: Any = SimpleNamespace(name="better")
    monkeypatch.setattr(module, "weights_to_try", lambda *_, **__: chosen)
    monkeypatch.setattr(module, "describe_start", lambda found: f"described {found['chosen']}")
    monkeypatch.setattr(module, "extract", lambda start, rows: seen.append((start, len(rows))))
    monkeypatch.setattr(module, "try_start", lambda *_, **named: noted(seen, named, trial))

    def start_with(_: Any, weights: Any) -> Any:
        seen.append(weights.name if weights.image_size is None else weights.image_size)
        if isinstance(other, Exception):
            raise other
        return other

    monkeypatch.setattr(module, "start_with", start_with)
    return seen


@pytest.mark.parametrize("is_chosen", [True, False])
def test_the_features_of_all_images_are_computed_at_a_size_that_is_chosen(
    monkeypatch: pytest.MonkeyPatch, caplog: Any, is_chosen: bool
) -> None:
    start, larger = start_of(vit((16, 16), 4)), start_of(side=24)
    seen = prepared(monkeypatch, {"chosen": is_chosen}, larger)

    with caplog.at_level("INFO", "vitft"):
        chosen, size = choose_input_size(start, started=3.0)

    found: Any = size
    assert chosen is (larger if is_chosen else start)
    assert found == {"chosen": is_chosen}
    assert seen[:2] == [(24, 24), {"fraction": 0.06, "started": 3.0}]
    assert seen[2:] == [(larger, 70)] * is_chosen
    assert caplog.messages == [f"described {is_chosen}"]


@pytest.mark.parametrize(
    ("trial", "found", "logs"),
    [
        ({"chosen": True}, {"chosen": False, "weights": "better"}, 2),
        ({"seconds_needed": 9.0}, {"seconds_needed": 9.0, "chosen": False, "weights": "better"}, 1),
        (None, None, 1),
    ],
)
def test_other_weights_are_only_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: Any, trial: Any, found: Any, logs: int
) -> None:
    start = start_of()
    seen = prepared(monkeypatch, trial, start_of(sha256="y"))

    with caplog.at_level("INFO", "vitft"):
        assert try_weights(start, start.setup.config.weights, started=3.0) == found

    assert seen == ["better", {"fraction": 0.06, "started": 3.0}]
    assert len(caplog.messages) == logs
    assert caplog.messages[0] == "trying the weights better on the training images"


@pytest.mark.parametrize(
    ("other", "logs"),
    [
        (WeightsError("the file is damaged", fix=""), ["were not tried: the file is damaged"]),
        (start_of(), []),
    ],
    ids=["damaged", "the same weights"],
)
def test_weights_that_cannot_be_read_or_are_the_same_are_not_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: Any, other: Any, logs: list[str]
) -> None:
    start = start_of()
    seen = prepared(monkeypatch, {"chosen": True}, other)

    with caplog.at_level("INFO", "vitft"):
        assert try_weights(start, start.setup.config.weights, started=0.0) is None

    assert seen == ["better"]
    assert [line in message for line, message in zip(logs, caplog.messages, strict=True)] == [
        True for _ in logs
    ]


def test_both_kinds_of_starts_are_tried_one_after_the_other(monkeypatch: Any) -> None:
    start, larger = start_of(), start_of(side=24)
    seen: list[Any] = []
    results: dict[str, Any] = {"size": None, "weights": None}
    monkeypatch.setattr(module, "choose_input_size", lambda *_, **__: (larger, results["size"]))
    monkeypatch.setattr(
        module, "try_weights", lambda *given, **__: noted(seen, given, results["weights"])
    )

    assert module.try_other_starts(start, started=0.0) == (larger, {})
    results.update(size={"chosen": True}, weights={"chosen": False})
    assert module.try_other_starts(start, started=0.0) == (larger, results)
    assert seen[0] == (larger, start.setup.config.weights)
