"""Attribution maps of timm models."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.models.test_timm_blocks import images, random_timm
from vitft.cli.main import main
from vitft.data.transforms import EvalTransform
from vitft.explain.attribution import explain, relevance_map
from vitft.explain.feature_maps import Layout, feature_relevance, find_layout
from vitft.explain.method import Method
from vitft.models.card import Card
from vitft.models.checkpoint import save_checkpoint
from vitft.models.timm_config import TimmConfig
from vitft.models.timm_model import TimmModel
from vitft.system.errors import UsageError

GRIDS = {
    "test_resnet": (8, 8),
    "test_convnext": (8, 8),
    "test_efficientnet": (8, 8),
    "mobilevit_xxs": (8, 8),
    "hrnet_w18_small": (2, 2),
    "vit_tiny_r_s16_p8_224": (2, 2),
    "eva02_tiny_patch14_224": (4, 4),
    "poolformer_s12": (8, 8),
}
"""Architectures with the grids of their maps for images of 64 pixels."""


@pytest.mark.parametrize(("name", "grid"), GRIDS.items(), ids=[*GRIDS])
def test_each_structure_gets_a_map_of_the_class(name: str, grid: tuple[int, int]) -> None:
    model = random_timm(name)
    pixels = images(model)

    found = [explain(model, pixels, Method(), torch.full((3,), i)) for i in range(3)]

    assert found[0].values.shape == (3, *grid)
    assert min(one.values.min() for one in found) >= 0
    assert max(one.values.max() for one in found) > 0
    assert any(not np.allclose(one.values, found[0].values) for one in found[1:])
    with torch.no_grad():
        expected = model(pixels).numpy()
    assert found[0].logits == pytest.approx(expected, abs=1e-4 * float(np.abs(expected).max()))


def test_without_a_class_the_predicted_one_is_explained() -> None:
    model = random_timm("test_resnet")
    pixels = images(model)

    found = relevance_map(model, pixels)

    assert np.array_equal(found, relevance_map(model, pixels, model(pixels).argmax(dim=-1)))
    assert found.min() == 0


def test_where_the_head_averages_positions_the_map_is_grad_cam() -> None:
    model = random_timm("test_resnet", side=192)
    pixels = images(model)
    with torch.no_grad():
        features = model.net.forward_features(pixels)  # (B, D, 6, 6)
        expected = torch.einsum("bdij,d->bij", features, model.head.get_parameter("weight")[1]) / 36

    found, _ = feature_relevance(model, pixels, torch.ones(3, dtype=torch.long))

    assert torch.allclose(found, expected.clamp(min=0), atol=1e-4)


@pytest.mark.parametrize(
    ("side", "grid"), [(192, (6, 6)), (160, (10, 10)), (64, (8, 8)), (32, (8, 8))]
)
def test_the_last_map_with_six_rows_and_columns_is_used(side: int, grid: tuple[int, int]) -> None:
    model = random_timm("test_resnet", side=side)

    found, _ = feature_relevance(model, images(model, 1))

    assert found.shape == (1, *grid)


def test_an_earlier_map_shows_what_differs_from_the_rest_of_the_image() -> None:
    model = random_timm("test_resnet")  # 64 pixels
    flat = torch.zeros(1, 3, 64, 64)
    picture = flat.clone()
    picture[0, :, 40:, 40:] = torch.randn(3, 24, 24, generator=torch.Generator().manual_seed(0))

    found, _ = feature_relevance(model, picture, torch.tensor([0]))

    share = found[0, 4:, 4:].sum() / found.sum()
    assert share > 0.35  # in a quarter of the image


@pytest.mark.parametrize(("height", "width"), [(128, 64), (64, 128)])
def test_the_grid_has_the_aspect_of_the_images(height: int, width: int) -> None:
    config = TimmConfig(timm="test_vit", image_size=(height, width), num_classes=3, sized=True)
    model = TimmModel(config).eval()

    found, _ = feature_relevance(model, torch.randn(1, 3, height, width))

    assert found.shape == (1, height // 16, width // 16)


@pytest.mark.parametrize("name", ["test_vit", "test_convnext"])
def test_an_earlier_map_is_weighted_by_the_gradients_of_its_structure(name: str) -> None:
    """Tokens have gradients of their own; channels of a map have that of their mean."""
    model = random_timm(name)
    pixels, target = images(model), torch.tensor([0, 1, 0])
    kept: list[torch.Tensor] = []
    blocks = [m for m in model.net.modules() if type(m).__name__ in ("Block", "ConvNeXtBlock")]
    for block in blocks:
        block.register_forward_hook(lambda *args: kept.append(args[-1]))

    found, _ = feature_relevance(model, pixels, target)
    with torch.enable_grad():
        kept.clear()
        score = model(pixels.requires_grad_()).gather(1, target[:, None]).sum()
        gradients = torch.autograd.grad(score, kept, allow_unused=True)
    expected = []
    for values, gradient in zip(kept, gradients, strict=True):
        if gradient is None:
            continue
        if values.ndim == 3:
            centred = values - values[:, -16:].mean(dim=1, keepdim=True)
            expected.append((centred * gradient).sum(2)[:, -16:].clamp(min=0).view(3, 4, 4))
        else:
            mean = (2, 3)
            centred = values - values.mean(mean, keepdim=True)
            expected.append((centred * gradient.mean(mean, keepdim=True)).sum(1).clamp(min=0))

    assert any(
        one.shape == found.shape and torch.allclose(one.detach(), found, atol=1e-6)
        for one in expected
    )


def test_a_map_that_only_the_class_token_reads_is_taken_before_the_last_block() -> None:
    model = random_timm("test_vit")  # class token

    found, _ = feature_relevance(model, images(model))

    assert found.shape == (3, 4, 4)
    assert bool(found.any(dim=2).any(dim=1).all())


def test_the_map_lies_where_the_only_evidence_is() -> None:
    model = random_timm("test_convnext", side=128)
    blank = images(model, 1) * 0

    def outside(part: tuple[slice, slice]) -> Tensor:
        picture = blank.clone()
        picture[0, :, part[0], part[1]] = 3
        plain, _ = feature_relevance(model, blank, torch.tensor([0]))
        found, _ = feature_relevance(model, picture, torch.tensor([0]))
        return (found - plain).abs()[0]

    changed = outside((slice(0, 40), slice(0, 40)))

    assert changed[:2, :2].sum() > changed[2:, 2:].sum()


@pytest.mark.parametrize(
    ("shape", "size", "layout"),
    [
        ((1, 512, 7, 7), (224, 224), Layout(1, 0, (7, 7))),
        ((1, 7, 7, 768), (224, 224), Layout(3, 0, (7, 7))),
        ((1, 768, 4, 7), (128, 224), Layout(1, 0, (4, 7))),
        ((1, 197, 384), (224, 224), Layout(2, 1, (14, 14))),
        ((1, 196, 384), (224, 224), Layout(2, 0, (14, 14))),
        ((1, 8, 384), (32, 64), Layout(2, 0, (2, 4))),
        ((1, 16, 196, 128), (224, 224), None),
        ((1, 768), (224, 224), None),
        ((1, 3, 384), (224, 224), None),
        ((1, 512, 3, 2), (224, 224), Layout(1, 0, (3, 2))),  # 1.5 times as high
        ((1, 512, 2, 3), (224, 224), Layout(1, 0, (2, 3))),
        ((1, 512, 8, 5), (224, 224), None),
        ((1, 512, 5, 8), (224, 224), None),
        ((1, 6, 6, 6), (224, 224), Layout(1, 0, (6, 6))),
        ((1, 2, 384), (64, 64), Layout(2, 1, (1, 1))),
        ((1, 1, 384), (64, 64), Layout(2, 0, (1, 1))),
        ((1, 9, 384), (32, 64), Layout(2, 1, (2, 4))),
    ],
)
def test_positions_are_found_by_the_aspect_of_the_image(
    shape: tuple[int, ...], size: tuple[int, int], layout: Layout | None
) -> None:
    assert find_layout(shape, size, (1, 0)) == layout


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (Layout(1, 0, (2, 3)), (2, 4, 2, 3)),
        (Layout(3, 0, (2, 3)), (2, 2, 3, 4)),
        (Layout(2, 0, (2, 3)), (2, 6, 4)),
        (Layout(2, 1, (2, 3)), (2, 7, 4)),
    ],
)
def test_channels_are_summed_and_positions_averaged_in_every_layout(
    layout: Layout, shape: tuple[int, ...]
) -> None:
    channels_last = torch.randn(2, 6, 4)
    values = channels_last if layout.channels == 2 else channels_last.view(2, 2, 3, 4)
    values = values.permute(0, 3, 1, 2) if layout.channels == 1 else values
    values = (
        torch.cat([torch.full((2, layout.prefix, 4), 9.0), values], 1)
        if len(shape) == 3
        else values
    )

    assert values.shape == shape
    assert torch.allclose(
        layout.sum_channels(values), channels_last.sum(2).view(2, 2, 3), atol=1e-6
    )
    mean = layout.mean_position(values)
    assert mean.ndim == values.ndim
    assert torch.allclose(mean.view(2, 4), channels_last.mean(dim=1), atol=1e-6)


def test_a_structure_without_positions_is_refused() -> None:
    with pytest.raises(UsageError, match="coat_tiny cannot be explained") as caught:
        relevance_map(random_timm("coat_tiny", side=224), torch.zeros(1, 3, 224, 224))

    assert "use another model" in caught.value.fix


def test_methods_that_need_attention_are_refused_for_timm_models() -> None:
    model = random_timm("test_resnet")

    with pytest.raises(UsageError, match="the method rollout needs the attention weights"):
        explain(model, images(model), Method(name="rollout"))


# commands -----------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A checkpoint of a small ResNet and a photo beside it."""
    model = random_timm("test_resnet")
    save(tmp_path / "model.safetensors", model)
    noise = np.random.default_rng(0).integers(0, 255, (80, 90, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "photo.png")
    return tmp_path / "model.safetensors"


def save(path: Path, model: TimmModel) -> None:
    transform = EvalTransform(image_size=model.config.image_size)
    card = Card(architecture=model.config, transform=transform, classes=("a", "b", "c"))
    save_checkpoint(path, model.state_dict(), card)


def test_explain_writes_pictures_and_arrays(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run.parent / "explained"
    photo = str(run.parent / "photo.png")

    code = main(["explain", photo, "--run", str(run), "--arrays", "--out", str(out)])

    assert code == 0
    assert "relevance maps of 1 image" in capsys.readouterr().out
    with Image.open(out / "001-photo.png") as picture:
        assert picture.size == (256, 256)
    with np.load(out / "001-photo.npz") as arrays:
        assert {*arrays} == {"heat", "logits"}
        assert arrays["heat"].shape == (8, 8)


def test_predict_writes_pictures(run: Path) -> None:
    out, photo = run.parent / "pictures", str(run.parent / "photo.png")

    code = main(["predict", photo, "--run", str(run), "--explain", str(out)])

    assert code == 0
    assert [file.suffix for file in out.iterdir()] == [".png"]


def test_figures_of_the_weights_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["explain", "--model", "--run", str(run)])

    assert code == 2
    assert "--model needs the attention weights" in capsys.readouterr().err
