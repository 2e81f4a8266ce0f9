"""Text in figures drawn with matplotlib."""

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from tests.support.run_files import make_run
from vitft.report import (
    AccuracyCurve,
    RunComparison,
    accuracy_curves_png,
    compare_runs,
    comparison_plot,
    distance_png,
    draw_comparison,
    drawable,
    filters_png,
    plots,
    positions_png,
    read_run,
    to_png,
)


def test_text_of_any_script_is_drawn_or_escaped_but_never_as_boxes() -> None:
    text, families = drawable("Löwenzahn وردة\nЖук \U0010fffd")  # no font has the last character

    assert text == "Löwenzahn وردة\nЖук \\U0010fffd"
    assert families[0] == "DejaVu Sans"


def test_a_figure_with_names_of_any_script_has_no_missing_glyphs() -> None:
    curve = AccuracyCurve(
        name="蒲公英 وردة",
        accuracies=[0.5, 0.8],
        intervals=[(0.4, 0.6), (0.7, 0.9)],
        is_baseline=False,
    )

    png = accuracy_curves_png([1, 2], [curve], majority=0.2, title="牡丹", detail="d")

    assert Image.open(io.BytesIO(png), formats=["PNG"]).width > 600  # a warning would be an error


# what is drawn -----------------------------------------------------------------------------------


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are drawn."""
    found: list[Any] = []

    def keep(figure: Any) -> bytes:
        found.append(figure)
        return to_png(figure)

    for module in (plots, comparison_plot):
        monkeypatch.setattr(module, "to_png", keep)
    return found


def title_of(figure: Any) -> list[str]:
    """Return the two lines of the title of a figure."""
    return str(figure.get_suptitle()).split("\n")


def visible_sides(axes: Any) -> list[str]:
    """Return the sides of the frame that are drawn, in alphabetical order."""
    return sorted(side for side, spine in axes.spines.items() if spine.get_visible())


@pytest.mark.parametrize(("rows", "columns", "gap"), [(2, 3, 1), (4, 4, 1), (24, 20, 2)])
def test_each_patch_has_its_map_at_its_position(
    figures: list[Any], rows: int, columns: int, gap: int
) -> None:
    similarity = np.arange((rows * columns) ** 2, dtype=np.float32)
    maps = similarity.reshape(rows, columns, rows, columns) / similarity.max()

    positions_png(maps, "m")

    axes = figures[0].get_axes()[0]
    mosaic = np.ma.filled(axes.images[0].get_array(), np.nan)
    assert mosaic.shape == (rows * (rows + gap) - gap, columns * (columns + gap) - gap)
    for i, j in ((0, 0), (1, 2), (rows - 1, columns - 1)):
        top, left = i * (rows + gap), j * (columns + gap)
        np.testing.assert_allclose(mosaic[top : top + rows, left : left + columns], maps[i, j])
    assert np.isnan(mosaic[rows : rows + gap]).all()
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == (
        [str(i) for i in range(rows)] if rows <= 8 else ["0", str(rows // 2), str(rows - 1)]
    )
    assert axes.get_yticks()[1] == pytest.approx(
        (1 if rows <= 8 else rows // 2) * (rows + gap) + rows / 2
    )
    assert axes.images[0].get_clim()[1] == 1
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("column of the patch", "row of the patch")
    assert visible_sides(axes) == []
    assert figures[0].get_axes()[1].get_ylabel() == "cosine similarity"
    assert title_of(figures[0]) == [
        "m", "similarity of each patch's position embedding to all others",
    ]  # fmt: skip
    assert tuple(figures[0].get_size_inches()) == pytest.approx(
        (6.4, {(2, 3): 3.44, (4, 4): 5.16, (24, 20): 6.192}[rows, columns])
    )


def test_distances_are_drawn_by_block_with_their_mean_and_that_of_uniform_attention(
    figures: list[Any],
) -> None:
    distance = np.array([[1, 5], [2, 4], [6, 7]], np.float32)

    distance_png(distance, images=1, uniform=9.0, title="m")
    distance_png(np.ones((17, 21), np.float32), images=2, uniform=0.5, title="m")

    (axes,), (deep,) = (figure.get_axes() for figure in figures[:2])
    assert tuple(figures[0].get_size_inches()) == pytest.approx((6.4, 4.4))
    uniform, mean = axes.lines
    assert {*uniform.get_ydata()} == {9.0}
    np.testing.assert_allclose(mean.get_ydata(), [3, 3, 6.5])
    for head, dots in enumerate(axes.collections):
        np.testing.assert_allclose(dots.get_offsets(), [(i, distance[i, head]) for i in range(3)])
    assert axes.get_ylim()[0] == 0
    assert axes.get_ylim()[1] >= 1.04 * 9
    distance_png(np.full((3, 2), 8.9, np.float32), images=2, uniform=9.0, title="m")
    assert figures[2].get_axes()[0].get_ylim()[1] >= 1.04 * 9
    assert [*axes.get_xticks()] == [0, 1, 2]
    assert [*deep.get_xticks()] == [*range(0, 17, 2)]
    assert title_of(figures[0])[1] == "mean over 1 image"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("block", "mean attention distance (pixels)")
    assert visible_sides(axes) == ["bottom", "left"]
    assert [line.get_linestyle() for line in axes.lines] == ["--", "-"]
    assert [figure.legends[0]._ncols for figure in figures[:2]] == [1, 2]  # 2 and 21 heads
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "uniform attention", "mean of heads", "head 0", "head 1",
    ]  # fmt: skip


def curve(name: str, *accuracies: float, is_baseline: bool = False) -> AccuracyCurve:
    return AccuracyCurve(
        name=name,
        accuracies=accuracies,
        intervals=[(a - 0.1, a + 0.05) for a in accuracies],
        is_baseline=is_baseline,
    )


def test_the_curves_of_a_study_are_drawn_in_percent_with_bands_and_labels(
    figures: list[Any],
) -> None:
    long = "a/very/long/path/to/the/weights.safetensors"
    curves = [curve("ours", 0.5, 0.8), curve("pixels", 0.2, 0.3, is_baseline=True),
              curve(long, 0.6, 0.7)]  # fmt: skip

    accuracy_curves_png([1, 4], curves, majority=0.25, title="t" * 80, detail="d")

    (axes,) = figures[0].get_axes()
    majority, ours, pixels, other = axes.lines
    assert {*majority.get_ydata()} == {25}
    for line, values in ((ours, [50, 80]), (pixels, [20, 30]), (other, [60, 70])):
        np.testing.assert_allclose(line.get_ydata(), values)
        np.testing.assert_allclose(line.get_xdata(), [1, 4])
    assert [line.get_linestyle() for line in (ours, pixels, other)] == ["-", "--", "-"]
    assert len({line.get_color() for line in axes.lines}) == 4
    assert len({line.get_marker() for line in (ours, pixels, other)}) == 3
    for band, values in zip(axes.collections, ([50, 80], [20, 30], [60, 70]), strict=True):
        (path,) = band.get_paths()
        assert path.vertices[:, 1].min() == pytest.approx(min(values) - 10)
        assert path.vertices[:, 1].max() == pytest.approx(max(values) + 5)
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["ours", "pixels", f"...{long[-23:]}", "largest class"]
    assert len(texts[2]) == 26
    assert axes.texts[0].xy[1] == pytest.approx(80, abs=3)
    assert (axes.get_xlim(), axes.get_ylim()) == (pytest.approx((1 / 1.12, 4 * 1.12)), (0, 100))
    assert title_of(figures[0]) == ["t" * 69 + "...", "d"]


@pytest.mark.parametrize(
    ("heights", "moved"),
    [
        ([50, 10], [50, 10]),
        ([50, 54], [47, 57]),
        ([54, 50], [57, 47]),
        ([50, 60], [50, 60]),
        ([1, 2], [0, 10]),
        ([99, 98, 97], [100, 90, 80]),
        ([40, 45, 53], [36, 46, 56]),
        ([50, 50, 50, 90], [40, 50, 60, 90]),
    ],
)
def test_labels_are_moved_apart_as_little_as_possible(
    heights: list[float], moved: list[float]
) -> None:
    assert plots.spread_apart(heights, 10) == pytest.approx(moved)


def check_fit(figure: Figure) -> None:
    """Check that the texts of a figure are inside it, legible and do not overlap."""
    figure.draw_without_rendering()
    width, height = figure.bbox.size
    texts = [*figure.texts]
    for axes in figure.get_axes():
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
    shown = [(t.get_text(), t.get_window_extent()) for t in texts if t.get_text().strip()]
    assert shown
    for text, box in shown:
        assert box.x0 >= -1, text
        assert box.x1 <= width + 1, text
        assert box.y0 >= -1, text
        assert box.y1 <= height + 1, text
    for (a, one), (b, other) in itertools.combinations(shown, 2):
        across = min(one.x1, other.x1) - max(one.x0, other.x0)
        down = min(one.y1, other.y1) - max(one.y0, other.y0)
        assert across <= 1 or down <= 2, (a, b)


def test_texts_of_figures_are_inside_and_do_not_overlap(tmp_path: Path, figures: list[Any]) -> None:
    curves = [curve(f"weights {i}", 0.5, 0.6 + i / 50) for i in range(2)]
    maps = np.random.default_rng(0).random((14, 14, 14, 14)).astype(np.float32)

    accuracy_curves_png([1, 8], curves, majority=0.25, title="title", detail="details")
    distance_png(np.ones((12, 12), np.float32), images=9, uniform=3.0, title="title")
    positions_png(maps, "title")
    filters_png(np.ones((28, 4, 4, 3), np.float32), np.full(28, 0.03, np.float32), "title")
    draw_comparison(compared(tmp_path, "a", "b", "c"), tmp_path / "figure.png")

    for figure in figures:
        check_fit(figure)


# comparisons -------------------------------------------------------------------------------------


def compared(tmp_path: Path, *names: str, epochs: bool = True) -> RunComparison:
    """Return the comparison of several runs, of which all but the last may log epochs."""
    runs = [
        read_run(make_run(tmp_path / name, seed=i, epochs=epochs and i < len(names) - 1))
        for i, name in enumerate(names)
    ]
    return compare_runs(runs)
