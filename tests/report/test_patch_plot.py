"""The figure of an image, its patches and its tokens: what is drawn where."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.report.test_plots import check_fit
from vitft.report import patch_plot
from vitft.report.patch_plot import (
    PatchTokens,
    cut_patches,
    draw_apart,
    draw_grid,
    draw_patch,
    patches_png,
    summary,
    token_matrices,
)
from vitft.report.plots import to_png

ROWS, COLUMNS, SIDE = 2, 3, 4


def tokens(patches: int = ROWS * COLUMNS, width: int = 5, **changes: Any) -> PatchTokens:
    """Return tokens whose values are their numbers."""
    values = np.arange(patches * width, dtype=np.float32).reshape(patches, width)
    usual = PatchTokens(
        grid=(ROWS, COLUMNS),
        projections=values,
        positions=-values,
        tokens=values + 1,
        prefix=("class token",),
        is_linear=True,
        has_bias=True,
        is_sum=True,
        channels=3,
    )
    return replace(usual, **changes)


def view(rows: int = ROWS, columns: int = COLUMNS, side: int = SIDE) -> Any:
    """Return an image whose patches have the grey values 10, 20, 30 and so on."""
    grey = 10 * (1 + np.arange(rows * columns, dtype=np.uint8)).reshape(rows, columns)
    return np.repeat(grey.repeat(side, axis=0).repeat(side, axis=1)[..., None], 3, axis=2)


def test_patches_are_cut_in_reading_order() -> None:
    image = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)

    patches = cut_patches(image, (2, 3))

    assert patches.shape == (6, 4, 4, 3)
    for index, patch in enumerate(patches):
        top, left = 4 * (index // 3), 4 * (index % 3)
        np.testing.assert_array_equal(patch, image[top : top + 4, left : left + 4])


def test_the_line_below_the_title_states_what_becomes_of_the_image() -> None:
    assert summary(view(), tokens()) == (
        "12 x 8 pixels become 6 tokens of 5 numbers, preceded by the class token"
    )
    assert summary(view(), tokens(prefix=())).endswith("numbers")


def test_each_patch_has_its_number_in_its_middle_and_one_is_framed() -> None:
    axes = Figure().subplots()

    draw_grid(axes, view(), (ROWS, COLUMNS), 4)

    texts: Any = {text.get_text(): text.get_position() for text in axes.texts}
    assert texts == {
        str(1 + i): (pytest.approx(i % 3 * 4 + 1.5), pytest.approx(i // 3 * 4 + 1.5))
        for i in range(6)
    }
    lines: Any = [(line.get_xdata(), line.get_ydata()) for line in axes.lines]
    horizontal = sorted(y[0] for x, y in lines if x[0] == 0)
    vertical = sorted(x[0] for x, y in lines if y[0] == 0)
    assert (horizontal, vertical) == ([3.5], [3.5, 7.5])
    (frame,) = (patch for patch in axes.patches if isinstance(patch, Rectangle))
    assert frame.get_xy() == (3.5, 3.5)
    assert (frame.get_width(), frame.get_height()) == (4, 4)
    assert axes.get_title().endswith("12 x 8 pixels")


def test_numbers_of_three_digits_are_smaller() -> None:
    sizes: list[Any] = []
    for rows in (9, 10):
        axes = Figure().subplots()
        draw_grid(axes, np.zeros((2 * rows, 20, 3), np.uint8), (rows, 10), 0)
        sizes += {text.get_fontsize() for text in axes.texts}

    two, three = sizes
    assert 7 < three < two == 11


@pytest.mark.parametrize(("rows", "shown"), [(20, 400), (21, 1)])
def test_numbers_that_do_not_fit_are_left_out_except_that_of_the_framed_patch(
    rows: int, shown: int
) -> None:
    axes = Figure().subplots()

    draw_grid(axes, np.zeros((2 * rows, 2 * rows, 3), np.uint8), (rows, rows), 7)

    assert len(axes.texts) == shown
    assert "8" in {text.get_text() for text in axes.texts}
    wide = Figure().subplots()
    draw_grid(wide, np.zeros((22, 460, 3), np.uint8), (1, 20), 7)  # 11 of 230 points per patch
    assert len(wide.texts) == 20


@pytest.mark.parametrize(("side", "scale", "gap"), [(4, 2, 1), (8, 1, 1), (16, 1, 2), (3, 3, 1)])
def test_patches_are_drawn_apart_at_their_places(side: int, scale: int, gap: int) -> None:
    axes = Figure().subplots()
    patches = cut_patches(view(side=side), (ROWS, COLUMNS))

    draw_apart(axes, patches, (ROWS, COLUMNS), 5)

    (image,) = axes.images
    mosaic = np.asarray(image.get_array())
    big = side * scale
    assert mosaic.shape[:2] == (2 * big + gap, 3 * big + 2 * gap)
    for index in range(6):
        top, left = index // 3 * (big + gap), index % 3 * (big + gap)
        assert (mosaic[top : top + big, left : left + big] == 10 * (index + 1)).all()
    assert (mosaic[big : big + gap] == 255).all()
    assert (mosaic[:, big : big + gap] == 255).all()
    (frame,) = axes.patches
    assert isinstance(frame, Rectangle)
    assert frame.get_xy() == (2 * (big + gap) - 0.5, big + gap - 0.5)
    assert (frame.get_width(), frame.get_height()) == (big, big)
    assert axes.get_title().endswith(f"2 x 3 = 6 patches of {side} x {side} pixels")


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({}, "3. Patch 5: 4 x 4 pixels x 3 colours = 48 numbers"),
        ({"channels": 1}, "3. Patch 5: 4 x 4 pixels = 16 numbers"),
        ({"is_linear": False}, "3. Patch 5: 4 x 4 pixels x 3 colours"),
    ],
)
def test_the_numbers_of_one_patch_are_counted(changes: dict[str, Any], title: str) -> None:
    axes = Figure().subplots()

    draw_patch(axes, cut_patches(view(), (ROWS, COLUMNS))[4], 4, tokens(**changes))

    assert axes.get_title() == title
    assert [*axes.get_xticks(minor=True)] == [0.5, 1.5, 2.5]
    assert [*axes.get_yticks(minor=True)] == [0.5, 1.5, 2.5]


@pytest.mark.parametrize(
    ("changes", "titles"),
    [
        ({}, ["4. Each patch times a 48 x 5 matrix, plus a bias",
              "5. Position embedding of each patch", "6. Tokens: the sum of both"]),
        ({"has_bias": False, "is_sum": False},
         ["4. Each patch times a 48 x 5 matrix", "5. Position embedding of each patch",
          "6. Tokens: the sum of both, normalised"]),
        ({"positions": None}, ["4. Each patch times a 48 x 5 matrix, plus a bias",
                               "5. Tokens: positions follow in each block"]),
        ({"is_linear": False}, ["4. Convolutions: 5 numbers at each patch",
                                "5. Position embedding of each patch",
                                "6. Tokens: the sum of both"]),
    ],
)  # fmt: skip
def test_the_matrices_are_numbered_and_named(changes: dict[str, Any], titles: list[str]) -> None:
    parts = tokens(**changes)

    matrices = token_matrices(parts, 48)

    assert [*matrices] == titles
    first, *_, last = matrices.values()
    assert first is parts.projections
    assert last is parts.tokens


def test_the_figure_frames_the_patch_with_the_most_contrast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures: list[Figure] = []

    def keep(figure: Figure) -> bytes:
        figures.append(figure)
        return to_png(figure)

    monkeypatch.setattr(patch_plot, "to_png", keep)
    image = view()
    image[5, 5] = 255  # in the fifth patch

    png = patches_png(image, tokens(), "the title")

    (figure,) = figures
    assert tuple(figure.get_size_inches()) == pytest.approx((11.5, 7.4))
    check_fit(figure)
    axes = {one.get_title(): one for one in figure.get_axes()}
    names = [title for title in axes if title]
    assert [name[:2] for name in names] == ["1.", "2.", "3.", "4.", "5.", "6."]
    assert names[2].startswith("3. Patch 5:")
    assert names[3].startswith("4. Each patch times a 48 x 5 matrix")
    for name, values in zip(names[3:], (tokens().projections, tokens().positions, tokens().tokens),
                            strict=True):  # fmt: skip
        (matrix,) = axes[name].images
        np.testing.assert_array_equal(np.asarray(matrix.get_array()), np.asarray(values).T)
        low, high = matrix.get_clim()
        assert (
            -low == high == pytest.approx(np.percentile(np.arange(31), 99.5), rel=0.05)
        )  # nearly all values are inside
        assert tuple(matrix.get_extent()) == (0.5, 6.5, 5.5, 0.5)
        (mark,) = axes[name].lines
        assert [float(x) for x in np.ravel(mark.get_xdata())] == [5]
    with Image.open(io.BytesIO(png), formats=["PNG"]) as opened:
        assert opened.size == (1380, 888)


@pytest.mark.parametrize(
    ("rows", "columns", "size"),
    [(4, 4, 11.0), (1, 16, 7.1875), (10, 10, 7.82), (14, 14, 5.585714), (20, 20, 5.0)],
)
def test_numbers_fill_half_a_patch_or_a_third_of_a_small_one(
    rows: int, columns: int, size: float
) -> None:
    axes = Figure().subplots()

    draw_grid(axes, np.zeros((rows, columns, 3), np.uint8), (rows, columns), 0)

    (found,) = {text.get_fontsize() for text in axes.texts}
    assert found == pytest.approx(size)
