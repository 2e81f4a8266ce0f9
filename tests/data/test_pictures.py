"""Images, arrays and tensors that users pass to the Python interface."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.pictures import scene
from vitft.data import array_from_tensor, upright_rgb
from vitft.system import ImageError

VALUES = torch.arange(60).reshape(3, 4, 5)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        pytest.param(VALUES, VALUES.permute(1, 2, 0), id="channels first"),
        pytest.param(VALUES.permute(1, 2, 0), VALUES.permute(1, 2, 0), id="channels last"),
        pytest.param(VALUES[:1], VALUES[0], id="grey with channels first"),
        pytest.param(VALUES[0, :, :, None], VALUES[0], id="grey with channels last"),
        pytest.param(VALUES[0], VALUES[0], id="grey without channels"),
        pytest.param(VALUES[0, :3], VALUES[0, :3], id="three rows of grey"),
        pytest.param(VALUES[:2], VALUES[:2], id="two channels are not moved"),
    ],
)
def test_a_tensor_becomes_an_array_with_channels_last(
    tensor: torch.Tensor, expected: torch.Tensor
) -> None:
    found = array_from_tensor(tensor.byte(), "x")

    assert found.dtype == np.uint8
    assert np.array_equal(found, expected.byte().numpy())


def test_floats_from_0_to_1_become_levels_rounded_to_the_nearest() -> None:
    tensor = torch.tensor([[0.0, 0.2509, 0.4999, 1.0]], requires_grad=True)

    assert array_from_tensor(tensor, "x").tolist() == [[0, 64, 127, 255]]
    assert array_from_tensor(tensor.double(), "x").tolist() == [[0, 64, 127, 255]]
    assert array_from_tensor(torch.empty(0, 3), "x").size == 0


@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan"), float("inf")])
def test_floats_beyond_0_to_1_are_refused(value: float) -> None:
    with pytest.raises(ImageError, match="without normalisation"):
        array_from_tensor(torch.tensor([[0.5, value]]), "x")


@pytest.mark.parametrize("orientation", [0, 1, 3, 6, 8])
def test_an_opened_image_is_turned_as_its_exif_data_say(orientation: int) -> None:
    image, stream, exif = scene(1, (40, 30)), io.BytesIO(), Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    image.save(stream, "PNG", exif=exif)
    degrees = {0: 0, 1: 0, 3: 180, 6: 270, 8: 90}[orientation]  # anticlockwise

    found = upright_rgb(Image.open(stream), "x")

    assert found.tobytes() == image.rotate(degrees, expand=True).tobytes()


def test_greys_of_16_bits_are_scaled_and_damaged_files_are_refused() -> None:
    wide = Image.fromarray(np.array([[0, 1000, 3000]], np.uint16))
    stream = io.BytesIO()
    scene(1).save(stream, "PNG")
    damaged = Image.open(io.BytesIO(stream.getvalue()[:500]))

    assert upright_rgb(wide, "x", (1000, 3000)).getpixel((2, 0)) == (255, 255, 255)
    with pytest.raises(ImageError, match="damaged image"):
        upright_rgb(damaged, "x")
