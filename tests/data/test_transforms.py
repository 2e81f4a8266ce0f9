"""Transforms: equal to torchvision and timm to the last bit, reproducible by key."""

import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm.data
import torch
from PIL import Image
from torchvision import transforms as tv

from vitft.data.transforms import (
    CropTransform,
    EvalTransform,
    Interpolation,
    crop_views,
    eval_view,
)
from vitft.system.errors import UsageError

SIZES = [(500, 375), (375, 500), (333, 333), (257, 401), (63, 40), (1, 1), (7, 300), (249, 248)]


def photo(width: int, height: int) -> Image.Image:
    """Noise over a gradient: every resampling error shows."""
    stream = np.random.default_rng(width * 1000 + height)
    ramp = np.linspace(0, 200, width)[None, :, None]
    noise = stream.integers(0, 56, (height, width, 3))
    return Image.fromarray((ramp + noise).astype(np.uint8))


# ---- the view for everything but training


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
@pytest.mark.parametrize("image_size", [(64, 64), (64, 96)], ids=str)
def test_view_and_normalisation_equal_timms(
    size: tuple[int, int], crop: float, image_size: tuple[int, int]
) -> None:
    image, mean, std = photo(*size), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    theirs = timm.data.create_transform(
        (3, *image_size), interpolation="bicubic", mean=mean, std=std, crop_pct=crop
    )
    ours = EvalTransform(image_size=image_size, crop=crop, mean=mean, std=std)

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


def test_squashing_keeps_the_whole_image() -> None:
    image = photo(100, 40)

    transform = EvalTransform(image_size=(32, 48), fit="squash", crop=1.0, interpolation="bilinear")

    pixels = transform.pixels(image)

    assert (pixels == np.asarray(image.resize((48, 32), Image.Resampling.BILINEAR))).all()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("crop", [0.875, 1.0])
@pytest.mark.parametrize("image_size", [(64, 64), (64, 97)], ids=str)
def test_a_padded_view_equals_timms_border(
    size: tuple[int, int], crop: float, image_size: tuple[int, int]
) -> None:
    image, mean, std = photo(*size), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    theirs = timm.data.create_transform(
        (3, *image_size),
        interpolation="bicubic",
        mean=mean,
        std=std,
        crop_pct=crop,
        crop_mode="border",
    )
    ours = EvalTransform(image_size=image_size, crop=crop, mean=mean, std=std, fit="pad")

    pixels = torch.from_numpy(ours.pixels(image)[None])

    torch.testing.assert_close(ours.normalise(pixels)[0], theirs(image), rtol=0, atol=1e-6)


def test_borders_are_nearly_zero_after_normalisation() -> None:
    transform = EvalTransform(image_size=(32, 32), fit="pad", crop=1.0, mean=(0.1, 0.5, 0.9))

    view = transform.normalise(torch.from_numpy(transform.pixels(photo(64, 20))[None]))

    assert view[0, :, :11].abs().max() <= 0.5 / 255 / 0.5 + 1e-6
    assert view[0, :, 11:21].abs().max() > 0.1


@pytest.mark.parametrize(
    ("fields", "size", "shown"),
    [
        ({}, (640, 480), (224 / 248) ** 2 * 3 / 4),
        ({}, (480, 480), (224 / 248) ** 2),
        ({"crop": 1.0}, (640, 480), 3 / 4),
        ({"fit": "squash"}, (640, 480), (224 / 248) ** 2),
        ({"fit": "squash", "crop": 1.0}, (640, 480), 1.0),
        ({"fit": "pad", "crop": 1.0}, (640, 480), 1.0),
        ({"crop": 1.0, "image_size": (224, 448)}, (640, 480), 2 / 3),
    ],
)
def test_the_fraction_of_the_area_that_a_view_shows(
    fields: dict[str, Any], size: tuple[int, int], shown: float
) -> None:
    assert EvalTransform(**fields).shown(*size) == pytest.approx(shown, abs=0.005)


@pytest.mark.parametrize("size", [(65500, 1), (1, 65500), (3000, 2)], ids=str)
def test_a_line_of_pixels_is_viewed_in_little_memory(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size, (10, 20, 30))

    pixels = EvalTransform().pixels(image)

    assert pixels.shape == (224, 224, 3)
    assert (pixels == (10, 20, 30)).all()


class SizedImage:
    """An image of which only the size is known, and to what it is resized."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.resized: list[tuple[int, int]] = []

    def resize(self, size: tuple[int, int], *_: object, **__: object) -> np.ndarray[Any, Any]:
        self.resized.append(size)
        return np.broadcast_to(np.uint8(0), (size[1], size[0], 3))


@pytest.mark.parametrize(
    ("size", "side", "resized"),
    [
        pytest.param((1000, 10), 16, (1600, 16), id="aspect of 100"),
        pytest.param((10, 1000), 16, (16, 1600), id="upright"),
        pytest.param((1010, 10), 16, (16, 16), id="aspect of 101"),
        pytest.param((10, 1010), 16, (16, 16), id="aspect of 101, upright"),
        pytest.param((640, 10), 1024, (65_536, 1024), id="67 million pixels"),
        pytest.param((6401, 100), 1024, (1024, 1024), id="more than 67 million pixels"),
    ],
)
def test_of_a_very_large_or_thin_image_only_the_part_inside_the_crop_is_resized(
    size: tuple[int, int], side: int, resized: tuple[int, int]
) -> None:
    image = SizedImage(*size)

    view = EvalTransform(image_size=(side, side), crop=1.0).pixels(image)  # type: ignore[arg-type]

    assert image.resized == [resized]
    assert view.shape == (side, side, 3)


def test_a_grey_model_sees_the_luma_of_an_image_three_times() -> None:
    image, transform = photo(50, 40), EvalTransform(image_size=(32, 32), mean=(0.5,), std=(0.5,))

    pixels = transform.pixels(image)

    grey = EvalTransform(image_size=(32, 32)).pixels(image.convert("L").convert("RGB"))
    assert np.array_equal(pixels, grey)
    values = transform.normalise(torch.from_numpy(pixels[None]))
    torch.testing.assert_close(values[0, 0], torch.from_numpy(pixels[..., 0]) / 127.5 - 1)
    assert values.shape == (1, 1, 32, 32)


def test_the_default_is_a_view_of_nine_tenths_of_224_pixels_from_minus_one_to_one() -> None:
    transform = EvalTransform()

    assert transform.resized(500, 500) == (248, 248)  # floor(224 / 0.9)
    ends = torch.tensor([[[[0, 255, 51]]]], dtype=torch.uint8)
    torch.testing.assert_close(transform.normalise(ends).flatten(), torch.tensor([-1.0, 1.0, -0.6]))


@pytest.mark.parametrize(
    ("mean", "colour"),
    [((0.1, 0.5, 0.9), (26, 128, 230)), ((-1.0, 2.0, 1.0), (0, 255, 255)), ((0.2,), (51, 51, 51))],
)
def test_the_border_has_the_mean_colour(
    mean: tuple[float, ...], colour: tuple[int, int, int]
) -> None:
    transform = EvalTransform(
        image_size=(20, 20), fit="pad", crop=1.0, mean=mean, std=(0.5,) * len(mean)
    )

    assert transform.border == colour
    assert tuple(transform.pixels(Image.new("RGB", (20, 10)))[0, 0]) == colour


def test_a_thin_image_is_seen_at_its_centre() -> None:
    image = Image.new("RGB", (1000, 4), (0, 0, 0))
    image.paste((255, 255, 255), (490, 0, 510, 4))

    pixels = EvalTransform(image_size=(32, 32), crop=1.0, interpolation="bilinear").pixels(image)

    assert (pixels[:, 1:-1] == 255).all()  # 4 of the 20 white columns are seen


def test_normalising_gives_floats_with_channels_first() -> None:
    pixels = torch.tensor([[[[0, 255, 51]]]], dtype=torch.uint8)  # (1, 1, 1, 3)

    values = EvalTransform(mean=(0.5, 0.5, 0.2), std=(0.5, 0.25, 1.0)).normalise(pixels)

    assert values.shape == (1, 3, 1, 1)
    assert values.dtype == torch.float32
    assert values.is_contiguous()
    torch.testing.assert_close(values.flatten(), torch.tensor([-1.0, 2.0, 0.0]))


def test_a_transform_survives_json() -> None:
    transform = EvalTransform(image_size=(224, 384), crop=0.95, mean=(0.1, 0.2, 0.3))

    assert EvalTransform.from_json(json.loads(json.dumps(transform.to_json()))) == transform


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"crop": 0.0}, "crop is"),
        ({"crop": -0.5}, "crop is"),
        ({"crop": 1.1}, "crop is"),
        ({"interpolation": "cubic"}, "unknown interpolation"),
        ({"fit": "stretch"}, "unknown interpolation 'bicubic' or fit 'stretch'"),
        ({"std": (0.5, 0.0, 0.5)}, "std is"),
        ({"std": (0.5, math.inf, 0.5)}, "std is"),
        ({"mean": (math.nan, 0.5, 0.5)}, "mean is"),
        ({"mean": (0.5,)}, "invalid normalisation"),
        ({"mean": (2000.0, 0.5, 0.5)}, "mean"),
        ({"std": (1e7, 0.5, 0.5)}, "std"),
        ({"image_size": (0, 224)}, "image_size"),
        ({"image_size": (2**20, 2**20)}, "image_size is"),
        ({"crop": 1e-5}, "more than 8,192 pixels"),
        ({"image_size": (512, 1024), "crop": 0.1249}, "more than 8,192 pixels"),
    ],
    ids=str,
)
def test_impossible_transforms_are_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=f"{problem}(.|\n)*fix: "):
        EvalTransform(**fields)


def test_images_may_be_resized_to_8192_pixels() -> None:
    assert EvalTransform(image_size=(512, 1024), crop=0.125).resized(10, 10) == (8192, 8192)


# ---- the view for training


def test_the_same_key_gives_the_same_view_and_another_key_another() -> None:
    crop, image = CropTransform(image_size=(32, 32)), photo(90, 60)

    first, again, other = (crop.pixels(image, key=key) for key in ("0/a.jpg", "0/a.jpg", "1/a.jpg"))

    assert first.shape == (32, 32, 3)
    assert (first == again).all()
    assert (first != other).any()


def test_a_view_is_that_of_evaluation_or_a_crop_by_the_images_digest() -> None:
    transform, crop, image = EvalTransform(image_size=(32, 32)), CropTransform(), photo(90, 60)

    plain, (first, second) = eval_view(transform), crop_views(transform, crop, 2, seed=5)

    assert (plain.pixels(image, "abc") == transform.pixels(image)).all()
    for number, view in enumerate((first, second)):
        expected = crop.pixels(image, key=f"crop 5 {number}/abc")
        assert (view.pixels(image, "abc") == expected).all()
    assert len({plain.settings, first.settings}) == 2
    assert first.settings == second.settings


def test_the_view_of_a_key_is_the_same_in_another_process() -> None:
    code = (
        "from PIL import Image; import numpy as np\n"
        "from vitft.data.transforms import CropTransform\n"
        "image = Image.fromarray(np.arange(90 * 60 * 3, dtype=np.uint32).astype(np.uint8)"
        ".reshape(60, 90, 3))\n"
        "print(CropTransform(image_size=(8, 8)).pixels(image, key='0/a.jpg').tobytes().hex())"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(told) == 1


def test_a_key_may_contain_surrogates() -> None:
    assert CropTransform(image_size=(8, 8)).pixels(photo(9, 9), key="0/\udcff\ud800.jpg").any()


@pytest.mark.parametrize("size", [(500, 375), (3, 5), (1, 1), (1, 400), (400, 1)], ids=str)
def test_boxes_lie_inside_of_the_image(size: tuple[int, int]) -> None:
    image, stream = Image.new("RGB", size), random.Random(0)

    for _ in range(300):
        left, top, right, bottom = CropTransform().box(image, stream)
        assert 0 <= left < right <= size[0]
        assert 0 <= top < bottom <= size[1]


def test_the_boxes_of_a_seed_are_those_of_earlier_versions() -> None:
    stream, sizes = random.Random(0), [(400, 300), (1, 400), (50, 80), (300, 20)]

    boxes = [CropTransform().box(Image.new("RGB", size), stream) for size in sizes]

    assert boxes == [(26, 0, 371, 298), (0, 0, 1, 400), (19, 40, 45, 67), (0, 0, 300, 20)]
    assert stream.random() == pytest.approx(0.23861592861522019)  # as many draws


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


@pytest.mark.parametrize("size", [(80, 20), (20, 80), (50, 50)])
def test_the_part_inside_the_border_has_the_colours_of_the_image(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size, (200, 10, 10))

    for fit in ("pad", "crop", "squash"):
        transform = EvalTransform(image_size=(48, 48), fit=fit, crop=1.0)
        part = transform.without_border(transform.pixels(image))
        width, height = (48 * side // max(size) if fit == "pad" else 48 for side in size)
        assert part.shape == (height, width, 3)
        assert (part == (200, 10, 10)).all()
    transform = EvalTransform(image_size=(48, 48), fit="pad", crop=1.0)
    grey = Image.new("RGB", size, transform.border)
    assert transform.without_border(transform.pixels(grey)).shape == (48, 48, 3)
