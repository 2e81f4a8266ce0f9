"""Comparison of runs: limits of significance, wording by number, and recalls by class."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.run_files import make_run
from vitft.data import Row
from vitft.metrics import PairedDifference, holm, mcnemar, wilson_interval
from vitft.report import RunComparison, compare_runs, comparison_results, read_run

Images = Sequence[tuple[str, ...]]
"""The label of each image, and the prediction of each run."""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    return read_run(make_run(tmp_path / "run"))


def runs_of(run: Any, images: Images) -> list[Any]:
    """Return several copies of a run with other predictions."""
    return [
        replace(
            run,
            path=Path(f"run{i}"),
            predictions=tuple(
                replace(
                    run.predictions[0],
                    path=f"{number}.jpg",
                    sha256=str(number),
                    label=label,
                    predicted=predicted[i],
                )
                for number, (label, *predicted) in enumerate(images)
            ),
        )
        for i in range(len(images[0]) - 1)
    ]


def compared(run: Any, images: Images) -> RunComparison:
    return compare_runs(runs_of(run, images))


def outcomes(*rows: tuple[str, int]) -> list[tuple[str, ...]]:
    """Return so many images for each string of a digit per run, which is 1 if the run is right."""
    return [
        ("a", *("a" if digit == "1" else "b" for digit in digits))
        for digits, number in rows
        for _ in range(number)
    ]


# significance ------------------------------------------------------------------------------------


def test_each_pair_counts_the_images_that_only_one_of_its_runs_has_right(run: Any) -> None:
    images = outcomes(("111", 20), ("100", 4), ("010", 9), ("011", 6), ("000", 1))

    pairs = comparison_results(compared(run, images))["pairs"]

    assert [(*p["runs"], p["only_first_right"], p["only_second_right"]) for p in pairs] == [
        ("run0", "run1", 4, 15),
        ("run0", "run2", 4, 6),
        ("run1", "run2", 9, 0),
    ]
    assert [p["difference"] for p in pairs] == pytest.approx([11 / 40, 2 / 40, -9 / 40])
    single = [mcnemar(4, 15), mcnemar(4, 6), mcnemar(9, 0)]
    assert [p["p_holm"] for p in pairs] == holm(single)
    for pair, p in zip(pairs, single, strict=True):
        counts = pair["only_second_right"], pair["only_first_right"]
        assert pair["interval"] == PairedDifference(*counts, 40, p).interval(pair["p_holm"])


@pytest.mark.parametrize(
    ("rows", "better"),
    [
        pytest.param([("01", 5), ("11", 8)], "run1", id="second"),
        pytest.param([("10", 5), ("11", 8)], "run0", id="first"),
        pytest.param([("01", 4), ("11", 8)], None, id="p = 0.0625"),
    ],
)
def test_a_difference_is_significant_below_a_p_value_of_five_percent(
    run: Any, rows: list[tuple[str, int]], better: str | None
) -> None:
    found = comparison_results(compared(run, outcomes(*rows)))

    (pair,) = found["pairs"]
    assert (pair["significant"], pair["more_accurate"]) == (better is not None, better)
    assert found["winner"] == better
    assert ("is more accurate than" in pair["conclusion"]) is (better is not None)
    assert pair["conclusion"].startswith("No significant difference") is (better is None)


@pytest.mark.parametrize(
    ("rows", "winner"),
    [
        pytest.param([("100", 12)], "run0", id="first"),
        pytest.param([("010", 12)], "run1", id="second"),
        pytest.param([("001", 12)], "run2", id="third"),
        pytest.param([("110", 12)], None, id="two are equal"),
        pytest.param([("011", 12), ("001", 4)], None, id="one difference is not significant"),
        pytest.param([("011", 12), ("001", 12)], "run2", id="ahead of both"),
        pytest.param([("000", 12)], None, id="all wrong"),
    ],
)
def test_the_winner_is_significantly_ahead_of_every_other_run(
    run: Any, rows: list[tuple[str, int]], winner: str | None
) -> None:
    assert comparison_results(compared(run, outcomes(*rows)))["winner"] == winner


@pytest.mark.parametrize(("runs", "needed"), [(2, 5), (3, 6), (4, 7), (5, 8)], ids=lambda n: str(n))
def test_more_pairs_need_more_disagreements(run: Any, runs: int, needed: int) -> None:
    pairs = runs * (runs - 1) // 2

    limit = compared(run, outcomes(("1" * runs, 9))).power

    # All k favour one run: p = 1 / 2**k, times the number of pairs (Holm).
    assert pairs / 2**needed < 0.05 <= pairs / 2 ** (needed - 1)
    assert f"a difference of less than {100 * needed / 9:.1f} points cannot be" in limit


# tables ------------------------------------------------------------------------------------------


def test_recalls_are_counted_by_class_and_the_widest_range_comes_first(run: Any) -> None:
    rows = {("b", "b", "a"): 30, ("a", "a", "b"): 2, ("a", "b", "a"): 3, ("c", "c", "c"): 4}
    images = [
        image for image, number in {**rows, ("d", "c", "d"): 30}.items() for _ in range(number)
    ]

    comparison = compared(run, images)
    found = comparison.recalls

    assert [row[0] for row in found] == ["b", "d", "a", "c"]
    assert [row[1] for row in found] == [30, 30, 5, 4]
    assert [row[3] for row in found] == pytest.approx([1, 1, 0.2, 0])
    assert found[2][2] == [(0.4, wilson_interval(2, 5)), (0.6, wilson_interval(3, 5))]
    assert [row[4] for row in found] == [0, 1, None, None]  # certainly the highest recall
    assert comparison_results(comparison)["runs"][1]["recall"]["a"] == 0.6


# added images ------------------------------------------------------------------------------------


def trained_on(run: Any, number: int) -> Any:
    """Return the run with so many training images and one validation image."""
    rows = [Row(f"{i}.jpg", 0, "train", str(i)) for i in range(number)]
    return replace(run, rows=(*rows, Row("v.jpg", 0, "val", "v")))


@pytest.mark.parametrize(
    ("sizes", "rows", "conclusion"),
    [
        (
            (10, 12),
            [("01", 8)],
            "The 2 training images that B adds to those of A helped: B - A = +",
        ),
        ((12, 10), [("01", 8)], "The 2 training images that A adds to those of B hurt: B - A = +"),
        ((10, 12), [("10", 8)], "The 2 training images that B adds to those of A hurt: B - A = −"),
        ((10, 12), [("01", 4), ("11", 4)], "No clear effect of the 2 training images that B adds"),
    ],
    ids=["helped", "the first run", "hurt", "not significant"],
)
def test_the_effect_of_added_images_is_clear_only_if_it_is_significant(
    run: Any, sizes: tuple[int, int], rows: list[tuple[str, int]], conclusion: str
) -> None:
    runs = runs_of(run, outcomes(*rows, ("11", 8)))

    found = compare_runs([trained_on(one, size) for one, size in zip(runs, sizes, strict=True)])

    (text,) = found.conclusions
    assert text.startswith(conclusion)
    assert " points on the shared images (95% CI " in text


def test_added_images_are_not_credited_with_what_changed_labels_do(run: Any) -> None:
    first, second = runs_of(run, outcomes(("01", 8), ("11", 8)))
    former, more = trained_on(first, 10), trained_on(second, 12)
    relabelled = [row._replace(label=int(row.sha256 in "123")) for row in more.rows]

    (text,) = compare_runs([former, replace(more, rows=relabelled)]).conclusions

    assert text.startswith("B is more accurate than A on these images")
