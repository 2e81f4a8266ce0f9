"""Comparison of runs: limits of significance, wording by number, and the images on its page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.run_files import make_run
from vitft.data import Row
from vitft.metrics import PairedDifference, holm, mcnemar, wilson_interval
from vitft.report import (
    Run,
    RunComparison,
    SharedImage,
    class_recalls,
    comparison_results,
    read_run,
    run_pairs,
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return read_run(make_run(tmp_path / "run"))


def image(label: str, *predicted: str, path: str = "x", p: float = 0.5) -> SharedImage:
    """Return an image with its label and the prediction of each run."""
    return SharedImage(path, path, label, predicted, tuple(p for _ in predicted))


def compared(run: Run, images: Sequence[SharedImage]) -> RunComparison:
    """Return the comparison of several copies of a run with other predictions."""
    runs = [run] * len(images[0].predicted)
    names = [f"run{i}" for i in range(len(runs))]
    pairs = run_pairs(images, len(runs))
    return RunComparison(runs=runs, names=names, notes=(), images=images, pairs=pairs)


def outcomes(*rows: tuple[str, int]) -> list[SharedImage]:
    """Return so many images for each string of a digit per run, which is 1 if the run is right."""
    return [
        image("a", *("a" if digit == "1" else "b" for digit in digits), path=f"{digits} {i}")
        for digits, number in rows
        for i in range(number)
    ]


# significance ------------------------------------------------------------------------------------


def test_each_pair_counts_the_images_that_only_one_of_its_runs_has_right() -> None:
    images = outcomes(("111", 20), ("100", 4), ("010", 9), ("011", 6), ("000", 1))

    pairs = run_pairs(images, 3)

    assert [(p.first, p.second, p.paired.only_second, p.paired.only_first) for p in pairs] == [
        (0, 1, 4, 15),
        (0, 2, 4, 6),
        (1, 2, 9, 0),
    ]
    assert [p.difference for p in pairs] == pytest.approx([11 / 40, 2 / 40, -9 / 40])
    single = [mcnemar(4, 15), mcnemar(4, 6), mcnemar(9, 0)]
    assert [p.p for p in pairs] == holm(single)
    for pair, p in zip(pairs, single, strict=True):
        counts = pair.paired.only_first, pair.paired.only_second
        assert pair.interval == PairedDifference(*counts, 40, p).interval(pair.p)


def test_a_p_value_of_five_percent_is_not_significant(run: Run) -> None:
    found = compared(run, outcomes(("01", 8), ("11", 8)))
    border = replace(found, pairs=[replace(found.pairs[0], p=0.05)])

    assert found.winner == 1
    assert border.winner is None
    assert border.conclusions()[0].startswith("No significant difference")
    (pair,) = comparison_results(border)["pairs"]
    assert (pair["significant"], pair["more_accurate"]) == (False, None)
    (better,) = comparison_results(found)["pairs"]
    assert (better["significant"], better["more_accurate"]) == (True, "run1")
    worse = compared(run, outcomes(("10", 8), ("11", 8)))
    assert comparison_results(worse)["pairs"][0]["more_accurate"] == "run0"


@pytest.mark.parametrize(
    ("rows", "winner"),
    [
        pytest.param([("100", 12)], 0, id="first"),
        pytest.param([("010", 12)], 1, id="second"),
        pytest.param([("001", 12)], 2, id="third"),
        pytest.param([("110", 12)], None, id="two are equal"),
        pytest.param([("011", 12), ("001", 4)], None, id="one difference is not significant"),
        pytest.param([("011", 12), ("001", 12)], 2, id="ahead of both"),
        pytest.param([("000", 12)], None, id="all wrong"),
    ],
)
def test_the_winner_is_significantly_ahead_of_every_other_run(
    run: Run, rows: list[tuple[str, int]], winner: int | None
) -> None:
    assert compared(run, outcomes(*rows)).winner == winner


@pytest.mark.parametrize(("runs", "needed"), [(2, 5), (3, 6), (4, 7), (5, 8)], ids=lambda n: str(n))
def test_more_pairs_need_more_disagreements(run: Run, runs: int, needed: int) -> None:
    pairs = runs * (runs - 1) // 2

    comparison = compared(run, outcomes(("1" * runs, 9)))

    # All k favour one run: p = 1 / 2**k, times the number of pairs (Holm).
    assert pairs / 2**needed < 0.05 <= pairs / 2 ** (needed - 1)
    assert comparison.needed_disagreements == needed


# tables ------------------------------------------------------------------------------------------


def test_recalls_are_counted_by_class_and_the_widest_range_comes_first(run: Run) -> None:
    images = [
        *(image("b", "b", "a") for _ in range(30)),
        *(image("a", "a", "b") for _ in range(2)),
        *(image("a", "b", "a") for _ in range(3)),
        *(image("c", "c", "c") for _ in range(4)),
        *(image("d", "c", "d") for _ in range(30)),
    ]

    comparison = compared(run, images)
    rows = class_recalls(comparison)

    assert comparison.recall_counts["a"] == ([2, 3], 5)
    assert [row[0] for row in rows] == ["b", "d", "a", "c"]
    assert [row[1] for row in rows] == [30, 30, 5, 4]
    assert [row[3] for row in rows] == pytest.approx([1, 1, 0.2, 0])
    assert rows[2][2] == [(0.4, wilson_interval(2, 5)), (0.6, wilson_interval(3, 5))]
    assert [row[4] for row in rows] == [0, 1, None, None]  # certainly the highest recall
    assert comparison_results(comparison)["runs"][1]["recall"]["a"] == 0.6


# added images ------------------------------------------------------------------------------------


def trained_on(run: Run, *numbers: range, settings: dict[str, Any] | None = None) -> Run:
    """Return the run with training images of these numbers and one validation image."""
    rows = [Row(f"{i}.jpg", 0, "train", str(i)) for part in numbers for i in part]
    config = {key: {**table, **(settings or {}).get(key, {})} for key, table in run.config.items()}
    return replace(run, rows=(*rows, Row("v.jpg", 0, "val", "v")), config=config)


def test_the_effect_of_added_images_is_clear_only_if_it_is_significant(run: Run) -> None:
    runs = [trained_on(run, range(10)), trained_on(run, range(12))]
    found = replace(compared(run, outcomes(("01", 8), ("11", 8))), runs=runs)
    border = replace(found, pairs=[replace(found.pairs[0], p=0.05)])

    assert found.conclusions()[0].startswith(
        "The 2 training images that B adds to those of A helped: B - A = +50.0 points on the shared"
    )
    reverse = replace(found, runs=runs[::-1])
    assert reverse.conclusions()[0].startswith(
        "The 2 training images that A adds to those of B hurt: B - A = +50.0 points on the shared"
    )
    worse = replace(compared(run, outcomes(("10", 8), ("11", 8))), runs=runs)
    assert " adds to those of A hurt: B - A = −50.0 points" in worse.conclusions()[0]
    assert found.conclusions()[0].endswith(", p = 0.004)")
    assert border.conclusions()[0].startswith("No clear effect of the 2 training images")
