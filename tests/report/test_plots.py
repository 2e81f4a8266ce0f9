"""Text in figures drawn with matplotlib."""

import io
import itertools
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.font_manager import fontManager
from PIL import Image

pytest.importorskip("matplotlib")

from matplotlib import colormaps
from matplotlib.figure import Figure

from tests.support.limits import HANG_S
from tests.support.run_files import make_run
from vitft.report import comparison_plot, plots
from vitft.report.comparison import RunComparison, compare_runs
from vitft.report.comparison_plot import draw_comparison
from vitft.report.plots import (
    AccuracyCurve,
    accuracy_curves_png,
    distance_png,
    drawable,
    filters_png,
    positions_png,
    to_png,
)
from vitft.report.run_files import read_run
from vitft.system import console

FIGURES = Path(__file__).parents[2] / "docs" / "figures.py"


def test_text_of_any_script_is_drawn_or_escaped_but_never_as_boxes() -> None:
    text, families = drawable("Löwenzahn وردة\nЖук \U0010fffd")  # no font has the last character

    assert text == "Löwenzahn وردة\nЖук \\U0010fffd"
    assert families[0] == "DejaVu Sans"


def test_a_character_that_no_font_has_is_reported_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "family_with", lambda c: "" if c in "数字" else "DejaVu Sans")
    plots.warn_of_missing_font.cache_clear()

    for _ in range(2):
        assert drawable("数字 x")[0] == r"\u6570\u5b57 x"

    (record,) = caplog.records
    assert r"codes such as \u6570, because no font on this machine has 数字:" in record.getMessage()


def test_a_font_installed_after_the_list_was_cached_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: list[str] = []
    own = fontManager.ttflist[0].fname
    monkeypatch.setattr(plots, "findSystemFonts", lambda: [own, "/new/cjk.ttc"])
    monkeypatch.setattr(fontManager, "addfont", added.append)
    plots.add_new_fonts.cache_clear()

    plots.add_new_fonts()

    assert added == ["/new/cjk.ttc"]
    plots.add_new_fonts.cache_clear()


def test_a_figure_with_names_of_any_script_has_no_missing_glyphs() -> None:
    curve = AccuracyCurve(
        name="蒲公英 وردة",
        accuracies=[0.5, 0.8],
        intervals=[(0.4, 0.6), (0.7, 0.9)],
        is_baseline=False,
    )

    png = accuracy_curves_png([1, 2], [curve], majority=0.2, title="牡丹", detail="d")

    assert Image.open(io.BytesIO(png), formats=["PNG"]).width > 600  # a warning would be an error


def test_the_figures_of_the_lesson_name_the_runs_that_are_missing(tmp_path: Path) -> None:
    command = [sys.executable, str(FIGURES), str(tmp_path), str(tmp_path / "figures")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)

    assert done.returncode == 2
    assert f"no finished run {tmp_path / 'digits'}, " in done.stderr
    assert str(tmp_path / "post") in done.stderr
    assert not (tmp_path / "figures").exists()


def test_the_figure_of_norms_says_which_training_seeds_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw_norms = runpy.run_path(str(FIGURES))["draw_norms"]
    rows = "".join(f'{{"epoch": {epoch}, "val_top1": 0.5}}\n' for epoch in (1, 2))
    for name in ("pre", "post", "pre1", "post1", "pre2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(rows)
        (tmp_path / name / "eval.json").write_text("{}")

    draw_norms(tmp_path, tmp_path)

    first, second = capsys.readouterr().out.splitlines()
    assert first == str(tmp_path / "teach_norm.svg")
    assert second.endswith(f"no run {tmp_path / 'post2'}")


def test_a_white_filter_has_a_frame() -> None:
    png = filters_png(np.ones((2, 2, 2, 3), np.float32), np.full(2, 0.5, np.float32), "m")

    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    rows = pixels[len(pixels) // 2 :]  # below the title
    assert (rows.min(axis=-1) < 200).any(axis=0).sum() > 100


def test_the_heads_in_the_figure_of_distances_have_a_legend() -> None:
    distance = np.full((3, 4), np.arange(2, 6), np.float32)

    png = distance_png(distance, images=5, uniform=3.0, title="m")

    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    legend = pixels[:, round(0.8 * pixels.shape[1]) :].reshape(-1, 3)
    for colour in colormaps["viridis"](np.linspace(0, 0.95, 4)):
        wanted = np.round(255 * colour[:3])
        assert (np.abs(legend - wanted).max(axis=-1) <= 2).any()


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


@pytest.mark.parametrize(
    ("number", "rows", "columns"), [(3, 1, 3), (7, 1, 7), (8, 2, 7), (15, 3, 7)]
)
def test_filters_are_drawn_in_rows_of_seven(
    figures: list[Any], number: int, rows: int, columns: int
) -> None:
    components = np.random.default_rng(0).random((number, 2, 2, 3)).astype(np.float32)

    png = filters_png(components, np.full(number, 0.05, np.float32), "m")

    (figure,) = figures
    drawn = [axes for axes in figure.get_axes() if axes.images]
    assert len(figure.get_axes()) == rows * columns
    for axes, component in zip(drawn, components, strict=True):
        np.testing.assert_array_equal(np.asarray(axes.images[0].get_array()), component)
    assert all(not axes.axison for axes in figure.get_axes()[number:])
    assert title_of(figure) == [
        "m", f"first {number} principal components, {5 * number}% of the variance",
    ]  # fmt: skip
    size = 120 * (0.95 * columns + 0.3), 120 * (0.95 * rows + 0.9)
    assert Image.open(io.BytesIO(png)).size == pytest.approx(size, abs=1)


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


def test_the_axes_of_a_study_name_their_units_and_have_no_frame_beside_the_labels(
    figures: list[Any],
) -> None:
    accuracy_curves_png([1, 4], [curve("a", 0.5, 0.8)], majority=0.25, title="t", detail="d")

    (figure,) = figures
    assert tuple(figure.get_size_inches()) == pytest.approx((7.2, 4.6))
    (axes,) = figure.get_axes()
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "training images per class (log scale)"
    assert axes.get_ylabel() == "accuracy on test images (%)"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "4"]
    assert [*axes.get_xticks(minor=True)] == []
    assert visible_sides(axes) == ["bottom", "left"]
    grids = [[tick.gridline for tick in a.get_major_ticks()] for a in (axes.xaxis, axes.yaxis)]
    assert [{line.get_visible() for line in lines} for lines in grids] == [{False}, {True}]
    assert axes.get_axisbelow() is True
    majority, line = axes.lines
    assert (majority.get_linestyle(), majority.get_linewidth()) == (":", 1)
    assert (line.get_linewidth(), line.get_markersize()) == (1.8, 5)
    assert [text.get_color() for text in axes.texts] == [line.get_color(), majority.get_color()]
    assert {(text.get_fontsize(), text.get_va()) for text in axes.texts} == {(8.5, "center")}
    (band,) = axes.collections
    assert band.get_alpha() == 0.13  # lines and other bands are seen through it
    assert figure.get_facecolor() == (1, 1, 1, 1)


def test_names_in_a_figure_are_text_without_control_characters(figures: list[Any]) -> None:
    name = "$a_1$\x1b[2J"

    accuracy_curves_png([1, 4], [curve(name, 0.5, 0.8)], majority=0.25, title=name, detail="d")

    (axes,) = figures[0].get_axes()
    label, title = axes.texts[0], figures[0]._suptitle
    assert label.get_text() == console.visible(name)
    assert title.get_text() == f"{console.visible(name)}\nd"
    assert "\x1b" not in label.get_text()
    assert (label.get_parse_math(), title.get_parse_math()) == (False, False)
    assert title.get_fontsize() == 10


def test_labels_at_the_ends_of_lines_are_a_line_apart(figures: list[Any]) -> None:
    curves = [curve(str(i), 0.5, 0.6 + i / 500) for i in range(4)]

    accuracy_curves_png([1, 4], curves, majority=0.25, title="t", detail="d")

    (figure,) = figures
    figure.draw_without_rendering()
    boxes = sorted(
        (text.get_window_extent() for text in figure.get_axes()[0].texts), key=lambda b: b.y0
    )
    gaps = [b.y0 - a.y0 for a, b in itertools.pairwise(boxes)][-3:]
    assert all(8.5 <= gap * 72 / figure.dpi <= 2 * 8.5 for gap in gaps)


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


def test_a_warning_names_at_most_ten_missing_characters(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "family_with", lambda c: "" if ord(c) > 0x4E00 else "DejaVu Sans")
    plots.warn_of_missing_font.cache_clear()

    drawable("".join(chr(0x4E01 + i) for i in range(12)))

    (record,) = caplog.records
    assert sum(ord(c) > 0x4E00 for c in record.getMessage()) == 10


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


def test_a_row_per_run_shows_its_accuracy_and_interval(tmp_path: Path, figures: list[Any]) -> None:
    long = "run-" + "x" * 30
    comparison = compared(tmp_path, "a", long, "c", epochs=False)

    draw_comparison(comparison, tmp_path / "figure.png")

    (axes,) = figures[0].get_axes()
    for row, (accuracy, bounds) in enumerate(comparison.accuracies):
        line, point = axes.lines[2 * row : 2 * row + 2]
        assert (tuple(line.get_xdata()), {*line.get_ydata()}) == (bounds, {row})
        assert ([*point.get_xdata()], [*point.get_ydata()]) == ([accuracy], [row])
        assert line.get_color() == point.get_color()
    assert len({line.get_color() for line in axes.lines}) == 3
    assert axes.get_ylim() == (2.5, -0.5)  # the first run is on top
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["A  a", f"B  ...{long[-23:]}", "C  c"]
    assert title_of(figures[0])[1] == "accuracy on 12 shared validation images, with 95% intervals"
    assert len(axes.get_xticks()) <= 8
    assert tuple(figures[0].get_size_inches()) == pytest.approx((6.4, 2.4))


def test_curves_are_drawn_if_two_runs_have_any(tmp_path: Path, figures: list[Any]) -> None:
    draw_comparison(compared(tmp_path, "a", "b", "c"), tmp_path / "figure.png")
    draw_comparison(compared(tmp_path / "one", "a", "b"), tmp_path / "one.png")

    accuracies, curves = figures[0].get_axes()
    assert len(figures[1].get_axes()) == 1
    assert [[*line.get_xdata()] for line in curves.lines] == [[1, 2, 3]] * 2
    np.testing.assert_allclose(curves.lines[0].get_ydata(), [0.4, 0.7, 0.8])
    assert [line.get_color() for line in curves.lines] == [
        accuracies.lines[2 * row].get_color() for row in range(2)
    ]
    assert [text.get_text() for text in curves.get_legend().get_texts()] == ["A  a", "B  b"]
    assert tuple(figures[0].get_size_inches()) == pytest.approx((10.5, 3.2))


@pytest.mark.parametrize(("epochs", "has_markers"), [(24, True), (25, False)])
def test_long_curves_of_runs_have_no_markers(epochs: int, *, has_markers: bool) -> None:
    axes = Figure().subplots()
    points = [(float(i), 0.5) for i in range(epochs)]

    comparison_plot.draw_curves(axes, ["A", "B", "C"], [points, [], points])

    assert [line.get_marker() not in ("", "None") for line in axes.lines] == [has_markers] * 2
    assert axes.lines[1].get_color() == comparison_plot.look(2)[0]


def test_colours_and_markers_of_runs_repeat() -> None:
    looks = [comparison_plot.look(row) for row in range(8)]

    assert len({*looks[:7]}) == 7
    assert looks[7] == looks[0]


def test_a_font_with_a_character_is_searched_among_all_and_newly_installed_fonts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Font:
        def __init__(self, characters: str) -> None:
            self.characters = characters

        def get_char_index(self, code: int) -> int:
            return int(chr(code) in self.characters)

    fonts = {"default": "a", "b": "字x", "c": "字", "d": "字数", "e": "", "f": "新"}
    listed = [
        SimpleNamespace(name=name, fname=path, style=style)
        for name, path, style in (
            *(("Zeta", "d", "normal"), ("Beta", "c", "normal"), ("Alpha", "b", "italic")),
            ("STIX General", "b", "normal"),
        )
    ]
    manager = SimpleNamespace(ttflist=listed, findfont=lambda _: "default")
    new = SimpleNamespace(name="New", fname="f", style="normal")
    monkeypatch.setattr(plots, "fontManager", manager)
    monkeypatch.setattr(plots, "get_font", lambda path: Font(fonts[path]))
    monkeypatch.setattr(plots, "add_new_fonts", lambda: listed.extend([new] * (new not in listed)))
    plots.family_with.cache_clear()

    assert [plots.family_with(c) for c in "a字数x新?"] == [
        plots.DEFAULT_FONT, "Beta", "Zeta", "", "New", "",
    ]  # fmt: skip
    plots.family_with.cache_clear()
