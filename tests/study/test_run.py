"""Splits, heads and results of a study."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import draw_folder
from tests.study.test_study import files
from vitft.data.folder import Folder
from vitft.features.pipeline import inspect_dataset
from vitft.study.plan import FeatureSource
from vitft.study.run import (
    FewShotSplit,
    evaluate_head,
    few_shot_split,
)


def test_all_images_after_the_largest_number_are_tested_in_ascending_order() -> None:
    drawn = few_shot_split(files(6, 8), 2, most=4, seed=3)

    assert [len(rows) for rows in drawn.candidates] == [4, 4]
    assert drawn.test.tolist() == sorted(drawn.test.tolist())
    assert len(drawn.test) == 2 + 4
    assert sorted([*drawn.test, *np.concatenate(drawn.candidates)]) == [*range(14)]
    assert {*drawn.candidates[0]} < {*range(6)}
    assert drawn.train(2).tolist() == [*drawn.candidates[0][:2], *drawn.candidates[1][:2]]


def test_a_head_separates_what_can_be_separated() -> None:
    x = torch.tensor([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0], [0.9, 0.2]] * 5)
    y = torch.tensor([0, 0, 1, 1] * 5)
    rows = np.arange(20)
    split = FewShotSplit((rows[y == 0][:4], rows[y == 1][:4]), rows[12:])

    right = evaluate_head(x, y, split, 3, classes=2, seed=0)

    assert right.dtype == np.bool_
    assert right.tolist() == [True] * 8
    wrong = evaluate_head(x, 1 - y, split, 3, classes=2, seed=0)
    assert wrong.all()  # labels of both training and test images are exchanged


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    return draw_folder(tmp_path / "colours", per_class=10)


class Features:
    """Features of a backbone that are random numbers."""

    loaded: list[str]

    def __init__(self, folder: Folder, *arguments: Any, **_: Any) -> None:
        self.folder = folder
        source: FeatureSource = arguments[-1]
        self.loaded.append(source.name)

    def inspect(self) -> Any:
        self.loaded.append("inspected")
        return inspect_dataset(self.folder, max_pixels=10**6, allow_bad=False)

    def rows(self, images: Any) -> torch.Tensor:
        return torch.randn(len(images), 8)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The backbones that were loaded, and `inspected` after the one that inspected the images."""
    monkeypatch.setattr(Features, "loaded", [], raising=False)
    monkeypatch.setattr("vitft.study.run.BackboneFeatures", Features)
    monkeypatch.setattr("vitft.study.run.images_of_weights", lambda *_: set())
    return Features.loaded
