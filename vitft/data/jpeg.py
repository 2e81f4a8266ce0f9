"""Fast decoding of ordinary JPEGs, used to compute features in reduced precision.

libjpeg-turbo decodes directly into an array, with the same pixels as Pillow, and torch's
antialiased uint8 kernel resizes the array. The resized values may differ from those of
`EvalTransform.pixels` by up to two levels (out of 255) because the kernel rounds its filter
weights. Other formats and rotated, unusual or damaged JPEGs are left to `data.images`, which also
reports any errors.
"""

import io

import simplejpeg
from PIL import JpegImagePlugin

from vitft.data.images import DECODER_ERRORS, ORIENTATION, decoding_remarks
from vitft.data.loading import Pixels
from vitft.data.transforms import EvalTransform

_MAX_SIDE_RATIO = 20
"""Maximum ratio of the longer to the shorter side; more elongated images are left to Pillow."""


def decode_upright(data: bytes, *, max_pixels: int) -> Pixels | None:
    """Return the RGB pixels (H, W, 3) of an upright, undamaged YCbCr JPEG, or None for other data.

    The result is also None if the image has more than `max_pixels` pixels or an aspect ratio above
    `_MAX_SIDE_RATIO`.
    """
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        usual = colours == "YCbCr" and max(height, width) <= _MAX_SIDE_RATIO * min(height, width)
        if not usual or height * width > max_pixels or _is_rotated(data):
            return None
        return simplejpeg.decode_jpeg(data, strict=True)
    except DECODER_ERRORS:
        return None


def header_oddities(data: bytes, name: str) -> tuple[str, ...]:
    """Return the notes that `images.decode` would return for a JPEG decoded by `decode_upright`."""
    try:
        with JpegImagePlugin.JpegImageFile(io.BytesIO(data)) as image:
            return tuple(decoding_remarks("JPEG", image, name))
    except DECODER_ERRORS:  # damaged metadata: the pixels were decoded without an error
        return ()


def fast_view(
    data: bytes, transform: EvalTransform, *, max_pixels: int
) -> tuple[Pixels, tuple[int, int]] | None:
    """Return the view (H, W, 3) of an upright JPEG, and the JPEG's width and height.

    The result is None if `decode_upright` cannot decode the bytes or `resized` cannot apply the
    transform.
    """
    image = decode_upright(data, max_pixels=max_pixels) if can_resize(transform) else None
    return None if image is None else (resized(image, transform), (image.shape[1], image.shape[0]))


def can_resize(transform: EvalTransform) -> bool:
    """Return whether `resized` can apply the transform."""
    return transform.interpolation in ("bilinear", "bicubic") and transform.channels == 3


def _is_rotated(data: bytes) -> bool:
    """Return whether the metadata specifies, or may specify, a rotation."""
    place = data.find(b"Exif\0\0")
    if place > 65536 or b"tiff:Orientation" in data:  # unusual, left to Pillow
        return True
    if place < 0:
        return False
    with JpegImagePlugin.JpegImageFile(io.BytesIO(data)) as image:
        return image.getexif().get(ORIENTATION, 1) != 1


def resized(image: Pixels, transform: EvalTransform) -> Pixels:
    """Resize an image (h, w, 3) with torch's kernel, and crop or pad it to the view (H, W, 3)."""
    import torch  # not needed for decoding alone

    planes = torch.from_numpy(image).permute(2, 0, 1)[None]  # channels last is fastest
    wide, tall = transform.resized(image.shape[1], image.shape[0])
    planes = torch.nn.functional.interpolate(
        planes, (tall, wide), mode=transform.interpolation, antialias=True
    )
    return transform.framed(planes[0].permute(1, 2, 0).numpy())
