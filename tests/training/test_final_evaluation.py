"""Parts of the final evaluation: exact logits, thresholds, calibrated weights and their files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import draw_folder
from tests.support.thread_ranks import ThreadRank, run_ranks
from tests.support.training_data import data_set, file_digest, row
from vitft.data import EvalTransform
from vitft.features import HeldOutLogits
from vitft.metrics import ScoredSet
from vitft.training import (
    DecisionRule,
    FinalEvaluation,
    ProcessGroup,
    ScoredImages,
    StageInputs,
    calibrate,
    divided,
    exact_logits,
    final_logits,
    final_test,
)
from vitft.training import finish as module

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


def test_logits_are_divided_by_the_temperature_of_all_or_of_each_label() -> None:
    logits = torch.tensor([[2.0, 4.0], [6.0, 8.0]])

    assert divided(logits, 2.0).tolist() == [[1, 2], [3, 4]]
    each = divided(logits, np.array([2.0, 4.0]))
    assert each.tolist() == [[1, 1], [3, 2]]
    assert each.dtype == torch.float32


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


def evaluation(temperature: Any, **more: Any) -> FinalEvaluation:
    results: Any = {"top1": 0.5}
    return FinalEvaluation(temperature, torch.ones(3, 2), results, **more)
