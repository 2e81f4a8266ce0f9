"""Heat maps over images and overviews of attention heads."""

import numpy as np
import pytest
from PIL import Image

from vitft.explain.heatmaps import (
    SheetLayout,
    apply_colour_map,
    colour_bar,
    enlarged,
    heads_sheet,
    overlay,
    png_bytes,
    with_legend,
)


def test_an_overlay_is_bright_where_the_map_is_high_and_keeps_the_image() -> None:
    image = Image.new("RGB", (60, 40), (90, 90, 90))
    heat = np.zeros((4, 6), np.float32)
    heat[1, 4] = 1  # rows from the top, columns from the left: around pixel (45, 15)

    shown = overlay(image, heat)

    grey = np.asarray(shown.convert("L"), int)
    assert shown.size == (60, 40)
    assert np.unravel_index(grey.argmax(), grey.shape) == pytest.approx((15, 45), abs=5)
    assert grey[30:, :20].max() < 90  # dimmed elsewhere
    assert image.getcolors() == [(2400, (90, 90, 90))]


def test_the_colour_map_rises_in_luminance() -> None:
    light = apply_colour_map(np.linspace(0, 1, 101, dtype=np.float32)) @ (0.2126, 0.7152, 0.0722)

    assert (np.diff(light) > 0).all()


def test_the_overview_of_heads_has_a_cell_for_each_head_and_is_wide_enough_to_read() -> None:
    maps = np.random.default_rng(0).random((3, 3, 14, 14), np.float32)

    few, many = heads_sheet(maps, "attention"), heads_sheet(np.repeat(maps, 8, axis=1), "attention")
    deep = heads_sheet(np.repeat(maps, 8, axis=0), "attention")  # one row per head

    assert few.size == (66 + 3 * 116, 48 + 3 * 116)  # cells of 112 pixels
    assert many.size == (66 + 24 * 60, 48 + 3 * 60)  # cells of 56 pixels
    assert deep.size == many.size


@pytest.mark.parametrize("shape", [(3, 3, 10, 10), (1, 2, 4, 6), (12, 12, 14, 14)])
def test_the_overview_of_heads_is_at_least_as_large_as_asked_with_whole_pixels_per_patch(
    shape: tuple[int, int, int, int],
) -> None:
    maps = np.zeros(shape, np.float32)
    maps[-1, -1] = np.linspace(0.1, 1, maps[-1, -1].size).reshape(shape[2:])  # as many colours
    colours = apply_colour_map(maps[-1, -1]).round().astype(np.uint8)  # (gh, gw, 3)

    plain, large = heads_sheet(maps, "attention"), heads_sheet(maps, "attention", 1000)

    assert min(large.size) >= 1000
    assert large.width / large.height == pytest.approx(plain.width / plain.height, rel=0.1)
    for sheet in (plain, large):
        pixels = np.asarray(sheet)
        areas = {int((pixels == colour).all(axis=-1).sum()) for colour in colours.reshape(-1, 3)}
        assert len(areas) == 1  # every patch is equally large
        assert areas.pop() ** 0.5 % 1 == 0


def test_the_overview_of_heads_has_a_title_that_fits_and_names_below_it() -> None:
    maps = np.zeros((1, 1, 4, 4), np.float32)

    sheets = [heads_sheet(maps, title) for title in ("attention", "attention of tokens " * 5)]

    bands = [np.asarray(sheet)[:24].sum(axis=-1) < 500 for sheet in sheets]
    widths = [np.ptp(band.any(axis=0).nonzero()[0]) for band in bands]
    assert widths[0] < widths[1] < sheets[1].width - 4  # not cut off
    below = [np.asarray(sheet)[24:] for sheet in sheets]
    assert (below[0] == below[1]).all()


def test_the_overview_of_heads_has_a_legend_of_its_own_width() -> None:
    maps = np.random.default_rng(0).random((2, 3, 4, 4), np.float32)

    plain, legend = (
        heads_sheet(maps, "attention", 600),
        heads_sheet(maps, "attention", 600, legend=True),
    )

    assert legend.width == plain.width
    assert legend.crop((0, 0, *plain.size)).tobytes() == plain.tobytes()
    below = np.asarray(legend)[plain.height :].astype(int)
    bar = below[below.sum(axis=(1, 2)).argmin()]  # the darkest row
    assert bar[20].sum() < bar[-20].sum()


def test_a_png_carries_no_metadata_of_its_source() -> None:
    picture = Image.new("RGB", (8, 8))
    picture.info["comment"] = "secret"
    picture.info["exif"] = b"Exif\x00\x00secret"

    assert b"secret" not in png_bytes(picture)


@pytest.mark.parametrize(
    ("size", "shown"), [((8, 8), (224, 224)), ((64, 96), (256, 384)), ((300, 224), (300, 224))]
)
def test_small_overlays_are_enlarged(size: tuple[int, int], shown: tuple[int, int]) -> None:
    assert enlarged(Image.new("RGB", size)).size == shown


@pytest.mark.parametrize(
    ("value", "colour", "opacity"), [(0.0, (20, 8, 48), 0.45), (1.0, (252, 250, 160), 0.75)]
)
def test_the_ends_of_a_map_have_their_colour_and_opacity(
    value: float, colour: tuple[int, int, int], opacity: float
) -> None:
    image = Image.new("RGB", (6, 4), (100, 200, 0))

    shown = overlay(image, np.full((2, 3), value, np.float32))

    mixed = [
        round((1 - opacity) * own + opacity * other)
        for own, other in zip((100, 200, 0), colour, strict=True)
    ]
    assert np.abs(np.asarray(shown, int) - mixed).max() <= 1


def test_a_value_halfway_is_more_opaque_than_the_lowest() -> None:
    white = Image.new("RGB", (2, 2), (255, 255, 255))

    shown = np.asarray(overlay(white, np.full((1, 1), 0.5, np.float32)), int)[0, 0]

    middle = np.array([(168, 44, 96), (226, 92, 48)]).mean(
        axis=0
    )  # between the third and fourth of 6
    assert np.abs(shown - (255 * 0.4 + 0.6 * middle)).max() <= 1


def test_colours_are_interpolated_between_six_stops() -> None:
    found = apply_colour_map(np.array([0, 0.1, 0.2, 0.9, 1], np.float32))

    assert found.tolist() == pytest.approx(
        np.array([(20, 8, 48), (56, 14, 79), (92, 20, 110), (251, 208, 94), (252, 250, 160)]),
        abs=1e-3,
    )
    bar = np.asarray(colour_bar())
    assert bar.shape == (12, 256, 3)
    assert bar[0, 0].tolist() == [20, 8, 48]
    assert bar[11, 255].tolist() == [252, 250, 160]


@pytest.mark.parametrize(("side", "is_square"), [(63, True), (64, False)])
def test_only_images_below_64_pixels_show_their_pixels_as_squares(
    side: int, is_square: bool
) -> None:
    image = Image.new("L", (side, side))
    image.putpixel((5, 5), 255)

    large = enlarged(image)

    colours = {colour for _, colour in large.getcolors(100_000) or ()}
    assert (colours == {0, 255}) == is_square
    assert large.width == -(-224 // side) * side


@pytest.mark.parametrize(("side_px", "shown"), [(16, 16), (17, 32), (32, 32), (33, 48)])
def test_the_smallest_integer_factor_enlarges_an_image(side_px: int, shown: int) -> None:
    assert enlarged(Image.new("RGB", (16, 20)), side_px).size == (shown, shown * 20 // 16)


def test_a_legend_has_a_bar_from_the_lowest_to_the_highest_colour_and_a_name() -> None:
    picture = Image.new("RGB", (400, 50), (1, 2, 3))

    short = with_legend(picture, "relevance", 20)
    long = with_legend(picture, "a name that is too long for one line of text with its ends", 20)

    assert short.crop((0, 0, 400, 50)).tobytes() == picture.tobytes()
    assert (short.size, long.size) == ((400, 50 + 30 + 40), (400, 50 + 30 + 60))
    pixels = np.asarray(short)
    assert pixels[60, 10].tolist() == pixels[79, 10].tolist() == [20, 8, 48]
    assert pixels[60, 389].tolist() == [252, 250, 160]
    assert pixels[59, 100].tolist() == pixels[80, 100].tolist() == [255, 255, 255]
    assert pixels[70, 9].tolist() == pixels[70, 390].tolist() == [255, 255, 255]
    ink = (pixels[81:].sum(axis=-1) < 300).any(axis=0).nonzero()[0]
    assert ink.min() < 20
    assert ink.max() > 380
    assert ((ink > 150) & (ink < 250)).any()
    below = (np.asarray(long)[81:].sum(axis=-1) < 300).any(axis=1).nonzero()[0]
    assert below.max() > 30  # a second line
    assert with_legend(Image.new("RGB", (560, 9)), "x").height == 9 + 30 + 40  # 560 / 28 = 20
    assert with_legend(Image.new("RGB", (100, 9)), "x").height == 9 + 18 + 36  # at least 12


def test_a_name_that_is_too_long_for_its_line_is_smaller_and_leaves_the_margins_white() -> None:
    name = "relevance of each patch for the class, from lowest to highest"

    inked = {}
    for width in (200, 400, 440, 500):  # at its full size, the name has 439 pixels
        pixels = np.asarray(with_legend(Image.new("RGB", (width, 8)), name, 16))
        line = (pixels[-22:].sum(axis=-1) < 500).any(axis=0).nonzero()[0]
        assert 8 - 2 <= line.min() < line.max() < width - 8 + 2
        inked[width] = int(np.ptp(line))

    assert inked[200] < inked[400] < inked[440] < inked[500]
    assert inked[200] > 0.75 * (200 - 16)


@pytest.mark.parametrize(
    ("shape", "scale", "cell", "size"),
    [
        ((3, 3, 14, 14), 1.0, (112, 112), (66 + 3 * 116, 48 + 3 * 116)),
        ((2, 6, 14, 14), 1.0, (112, 112), (66 + 6 * 116, 48 + 2 * 116)),
        ((2, 7, 14, 14), 1.0, (98, 98), (66 + 7 * 102, 48 + 2 * 102)),
        ((2, 12, 14, 14), 1.0, (56, 56), (66 + 12 * 60, 48 + 2 * 60)),
        ((1, 24, 14, 7), 1.0, (28, 56), (66 + 24 * 32, 48 + 60)),
        ((1, 1, 10, 20), 1.0, (240, 120), (66 + 244, 48 + 124)),
        ((1, 1, 14, 14), 1.5, (168, 168), (99 + 174, 72 + 174)),
    ],
)
def test_lengths_of_a_sheet(
    shape: tuple[int, ...], scale: float, cell: tuple[int, int], size: tuple[int, int]
) -> None:
    layout = SheetLayout.of(shape, scale)

    assert (layout.cell, layout.size) == (cell, size)
    assert layout.font == round(12 * scale)
    assert layout.corner(0, 0) == (layout.left, layout.top)
    right, bottom = layout.corner(shape[0] - 1, shape[1] - 1)
    assert (right + cell[0] + layout.gap, bottom + cell[1] + layout.gap) == size


@pytest.mark.parametrize(("blocks", "heads"), [(2, 3), (3, 3), (4, 3)])
def test_each_map_of_a_sheet_is_in_the_row_and_column_of_its_block_and_head(
    blocks: int, heads: int
) -> None:
    maps = np.linspace(0, 1, blocks * heads, dtype=np.float32).reshape(blocks, heads, 1, 1)
    maps = np.ascontiguousarray(np.broadcast_to(maps, (blocks, heads, 2, 2)))

    pixels = np.asarray(heads_sheet(maps, "attention"), int)

    shape = (heads, blocks) if blocks > heads else (blocks, heads)
    layout = SheetLayout.of((*shape, 2, 2), 1.0)
    for block in range(blocks):
        for head in range(heads):
            place = (head, block) if blocks > heads else (block, head)
            left, top = layout.corner(*place)
            colour = apply_colour_map(maps[block, head, :1, :1])[0, 0]
            width, height = layout.cell
            shown = pixels[top : top + height, left : left + width].reshape(-1, 3)
            assert np.abs(shown - colour).max() <= 1
            gap = pixels[top : top + height, left + width : left + width + layout.gap]
            assert (gap == 255).all()
    for row in range(shape[0]):
        top = layout.corner(row, 0)[1]
        names = pixels[top : top + layout.cell[1], : layout.left - 1]
        assert (names.sum(axis=-1) < 300).any()
    for column in range(shape[1]):
        left = layout.corner(0, column)[0]
        assert (pixels[: layout.top, left : left + layout.cell[0]].sum(axis=-1) < 300).any()
    assert (pixels[: layout.top, : layout.left] == 255).all()
