"""Fast decoding of JPEGs, compared with the documented decoding."""

import io

import numpy as np
import pytest
from PIL import Image

from vitft.data import EvalTransform, decode


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
@pytest.mark.parametrize("progressive", [0, 1])
def test_the_fast_view_is_the_documented_one_within_two_grey_levels(
    size: tuple[int, int], interpolation: str, fit: str, progressive: int
) -> None:
    transform = EvalTransform(interpolation=interpolation, fit=fit)  # type: ignore[arg-type]
    data = jpeg(*size, progressive=progressive)

    found = transform.fast_view(data, max_pixels=10**8)

    assert found is not None
    pixels, found_size = found
    exact = transform.pixels(decode(data, "a.jpg").image)
    signed = pixels.astype(int) - exact.astype(int)
    difference = np.abs(signed)
    assert found_size == size
    assert difference.max() <= 2
    assert (difference > 1).mean() < 1e-4
    assert abs(signed.mean()) < 0.05  # rounding, not a shift


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
    assert transform.fast_view(data, max_pixels=30_000) is None
