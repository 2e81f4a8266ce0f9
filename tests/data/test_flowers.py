"""The drawn flowers and the bundled weights, which were not trained on them."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitft.config.sections import DataSpec
from vitft.data.demo import FLOWERS_BY_KIND, demo_data, draw_demo, flower_image
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


def test_a_drawn_folder_that_was_changed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = DataSpec(path="demo")
    assert [demo_data(spec).path for _ in range(2)] == ["demo_flowers"] * 2
    assert [record.levelname for record in caplog.records] == ["INFO"]
    Path("demo_flowers/daisy/0001.jpg").rename("demo_flowers/rose/wrong.jpg")

    demo_data(spec)

    _, record = caplog.records
    assert record.levelname == "WARNING"
    assert "images were added to demo_flowers/ or removed" in record.message


def test_the_same_seed_draws_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("first", 3), ("again", 3), ("other", 4)):
        draw_demo(tmp_path / name, per_class=1, size=48, seed=seed)

    first, again, other = (contents(tmp_path / name) for name in ("first", "again", "other"))
    assert first == again
    assert first.keys() == other.keys()
    assert all(first[name] != other[name] for name in first)


def test_drawing_more_images_does_not_change_the_first_ones(tmp_path: Path) -> None:
    draw_demo(tmp_path / "one", per_class=1, size=48)
    draw_demo(tmp_path / "two", per_class=2, size=48)

    assert contents(tmp_path / "one").items() <= contents(tmp_path / "two").items()


@pytest.mark.parametrize("kind", FLOWERS_BY_KIND)
def test_all_images_of_a_kind_differ(kind: str) -> None:
    pixels = [np.asarray(flower_image(kind, number, size=32)).tobytes() for number in range(6)]

    assert len(set(pixels)) == 6


def test_the_kinds_share_their_colours() -> None:
    # Mean colour over 12 pictures: between kinds it must differ less than within a kind.
    means = np.array(
        [
            [np.asarray(flower_image(kind, n, size=32)).mean(axis=(0, 1)) for n in range(12)]
            for kind in FLOWERS_BY_KIND
        ]
    )  # (kinds, pictures, 3)

    assert means.mean(axis=1).std(axis=0).max() < means.std(axis=1).min()


def test_the_bundled_weights_are_a_small_headless_backbone_with_its_origin() -> None:
    state, card = load_checkpoint(WEIGHTS)

    assert WEIGHTS.stat().st_size <= 6_000_000
    assert {tensor.dtype for tensor in state.values()} == {torch.bfloat16}
    assert card.architecture.num_classes == 0
    assert card.classes == ()
    assert card.transform.image_size == card.architecture.image_size
    assert (card.transform.mean, card.transform.std) == ((0.5,) * 3, (0.5,) * 3)
    assert card.weights["name"] == "demo"
    assert card.weights["licence"] == "Apache-2.0"


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
