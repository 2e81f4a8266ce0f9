"""Text in figures drawn with matplotlib."""

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("matplotlib")

from matplotlib import font_manager
from matplotlib.figure import Figure

from tests.support.children import python
from tests.support.run_files import make_run
from vitft.report import (
    RunComparison,
    accuracy_curves_png,
    compare_runs,
    distance_png,
    draw_comparison,
    drawable,
    filters_png,
    positions_png,
    read_run,
)


def test_text_of_any_script_is_drawn_or_escaped_but_never_as_boxes() -> None:
    text, families = drawable("Löwenzahn وردة\nЖук \U0010fffd")  # no font has the last character

    assert text == "Löwenzahn وردة\nЖук \\U0010fffd"
    assert families[0] == "DejaVu Sans"


@pytest.mark.long
def test_a_font_that_matplotlib_has_not_listed_yet_is_used(tmp_path: Path) -> None:
    font = pytest.importorskip("fontTools.ttLib").TTFont(font_manager.findfont("DejaVu Sans"))
    for table in (one for one in font["cmap"].tables if one.format == 12):
        table.cmap[0x10FFFD] = "A"
    font.save(tmp_path / "later.ttf")

    done = python(
        "import sys; from matplotlib import font_manager; from vitft.report import drawable\n"
        "font_manager.X11FontDirectories.append(sys.argv[1]); print(drawable(chr(0x10FFFD))[0])",
        tmp_path,
    )

    assert done.stdout == "\U0010fffd\n", done.stderr


def test_a_figure_with_names_of_any_script_has_no_missing_glyphs() -> None:
    curve = ("蒲公英 وردة", [0.5, 0.8], [(0.4, 0.6), (0.7, 0.9)], False)

    png = accuracy_curves_png([1, 2], [curve], majority=0.2, title="牡丹", detail="d")

    assert Image.open(io.BytesIO(png), formats=["PNG"]).width > 600  # a warning would be an error


# what is drawn -----------------------------------------------------------------------------------


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved."""
    found: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *arguments: Any, **options: Any) -> None:
        found.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return found


@pytest.mark.parametrize(("rows", "columns", "gap"), [(4, 4, 1), (24, 20, 2)])
def test_maps_of_positions_have_gaps_between_them(
    figures: list[Any], rows: int, columns: int, gap: int
) -> None:
    positions_png(np.zeros((rows, columns, rows, columns), np.float32), "m")

    mosaic: Any = figures[0].get_axes()[0].images[0].get_array()
    assert mosaic.shape == (rows * (rows + gap) - gap, columns * (columns + gap) - gap)


def curve(name: str, *accuracies: float, is_baseline: bool = False) -> Any:
    return name, accuracies, [(a - 0.1, a + 0.05) for a in accuracies], is_baseline


def test_baselines_are_dashed_and_long_names_are_cut(figures: list[Any]) -> None:
    long = "a/very/long/path/to/the/weights.safetensors"
    curves = [curve("ours", 0.5, 0.8), curve("pixels", 0.2, 0.3, is_baseline=True)]

    accuracy_curves_png(
        [1, 4], [*curves, curve(long, 0.6, 0.7)], majority=0.25, title="t" * 80, detail="d"
    )

    (axes,) = figures[0].get_axes()
    assert [line.is_dashed() for line in axes.lines] == [False, True, False, True]
    (legend,) = figures[0].legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["ours", "pixels", f"...{long[-23:]}", "largest class"]
    assert figures[0].get_suptitle() == "t" * 69 + "...\nd"


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
