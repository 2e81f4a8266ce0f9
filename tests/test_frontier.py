"""Accuracy against processor time beside other tools: comparison, table and chart."""

import runpy
from pathlib import Path

import pytest

from benchmarks.accuracy import frontier, peers
from benchmarks.accuracy.frontier import Run, compare

ROOT = Path(__file__).parents[1]


def runs_of(way: str, cpu: float, *top1: float, data: str = "flowers") -> list[Run]:
    return [Run(data, way, seed, t, 0.5, cpu, cpu, "") for seed, t in enumerate(top1)]


HEAD = runs_of("head", 10, 0.80, 0.90, 0.85)
BUDGET = runs_of("budget 5m", 200, 0.90, 0.94, 0.95)


def test_another_tool_is_compared_with_the_last_point_of_ours_that_took_no_more_time() -> None:
    early = runs_of("timm, 5 epochs", 199, 0.85, 0.93, 0.90)
    late = runs_of("fastai, 5 epochs", 201, 0.85, 0.93, 0.90)

    first, second = compare([*HEAD, *BUDGET, *early, *late], "flowers")

    assert (first.way, first.ours, first.splits) == ("timm, 5 epochs", "head", 3)
    assert first.difference == pytest.approx(13 / 3)  # +5, +3 and +5 points
    assert first.error == pytest.approx(2 / 3)
    assert second.ours == "budget 5m"
    assert second.difference == pytest.approx(-11 / 3)


def test_the_table_in_the_readme_is_that_of_the_recorded_runs() -> None:
    page = frontier.README.read_text()

    assert frontier.with_table(page, frontier.table(frontier.read_runs(frontier.CSV))) == page


def test_the_chart_shows_the_recorded_runs() -> None:
    chart = runpy.run_path(str(ROOT / "docs" / "pareto.py"))["chart"]()

    assert chart == (ROOT / "docs" / "pareto.svg").read_text()


def test_every_tool_of_the_comparison_has_its_recipe_stated() -> None:
    page = str(peers.__doc__)

    assert not [way for way in peers.CONTESTANTS if f"\n- {peers.tool(way)}: " not in page]
