"""Texts of the sections with charts, and the charts as files."""

import itertools
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib import font_manager
from PIL import ImageFont

from tests.support.run_files import make_run
from vitft.cli.main import main
from vitft.metrics import wilson_interval
from vitft.report import charts, svg


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


# rules -------------------------------------------------------------------------------------------


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
