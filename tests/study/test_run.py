"""Splits, heads and results of a study."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from tests.conftest import draw_folder
from tests.study.test_study import checked, files
from vitft.config.sections import DataSpec, TrainSpec
from vitft.data.folder import Folder
from vitft.features.cache import default_folder
from vitft.features.pipeline import inspect_dataset
from vitft.study.plan import BASELINES, FeatureSource, Plan, check_study
from vitft.study.run import (
    FewShotSplit,
    count_images_of_sources,
    evaluate_head,
    evaluate_heads,
    few_shot_split,
    fit_plan,
    reduce_dimensions,
    run_study,
    unique_images,
)
from vitft.system.errors import DataError


def test_all_images_after_the_largest_number_are_tested_in_ascending_order() -> None:
    drawn = few_shot_split(files(6, 8), 2, most=4, seed=3)

    assert [len(rows) for rows in drawn.candidates] == [4, 4]
    assert drawn.test.tolist() == sorted(drawn.test.tolist())
    assert len(drawn.test) == 2 + 4
    assert sorted([*drawn.test, *np.concatenate(drawn.candidates)]) == [*range(14)]
    assert {*drawn.candidates[0]} < {*range(6)}
    assert drawn.train(2).tolist() == [*drawn.candidates[0][:2], *drawn.candidates[1][:2]]


def test_own_test_images_leave_all_others_to_training() -> None:
    drawn = few_shot_split(files(6, 8, tests=2), 2, most=4, seed=3)

    assert [len(rows) for rows in drawn.candidates] == [6, 8]
    assert len(drawn.test) == 4


def test_the_number_of_skipped_files_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    one, two = files(1, 1)
    with caplog.at_level("INFO"):
        assert unique_images(checked([one, two])) == [one, two]
        assert caplog.text == ""
        unique_images(checked([one, replace(one, path="x.jpg"), two]))
    assert "skipped 1 file: duplicates" in caplog.text


def test_features_with_fewer_dimensions_than_images_are_only_standardised() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(20, 6, generator=random) * 5 + 3

    for train in (6, 7):
        known, asked = reduce_dimensions(x[:train], x[train:])
        mean, std = x[:train].mean(dim=0), x[:train].std(dim=0, correction=0)
        torch.testing.assert_close(known, (x[:train] - mean) / std, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(asked, (x[train:] - mean) / std, rtol=1e-4, atol=1e-4)
    known, asked = reduce_dimensions(x[:5], x[5:])
    assert (known.shape, asked.shape) == ((5, 5), (15, 5))
    assert (known.dtype, asked.dtype) == (torch.float32, torch.float32)


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


def test_points_are_in_the_order_of_the_numbers_and_seeds(colours: Path) -> None:
    plan = check_study(str(colours), ["histogram"], [1, 4], seeds=2, out=str(colours.parent / "o"))
    y = torch.tensor([0] * 10 + [1] * 10 + [2] * 10)
    x = torch.nn.functional.one_hot(y, 3).float()
    splits = [few_shot_split(files(10, 10, 10), 3, most=4, seed=seed) for seed in range(2)]

    points = evaluate_heads(x, y, splits, plan, label="x")

    assert [point.shots for point in points] == [1, 4]
    assert [len(point.correct) for point in points] == [2, 2]
    assert [point.top1 for point in points] == [1.0, 1.0]


def test_a_study_states_what_it_used(colours: Path) -> None:
    plan = check_study(
        str(colours), ["histogram", "pixels"], [2, 4], seeds=2, out=str(colours.parent / "o")
    )

    done = run_study(plan, data=DataSpec(), train=TrainSpec(device="cpu"))

    assert (done.images, done.test_images) == (30, 18)
    assert done.majority == pytest.approx(1 / 3)
    assert [curve.features for curve in done.curves] == [512, 3072]
    assert done.device.startswith("cpu (")
    assert done.precision in ("fp32", "bf16")
    assert [point.shots for point in done.curves[0].points] == [2, 4]


def test_numbers_that_no_longer_fit_join_those_left_out(colours: Path) -> None:
    plan = check_study(
        str(colours), ["histogram"], [2, 4, 6, 40], seeds=1, out=str(colours.parent / "o")
    )

    fitted = fit_plan(plan, files(10, 6, 10))  # a fifth of six is one

    assert (plan.shots, plan.left_out) == ((2, 4, 6), (40,))
    assert (fitted.shots, fitted.left_out) == ((2, 4), (6, 40))
    assert (plan.most, fitted.most) == (8, 5)
    with pytest.raises(DataError, match=r"class red in .* has only 0 usable images"):
        fit_plan(plan, files(10, 6))
    split = replace(plan, folder=replace(plan.folder, layout="split"))
    assert fit_plan(split, files(6, 6, 6, tests=1)).shots == (2, 4, 6)


def test_a_run_that_was_trained_on_the_images_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"0", "1"}
    monkeypatch.setattr(
        "vitft.study.run.images_of_weights", lambda name: known if name == "r" else set[str]()
    )
    names = ("r", "w", BASELINES[0])
    sources = [FeatureSource(name=name, weights=name) for name in names]
    images = [replace(one, sha256=str(i)) for i, one in enumerate(files(3))]

    plan = cast("Plan", SimpleNamespace(sources=tuple(sources)))
    assert count_images_of_sources(plan, images) == {"r": 2, "w": 0, BASELINES[0]: 0}

    assert caplog.messages == [
        "r was trained on 2 of these 3 images, so its accuracies here tell nothing about new images"
    ]


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


@pytest.mark.parametrize(("cache", "is_pruned"), [("", True), ("own", False)])
@pytest.mark.usefixtures("loaded")
def test_only_the_default_cache_is_pruned_after_a_study(
    colours: Path, monkeypatch: pytest.MonkeyPatch, cache: str, is_pruned: bool
) -> None:
    pruned: list[tuple[Path, int]] = []
    monkeypatch.setattr(
        "vitft.study.run.prune", lambda folder, *, idle_s: pruned.append((folder, idle_s))
    )
    plan = check_study(str(colours), ["histogram"], [2], seeds=1, out=str(colours.parent / "o"))
    source = FeatureSource(name="x", weights="x")
    train = TrainSpec(device="cpu", cache=cache)

    run_study(plan, data=DataSpec(), train=train)
    assert pruned == []  # baselines are not cached
    run_study(replace(plan, sources=(source, *plan.sources)), data=DataSpec(), train=train)

    assert pruned == [(default_folder(), 3600)] * is_pruned


def test_each_backbone_is_loaded_once_and_the_first_one_inspects_the_images(
    colours: Path, loaded: list[str]
) -> None:
    plan = check_study(str(colours), ["histogram"], [2], seeds=1, out=str(colours.parent / "o"))
    first, second = (FeatureSource(name=name, weights=name) for name in ("x", "y"))

    done = run_study(
        replace(plan, sources=(*plan.sources, first, second)),
        data=DataSpec(),
        train=TrainSpec(device="cpu"),
    )

    assert loaded == ["x", "inspected", "y"]
    assert [(curve.name, curve.features) for curve in done.curves] == [
        *(("histogram", 512), ("x", 8), ("y", 8)),
    ]
