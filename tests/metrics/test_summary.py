"""The numbers of a run: which is quoted, what they rest on, and their form in JSON."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.metrics.test_chance import results
from tests.metrics.test_verdict import crossed
from tests.support.run_files import make_run
from vitft.metrics import Results, read_results


@pytest.fixture
def read(tmp_path: Path) -> Results:
    """The numbers of a run with a cross-validated head."""
    return Results.of(read_results(make_run(tmp_path / "run") / "eval.json"), {"status": "failed"})


def test_results_survive_json(read: Results) -> None:
    full = replace(read, name="a", data="b", weights="c", ended="2026-01-01T00:00:00+00:00")

    assert Results.from_json(json.loads(json.dumps(full.to_json()))) == full
    assert full.status == "failed"
    assert full.headline is not None


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param({"headline": {"value": 2.0}}, id="a value above 1"),
        pytest.param({"name": 5}, id="a number as name"),
        pytest.param({"weakest": [{}]}, id="a class without fields"),
        pytest.param({"unknown": 1}, id="an unknown key"),
    ],
)
def test_a_damaged_copy_is_no_copy(read: Results, damage: dict[str, Any]) -> None:
    assert Results.from_json({**read.to_json(), **damage}) is None
    assert Results.from_json(None) is None


def test_test_images_are_quoted_before_cross_validation() -> None:
    found = crossed([[15, 1], [2, 15]], right=172, scored=202)
    test: Any = {**results([[30, 10], [10, 30]]), "left_out": 0, "groups": 7}

    read = Results.of({**found, "test": test})

    assert [one.kind for one in read.estimates] == ["test", "cross-validation", "validation"]
    assert read.headline is not None
    assert (read.headline.value, read.headline.images, read.headline.groups) == (0.75, 80, 7)
    assert read.headline.baseline == 0.5
    assert read.difference is not None
    assert [one.kind for one in read.difference] == ["test", "cross-validation"]


def test_the_three_weakest_classes_of_validation_are_named_with_what_they_are_taken_for() -> None:
    rows = [[9, 1, 0, 0, 0], [0, 7, 3, 0, 0], [0, 0, 10, 0, 0], [2, 0, 0, 8, 0], [1, 0, 0, 0, 19]]
    read = Results.of(results(rows))

    assert [(one.name, one.value, one.images, one.taken_for) for one in read.weakest] == [
        ("b", 0.7, 10, "c"),
        ("d", 0.8, 10, "a"),
        ("a", 0.9, 10, "b"),
    ]


def test_several_labels_are_quoted_by_mean_average_precision() -> None:
    labels: Any = {
        "map": 0.8,
        "map_interval": (0.7, 0.9),
        "chance_map": 0.3,
        "per_label": {
            "x": {"ap": 0.6, "ap_interval": (0.4, 0.8)},
            "y": {"ap": 1.0, "ap_interval": None},
        },
    }

    read = Results.of({**results([[9, 1], [1, 9]]), "labels": labels})

    assert [(one.measure, one.value) for one in read.estimates] == [
        ("mean average precision", 0.8),
        ("all labels right", 0.9),
    ]
    assert read.exact == read.estimates[1]
    assert [(one.name, one.measure) for one in read.weakest] == [("x", "average precision")]


def test_growth_is_never_below_zero() -> None:
    found = crossed([[15, 1], [2, 15]], right=172, scored=202)
    found["cross_validation"]["gain_interval"] = (-0.02, 0.03)

    assert Results.of(found).growth == (0.0, 0.03)


@pytest.mark.parametrize(
    ("row", "name"),
    [
        pytest.param([6, 1, 3, 2], "c", id="the highest count"),
        pytest.param([6, 3, 3, 2], "b or c", id="two with as many"),
        pytest.param([6, 1, 1, 1], "", id="more than two"),
    ],
)
def test_a_class_is_mostly_taken_for_one_or_two_others(row: list[int], name: str) -> None:
    read = Results.of(results([row, [0, 9, 0, 0], [0, 0, 9, 0], [0, 0, 0, 9]]))

    assert [one.taken_for for one in read.weakest] == [name]
