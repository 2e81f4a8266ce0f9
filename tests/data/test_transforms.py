"""Transforms: equal to torchvision and timm to the last bit, reproducible by key."""

import json
import math
import random
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import timm.data
import torch
from PIL import Image
from torchvision import transforms as tv

from vitft.data import CropTransform, EvalTransform
from vitft.system import UsageError, structured

Fit = Literal["crop", "pad"]
Interpolation = Literal["bilinear", "bicubic"]
SIZES = [(500, 375), (375, 500), (333, 333), (257, 401), (63, 40), (1, 1), (7, 300), (249, 248)]


def photo(width: int, height: int) -> Image.Image:
    """Noise over a gradient: every resampling error shows."""
    stream = np.random.default_rng(width * 1000 + height)
    ramp = np.linspace(0, 200, width)[None, :, None]
    noise = stream.integers(0, 56, (height, width, 3))
    return Image.fromarray((ramp + noise).astype(np.uint8))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "nearest"])
def test_the_view_equals_torchvisions_resize_and_centre_crop(
    size: tuple[int, int], interpolation: Interpolation
) -> None:
    image = photo(*size)
    theirs = tv.Compose([tv.Resize(71, tv.InterpolationMode(interpolation)), tv.CenterCrop(64)])

    ours = EvalTransform(image_size=(64, 64), crop=0.9, interpolation=interpolation).pixels(image)

    assert (ours == np.asarray(theirs(image))).all()  # floor(64 / 0.9) = 71


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("crop", [0.875, 0.9, 1.0])
@pytest.mark.parametrize("image_size", [(64, 64), (64, 97)], ids=str)
@pytest.mark.parametrize(("fit", "mode"), [("crop", "center"), ("pad", "border")])
def test_view_and_normalisation_equal_timms(
    size: tuple[int, int], crop: float, image_size: tuple[int, int], fit: Fit, mode: str
) -> None:
    image, mean, std = photo(*size), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    theirs = timm.data.create_transform(
        (3, *image_size), interpolation="bicubic", mean=mean, std=std, crop_pct=crop, crop_mode=mode
    )
    ours = EvalTransform(image_size=image_size, crop=crop, mean=mean, std=std, fit=fit)

    pixels = torch.from_numpy(ours.pixels(image)[None])

    torch.testing.assert_close(ours.normalise(pixels)[0], theirs(image), rtol=0, atol=1e-6)


def test_the_scaled_size_of_many_shapes_is_timms() -> None:
    ours = EvalTransform(image_size=(224, 384), crop=0.9)
    theirs = timm.data.transforms.ResizeKeepRatio([248, 426])

    for width in range(1, 600, 13):
        for height in range(1, 600, 11):
            expected = theirs.get_params(
                Image.new("1", (width, height)), theirs.size, 0, 0, (1, 1), False, 0, (1, 1)
            )
            assert ours.resized(width, height) == tuple(reversed(expected))


@pytest.mark.parametrize("size", [(64, 64), (128, 32)], ids=str)
def test_an_oblong_view_shows_half_of_other_shapes(size: tuple[int, int]) -> None:
    assert EvalTransform(image_size=(16, 32), crop=1.0).shown(*size) == 0.5


def test_squashing_keeps_the_whole_image() -> None:
    image = photo(100, 40)

    transform = EvalTransform(image_size=(32, 48), fit="squash", crop=1.0, interpolation="bilinear")

    pixels = transform.pixels(image)

    assert (pixels == np.asarray(image.resize((48, 32), Image.Resampling.BILINEAR))).all()


@pytest.mark.parametrize("size", [(65500, 1), (1, 65500), (3000, 2)], ids=str)
def test_a_line_of_pixels_is_viewed_in_little_memory(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size, (10, 20, 30))

    pixels = EvalTransform().pixels(image)

    assert pixels.shape == (224, 224, 3)
    assert (pixels == (10, 20, 30)).all()


def test_a_grey_model_sees_the_luma_of_an_image_three_times() -> None:
    image, transform = photo(50, 40), EvalTransform(image_size=(32, 32), mean=(0.5,), std=(0.5,))

    pixels = transform.pixels(image)

    grey = EvalTransform(image_size=(32, 32)).pixels(image.convert("L").convert("RGB"))
    assert np.array_equal(pixels, grey)
    values = transform.normalise(torch.from_numpy(pixels[None]))
    torch.testing.assert_close(values[0, 0], torch.from_numpy(pixels[..., 0]) / 127.5 - 1)
    assert values.shape == (1, 1, 32, 32)


def test_a_transform_survives_json() -> None:
    transform = EvalTransform(image_size=(224, 384), crop=0.95, mean=(0.1, 0.2, 0.3))

    assert structured(json.loads(json.dumps(transform.to_json())), EvalTransform) == transform


def test_the_same_key_gives_the_same_view_and_another_key_another() -> None:
    crop, image = CropTransform(image_size=(32, 32)), photo(90, 60)

    first, again, other = (crop.pixels(image, key=key) for key in ("0/a.jpg", "0/a.jpg", "1/a.jpg"))

    assert first.shape == (32, 32, 3)
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize("size", [(500, 375), (3, 5), (1, 1), (1, 400), (400, 1)], ids=str)
def test_boxes_lie_inside_of_the_image(size: tuple[int, int]) -> None:
    image, stream = Image.new("RGB", size), random.Random(0)

    for _ in range(300):
        left, top, right, bottom = CropTransform().box(image, stream)
        assert 0 <= left < right <= size[0]
        assert 0 <= top < bottom <= size[1]


def shapes(draw: Callable[[], tuple[float, float]], count: int) -> np.ndarray[Any, Any]:
    """Deciles of area and of log ratio of `count` boxes, (2, 9)."""
    drawn = np.array([draw() for _ in range(count)])  # (count, 2): width, height
    values = np.stack([drawn[:, 0] * drawn[:, 1], np.log(drawn[:, 0] / drawn[:, 1])])
    return np.quantile(values, np.linspace(0.1, 0.9, 9), axis=1).T


def test_boxes_have_the_shapes_of_torchvisions_random_resized_crop() -> None:
    image, stream = Image.new("RGB", (400, 300)), random.Random(0)

    def ours() -> tuple[float, float]:
        left, top, right, bottom = CropTransform().box(image, stream)
        return right - left, bottom - top

    def theirs() -> tuple[float, float]:
        _, _, height, width = tv.RandomResizedCrop.get_params(
            torch.empty(3, 300, 400), [0.08, 1.0], [3 / 4, 4 / 3]
        )
        return width, height

    mine, other = shapes(ours, 4000), shapes(theirs, 4000)

    # Deciles of 4,000 draws: a standard error of about 1% of the range.
    assert np.abs(mine[0] - other[0]).max() < 0.04 * 400 * 300
    assert np.abs(mine[1] - other[1]).max() < 0.04 * 2 * math.log(4 / 3)


def test_half_of_the_views_are_mirrored() -> None:
    image = photo(20, 20)
    crop = CropTransform(image_size=(4, 4), scale=(1.0, 1.0), ratio=(1.0, 1.0))
    plain = np.asarray(image.resize((4, 4), Image.Resampling.BICUBIC))

    views = [crop.pixels(image, key=str(i)) for i in range(600)]

    mirrored = sum((view == plain[:, ::-1]).all() for view in views)
    assert all((v == plain).all() or (v == plain[:, ::-1]).all() for v in views)
    assert abs(mirrored - 300) < 60  # five standard deviations


def test_a_view_loses_its_border_unless_it_has_no_other_colour() -> None:
    transform = EvalTransform(image_size=(4, 4), fit="pad")
    view = np.full((4, 4, 3), transform.border, np.uint8)

    assert transform.without_border(view).shape == (4, 4, 3)
    view[1:3, :3] += 9
    assert transform.without_border(view).shape == (2, 3, 3)


def test_an_unknown_interpolation_is_an_error() -> None:
    with pytest.raises(UsageError, match="unknown interpolation 'box'"):
        EvalTransform(image_size=(4, 4), interpolation="box")  # type: ignore[arg-type]
