"""Comparison of runs: limits of significance, wording by number, and the images on its page."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from tests.support.run_files import make_run
from vitft.data.split import Row
from vitft.metrics.intervals import holm, mcnemar, paired_interval, wilson_interval
from vitft.report.added_images import find_added
from vitft.report.comparison import (
    RunComparison,
    RunPair,
    SharedImage,
    compare_runs,
    run_pairs,
)
from vitft.report.comparison_json import comparison_results
from vitft.report.comparison_page import (
    by_epoch,
    by_penalty,
    class_recalls,
    curve_charts,
    disputed_groups,
    learning_points,
    run_descriptions,
)
from vitft.report.reproduce import shown_settings
from vitft.report.run_files import Run, read_run
from vitft.system.text import p_equation, p_text


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
    wider, widest = (NormalDist().inv_cdf(1 - 0.025 / factor) for factor in (2, 3))  # Holm
    assert [p.interval for p in pairs] == [
        pytest.approx(paired_interval(15, 4, 40, z=wider)),
        paired_interval(6, 4, 40),
        pytest.approx(paired_interval(0, 9, 40, z=widest)),
    ]
    assert [p.p for p in pairs] == holm([mcnemar(4, 15), mcnemar(4, 6), mcnemar(9, 0)])


@pytest.mark.parametrize(
    ("p", "text", "equation"),
    [
        (0.0009, "< 0.001", "p < 0.001"),
        (0.001, "0.001", "p = 0.001"),
        (0.0123, "0.012", "p = 0.012"),
        (1.0, "1.000", "p = 1.000"),
    ],
)
def test_p_values_have_three_digits_or_a_bound(p: float, text: str, equation: str) -> None:
    assert (p_text(p), p_equation(p)) == (text, equation)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        pytest.param([("10", 4)], "4 shared images are too few to tell whether A or B", id="four"),
        pytest.param([("10", 1)], "1 shared image is too few to tell whether A or B", id="one"),
        pytest.param([("10", 5)], "A is more accurate than B on these images, by 100", id="five"),
        pytest.param([("01", 5)], "B is more accurate than A on these images, by 100", id="B"),
        pytest.param([("01", 4), ("11", 1)], "No significant difference on these images: B is "
                     "ahead of A by 80.0 points (p = 0.062)", id="B is ahead"),
        pytest.param([("10", 4), ("11", 1)], "No significant difference on these images: A is "
                     "ahead of B by 80.0 points (p = 0.062)", id="A is ahead"),
        pytest.param([("10", 3), ("01", 3)], "A and B are equally accurate on these 6", id="tie"),
    ],
)  # fmt: skip
def test_a_difference_is_significant_from_five_to_none_on(
    run: Run, rows: list[tuple[str, int]], text: str
) -> None:
    comparison = compared(run, outcomes(*rows))

    assert comparison.conclusions()[0].startswith(text)


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


@pytest.mark.parametrize(
    ("images", "text"),
    [
        (4, "With only 4 shared images, no difference can be significant."),
        (5, "With 5 shared images, a difference of less than 100.0 points cannot be significant."),
        (250, "With 250 shared images, a difference of less than 2.0 points cannot be "
              "significant."),
        (251, ""),
    ],
)  # fmt: skip
def test_the_power_is_stated_for_up_to_250_images(run: Run, images: int, text: str) -> None:
    assert compared(run, outcomes(("11", images))).power_text() == text


def test_without_pairs_nothing_is_said_of_the_power(run: Run) -> None:
    nothing = RunComparison(runs=[run, run], names="ab", notes=(), images=[], pairs=[])

    assert nothing.power_text() == ""
    assert nothing.accuracies == []
    assert [row[3] for row in nothing.accuracy_rows()] == ["–", "–"]
    assert comparison_results(nothing)["runs"][0]["shared_interval"] is None


# tables ------------------------------------------------------------------------------------------


def test_rows_of_runs_and_pairs_have_their_own_numbers(run: Run) -> None:
    comparison = compared(run, outcomes(("110", 6), ("100", 2), ("011", 1), ("111", 1)))

    assert comparison.rights == [9, 8, 2]
    assert comparison.accuracies[1] == (0.8, wilson_interval(8, 10))
    assert [row[0] for row in comparison.accuracy_rows()] == ["A run0", "B run1", "C run2"]
    assert [row[3] for row in comparison.accuracy_rows()] == ["90.0%", "80.0%", "20.0%"]
    assert comparison.pair_columns[3:5] == ("only first correct", "only second correct")
    assert [row[0] for row in comparison.pair_rows()] == ["B - A", "C - A", "C - B"]
    first = comparison.pair_rows()[0]
    ends = comparison.pairs[0].paired.interval(0.625)
    low, high = (f"{100 * x:+.1f}".replace("-", "−") for x in ends)
    assert first[1:] == ("−10.0 points", f"{low} to {high}", "1", "2", "0.625")
    two = compared(run, outcomes(("10", 2), ("01", 1)))
    assert two.pair_columns[3:5] == ("only B correct", "only A correct")
    assert two.pair_rows()[0][3:5] == ("1", "2")


def test_the_next_step_has_a_command_for_two_runs_and_a_pattern_for_more(run: Run) -> None:
    two, three = (compared(run, outcomes((digits, 6))) for digits in ("10", "100"))

    assert f"--run {run.path}`" in two.next_step()
    assert "`vitft evaluate --data NEW --run RUN` for each run" in three.next_step()


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


def test_equal_intervals_mark_no_class(run: Run) -> None:
    three = [image("a", "a", "a", "b") for _ in range(30)]

    ((*_, best),) = class_recalls(compared(run, three))

    assert best is None  # two runs share the highest recall


# notes -------------------------------------------------------------------------------------------


def notes_of(first: Run, second: Run) -> str:
    return " ".join(compare_runs([first, second]).notes)


def other_run(folder: Path, **results: Any) -> Run:
    """Return another run on the same images, with some results replaced."""
    run = read_run(make_run(folder / "other", seed=1))
    return replace(run, results={**run.results, **results})  # type: ignore[typeddict-item]


def test_a_best_epoch_selected_on_the_shared_images_is_an_advantage(
    run: Run, tmp_path: Path
) -> None:
    chosen = other_run(tmp_path, selected_on_validation=True)

    assert "The best epoch of B was selected on these images" in notes_of(run, chosen)
    assert "selected" not in notes_of(run, replace(chosen, results=run.results))
    relabelled = replace(
        chosen,
        predictions=tuple(replace(one, label="other") for one in chosen.predictions),
    )
    assert "selected" not in notes_of(run, relabelled)  # no image is compared


def test_other_classes_and_label_sets_are_noted(run: Run, tmp_path: Path) -> None:
    labels = {"map": 0.7, "map_interval": (0.6, 0.8), "chance_map": 0.3}
    several = other_run(tmp_path, labels=labels)
    several = replace(several, split=replace(several.split, labels=several.classes))

    text = notes_of(run, several)

    assert "only if exactly its labels are predicted" in text
    assert "each run's validation images: B: 70.0% (60.0 to 80.0%)." in text
    assert "different classes" not in text
    other = replace(several, classes=("daisy", "poppy", "tulip"))
    assert "The runs have different classes" in notes_of(run, other)
    assert "exactly its labels" not in notes_of(run, other_run(tmp_path / "plain"))


@pytest.mark.parametrize(
    ("shared", "text"), [(1, "only the 1 image that all of them share is compared"),
                         (2, "only the 2 images that all of them share are compared")]
)  # fmt: skip
def test_the_number_of_shared_images_is_noted(
    run: Run, tmp_path: Path, shared: int, text: str
) -> None:
    fewer = other_run(tmp_path)
    fewer = replace(fewer, predictions=fewer.predictions[:shared])

    assert f"have 12 and {shared} distinct validation images, and {text}" in notes_of(run, fewer)


def test_runs_with_equal_names_are_told_apart_by_their_paths(run: Run, tmp_path: Path) -> None:
    same = read_run(make_run(tmp_path / "elsewhere" / "run", seed=1))
    other = read_run(make_run(tmp_path / "other", seed=1))

    assert compare_runs([run, same]).names == [str(run.path), str(same.path)]
    assert compare_runs([run, other]).names == ["run", "other"]


# added images ------------------------------------------------------------------------------------


def trained_on(run: Run, *numbers: range, settings: dict[str, Any] | None = None) -> Run:
    """Return the run with training images of these numbers and one validation image."""
    rows = [Row(f"{i}.jpg", 0, "train", str(i)) for part in numbers for i in part]
    config = {key: {**table, **(settings or {}).get(key, {})} for key, table in run.config.items()}
    return replace(run, rows=(*rows, Row("v.jpg", 0, "val", "v")), config=config)


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        pytest.param((0, 1000), (0, 1005), (True, 5), id="half a percent more"),
        pytest.param((0, 1000), (0, 1004), None, id="less than half a percent"),
        pytest.param((0, 1005), (0, 1000), (False, 5), id="the first has more"),
        pytest.param((0, 1000), (20, 1100), (True, 100), id="two percent lost"),
        pytest.param((0, 1000), (21, 1100), None, id="more than two percent lost"),
        pytest.param((0, 10), (0, 11), (True, 1), id="one image of ten"),
        pytest.param((0, 10), (0, 10), None, id="the same images"),
        pytest.param((0, 0), (0, 10), None, id="no training images"),
    ],
)
def test_added_images_are_at_least_half_a_percent_and_few_are_lost(
    run: Run, first: tuple[int, int], second: tuple[int, int], found: tuple[bool, int] | None
) -> None:
    added = find_added(*(trained_on(run, range(*numbers)) for numbers in (first, second)))

    assert (added and (added.is_second, added.images)) == found


@pytest.mark.parametrize(
    ("images", "settings", "text"),
    [
        (1, {"optim": {"l2": 3.0}}, "1 training image of B is not among those of A, but optim.l2 "
                                    "differs too"),
        (2, {"optim": {"l2": 3.0}, "data": {"seed": 4}},
         "2 training images of B are not among those of A, but data.seed and optim.l2 differ too"),
    ],
)  # fmt: skip
def test_settings_that_differ_beside_added_images_are_named(
    run: Run, images: int, settings: dict[str, Any], text: str
) -> None:
    fewer = trained_on(run, range(10))
    more = trained_on(run, range(10 + images), settings=settings)
    found = compared(run, outcomes(("01", 8), ("11", 8)))

    (conclusion,) = replace(found, runs=[fewer, more]).conclusions()

    assert conclusion.startswith("B is more accurate than A")
    assert conclusion.endswith(f"; {text}")


def test_the_effect_of_added_images_has_a_p_value_only_if_it_is_significant(run: Run) -> None:
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
    assert found.conclusions()[0].endswith("; p = 0.004)")
    assert border.conclusions()[0].startswith("No clear effect of the 2 training images")
    assert "; p" not in border.conclusions()[0]


# the page ----------------------------------------------------------------------------------------


def test_images_are_grouped_by_the_runs_that_are_right_most_confident_first(run: Run) -> None:
    images = [
        image("a", "a", "b", path="1", p=0.6),
        image("a", "a", "b", path="3", p=0.7),
        image("a", "a", "b", path="2", p=0.7),
        image("a", "b", "a", path="4"),
        image("a", "b", "c", path="5"),
        image("a", "b", "b", path="6"),
        image("a", "a", "a", path="7"),
    ]

    groups = disputed_groups(compared(run, images))

    assert [(group.title, [one.path for one in group.images]) for group in groups] == [
        ("Only A is right", ["2", "3", "1"]),
        ("Only B is right", ["4"]),
        ("All are wrong, in different ways", ["5"]),
    ]
    three = [image("a", *found) for found in ("bca", "bba", "bcd")]
    assert [(g.title, g.number) for g in disputed_groups(compared(run, three))] == [
        ("Some are right", 2),
        ("All are wrong, in different ways", 1),
    ]


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ((100,), [60]),
        ((100, 100), [30, 30]),
        ((10, 100), [10, 30]),
        ((100, 100, 100), [20, 20, 20]),
        ((60,), [60]),
    ],
)
def test_groups_of_disputed_images_share_sixty_places(
    run: Run, numbers: tuple[int, ...], shown: list[int]
) -> None:
    kinds = (("a", "b"), ("b", "a"), ("b", "c"))
    images = [
        image("a", *kind, path=f"{i:03}")
        for kind, number in zip(kinds, numbers, strict=False)
        for i in range(number)
    ]

    groups = disputed_groups(compared(run, images))

    assert [len(group.images) for group in groups] == shown
    assert [group.number for group in groups] == [*numbers]


def test_curves_need_two_points_and_two_runs(run: Run, tmp_path: Path) -> None:
    epochs = read_run(make_run(tmp_path / "epochs", epochs=True))

    assert by_penalty(run) == [(0.1, 0.8), (1.0, 0.7)]
    assert by_penalty(replace(run, log=run.log[:1])) == []
    assert by_epoch(epochs, "val_top1") == [(1, 0.4), (2, 0.7), (3, 0.8)]
    assert len(by_epoch(replace(epochs, log=epochs.log[:2]), "val_loss")) == 2
    assert by_epoch(replace(epochs, log=epochs.log[:1]), "val_loss") == []
    assert learning_points(run) == [(6, 0.6), (12, 0.7), (24, 0.8)]
    assert learning_points(with_curve(run, 2)) == [(6, 0.6), (12, 0.7)]
    assert learning_points(with_curve(run, 1)) == []
    titles = [title for title, _ in curve_charts(compared_runs(run, epochs))]
    assert titles == ["Cross-validated accuracy by training images"]


def with_curve(run: Run, points: int) -> Run:
    """Return the run with only the first points of its learning curve."""
    more: Any = run.results["cross_validation"]
    shorter: Any = {**more, "curve": more["curve"][:points]}
    return replace(run, results={**run.results, "cross_validation": shorter})


def compared_runs(*runs: Run) -> RunComparison:
    """Return a comparison of runs without images."""
    return RunComparison(runs=runs, names=[r.name for r in runs], notes=(), images=[], pairs=[])


@pytest.mark.parametrize(("runs", "more"), [(6, ""), (7, " (G not shown)"), (8, " (G, H not")])
def test_at_most_six_curves_are_overlaid(run: Run, runs: int, more: str) -> None:
    titles = [title for title, _ in curve_charts(compared_runs(*[run] * runs))]

    assert len(titles) == 2
    assert all(title.partition(" (")[2] == more.removeprefix(" (") or more in title
               for title in titles)  # fmt: skip


def test_runs_are_described_by_their_data_weights_layers_and_fixes(run: Run) -> None:
    def changed(name: str, **settings: Any) -> Run:
        config = {key: {**run.config[key], **settings.get(key, {})} for key in run.config}
        return replace(run, config=config, path=run.path.parent / name)

    plain, fixed = changed("a"), changed("b", data={"fixes": "fixes.csv"})
    other = changed("c", data={"path": "digits"}, weights={"name": "random:demo"})

    assert run_descriptions([plain, fixed]) == ["without fixes", "with fixes"]
    assert run_descriptions([plain, changed("d")]) == ["a", "d"]
    first, second = run_descriptions([plain, other])
    assert first.startswith("flowers, demo")
    assert second.startswith("digits, ")
    assert run_descriptions([plain, fixed, changed("e", data={"fixes": "f.csv"})]) == [
        "a", "b", "e",
    ]  # fmt: skip
    scratch = changed("s", weights={"name": "none"}, train={"freeze": "none"})
    everything = changed("t", train={"freeze": "none"})
    assert run_descriptions([scratch, plain])[0] == "from scratch"
    assert run_descriptions([everything, plain])[0] == "all layers"


def test_the_shape_of_the_models_is_compared_where_it_is_set_for_one_of_them(run: Run) -> None:
    assert run.card is not None
    other_shape = replace(run.card.architecture, image_size=(64, 48))
    weights = {**run.config["weights"], "image_size": [64, 48]}
    model = {"patch_size": 2, "depth": 3, "positions": "waves"}
    scratch = replace(
        run,
        config={**run.config, "weights": weights, "model": model},
        card=replace(run.card, architecture=other_shape),
    )
    same = replace(run, config={**run.config, "weights": weights})

    height, width = run.card.architecture.image_size
    found = dict(shown_settings([run, scratch]))
    assert found["weights.image_size"] == [[height, width], [64, 48]]
    assert "model.depth" not in found  # of both models, it is the same
    assert found["model.positions"] == [None, "waves"]
    assert "weights.image_size" not in dict(shown_settings([run, same]))


def test_letters_follow_the_order_of_the_runs(run: Run) -> None:
    comparison = compared(run, outcomes(("1111", 1)))

    assert comparison.letters == "ABCD"
    found = [(p.first, p.second) for p in comparison.pairs]
    assert found == list(itertools.combinations(range(4), 2))
    assert all(isinstance(p, RunPair) for p in comparison.pairs)
