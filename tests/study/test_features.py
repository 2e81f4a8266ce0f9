"""Small images and colour histograms."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitft.data import Row, scan
from vitft.study import baseline_features


def test_baselines_are_small_images_and_colours_in_one_of_512_places(tmp_path: Path) -> None:
    pixels = np.zeros((128, 128, 3), np.uint8)
    pixels[:, :64] = (31, 31, 31)  # still the darkest level
    pixels[:4, 124:] = (255, 0, 51)
    pixels[64:, 64:] = (32, 64, 255)
    for name in ("a/0.png", "b/1.png"):
        (tmp_path / name).parent.mkdir()
        Image.fromarray(pixels).save(tmp_path / name)
        pixels = pixels[::-1].copy()
    folder = scan(tmp_path)
    files = [Row(row.path, row.label, "", f"{i:064}", 8, 8) for i, row in enumerate(folder.rows)]

    found = baseline_features(folder, files, max_pixels=10**6)

    assert [*found] == ["pixels", "histogram"]
    small, colours = found["pixels"].view(2, 32, 32, 3), found["histogram"]
    assert small.dtype == colours.dtype == torch.float32
    assert small[0, 0, 31].tolist() == pytest.approx([1.0, 0.0, 0.2])  # squares of 4 pixels
    assert small[0, 20, 20].tolist() == pytest.approx([32 / 255, 64 / 255, 1.0])
    assert torch.equal(small[1], small[0].flip(0))
    places = {int(i): float(colours[0, i]) for i in torch.nonzero(colours[0])}
    assert places == {
        0: pytest.approx(np.sqrt(0.75 - 1 / 1024)),
        1 * 64 + 2 * 8 + 7: 0.5,
        7 * 64 + 1: pytest.approx(1 / 32),
    }
