"""Texts of the sections with charts, and the charts as files."""

import itertools
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib import font_manager
from PIL import ImageFont

from vitft.metrics import wilson_interval
from vitft.report import charts, learning_chart

# drawing -----------------------------------------------------------------------------------------


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
    assert charts.round_ticks(low, high) == ticks


def parsed(chart: str) -> ElementTree.Element:
    return ElementTree.fromstring(chart)


def test_texts_of_a_chart_are_inside_it_and_do_not_overlap() -> None:
    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), 110)
    xs = [10, 11, 12, 14, 20, 40, 80, 81, 320, 12345]

    chart = learning_chart(
        "Accuracy",
        [(x, 0.5 + i / 25) for i, x in enumerate(xs)],
        (24690, 0.9),
        bounds=[wilson_interval(50 + 4 * i, 99) for i in range(10)],
    )

    root = parsed(chart.markup())

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
    x = charts.Axis(low=0, high=10, ticks=[(0, "0"), (10, "10")], title="x")
    y = charts.Axis(low=0, high=1, ticks=[(0, "0"), (1, "1")], title="y")
    series = charts.Series(
        xs=[0, 5, 10], ys=[0, 1, 0.5], colour="accent", markers=[True, True, False], radius=2
    )

    root = parsed(charts.Chart(label="l", x=x, y=y, series=[series]).markup())

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


def test_the_extrapolated_point_is_joined_to_the_last_measured_one_by_a_dashed_line() -> None:
    chart = learning_chart("Accuracy", [(10, 0.5), (20, 0.7)], (40, 0.8)).markup()

    lines = [path.attrib for path in parsed(chart).iter("path") if " L " in path.attrib["d"]]
    measured, _ = (line["d"] for line in lines if line["class"] == "s-accent")  # and the legend
    dashed, _ = (line["d"] for line in lines if "stroke-dasharray" in line)
    assert dashed.removeprefix("M ").split(" L ")[0] == measured.split(" L ")[-1]
