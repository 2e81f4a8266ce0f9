"""Small images and colour histograms."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import draw_folder
from vitft.data import Row, scan
from vitft.study import BASELINE_VIEW, baseline_features, colour_histogram, small_image


def test_an_image_is_shrunk_by_averaging_squares() -> None:
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:2, 2:4] = [[[255, 0, 51]]]
    pixels[0, 2, 0] = 0  # a quarter of one square

    found = small_image(pixels).reshape(32, 32, 3)

    assert found.dtype == np.float32
    assert found[0, 1] == pytest.approx([0.75, 0.0, 0.2])
    assert found.sum() == pytest.approx(0.95)


def test_a_colour_has_one_of_512_places() -> None:
    pixels = np.zeros((2, 2, 3), np.uint8)
    pixels[0, 0] = (31, 31, 31)  # still the darkest level
    pixels[0, 1] = (32, 64, 255)
    pixels[1, 0] = (255, 255, 255)

    found = colour_histogram(pixels)

    assert found.shape == (512,)
    assert found.dtype == np.float32
    assert {int(i): float(found[i]) for i in np.flatnonzero(found)} == {
        0: pytest.approx(np.sqrt(0.5)),
        1 * 64 + 2 * 8 + 7: 0.5,
        511: 0.5,
    }


def inspected(root: Path) -> list[Row]:
    return [
        Row(file.path, file.label, "", f"{i:064}", 8, 8) for i, file in enumerate(scan(root).rows)
    ]


def test_both_baselines_have_one_row_per_image_in_order(tmp_path: Path) -> None:
    root = draw_folder(tmp_path / "colours", per_class=2)
    files = inspected(root)

    found = baseline_features(scan(root), files, max_pixels=10**6)

    assert [*found] == ["pixels", "histogram"]
    assert found["pixels"].shape == (6, 32 * 32 * 3)
    assert found["histogram"].shape == (6, 512)
    assert found["pixels"].dtype == found["histogram"].dtype == torch.float32
    for i, file in enumerate(files):
        with Image.open(root / file.path) as image:
            pixels = BASELINE_VIEW.pixels(image.convert("RGB"))
        assert torch.equal(found["pixels"][i], torch.from_numpy(small_image(pixels)))
        assert torch.equal(found["histogram"][i], torch.from_numpy(colour_histogram(pixels)))
