"""Parts of the final evaluation: exact logits, thresholds, calibrated weights and their files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.conftest import draw_folder
from tests.support.training_data import data_set, file_digest, row
from vitft.data import EvalTransform
from vitft.training import (
    DecisionRule,
    FinalEvaluation,
    StageInputs,
    divided,
    exact_logits,
    final_test,
)


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


def final(rows: list[Any], rule: DecisionRule, temperature: Any, monkeypatch: Any) -> Any:
    asked: list[Any] = []

    def logits(_: Any, __: Any, precision: str, rows: Any) -> Any:
        asked.append((precision, [one.path for one in rows]))
        known = torch.eye(3)[[one.label for one in rows]] * 2
        return known[:, None], None

    monkeypatch.setattr("vitft.training.finish.final_logits", logits)
    inputs: Any = SimpleNamespace(data=data_set(rows))
    found: Any = final_test(inputs, nn.Identity(), "bf16", temperature, rule)  # type: ignore[arg-type]
    return asked, found.get("test")


def evaluation(temperature: Any, **more: Any) -> FinalEvaluation:
    results: Any = {"top1": 0.5}
    return FinalEvaluation(temperature, torch.ones(3, 2), results, **more)
