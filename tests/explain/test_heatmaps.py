"""Heat maps over images and overviews of attention heads."""

import numpy as np
import pytest
from PIL import Image

from vitft.explain.heatmaps import apply_colour_map, enlarged, heads_sheet, overlay, png_bytes


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

    few, many = heads_sheet(maps), heads_sheet(np.repeat(maps, 8, axis=1))
    deep = heads_sheet(np.repeat(maps, 8, axis=0))  # one row per head

    assert few.size == (66 + 3 * 116, 24 + 3 * 116)  # cells of 112 pixels
    assert many.size == (66 + 24 * 60, 24 + 3 * 60)  # cells of 56 pixels
    assert deep.size == many.size


@pytest.mark.parametrize("shape", [(3, 3, 10, 10), (1, 2, 4, 6), (12, 12, 14, 14)])
def test_the_overview_of_heads_is_at_least_as_large_as_asked_with_whole_pixels_per_patch(
    shape: tuple[int, int, int, int],
) -> None:
    maps = np.zeros(shape, np.float32)
    maps[-1, -1] = np.linspace(0.1, 1, maps[-1, -1].size).reshape(shape[2:])  # as many colours
    colours = apply_colour_map(maps[-1, -1]).round().astype(np.uint8)  # (gh, gw, 3)

    plain, large = heads_sheet(maps), heads_sheet(maps, 1000)

    assert min(large.size) >= 1000
    assert large.width / large.height == pytest.approx(plain.width / plain.height, rel=0.1)
    for sheet in (plain, large):
        pixels = np.asarray(sheet)
        areas = {int((pixels == colour).all(axis=-1).sum()) for colour in colours.reshape(-1, 3)}
        assert len(areas) == 1  # every patch is equally large
        assert areas.pop() ** 0.5 % 1 == 0


def test_the_overview_of_heads_has_a_legend_of_its_own_width() -> None:
    maps = np.random.default_rng(0).random((2, 3, 4, 4), np.float32)

    plain, legend = heads_sheet(maps, 600), heads_sheet(maps, 600, legend=True)

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
