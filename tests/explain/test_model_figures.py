"""Figures of a model: which are written, from which images, and the numbers that they show."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.explain.test_explainer import random_vit
from vitft.data.transforms import EvalTransform
from vitft.explain.attribution import trace_attention
from vitft.explain.model import ExplainedModel
from vitft.explain.model_figures import (
    attention_distance,
    patch_filters,
    position_similarity,
    write_model_figures,
)
from vitft.models.vit_config import RopeConfig, ViTConfig


@pytest.mark.parametrize("fields", [{}, {"registers": 2}, {"pool": "mean", "class_token": False}])
@torch.no_grad()
def test_attention_distance_is_the_mean_length_of_the_looks_of_a_head(
    tiny_config: ViTConfig, fields: dict[str, Any]
) -> None:
    model = random_vit(replace(tiny_config, image_size=(8, 16), **fields))
    batches = [torch.randn(2, 3, 8, 16), torch.randn(1, 3, 8, 16)]

    distance, count = attention_distance(model, batches)

    first = model.config.num_prefix
    places = [(4 * y, 4 * x) for y in range(2) for x in range(4)]
    expected = np.zeros((2, 2))
    for pixels in batches:
        for block, (maps, _) in enumerate(trace_attention(model, model.embed(pixels))):
            for image in range(len(pixels)):
                for head in range(2):
                    w = maps[image, head, first:, first:].double().numpy()
                    lengths = [[np.hypot(a - c, b - d) for c, d in places] for a, b in places]
                    expected[block, head] += ((w * lengths).sum(1) / w.sum(1)).mean() / 3
    assert count == 3
    assert distance == pytest.approx(expected, rel=1e-4)


def test_without_images_there_is_no_distance(tiny_config: ViTConfig) -> None:
    distance, count = attention_distance(random_vit(tiny_config), [])

    assert count == 0
    assert not distance.any()


@pytest.mark.parametrize("prefix", [True, False])
def test_similarity_of_positions_is_their_cosine(tiny_config: ViTConfig, prefix: bool) -> None:
    config = replace(tiny_config, image_size=(8, 16), registers=1, prefix_positions=prefix)
    table = torch.randn(1, 8 + 2 * prefix, 32)

    found = position_similarity(config, table)

    rows = table[0, 2 * prefix :].double().numpy()
    a, b = rows[1 * 4 + 3], rows[0 * 4 + 2]
    cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert found.shape == (2, 4, 2, 4)
    assert found[1, 3, 0, 2] == pytest.approx(cosine, abs=1e-5)


def test_filters_are_the_principal_components_of_the_projection(tiny_config: ViTConfig) -> None:
    model = random_vit(tiny_config)
    rows = model.patch_embed.proj.weight.detach().flatten(1).double().numpy()

    pictures, fractions = patch_filters(model)

    centred = rows - rows.mean(axis=0)
    values, directions = np.linalg.eigh(centred.T @ centred)
    assert fractions == pytest.approx((values / values.sum())[::-1][:28], abs=1e-5)
    assert pictures.shape == (28, 4, 4, 3)
    for i in (0, 5):
        direction = directions[:, -1 - i].reshape(3, 4, 4).transpose(1, 2, 0)
        low, high = direction.min(), direction.max()
        scaled = (direction - low) / (high - low)
        assert min(abs(pictures[i] - scaled).max(), abs(pictures[i] - (1 - scaled)).max()) < 1e-4
    assert len(patch_filters(model, 5)[0]) == len(patch_filters(model, 5)[1]) == 5


@pytest.mark.parametrize("channels", [1, 2])
def test_filters_of_other_channels_are_grey_means(tiny_config: ViTConfig, channels: int) -> None:
    model = random_vit(replace(tiny_config, in_channels=channels))

    pictures, _ = patch_filters(model, 1)

    rows = model.patch_embed.proj.weight.detach().flatten(1)
    direction = torch.linalg.svd(rows - rows.mean(dim=0))[2][0].view(channels, 4, 4).mean(dim=0)
    scaled = (direction - direction.min()) / (direction.max() - direction.min())
    assert np.ptp(pictures[0], axis=-1).max() == 0
    grey = pictures[0, :, :, 0]
    assert min(abs(grey - scaled.numpy()).max(), abs(grey - 1 + scaled.numpy()).max()) < 1e-4


def test_filters_of_a_hybrid_are_standardised_first(tiny_config: ViTConfig) -> None:
    config = replace(tiny_config, image_size=(32, 32), patch_size=(16, 16), stem=())
    model = random_vit(config)
    before, fractions = patch_filters(model)

    root: Tensor = model.patch_embed.backbone.get_parameter("conv.weight")
    with torch.no_grad():
        root.mul_(torch.rand(64, 1, 1, 1) + 0.5).add_(torch.randn(64, 1, 1, 1))
    after, others = patch_filters(model)

    rows = root.detach().flatten(1).double().numpy()  # (64, 3 * 7 * 7)
    rows = (rows - rows.mean(axis=1, keepdims=True)) / rows.std(axis=1, keepdims=True)
    values = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False) ** 2
    assert others == pytest.approx((values / values.sum())[:28], abs=1e-4)
    assert others == pytest.approx(fractions, abs=1e-4)
    assert min(abs(after[0] - before[0]).max(), abs(after[0] - 1 + before[0]).max()) < 1e-2


@pytest.fixture
def model(tiny_config: ViTConfig) -> ExplainedModel:
    transform = EvalTransform(image_size=(16, 16))
    return ExplainedModel(name="x", net=random_vit(tiny_config), transform=transform, classes=())


def draw(folder: Path, number: int) -> list[str]:
    random = np.random.default_rng(0)
    for i in range(number):
        image = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(image).save(folder / f"{i}.bmp")
    return [str(folder / f"{i}.bmp") for i in range(number)]


def test_figures_are_written_from_readable_images_and_the_others_reported(
    tmp_path: Path, model: ExplainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("filters", "positions"):
        monkeypatch.setattr(f"vitft.report.plots.{name}_png", lambda *_, **__: b"")
    images = draw(tmp_path, 2)
    (tmp_path / "bad.png").write_text("<html>")

    found = write_model_figures(model, [str(tmp_path / "bad.png"), *images], tmp_path / "a" / "b")
    nothing = write_model_figures(model, [str(tmp_path / "bad.png")], tmp_path / "c")

    assert found.names == ("filters.png", "positions.png", "distance.png")
    assert sorted(file.name for file in (tmp_path / "a" / "b").iterdir()) == sorted(found.names)
    assert [Path(error.path).name for error in found.failed] == ["bad.png"]
    assert nothing.names == ("filters.png", "positions.png")
    assert len(nothing.failed) == 1


def test_a_model_without_learned_positions_has_no_figure_of_them(
    tmp_path: Path, model: ExplainedModel, tiny_config: ViTConfig
) -> None:
    net = random_vit(replace(tiny_config, positions=False, rope=RopeConfig()))

    found = write_model_figures(replace(model, net=net), [], tmp_path / "out")

    assert found.names == ("filters.png",)


@pytest.mark.parametrize(
    ("number", "some"),
    [(1, [0]), (128, [*range(128)]), (255, [*range(128)]), (256, [*range(0, 256, 2)]),
     (1000, [*range(0, 896, 7)])],
)  # fmt: skip
def test_distances_are_averaged_over_at_most_128_images(
    tmp_path: Path,
    model: ExplainedModel,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    some: list[int],
) -> None:
    for name in ("filters", "positions"):
        monkeypatch.setattr(f"vitft.report.plots.{name}_png", lambda *_, **__: b"")
    read: list[int] = []

    def decode(paths: list[str], *_: object, **__: object) -> list[Any]:
        read.extend(map(int, paths))
        return []

    monkeypatch.setattr("vitft.explain.model_figures.decode_images", decode)

    write_model_figures(model, [str(i) for i in range(number)], tmp_path)

    assert read == some
