"""Accuracies, differences and texts of a study."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitft.data import Folder
from vitft.metrics import wilson_interval
from vitft.study import (
    CurvePoint,
    FeatureSource,
    FewShotCurve,
    Plan,
    StudyResults,
    difference,
    half_width_of_mean,
    to_json,
)


def at_shots(shots: int, *rows: Sequence[int]) -> CurvePoint:
    return CurvePoint(shots=shots, correct=tuple(np.array(row, dtype=bool) for row in rows))


def curve(name: str, *points: CurvePoint) -> FewShotCurve:
    return FewShotCurve(name=name, weights=name, features=32, points=points)


GOOD, POOR = [1] * 80 + [0] * 20, [1] * 40 + [0] * 60


def finished(*curves: FewShotCurve, **more: Any) -> StudyResults:
    layout = more.pop("layout", "classes")
    folder = Folder(root=Path("flowers"), classes=("a", "b"), files=(), layout=layout)
    plan = Plan(
        folder=folder,
        sources=tuple(FeatureSource(name=c.name, weights=c.weights) for c in curves),
        shots=tuple(point.shots for point in curves[0].points),
        left_out=more.pop("left_out", ()),
        most=20,
        seeds=more.pop("seeds", 2),
        out=more.pop("out", Path("o")),
    )
    facts = {"images": 1300, "test_images": 100, "majority": 0.525, "device": "cpu"}
    return StudyResults(plan=plan, curves=curves, precision="fp32", **{**facts, **more})


STUDY = finished(
    curve("vit", at_shots(1, POOR, POOR), at_shots(5, GOOD, GOOD)),
    curve("pixels", at_shots(1, GOOD, GOOD), at_shots(5, GOOD, GOOD)),
)


def test_the_interval_over_seeds_is_that_of_student() -> None:
    values = [0.5, 0.6, 0.7]

    assert half_width_of_mean(values) == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-5)
    assert half_width_of_mean([0.5, 0.7]) == pytest.approx(
        12.706205 * math.sqrt(0.02) / math.sqrt(2), rel=1e-5
    )
    assert half_width_of_mean([0.5]) == 0.0
    assert half_width_of_mean([]) == 0.0


def test_the_wider_of_both_intervals_counts_on_each_side() -> None:
    apart = at_shots(5, [1] * 60 + [0] * 40, [1] * 70 + [0] * 30)
    half = half_width_of_mean([0.6, 0.7])

    assert apart.interval == pytest.approx((0.65 - half, 1.0))
    near = at_shots(5, [1] * 64 + [0] * 36, [1] * 65 + [0] * 35)
    low, high = wilson_interval(64, 100)  # 64.5 is rounded to the even number
    assert near.interval == (min(low, near.top1 - half_width_of_mean([0.64, 0.65])), high)


def test_a_difference_has_the_wider_interval_of_seeds_and_images() -> None:
    first = at_shots(5, [1] * 50 + [0] * 50, [1] * 60 + [0] * 40)
    second = at_shots(5, [1] * 40 + [0] * 60, [1] * 40 + [0] * 60)

    mean, (low, high) = difference(first, second)

    half = half_width_of_mean([0.1, 0.2])
    assert mean == pytest.approx(0.15)
    assert (low, high) == pytest.approx((0.15 - half, 0.15 + half))
    same = at_shots(5, [1] * 50 + [0] * 50, [1] * 50 + [0] * 50)
    mean, (low, high) = difference(same, second)  # seeds agree: the images decide
    images = 1.959963984540054 * math.sqrt(0.1 - 0.01) / 10
    assert (mean, low, high) == pytest.approx((0.1, 0.1 - images, 0.1 + images))


def test_json_has_every_point_and_difference() -> None:
    found: Any = to_json(replace(STUDY), STUDY.leads())

    assert (found["data"], found["classes"], found["images"]) == ("flowers", ["a", "b"], 1300)
    assert (found["test_images"], found["always_the_largest_class"]) == (100, 0.525)
    assert (found["shots"], found["left_out"], found["seeds"]) == ([1, 5], [], [0, 1])
    assert found["own_test_images"] is False
    assert to_json(finished(*STUDY.curves, layout="split"), {})["own_test_images"] is True
    assert [c["name"] for c in found["curves"]] == ["vit", "pixels"]
    assert found["curves"][0]["points"][0] == {
        "shots": 1,
        "top1": pytest.approx(0.4),
        "interval": list(STUDY.curves[0].points[0].interval),
        "each_seed": [0.4, 0.4],
    }
    assert [(d["over"], d["shots"]) for d in found["lead_of_the_first"]] == [
        ("pixels", 1),
        ("pixels", 5),
    ]
    json.dumps(found, allow_nan=False)
