"""The drawn flowers and the bundled weights, which were not trained on them."""

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.limits import HANG_S
from vitft.data.demo import (
    FLOWERS_BY_KIND,
    draw_demo,
    flower_image,
    flower_scene,
)
from vitft.models.checkpoint import build_model, load_checkpoint

WEIGHTS = Path(__file__).parents[2] / "weights" / "demo.safetensors"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.jpg"))
    }


def test_the_demo_is_an_image_folder_of_five_kinds(tmp_path: Path) -> None:
    draw_demo(tmp_path, per_class=2, size=48)

    files = sorted(tmp_path.rglob("*.*"))
    assert Counter(path.parent.name for path in files) == dict.fromkeys(FLOWERS_BY_KIND, 2)
    assert len(FLOWERS_BY_KIND) == 5
    assert {path.name for path in files} == {"0001.jpg", "0002.jpg"}
    for path in files:
        with Image.open(path) as image:
            assert (image.size, image.mode) == ((48, 48), "RGB")


PUBLISHED = {
    # Means of red, green and blue, and the box of the last bloom, of the first six images.
    "daisy": """
    154.84 118.63 102.28 32.36 42.05 84.31 93.65
    114.47 85.09 48.41 33.52 20.64 114.21 97.50
    161.99 128.78 144.89 -4.39 33.06 85.41 120.10
    85.04 67.55 77.54 42.25 24.91 104.16 76.06
    135.88 91.57 75.47 53.99 32.05 104.23 85.50
    193.15 154.77 115.05 50.89 64.46 107.48 116.87
    """,
    "poppy": """
    156.35 126.64 162.12 9.44 19.37 89.64 96.19
    218.41 192.23 148.22 44.25 43.61 90.84 117.22
    203.49 134.50 104.21 58.01 22.13 111.21 82.28
    160.18 161.09 142.67 43.56 32.97 130.07 127.08
    167.91 121.50 130.20 36.79 31.85 86.24 103.17
    99.39 88.23 66.14 35.41 24.25 88.31 109.05
    """,
    "rose": """
    202.32 169.48 117.54 5.61 -7.77 103.45 87.37
    133.33 164.39 181.54 44.49 7.25 105.65 78.14
    130.14 105.93 143.60 50.65 38.48 114.94 132.11
    160.01 124.78 155.19 17.51 8.77 95.70 92.50
    208.80 155.51 99.82 72.52 57.20 106.34 103.76
    129.75 78.64 92.01 20.55 48.43 84.31 97.99
    """,
    "sunflower": """
    161.57 143.29 101.29 32.51 8.69 116.35 97.13
    159.25 104.94 94.13 7.46 49.50 104.67 130.42
    182.83 160.64 113.22 30.40 24.96 123.82 100.55
    116.22 118.07 69.08 -0.45 2.44 81.60 76.82
    155.08 185.22 68.42 61.93 50.24 99.25 95.27
    126.41 90.38 79.97 14.92 21.76 80.79 86.45
    """,
    "tulip": """
    205.84 144.10 119.52 42.07 22.91 102.98 87.84
    143.46 150.16 169.64 62.09 13.57 98.84 64.37
    187.96 123.17 135.09 2.42 29.97 62.09 87.92
    149.90 86.77 83.48 54.63 24.28 110.07 108.03
    167.90 143.51 152.54 56.21 18.62 97.80 81.83
    218.46 154.30 72.24 14.64 33.81 67.50 102.09
    """,
}


@pytest.mark.parametrize("kind", FLOWERS_BY_KIND)
def test_the_flowers_are_those_from_which_the_published_results_come(kind: str) -> None:
    known = np.array(PUBLISHED[kind].split(), float).reshape(6, 7)
    for number, expected in enumerate(known, start=1):
        image, boxes = flower_scene(kind, number)

        found = [*np.asarray(image, float).mean(axis=(0, 1)), *boxes[-1]]

        # One pixel of another colour, as another rasteriser may draw it, changes a mean by 0.01.
        assert found == pytest.approx(expected, abs=0.02)
        assert image.size == (128, 128)
        assert flower_image(kind, number).tobytes() == image.tobytes()


def drawing(folder: Path) -> "subprocess.Popen[bytes]":
    """A process that draws the flowers in a folder."""
    code = (
        "from vitft.config.sections import DataSpec\nfrom vitft.data.demo import demo_data\n"
        "demo_data(DataSpec(path='demo'))"
    )
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen([sys.executable, "-c", code], cwd=folder, env=env)


def test_a_killed_command_leaves_no_partly_drawn_flowers(tmp_path: Path) -> None:
    process = drawing(tmp_path)
    while not [*tmp_path.rglob("*.jpg")]:
        time.sleep(0.05)
        assert process.poll() is None

    process.kill()

    assert process.wait(HANG_S) != 0
    assert not (tmp_path / "demo_flowers").exists()


def test_the_same_seed_draws_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("first", 3), ("again", 3), ("other", 4)):
        draw_demo(tmp_path / name, per_class=1, size=48, seed=seed)

    first, again, other = (contents(tmp_path / name) for name in ("first", "again", "other"))
    assert first == again
    assert first.keys() == other.keys()
    assert all(first[name] != other[name] for name in first)


def test_the_bundled_weights_separate_drawn_flowers_before_any_training() -> None:
    state, card = load_checkpoint(WEIGHTS)
    model = build_model({k: v.float() for k, v in state.items()}, card.architecture)
    pictures = [
        [torch.from_numpy(card.transform.pixels(flower_image(kind, n))) for n in range(12)]
        for kind in FLOWERS_BY_KIND
    ]
    with torch.no_grad():
        pixels = torch.stack([picture for row in pictures for picture in row])
        features = model(card.transform.normalise(pixels)).unflatten(0, (len(FLOWERS_BY_KIND), 12))

    # The nearest of five class means (first 8 pictures) for the last 4: chance is 0.2.
    means = features[:, :8].mean(dim=1)
    nearest = torch.cdist(features[:, 8:].flatten(0, 1), means).argmin(dim=1)
    right = nearest == torch.arange(len(FLOWERS_BY_KIND)).repeat_interleave(4)
    assert right.float().mean() >= 0.4
