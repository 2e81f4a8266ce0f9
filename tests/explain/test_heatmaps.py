"""Heat maps over images and overviews of attention heads."""

import numpy as np
import pytest
from PIL import Image

from vitft.explain import overlay


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
    black, ramp = Image.new("RGB", (21, 1)), np.linspace(0, 1, 21, dtype=np.float32)[None]

    light = np.asarray(overlay(black, ramp), float)[0] @ (0.2126, 0.7152, 0.0722)

    assert (np.diff(light) > 0).all()


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
