"""Small images and colour histograms."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import draw_folder
from vitft.config.sections import DataSpec, TrainSpec
from vitft.data.inspection import InspectedFile
from vitft.data.scan import scan
from vitft.study.features import (
    BASELINE_VIEW,
    BackboneFeatures,
    baseline_features,
    colour_histogram,
    load_source,
    small_image,
)
from vitft.study.plan import FeatureSource
from vitft.system.errors import DataError


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


def test_the_baselines_see_the_whole_image(tmp_path: Path) -> None:
    image = Image.new("RGB", (200, 50), (255, 0, 0))

    pixels = BASELINE_VIEW.pixels(image)

    assert pixels.shape == (128, 128, 3)
    assert (pixels == (255, 0, 0)).all()
    marked = image.copy()
    marked.paste((0, 0, 255), (0, 0, 25, 50))
    marked.paste((0, 0, 255), (175, 0, 200, 50))
    shown = BASELINE_VIEW.pixels(marked)
    assert (shown[:, 2] == (0, 0, 255)).all()
    assert (shown[:, 125] == (0, 0, 255)).all()


def inspected(root: Path) -> list[InspectedFile]:
    return [
        InspectedFile(file.path, file.label, "", f"{i:064}", 8, 8)
        for i, file in enumerate(scan(root).files)
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


def test_an_image_that_vanished_or_is_too_large_ends_the_study(tmp_path: Path) -> None:
    root = draw_folder(tmp_path / "colours", per_class=2)
    folder, files = scan(root), inspected(root)

    with pytest.raises(DataError):
        baseline_features(folder, files, max_pixels=479)  # of 20 x 24
    assert len(baseline_features(folder, files, max_pixels=480)["pixels"]) == 6
    (root / files[3].path).unlink()
    with pytest.raises(DataError, match=files[3].path):
        baseline_features(folder, files, max_pixels=480)


def test_random_weights_follow_the_seed(tiny_weights: Path) -> None:
    name = f"random:{tiny_weights}"

    first, again, other = (load_source(name, 3, seed=seed)[0] for seed in (0, 0, 1))

    weights = [next(iter(model.parameters())) for model in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_features_of_a_backbone_are_computed_once(
    tmp_path: Path, tiny_weights: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = scan(draw_folder(tmp_path / "colours", per_class=2))
    train = TrainSpec(device="cpu", cache=str(tmp_path / "cache"))
    source = FeatureSource(name="tiny", weights=str(tiny_weights))

    def load() -> BackboneFeatures:
        return BackboneFeatures(folder, DataSpec(), train, source, allow_pickle=False)

    with caplog.at_level("INFO"):
        first = load()
        files = first.inspect().good
        rows = first.rows(files)
    assert "tiny: 32-dimensional features, computed on cpu" in caplog.text
    assert "from the cache" not in caplog.text
    caplog.clear()
    with caplog.at_level("INFO"):
        again = load()
        assert again.inspect().good == files
        assert torch.equal(again.rows(files), rows)
    assert "features from the cache: 6 of 6 images" in caplog.messages
    assert rows.shape == (6, 32)
    assert torch.equal(load().rows(files[::-1]), rows.flip(0))


def test_without_an_inspection_the_rows_are_computed_and_a_lost_image_is_named(
    tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = draw_folder(tmp_path / "colours", per_class=2)
    source = FeatureSource(name="tiny", weights=str(tiny_weights))

    def load(cache: str) -> BackboneFeatures:
        train = TrainSpec(device="cpu", cache=str(tmp_path / cache))
        return BackboneFeatures(scan(root), DataSpec(), train, source, allow_pickle=False)

    one = load("one")
    files = one.inspect().good
    capsys.readouterr()
    two = load("two")
    assert torch.equal(two.rows(files), one.rows(files))
    assert "computing features: 6/6" in capsys.readouterr().err
    (root / files[3].path).unlink()
    with pytest.raises(DataError, match=files[3].path):
        load("three").rows(files)
