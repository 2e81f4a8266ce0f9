"""Fast decoding of JPEGs, compared with the documented decoding."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitft.data.images import read_image
from vitft.data.jpeg import decode_upright, fast_view, header_oddities
from vitft.data.transforms import EvalTransform, Interpolation


def jpeg(
    width: int, height: int, *, mode: str = "RGB", orientation: int = 1, **options: int
) -> bytes:
    """A photograph-like picture: smooth shapes, edges and a little noise."""
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(0).normal(0, 6, (height, width, 3))
    waves = np.stack([np.sin(x / 9 + c) + np.cos(y / (5 + c)) for c in range(3)], axis=-1)
    pixels = np.clip(127 + 55 * waves + noise + 60 * (((x // 40) % 2)[..., None]), 0, 255)
    image = Image.fromarray(pixels.astype(np.uint8)).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90, exif=exif, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(320, 240), (240, 320), (500, 375), (333, 500), (64, 48)])
@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
def test_the_fast_view_is_the_documented_one_within_two_grey_levels(
    size: tuple[int, int], interpolation: Interpolation, fit: str
) -> None:
    transform = EvalTransform(interpolation=interpolation, fit=fit)  # type: ignore[arg-type]
    data = jpeg(*size)

    found = fast_view(data, transform, max_pixels=10**8)

    assert found is not None
    pixels, found_size = found
    exact = transform.pixels(read_image(data, "a.jpg"))
    signed = pixels.astype(int) - exact.astype(int)
    difference = np.abs(signed)
    assert found_size == size
    assert difference.max() <= 2
    assert (difference > 1).mean() < 1e-4
    assert abs(signed.mean()) < 0.05  # rounding, not a shift


def test_progressive_jpegs_are_supported() -> None:
    data = jpeg(320, 240, progressive=1)

    found = fast_view(data, EvalTransform(), max_pixels=10**8)

    assert found is not None


@pytest.mark.parametrize(
    ("data", "transform"),
    [
        pytest.param(jpeg(64, 48, orientation=6), EvalTransform(), id="turned by EXIF"),
        pytest.param(jpeg(64, 48, mode="L"), EvalTransform(), id="grey"),
        pytest.param(jpeg(64, 48, mode="CMYK"), EvalTransform(), id="CMYK"),
        pytest.param(jpeg(64, 48)[:-200], EvalTransform(), id="cut off"),
        pytest.param(jpeg(64, 48)[:30], EvalTransform(), id="nothing but a beginning"),
        pytest.param(jpeg(300, 4), EvalTransform(), id="a strip"),
        pytest.param(b"\x89PNG", EvalTransform(), id="another format"),
        pytest.param(b"", EvalTransform(), id="empty"),
        pytest.param(jpeg(64, 48), EvalTransform(interpolation="lanczos"), id="another filter"),
        pytest.param(jpeg(200, 200), EvalTransform(), id="over the limit"),
    ],
)
def test_what_the_fast_way_does_not_take_is_left_to_the_other(
    data: bytes, transform: EvalTransform
) -> None:
    assert fast_view(data, transform, max_pixels=30_000) is None


@pytest.mark.parametrize("size", [(400, 20), (20, 400), (200, 150)])
def test_a_side_may_be_20_times_the_other_and_the_pixels_as_many_as_allowed(
    size: tuple[int, int],
) -> None:
    found = decode_upright(jpeg(*size), max_pixels=30_000)

    assert found is not None
    assert found.shape == (*size[::-1], 3)
    assert decode_upright(jpeg(size[0] + 20 * (size[0] == 400), size[1] + 20 * (size[1] == 400)),
                          max_pixels=29_999) is None  # fmt: skip


def test_metadata_without_an_orientation_does_not_matter() -> None:
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    buffer = io.BytesIO()
    Image.new("RGB", (64, 48)).save(buffer, "JPEG", exif=exif)
    data = buffer.getvalue()

    assert b"Exif" in data
    assert decode_upright(data, max_pixels=10**6) is not None
    assert decode_upright(jpeg(64, 48, orientation=1), max_pixels=10**6) is not None


def test_a_rotation_that_may_be_anywhere_is_left_to_pillow() -> None:
    plain, turned = jpeg(64, 48), jpeg(64, 48, orientation=6)
    comment = b"\xff\xfe\xff\xff" + bytes(65_533)
    xmp = b"\xff\xfe\0\x12tiff:Orientation"

    assert decode_upright(plain[:2] + comment + plain[2:], max_pixels=10**6) is None
    assert decode_upright(plain[:2] + xmp + plain[2:], max_pixels=10**6) is None
    assert decode_upright(turned, max_pixels=10**6) is None


def test_a_grey_model_is_left_to_pillow() -> None:
    transform = EvalTransform(mean=(0.5,), std=(0.5,))

    assert fast_view(jpeg(64, 48), transform, max_pixels=10**6) is None


PHOTOS = Path(__file__).parents[3] / "shared" / "data" / "flower_photos"


@pytest.mark.real
@pytest.mark.skipif(not PHOTOS.exists(), reason="no photos beside the checkout")
def test_real_photos_differ_by_two_grey_levels_at_most() -> None:
    worst, taken = 0, 0
    for path in sorted(PHOTOS.glob("*/*.jpg"))[::40]:
        found = fast_view(path.read_bytes(), EvalTransform(), max_pixels=10**8)
        if found is None:
            continue
        taken += 1
        exact = EvalTransform().pixels(read_image(path.read_bytes(), path.name))
        worst = max(worst, int(np.abs(found[0].astype(int) - exact.astype(int)).max()))
    assert taken > 20
    assert worst <= 2


def test_remarks_of_a_header_are_those_of_pillow_and_none_if_it_is_damaged() -> None:
    assert header_oddities(jpeg(64, 48), "a.jpg") == ()
    assert header_oddities(jpeg(64, 48), "a.PNG") == ("content is JPEG, but the suffix is .png",)
    assert header_oddities(jpeg(64, 48)[:30], "a.png") == ()
