"""Parts of the final evaluation: exact logits, thresholds, calibrated weights and their files."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import draw_folder
from tests.support.thread_ranks import ThreadRank, run_ranks
from tests.support.training_data import data_set, digest, file_digest, pooled_inputs, row
from vitft.config.sections import TrainSpec
from vitft.data.transforms import EvalTransform
from vitft.features.head import HeldOutLogits
from vitft.metrics.calibration import FittedTemperature, ScoredSet
from vitft.models.card import Card
from vitft.models.pretrained.report import LoadReport
from vitft.models.vit import VisionTransformer
from vitft.system.rundir import RunDir
from vitft.training import finish as module
from vitft.training.dataset import StageInputs
from vitft.training.distributed import ProcessGroup
from vitft.training.finish import (
    DecisionRule,
    FinalEvaluation,
    calibrate,
    divided,
    exact_logits,
    final_logits,
    final_test,
    model_card,
    with_last_block,
    write_calibrated,
    write_lora_adapter,
)
from vitft.training.stages import ScoredImages

MANY = [row(str(i), i % 3, "val") for i in range(52)]
ORDER = torch.randperm(52, generator=torch.Generator().manual_seed(0))


def rough_logits() -> Tensor:
    """Return logits whose margins are 0/64, 1/64, 2/64, ... for the images in `ORDER`."""
    logits = torch.zeros(52, 3)
    logits[ORDER, 1] = torch.arange(52) / 64
    logits[:, 2] = -1
    return logits


def confirm(
    monkeypatch: pytest.MonkeyPatch, group: ProcessGroup, shift: float, **more: Any
) -> tuple[Tensor, int | None]:
    """Return the final logits of the images if exact logits differ by `shift` in class 2."""
    data = data_set(MANY, group=group, **more)
    inputs: Any = SimpleNamespace(data=data, extractor="some", cut=SimpleNamespace(pooled=True))

    def exact(_: Any, __: Any, rows: Any) -> Tensor:
        chosen = [MANY.index(one) for one in rows]
        return rough_logits()[chosen] + torch.tensor([0, 0, shift]) if chosen else torch.empty(0)

    monkeypatch.setattr(module, "image_logits", lambda *_: rough_logits())
    monkeypatch.setattr(module, "exact_logits", exact)
    model: Any = nn.Identity()
    return final_logits(inputs, model, "bf16", MANY)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    ("shift", "recomputed"),
    [
        pytest.param(2 / 64, 8, id="the ninth margin is four times the change"),
        pytest.param(-2.1 / 64, 16, id="the ninth margin is less"),
        pytest.param(0.0, 8, id="the change is 0"),
        pytest.param(8 / 64, 32, id="a third of the images is certain"),
        pytest.param(100.0, 52, id="no image is certain"),
    ],
)
def test_images_are_recomputed_until_the_margins_exceed_four_times_the_change(
    monkeypatch: pytest.MonkeyPatch, shift: float, recomputed: int, size: int
) -> None:
    def rank(group: ThreadRank) -> tuple[Tensor, int | None]:
        return confirm(monkeypatch, group if size > 1 else ProcessGroup(), shift)

    expected = rough_logits()
    expected[ORDER[:recomputed], 2] += shift
    for logits, done in run_ranks(size, rank):
        assert done == recomputed
        assert logits.shape == (52, 1, 3)
        torch.testing.assert_close(logits[:, 0], expected)


def test_all_images_with_several_labels_are_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("x", "y", "z")

    _, unchanged = confirm(monkeypatch, ProcessGroup(), 0.0, classes=names, labels=names)
    shifted, changed = confirm(monkeypatch, ProcessGroup(), 0.5, classes=names, labels=names)

    assert (unchanged, changed) == (52, 52)
    torch.testing.assert_close(shifted[:, 0, 2], rough_logits()[:, 2] + 0.5)


@pytest.mark.parametrize(("precision", "extractor"), [("fp32", "some"), ("bf16", None)])
def test_exact_logits_are_not_recomputed(
    monkeypatch: pytest.MonkeyPatch, precision: str, extractor: Any
) -> None:
    monkeypatch.setattr(module, "image_logits", lambda *_: rough_logits())
    monkeypatch.setattr(module, "exact_logits", None)
    inputs: Any = SimpleNamespace(data=data_set(MANY), extractor=extractor)

    logits, done = final_logits(inputs, nn.Identity(), precision, MANY)  # type: ignore[arg-type]

    assert done is None
    assert torch.equal(logits[:, 0], rough_logits())


def test_exact_logits_are_those_of_the_model_on_pixels(tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "colours", per_class=2)
    rows = [
        row(p.relative_to(folder).as_posix(), 0, sha256=file_digest(p))
        for p in sorted(folder.rglob("*.png"))
    ]
    data = data_set(rows, root=folder, transform=EvalTransform(image_size=(4, 4)))
    inputs: Any = StageInputs(data=data, cut=None, extractor=None)  # type: ignore[arg-type]
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))

    found = exact_logits(inputs, model, rows)

    ((_, pixels),) = data.decode(rows, 6)
    torch.testing.assert_close(found, model(data.transform.normalise(pixels)).detach())
    assert exact_logits(inputs, model, []).shape == (0,)


def test_the_accuracy_of_the_last_block_is_that_of_the_second_head() -> None:
    results: Any = {"top1": 1.0, "head": {"blocks": 2, "last_block_top1": 0.1}}
    heads = torch.eye(3)[torch.tensor([[0, 0], [1, 2], [2, 2], [1, 1]])]  # (4, 2, 3)
    labels = torch.tensor([0, 1, 2, 0])

    found: Any = with_last_block(results, heads, labels)

    assert found["head"] == {"blocks": 2, "last_block_top1": 0.5}
    assert results["head"]["last_block_top1"] == 0.1
    assert with_last_block(results, heads[:, :1], labels) is results


def test_logits_are_divided_by_the_temperature_of_all_or_of_each_label() -> None:
    logits = torch.tensor([[2.0, 4.0], [6.0, 8.0]])

    assert divided(logits, 2.0).tolist() == [[1, 2], [3, 4]]
    each = divided(logits, np.array([2.0, 4.0]))
    assert each.tolist() == [[1, 1], [3, 2]]
    assert each.dtype == torch.float32


def test_thresholds_are_probabilities_after_calibration_and_never_0_or_1(monkeypatch: Any) -> None:
    scored = ScoredSet(np.zeros((2, 3)), np.zeros((2, 3), np.int64))
    values, held_out = np.array([2.0, -100.0, 100.0]), np.array([[0.0, 1.0, -1.0]] * 2)
    monkeypatch.setattr(
        module,
        "fit_thresholds",
        lambda *given: SimpleNamespace(value=values, held_out=held_out) if given else None,
    )
    fitted = FittedTemperature(value=np.array([2.0, 1.0, 1.0]), held_out=np.ones((2, 3)))

    rule = DecisionRule.fit(scored, None, fitted)

    assert rule.thresholds == pytest.approx((1 / (1 + np.exp(-1)), 1e-6, 1 - 1e-6))
    np.testing.assert_allclose(rule.held_out, 1 / (1 + np.exp(-held_out)))
    metrics: Any = {"labels": {"per_label": {"x": {}, "y": {}, "z": {}}}}
    found: Any = rule.described(metrics, fitted)
    rows = found["labels"]["per_label"].values()
    assert [one["threshold"] for one in rows] == list(rule.thresholds)
    assert [one["temperature"] for one in rows] == [2.0, 1.0, 1.0]
    plain: Any = {"top1": 1.0}
    assert DecisionRule().described(plain, fitted) is plain
    assert [*plain] == ["top1"]
    assert (DecisionRule().thresholds, DecisionRule().held_out) == ((), 0.5)


def scored_images(logits: Tensor) -> tuple[Any, ScoredImages]:
    rows = [row(str(i), i % 3) for i in range(len(logits))]
    held_out = HeldOutLogits(torch.arange(len(logits)), logits)
    return data_set(rows), ScoredImages(features=logits, held_out=held_out)


@pytest.mark.parametrize(("factor", "comparable"), [(1.0, True), (-4.0, False)])
def test_cross_validated_images_calibrate_if_their_loss_is_comparable(
    caplog: pytest.LogCaptureFixture, factor: float, comparable: bool
) -> None:
    labels = torch.arange(60) % 3
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.eye(3)[labels] + torch.randn(60, 3, generator=generator)
    data, scored = scored_images(factor * logits)
    validation = ScoredSet(logits.double().numpy(), labels.numpy())

    with caplog.at_level("INFO", "vitft"):
        fitted, training = calibrate(validation, data, scored)
        alone, nothing = calibrate(validation, data, None)

    assert (training is not None) is comparable
    assert fitted.cross_validated == (60 if comparable else 0)
    assert (alone.cross_validated, nothing) == (0, None)
    assert ("calibrated on the validation images alone" in caplog.text) is not comparable


def final(rows: list[Any], rule: DecisionRule, temperature: Any, monkeypatch: Any) -> Any:
    asked: list[Any] = []

    def logits(_: Any, __: Any, precision: str, rows: Any) -> Any:
        asked.append((precision, [one.path for one in rows]))
        known = torch.eye(3)[[one.label for one in rows]] * 2
        return known[:, None], None

    monkeypatch.setattr(module, "final_logits", logits)
    inputs: Any = SimpleNamespace(data=data_set(rows))
    found: Any = final_test(inputs, nn.Identity(), "bf16", temperature, rule)  # type: ignore[arg-type]
    return asked, found.get("test")


def test_test_images_are_scored_unless_they_are_among_the_others(monkeypatch: Any) -> None:
    rows = [
        row("a", 0),
        row("b", 1, "val"),
        *(row(name, i, "test") for i, name in enumerate("xyz")),
    ]
    copies = [row("a2", 0, "test", sha256=digest("a")), row("b2", 1, "test", sha256=digest("b"))]

    asked, found = final([*rows, *copies], DecisionRule(), 0.5, monkeypatch)

    assert asked == [("bf16", ["x", "y", "z"])]
    assert (found["images"], found["left_out"], found["top1"]) == (3, 2, 1.0)
    exact = -np.log(np.exp(4) / (np.exp(4) + 2))  # of logits divided by the temperature
    assert found["loss"] == pytest.approx(exact, rel=1e-5)
    assert final(rows[:2] + copies, DecisionRule(), 0.5, monkeypatch) == ([], None)


class Headed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 2)


def evaluation(temperature: Any, **more: Any) -> FinalEvaluation:
    results: Any = {"top1": 0.5}
    return FinalEvaluation(temperature, torch.ones(3, 2), results, **more)


@pytest.mark.parametrize(
    ("temperature", "thresholds"),
    [(2.0, ()), (np.array([2.0, 4.0]), (0.25, 0.75)), (1.0, ()), (np.ones(2), (0.5, 0.5))],
)
def test_the_head_is_divided_and_the_files_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: Any, thresholds: Any
) -> None:
    model: Any = Headed()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    written: list[Any] = []
    monkeypatch.setattr(module, "write_model", lambda *given: written.append(given[2]))
    run = RunDir(tmp_path)
    run.eval.write_text("old")
    card = Card(architecture=None, transform=EvalTransform())  # type: ignore[arg-type]

    write_calibrated(run, model, card, evaluation(temperature, thresholds=thresholds))

    scale = torch.as_tensor(temperature, dtype=torch.float32).expand(2)
    after = model.state_dict()
    torch.testing.assert_close(after["head.weight"], before["head.weight"] / scale[:, None])
    torch.testing.assert_close(after["head.bias"], before["head.bias"] / scale)
    assert torch.equal(after["body.weight"], before["body.weight"])
    is_rewritten = bool(thresholds) or temperature != 1.0
    assert [one.thresholds for one in written] == [thresholds] * is_rewritten
    assert json.loads(run.eval.read_text()) == {"top1": 0.5}
    with np.load(tmp_path / "validation.npz") as arrays:
        assert {*arrays} == {"logits"}
        assert arrays["logits"].tolist() == [[1, 1]] * 3


@pytest.mark.parametrize("several", [False, True])
def test_cross_validated_predictions_are_written_beside_the_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    monkeypatch.setattr(module, "write_model", lambda *_: None)
    logits = np.array([[3.0, 0.0], [0.0, 1.0]])
    labels = np.array([[1, 0], [1, 1]]) if several else np.array([0, 0])
    found = evaluation(
        np.ones(2) if several else 1.0,
        thresholds=(0.5, 0.5) if several else (),
        training=ScoredSet(logits, labels),
        cross_validated=np.array([1, -1], np.int32),
    )
    card = Card(architecture=None, transform=EvalTransform())  # type: ignore[arg-type]

    write_calibrated(RunDir(tmp_path), Headed(), card, found)  # type: ignore[arg-type]

    with np.load(tmp_path / "validation.npz") as arrays:
        probability, correct = arrays["train_probability"], arrays["train_correct"]
        assert arrays["cross_validated"].tolist() == [1, -1]
    assert correct.dtype == bool
    one = 1 / (1 + np.exp(-1))
    if several:
        assert correct.tolist() == [[True, False], [True, True]]
        np.testing.assert_allclose(probability, [[1 / (1 + np.exp(-3)), 0.5], [0.5, one]])
    else:
        assert correct.tolist() == [True, False]
        np.testing.assert_allclose(probability, [1 / (1 + np.exp(-3)), one])


def test_a_process_that_does_not_write_leaves_the_results(tmp_path: Path) -> None:
    run = RunDir(tmp_path, writes=False)
    run.eval.write_text("old")
    card = Card(architecture=None, transform=EvalTransform())  # type: ignore[arg-type]

    write_calibrated(run, Headed(), card, evaluation(2.0))  # type: ignore[arg-type]

    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(run.eval.name, "old")]


@pytest.mark.parametrize(
    ("keeps", "writes", "is_written"),
    [(True, True, True), (False, True, False), (True, False, False)],
)
def test_an_adapter_is_written_on_request_by_the_main_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool, writes: bool, is_written: bool
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        module, "write_adapter", lambda *given, **named: seen.append((given, named))
    )
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "old").write_text("")
    card = Card(architecture=None, transform=EvalTransform(), weights={"name": "w"})  # type: ignore[arg-type]

    train = TrainSpec(freeze="lora", keep_adapter=keeps)
    write_lora_adapter(RunDir(tmp_path, writes=writes), {}, Headed(), train, card)  # type: ignore[arg-type]

    assert [(given[0], named) for given, named in seen] == [
        (tmp_path / "adapter", {"base": "w"})
    ] * is_written
    assert (tmp_path / "adapter" / "old").exists() is not is_written


def test_the_card_names_the_outputs_and_their_thresholds(tiny_vit: VisionTransformer) -> None:
    report: Any = SimpleNamespace(
        transform=EvalTransform(), provenance={"name": "w"}, positions="resampled", spec=LoadReport
    )
    one = data_set(MANY).manifest
    several = data_set(MANY, classes=("x", "y", "x|y"), labels=("x", "y")).manifest

    card, labelled = (model_card(tiny_vit, report, manifest) for manifest in (one, several))

    assert (card.classes, card.thresholds, card.split) == (("a", "b", "c"), (), one.digest)
    assert (labelled.classes, labelled.thresholds) == (("x", "y"), (0.5, 0.5))
    assert (card.architecture, card.pos_embed) == (tiny_vit.config, "resampled")


@pytest.mark.parametrize(
    ("precision", "more", "during", "is_said"),
    [
        ("bf16", {"best_epoch": 3}, 0.5, True),
        ("fp32", {"best_epoch": 3}, 0.5, False),
        ("bf16", {"best_epoch": 1, "l2": 0.1}, 0.5, False),
        ("bf16", {"best_epoch": 2, "l2": 0.1}, 0.5, True),
        ("bf16", {"best_epoch": 1}, 0.5, True),
        ("bf16", {"best_epoch": 3}, 1.0, False),
    ],
)
def test_an_accuracy_that_float32_changes_is_logged(
    monkeypatch: Any, caplog: Any, precision: str, more: Any, during: float, is_said: bool
) -> None:
    rows = [row(str(i), i % 3, "val") for i in range(30)]
    logits = 3 * torch.eye(3)[torch.arange(30) % 3]
    inputs = pooled_inputs(data_set(rows), {})
    monkeypatch.setattr(module, "final_logits", lambda *_: (logits[:, None], 8))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 107.26))
    results: Any = {"top1": during, **more}

    with caplog.at_level("INFO", "vitft"):
        found = module.evaluate_run(
            inputs,
            nn.Identity(),  # type: ignore[arg-type]
            precision,
            results,
            scored=None,
            started=100.0,
        )

    text = (
        f"validated again in float32, the accuracy is 100.0% ({during:.1%} in bf16 during training)"
    )
    assert (text in caplog.text) is is_said
    assert (found.results["top1"], found.results["seconds"]) == (1.0, 7.3)
    assert found.results["confirmed_in_float32"] == 8
    assert (found.training, found.cross_validated, found.thresholds) == (None, None, ())
    assert isinstance(found.temperature, float)
    torch.testing.assert_close(found.logits, logits / found.temperature)


@pytest.mark.parametrize("rank", [0, 1])
def test_cross_validated_logits_are_calibrated_like_the_others(monkeypatch: Any, rank: int) -> None:
    labels = torch.arange(60) % 3
    logits = 2 * torch.eye(3)[labels] + torch.randn(60, 3)
    data, scored = scored_images(logits)
    group: Any = ProcessGroup(rank, 2)
    group.main_only = lambda function: function()
    rows = [*data.manifest.rows, *(row(f"v{i}", i % 3, "val") for i in range(60))]
    data = data_set(rows, group=group)
    monkeypatch.setattr(module, "final_logits", lambda *_: (logits[:, None], None))
    inputs = replace(pooled_inputs(data, {}), data=data)
    results: Any = {"top1": 0.5, "best_epoch": 1}

    found = module.evaluate_run(
        inputs,
        nn.Identity(),  # type: ignore[arg-type]
        "fp32",
        results,
        scored=scored,
        started=0.0,
    )

    assert found.training is not None
    expected = logits.double().numpy() / found.temperature
    np.testing.assert_allclose(found.training.logits, expected)
    assert "confirmed_in_float32" not in found.results
    assert (found.cross_validated is not None) is (rank == 0)
