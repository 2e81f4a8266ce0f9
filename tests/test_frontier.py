"""Accuracy against processor time beside other tools: comparison, table and chart."""

import runpy
from pathlib import Path

import pytest

from benchmarks.accuracy import frontier, peers
from benchmarks.accuracy.frontier import Run, compare, merged, our_line, points, verdict

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


def test_differences_are_paired_over_the_splits_that_both_have() -> None:
    theirs = [run for run in runs_of("timm, 5 epochs", 50, 0.1, 0.95, 0.1) if run.seed == 1]

    (found,) = compare([*HEAD, *theirs], "flowers")

    assert found.splits == 1
    assert found.difference == pytest.approx(5)


def test_our_fixed_ways_are_neither_on_the_line_nor_compared_with_it() -> None:
    fixed = runs_of("all layers, 6 epochs", 20, 0.99, 0.99, 0.99)
    runs = [*BUDGET, *HEAD, *fixed]

    assert [p.way for p in our_line(points(runs, "flowers"))] == ["head", "budget 5m"]
    assert compare(runs, "flowers") == []


def test_the_verdict_names_every_point_above_the_line_and_by_how_much() -> None:
    above = runs_of("timm, 5 epochs", 50, 0.85, 0.93, 0.90)
    below = runs_of("fastai, 1 epoch", 60, 0.5, 0.5, 0.5)
    faster = runs_of("scikit-learn", 5, 0.7, 0.7, 0.7)

    text = "\n".join(verdict([*HEAD, *BUDGET, *above, *below, *faster], "flowers"))

    assert "1 of 2 points of other tools are above our line" in text
    assert "timm, 5 epochs, 50 s: +4.3 ± 0.7 points over our head (10 s), 3 splits" in text
    assert "fastai" not in text
    assert "scikit-learn ends before our first point: 70.0 ± 0.0% after 5 s" in text


def test_without_a_point_above_the_line_the_verdict_says_so() -> None:
    below = runs_of("fastai, 1 epoch", 60, 0.5, 0.5, 0.5)

    assert verdict([*HEAD, *below], "flowers") == [
        "- `flowers`: at the time of every other tool's point, ours is on or above it."
    ]


def test_a_repeated_run_replaces_the_earlier_one_and_the_file_keeps_all_fields(
    tmp_path: Path,
) -> None:
    again = HEAD[0]._replace(top1=0.875, chosen="none x 8")

    frontier.write_runs(tmp_path / "runs.csv", merged([*BUDGET, *HEAD, again]))

    assert frontier.read_runs(tmp_path / "runs.csv") == [again, *HEAD[1:], *BUDGET]


def test_the_table_in_the_readme_is_that_of_the_recorded_runs() -> None:
    page = frontier.README.read_text()

    assert frontier.with_table(page, frontier.table(frontier.read_runs(frontier.CSV))) == page


def test_the_chart_shows_the_recorded_runs() -> None:
    chart = runpy.run_path(str(ROOT / "docs" / "pareto.py"))["chart"]()

    assert chart == (ROOT / "docs" / "pareto.svg").read_text()


def test_every_tool_of_the_comparison_has_its_recipe_stated() -> None:
    page = str(peers.__doc__)

    assert not [way for way in peers.CONTESTANTS if f"\n- {peers.tool(way)}: " not in page]
