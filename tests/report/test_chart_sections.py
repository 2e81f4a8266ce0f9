"""Texts of the sections with charts, and the charts as files."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib import font_manager
from PIL import ImageFont

from tests.support.run_files import ENVIRONMENT, make_run
from vitft.cli.main import main
from vitft.metrics.intervals import wilson_interval
from vitft.metrics.results import MIXTURE, SEVERAL_BLOCKS
from vitft.report import charts, svg
from vitft.report.chart_files import standalone
from vitft.report.chart_sections import (
    confidence_section,
    epoch_numbers,
    epochs_not_trained,
    epochs_section,
    learning_section,
    penalty_section,
    range_text,
    remeasured,
)
from vitft.report.run_files import Run, read_run


def change(path: Path, **values: object) -> None:
    """Change values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("precision", "top1", "text"),
    [
        pytest.param(
            "bf16",
            0.7123,
            "validated again in float32, with an accuracy of 71.2%; during training, in bf16, it "
            "was 70.0%.",
            id="other",
        ),
        pytest.param("bf16", 0.7, "", id="the same"),
        pytest.param("fp32", 0.7123, "", id="in float32 from the start"),
    ],
)
def test_the_page_says_why_the_saved_epoch_has_another_accuracy_than_the_run(
    tmp_path: Path, precision: str, top1: float, text: str
) -> None:
    run = make_run(tmp_path / "run", epochs=True)
    (run / "environment.json").write_text(json.dumps({**ENVIRONMENT, "precision": precision}))
    change(run / "eval.json", best_epoch=2, top1=top1)

    curves = epochs_section(read_run(run))

    assert curves is not None
    assert curves.rows[1][-1] == "70.0%"
    assert ("validated again" in curves.text) == bool(text)
    assert curves.text.endswith(text)


@pytest.mark.parametrize(
    ("blocks", "reads", "text"),
    [
        (1, "last block", "The head was fitted to convergence by L-BFGS."),
        (6, SEVERAL_BLOCKS, "fitted by linear discriminant analysis on the last 6 blocks."),
        (6, MIXTURE, "L-BFGS, and linear discriminant analysis on the last 6 blocks."),
    ],
)
def test_the_page_says_how_the_head_was_fitted(
    tmp_path: Path, blocks: int, reads: str, text: str
) -> None:
    run = make_run(tmp_path / "run")
    head = {"blocks": blocks, "reads": reads, "candidates": [], "last_block_top1": None}
    change(run / "eval.json", head=head)

    section = penalty_section(read_run(run))

    assert section is not None
    assert text in section.text


def with_curve(run: Path, *points: float, gain: float | None) -> Path:
    """Give a run a learning curve with these accuracies of 10, 20, 30 and so on images."""
    curve = [{"images": 10 * i, "top1": top1} for i, top1 in enumerate(points, 1)]
    found = json.loads((run / "eval.json").read_text()).get("cross_validation") or {}
    more = {"images": 50, "of": 50, "top1": points[-1], "top1_interval": [0.1, 0.9]}
    change(
        run / "eval.json", cross_validation=found | more | {"curve": curve, "gain_from_twice": gain}
    )
    return run


@pytest.mark.parametrize(
    ("points", "has_stopped"),
    [
        pytest.param((0.5, 0.7, 0.7, 0.69), True, id="flat at the end"),
        pytest.param((0.7, 0.6, 0.7, 0.72), False, id="rising at the end"),
    ],
)
def test_a_learning_curve_has_stopped_rising_if_its_last_points_do_not_rise(
    tmp_path: Path, points: tuple[float, ...], has_stopped: bool
) -> None:
    run = with_curve(make_run(tmp_path / "run"), *points, gain=None)

    section = learning_section(read_run(run))

    assert section is not None
    assert ("stopped rising" in section.text) == has_stopped
    assert ("cannot be told" in section.text) != has_stopped


def test_the_extrapolated_point_of_a_learning_curve_is_at_twice_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = with_curve(make_run(tmp_path / "run"), 0.5, 0.7, gain=0.1)
    drawn: list[Any] = []

    def draw(*given: Any, **_: Any) -> str:
        drawn.append(given)
        return ""

    monkeypatch.setattr(charts, "learning_curve_chart", draw)

    section = learning_section(read_run(run))

    assert section is not None
    ((_, measured, extrapolated),) = drawn
    assert measured == [(10, 0.5), (20, 0.7)]
    assert extrapolated == (40, pytest.approx(0.8))
    assert "improve the accuracy by about 10.0 points" in section.text


def test_charts_are_written_as_files_that_need_no_style_sheet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", epochs=True)

    assert main(["report", "--run", str(run), "--charts", str(tmp_path / "charts")]) == 0

    files = sorted((tmp_path / "charts").iterdir())
    names = [file.name for file in files]
    assert names[-1:] == ["loss_by_epoch.svg"]
    assert "accuracy_by_epoch.svg" in names
    assert {f"chart: {file}" for file in files} == {*capsys.readouterr().out.splitlines()}
    assert not (run / "report.html").exists()
    for file in files:
        root = ElementTree.parse(file).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("viewBox") == f"0 0 {svg.WIDTH:g} {svg.HEIGHT:g}"
        size = [float(root.attrib[key]) for key in ("width", "height")]
        assert size == pytest.approx([3 * svg.WIDTH, 3 * svg.HEIGHT])
        assert all("class" not in element.attrib for element in root.iter())


def test_charts_do_not_replace_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "slides").mkdir()
    (tmp_path / "slides" / "mine.txt").write_text("x")

    assert main(["report", "--run", str(run), "--charts", str(tmp_path / "slides")]) == 5

    assert "is not empty" in capsys.readouterr().err
    assert [file.name for file in (tmp_path / "slides").iterdir()] == ["mine.txt"]


def test_a_run_without_results_has_no_charts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    for name in ("eval.json", "metrics.jsonl"):
        (run / name).unlink()

    assert main(["report", "--run", str(run), "--charts", str(tmp_path / "charts")]) == 5

    assert "has no charts" in capsys.readouterr().err
    assert not (tmp_path / "charts").exists()


# rules -------------------------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path: Path) -> Run:
    """A run of three epochs."""
    return read_run(make_run(tmp_path / "run", epochs=True))


def with_settings(run: Run, **sections: dict[str, Any]) -> Run:
    """Return the run with some settings changed."""
    config = {key: {**run.config[key], **sections.get(key, {})} for key in run.config}
    return replace(run, config=config)


def with_results(run: Run, **results: Any) -> Run:
    """Return the run with some results changed."""
    return replace(run, results={**run.results, **results})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("freeze", "patience", "epochs", "planned"),
    [
        ("blocks:2", 3, 9, 10),
        ("blocks:2", 3, 10, 0),
        ("blocks:2", 0, 9, 0),
        ("head", 3, 9, 10),
        ("head,none", 3, 9, 10),
        ("head,none", 3, 10, 0),
        ("head,blocks:1,none", 3, 19, 20),
        ("blocks:1,none", 3, 20, 0),
    ],
)
def test_a_run_stopped_early_if_it_trained_fewer_epochs_than_its_stages_plan(
    trained: Run, freeze: str, patience: int, epochs: int, planned: int
) -> None:
    run = with_settings(
        trained, train={"freeze": freeze}, optim={"epochs": 10, "patience": patience}
    )

    assert epochs_not_trained(run, epochs) == planned
    stopped: Any = {**run.environment, "status": "interrupted"}
    assert epochs_not_trained(replace(run, environment=stopped), epochs) == 0


@pytest.mark.parametrize(("patience", "text"), [(1, "1 epoch"), (2, "2 epochs")])
def test_the_page_says_why_a_run_stopped_early(trained: Run, patience: int, text: str) -> None:
    run = with_settings(
        trained, train={"freeze": "none"}, optim={"epochs": 10, "patience": patience}
    )

    section = epochs_section(run)
    whole = epochs_section(trained)

    assert section is not None
    assert section.text.startswith(
        f"The run stopped early, after 3 of 10 epochs: no improvement in {text}."
    )
    assert whole is not None
    assert whole.text.startswith("The run trained for 3 epochs. The saved weights come from")
    assert whole.rows == [
        [1, "1.0000", "1.2000", "50.0%", "40.0%"],
        [2, "0.5000", "0.6000", "75.0%", "70.0%"],
        [3, "0.3333", "0.4000", "83.3%", "80.0%"],
    ]
    assert "best on the validation images" not in whole.text
    selected = epochs_section(with_results(trained, selected_on_validation=True))
    assert selected is not None
    assert "best on the validation images" in selected.text


@pytest.mark.parametrize(
    ("epochs", "numbers"),
    [
        ((1, 2, 3), [1, 2, 3]),
        ((3, 4), [3, 4]),
        ((1, 2, 1), [1, 2, 3]),
        ((1, 1), [1, 2]),
        ((7,), [7]),
    ],
)
def test_epochs_are_counted_over_all_stages(epochs: tuple[int, ...], numbers: list[int]) -> None:
    log: Any = [{"epoch": number} for number in epochs]

    assert epoch_numbers(log) == numbers


@pytest.mark.parametrize(
    ("freeze", "best", "during"),
    [
        ("none", 1, "40.0%"),
        ("none", 3, "80.0%"),
        ("none", 4, ""),
        ("none", 0, ""),
        ("head,none", 2, "40.0%"),
        ("head,none", 4, "80.0%"),
        ("head,none", 1, ""),
    ],
)
def test_the_accuracy_during_training_is_that_of_the_saved_epoch(
    trained: Run, freeze: str, best: int, during: str
) -> None:
    environment: Any = {**trained.environment, "precision": "bf16"}
    run = with_results(replace(trained, environment=environment), best_epoch=best, top1=0.123)

    text = remeasured(run, run.log, freeze)

    assert text.endswith(f"it was {during}.") if during else not text
    unfinished = {key: value for key, value in run.results.items() if key != "seconds"}
    assert not remeasured(replace(run, results=unfinished), run.log, freeze)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.47, 0.98, "47 to 98%"),
        (0.5, 0.504, "50.0 to 50.4%"),
        (0.501, 0.5014, "50.10 to 50.14%"),
        (0.5, 0.50001, "50.00 to 50.00%"),
    ],
)
def test_a_range_has_as_many_digits_as_tell_its_ends_apart(
    low: float, high: float, text: str
) -> None:
    assert range_text(low, high) == text


def test_the_table_of_penalties_states_the_selected_one(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))

    section = penalty_section(run)
    several = penalty_section(replace(run, split=replace(run.split, labels=run.classes)))
    blocks = penalty_section(with_results(run, head={"blocks": 1, "reads": "last block"}))

    assert section is not None
    assert section.rows == [["1", "0.7000", "70.0%"], ["0.1", "0.5000", "80.0%"]]
    assert "and of equals the lowest loss: 0.1. These scores are those of quick fits before" in (
        section.text
    )
    assert section.text.endswith("before calibration.")
    assert several is not None
    assert "lowest loss for each label; the median is 0.1" in several.text
    assert blocks is not None
    assert "of complete fits after calibration, so they differ." in blocks.text
    assert penalty_section(replace(run, log=())) is None


def calibrated(run: Run, images: int = 20, **changes: Any) -> Run:
    """Return the run with other results of its calibration."""
    before: Any = run.results["calibration"]
    return with_results(run, images=images, calibration={**before, **changes})


def test_the_calibration_is_described_with_what_was_measured(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))

    def text(**changes: Any) -> str:
        section = confidence_section(calibrated(run, **changes))
        assert section is not None
        return section.text

    assert text().startswith(
        "On average, confidence and accuracy differ by 3.0 points (95% interval: 1.0 to 8.0%)."
    )
    assert text().endswith(
        "a temperature of 1.30, which was fitted to the validation images; without it, the "
        "difference was 6.0 points."
    )
    assert "differ by 3.0 points. Chance" in text(ece_interval=None)
    assert text(ece=0.0).startswith("No difference between confidence and accuracy could be")
    assert text(ece_before=0.0).endswith("without it, no difference could be measured.")
    assert "temperature" not in text(temperature=1.0)
    assert "temperature" not in text(temperature=None)
    assert "temperature" not in text(ece_before=None)
    assert "cross-validated predictions for 1 training image;" in text(cross_validated=1)
    assert text(images=19).endswith("fitted to the validation images.")
    assert text(images=19).startswith("Too few images")


def test_the_table_of_confidences_lists_bins_with_images(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    bins = [
        {"low": 0.0, "high": 0.3, "images": 0, "confidence": None, "accuracy": None},
        {"low": 0.3, "high": 0.6, "images": 5, "confidence": 0.5, "accuracy": 0.4},
    ]

    section = confidence_section(calibrated(run, bins=bins))

    assert section is not None
    assert section.rows == [["30 to 60%", 5, "50.0%", "40.0%"]]
    assert confidence_section(calibrated(run, bins=bins[:1])) is None
    assert confidence_section(calibrated(run, bins=None)) is None
    assert confidence_section(calibrated(run, ece=None)) is None
    assert confidence_section(with_results(run, calibration=None)) is None


@pytest.mark.parametrize(
    ("points", "gain", "text"),
    [
        pytest.param((0.5,), None, None, id="one point"),
        pytest.param((0.5, 0.6), None, "", id="two points that rise"),
        pytest.param((0.6, 0.6), None, "stopped rising", id="two equal points"),
        pytest.param((0.5, 0.6, 0.6), None, "", id="rose among the last three"),
        pytest.param((0.5, 0.6, 0.6, 0.6), None, "stopped rising", id="rose before"),
        pytest.param((0.5, 0.6), 0.0, "Twice as many images would improve", id="no gain"),
    ],
)
def test_the_learning_curve_has_at_least_two_points(
    tmp_path: Path, points: tuple[float, ...], gain: float | None, text: str | None
) -> None:
    run = read_run(with_curve(make_run(tmp_path / "run"), *points, gain=gain))

    section = learning_section(run)

    assert (section is None) == (text is None)
    if section is not None:
        shown = [t for t in ("stopped rising", "Twice as many images would") if t in section.text]
        assert shown == ([text.removesuffix(" improve")] if text else [])
        assert section.rows[0][:2] == ["10", "50.0%" if points[0] == 0.5 else "60.0%"]
        assert "measured on the same 50 images." in section.text
        several = learning_section(replace(run, split=replace(run.split, labels=run.classes)))
        assert several is not None
        assert "exactly its labels have a probability of at least 50%" in several.text


# drawing -----------------------------------------------------------------------------------------


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The charts that are drawn, with their axes and series."""
    made: list[Any] = []

    class Recorded(svg.Chart):
        def markup(self) -> str:
            made.append(self)
            return super().markup()

    monkeypatch.setattr(charts, "Chart", Recorded)
    return made


def test_a_reliability_diagram_has_the_diagonal_the_bins_and_their_intervals(
    drawn: list[Any],
) -> None:
    bins: Any = [
        {"images": 5, "confidence": 0.5, "accuracy": 0.4},
        {"images": 8, "confidence": 0.8, "accuracy": 0.75},
    ]

    charts.reliability_diagram("Accuracy by confidence", bins)

    ((diagonal, *bars, measured),) = (chart.series for chart in drawn)
    assert ([*diagonal.xs], [*diagonal.ys], [*diagonal.markers]) == ([0, 1], [0, 1], [False, False])
    assert [(bar.xs, bar.ys) for bar in bars] == [
        ([0.5, 0.5], wilson_interval(2, 5)),
        ([0.8, 0.8], wilson_interval(6, 8)),
    ]
    assert all(not any(bar.markers) for bar in bars)
    assert (measured.xs, measured.ys, measured.width) == ([0.5, 0.8], [0.4, 0.75], 0)
    for axis in (drawn[0].x, drawn[0].y):
        assert axis.ticks == [
            (0, "0%"), (0.2, "20%"), (0.4, "40%"), (0.6, "60%"), (0.8, "80%"), (1, "100%"),
        ]  # fmt: skip
        assert axis.low == 0
        assert 1 < axis.high < 1.1


def test_a_learning_curve_ends_in_the_extrapolated_point(drawn: list[Any]) -> None:
    measured = [(10, 0.5), (20, 0.7)]

    charts.learning_curve_chart(
        "Accuracy", measured, (40, 0.8), bounds=[wilson_interval(25, 50), wilson_interval(35, 50)]
    )
    charts.learning_curve_chart("Accuracy", measured, None)

    first, second = (chart.series for chart in drawn)
    assert [(one.xs, one.ys) for one in first[:2]] == [
        ([10, 10], wilson_interval(25, 50)),
        ([20, 20], wilson_interval(35, 50)),
    ]
    assert ([*first[2].xs], [*first[2].ys]) == ([10, 20], [0.5, 0.7])
    assert (first[3].xs, first[3].ys) == ([20, 40], [0.7, 0.8])
    assert (first[3].markers, first[3].is_hollow, bool(first[3].dashes)) == (
        [False, True],
        True,
        True,
    )
    assert [*drawn[0].x.ticks] == [(10, "10"), (20, "20"), (40, "40")]
    assert [one.name for one in first] == ["", "", "measured, 95% interval", "extrapolated"]
    assert [one.name for one in second] == ["measured"]
    assert drawn[0].x.is_log


def test_the_selected_penalty_is_circled(drawn: list[Any]) -> None:
    charts.penalty_chart("Accuracy", [1.0, 0.1], [0.7, 0.8], 0.1)
    charts.penalty_chart("Accuracy", [1.0, 0.1], [0.7, 0.8], 0.3)

    (line, ring), (alone,) = (chart.series for chart in drawn)
    assert (line.xs, line.ys) == (alone.xs, alone.ys) == ([1.0, 0.1], [0.7, 0.8])
    assert ([*ring.xs], [*ring.ys], ring.width, ring.is_hollow) == ([0.1], [0.8], 0, True)
    assert ring.radius > line.radius
    assert drawn[0].x.ticks == [(0.1, "0.1"), (1.0, "1")]


@pytest.mark.parametrize(("epochs", "has_markers"), [(24, True), (25, False)])
def test_curves_of_many_epochs_have_no_markers(
    drawn: list[Any], epochs: int, *, has_markers: bool
) -> None:
    xs = [*range(1, epochs + 1)]

    charts.epoch_chart("Loss", xs, xs, xs[::-1], y="loss")
    charts.overlaid_curves("Loss", [("A", xs, xs)], x="epoch", is_percent=False, is_log=False)

    for chart in drawn:
        for series in chart.series:
            assert (series.markers is None) is has_markers
            assert has_markers or series.markers == [False] * epochs
    training, validation = drawn[0].series
    assert (training.name, validation.name) == ("training", "validation")
    assert (training.ys, validation.ys) == (xs, xs[::-1])
    assert validation.dashes
    assert not training.dashes


def test_rows_of_runs_have_their_accuracy_and_interval(drawn: list[Any]) -> None:
    accuracies = [(0.5 + i / 20, (0.4 + i / 20, 0.6 + i / 20)) for i in range(6)]

    charts.interval_chart("Accuracy", "ABCDEF", accuracies)

    (chart,) = drawn
    for row, (accuracy, bounds) in enumerate(accuracies):
        line, point = chart.series[2 * row : 2 * row + 2]
        assert (line.xs, line.ys) == (bounds, [row, row])
        assert (point.xs, point.ys, point.width) == ([accuracy], [row], 0)
        assert line.colour == point.colour
        assert not any(line.markers)
    colours = [one.colour for one in chart.series[::2]]
    assert colours[0] == colours[5]
    assert len({*colours[:3]}) == 3
    assert [*chart.y.ticks] == [*enumerate("ABCDEF")]
    assert (chart.y.low, chart.y.high) == (5.5, -0.5)  # the first run is on top
    assert chart.x.low < 0.4
    assert chart.x.high > 0.85


def test_a_score_bar_keeps_its_marks_inside_and_its_interval_visible() -> None:
    bar = charts.score_bar("accuracy", 0.4, (0.4, 0.401), 1.0)

    assert 'class="track" x="0.00%" y="6" width="100.00%" height="12"' in bar
    assert 'class="band" x="40.00%" y="6" width="0.50%"' in bar  # at least half a percent
    assert 'class="f-second" x="99.00%" y="1" width="3.00" height="22"' in bar
    assert 'class="f-accent" x="40.00%" y="1" width="4.00" height="22"' in bar
    assert "f-second" not in charts.score_bar("accuracy", 0.4, None, None)
    assert "band" not in charts.score_bar("accuracy", 0.4, None, None)


def test_ticks_of_fractions_are_percentages() -> None:
    assert charts.percent_ticks([0.0, 0.855, 1.0]) == [(0.0, "0%"), (0.855, "85.5%"), (1.0, "100%")]


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ([0, 10], (-0.5, 10.5)),
        ([5, 5], (4.75, 5.25)),
        ([-5], (-5.25, -4.75)),
        ([0], (-0.001, 0.001)),
        ([3, 1, 2], (0.9, 3.1)),
    ],
)
def test_an_axis_has_a_margin_of_a_twentieth(values: list[float], limits: Any) -> None:
    assert svg.axis_limits(values) == pytest.approx(limits)


def test_the_margin_of_a_logarithmic_axis_is_a_factor() -> None:
    low, high = svg.axis_limits([1, 100], is_log=True)

    assert (low, high) == pytest.approx((100**-0.05, 100**1.05))
    axis = svg.Axis(low=1, high=100, ticks=[], is_log=True, begin=40, end=240)
    assert [axis.position(v) for v in (1, 10, 100)] == pytest.approx([40, 140, 240])
    plain = svg.Axis(low=2, high=4, ticks=[], begin=100, end=20)
    assert [plain.position(v) for v in (2, 2.5, 4)] == pytest.approx([100, 80, 20])


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 0.6, [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
        (0, 6, [0, 1, 2, 3, 4, 5, 6]),
        (0, 6.1, [0, 2, 4, 6]),
        (0.5, 14, [2.5, 5, 7.5, 10, 12.5]),
        (0, 30, [0, 5, 10, 15, 20, 25, 30]),
        (0, 31, [0, 10, 20, 30]),
        (-0.3, 0.3, [-0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3]),
        (1234, 1240, [1234, 1235, 1236, 1237, 1238, 1239, 1240]),
    ],
)
def test_ticks_are_round_evenly_spaced_and_at_most_seven(
    low: float, high: float, ticks: list[float]
) -> None:
    assert svg.round_ticks(low, high) == ticks


@pytest.mark.parametrize(
    ("low", "high", "ticks"), [(0.5, 14, [5, 10]), (0.9, 1.1, [1]), (0.8, 3.2, [1, 2, 3])]
)
def test_ticks_of_epochs_are_whole_numbers(low: float, high: float, ticks: list[float]) -> None:
    assert svg.round_ticks(low, high, integer=True) == ticks


@pytest.mark.parametrize(
    ("last", "ticks"),
    [(1, [1]), (2, [1, 2]), (9, [2, 4, 6, 9]), (10, [2, 4, 6, 8, 10]), (11, [2, 4, 6, 8, 11]),
     (33, [0, 10, 20, 33]), (36, [0, 10, 20, 30, 36])],
)  # fmt: skip
def test_the_last_epoch_has_a_tick_and_none_near_it(last: int, ticks: list[int]) -> None:
    assert svg.epoch_ticks([*range(1, last + 1)]) == ticks


def parsed(chart: str) -> ElementTree.Element:
    return ElementTree.fromstring(chart)


def test_texts_of_a_chart_are_inside_it_and_do_not_overlap() -> None:
    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), 110)
    xs = [10, 11, 12, 14, 20, 40, 80, 81, 320, 12345]

    root = parsed(charts.learning_curve_chart(
        "Accuracy",
        [(x, 0.5 + i / 25) for i, x in enumerate(xs)],
        (24690, 0.9),
        bounds=[wilson_interval(50 + 4 * i, 99) for i in range(10)],
    ))  # fmt: skip

    _, _, width, height = map(float, root.attrib["viewBox"].split())
    boxes = []
    for text in root.iter("text"):
        size = float(text.attrib["font-size"])
        long = font.getlength(text.text or "") * size / 110
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        if "transform" in text.attrib:
            assert 0 < y - long / 2 < y + long / 2 < height
            continue
        left = {"start": x, "middle": x - long / 2, "end": x - long}[text.attrib["text-anchor"]]
        boxes.append((left, y - 0.75 * size, left + long, y))
    assert len(boxes) > 10
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    for a, b in itertools.combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a, b)
    paths = " ".join(path.attrib["d"] for path in root.iter("path"))
    points = [float(n) for n in re.findall(r"-?\d+\.\d\d", paths)]
    assert min(points) >= 0
    assert max(points) <= width


def test_points_are_drawn_where_the_axes_place_them() -> None:
    x = svg.Axis(low=0, high=10, ticks=[(0, "0"), (10, "10")], title="x")
    y = svg.Axis(low=0, high=1, ticks=[(0, "0"), (1, "1")], title="y")
    series = svg.Series(
        xs=[0, 5, 10], ys=[0, 1, 0.5], colour="accent", markers=[True, True, False], radius=2
    )

    root = parsed(svg.Chart(label="l", x=x, y=y, series=[series]).markup())

    marks = [p for p in root.iter("path") if p.attrib["class"] == "f-accent"]
    (line,) = (p for p in root.iter("path") if p.attrib["class"] == "s-accent")
    corners: Any = [tuple(map(float, pair.split())) for pair in line.attrib["d"][2:].split(" L ")]
    assert corners == [
        (pytest.approx(x.position(a), abs=0.01), pytest.approx(y.position(b), abs=0.01))
        for a, b in ((0, 0), (5, 1), (10, 0.5))
    ]
    assert len(marks) == 2
    for mark, (a, b) in zip(marks, corners, strict=False):
        begin, middle = re.findall(r"(-?[\d.]+) (-?[\d.]+)(?= A|$)", mark.attrib["d"])[:2]
        assert [float(n) for n in begin] == [pytest.approx(a - 2, abs=0.02), pytest.approx(b)]
        assert [float(n) for n in middle] == [pytest.approx(a + 2, abs=0.02), pytest.approx(b)]


def test_estimated_widths_are_generous_but_close() -> None:
    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), 110)

    for text in ("accuracy", "12,345", "100%", "training images", "loss (nats)", "MMWW"):
        real = font.getlength(text) / 10
        assert 0.99 * real <= svg.text_width(text) <= 1.2 * real
        assert svg.text_width(text, 22) == pytest.approx(2 * svg.text_width(text))


def test_ticks_are_outside_the_axes_and_their_labels_beyond_them() -> None:
    x, y = (svg.Axis(low=0, high=2, ticks=[(1, "1")]) for _ in range(2))
    series = [svg.Series(xs=[0, 2], ys=[0, 2], colour="accent", name="line")]
    root = ElementTree.fromstring(svg.Chart(label="c", x=x, y=y, series=series).markup())

    paths = [[float(n) for n in re.findall(r"[\d.]+", path.get("d", ""))] for path in root]
    (below, beside), handle = (p for p in paths if is_short(p)), paths[-3]
    middle = (x.begin + x.end) / 2, (y.begin + y.end) / 2
    assert below == pytest.approx([middle[0], 172.8, middle[0], 172.8 + 3.5], abs=0.01)
    assert beside == pytest.approx([x.begin, middle[1], x.begin - 3.5, middle[1]], abs=0.01)
    assert handle == pytest.approx([x.begin + 3, 10.9, x.begin + 21, 10.9], abs=0.01)
    places = {t.get("text-anchor"): float(t.get("x", 0)) for t in root if t.text == "1"}
    assert places["middle"] == pytest.approx(middle[0], abs=0.01)
    assert places["end"] == pytest.approx(x.begin - 7, abs=0.01)


def is_short(path: list[float]) -> bool:
    """Return whether a path is a line of at most 12 units."""
    return len(path) == 4 and abs(path[0] - path[2]) + abs(path[1] - path[3]) <= 12


def test_a_chart_file_is_three_times_as_large_as_a_chart_on_the_page() -> None:
    axis = svg.Axis(low=0, high=1, ticks=[(0, "0")])
    chart = svg.Chart(label="c", x=axis, y=replace(axis), series=[]).markup()

    root = ElementTree.fromstring(standalone(chart))

    assert (root.get("width"), root.get("height")) == ("972", "626.4")
    assert root.get("viewBox") == "0 0 324 208.8"
