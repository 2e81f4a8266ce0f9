"""Images, arrays and tensors that users pass to the Python interface."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.pictures import scene
from vitft.data.pictures import array_from_tensor, image_from_array, upright_rgb
from vitft.system.errors import ImageError

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


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3)])
def test_an_array_of_bytes_is_an_image(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)

    assert np.array_equal(np.asarray(image_from_array(array, "x")), array)


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(np.zeros((4, 5), np.int64), id="another type"),
        pytest.param(np.zeros((4, 5, 4), np.uint8), id="four channels"),
        pytest.param(np.zeros((4, 5, 1), np.uint8), id="one channel"),
        pytest.param(np.zeros((3, 4, 5), np.uint8), id="channels first"),
        pytest.param(np.zeros(5, np.uint8), id="one axis"),
        pytest.param(np.zeros((2, 4, 5, 3), np.uint8), id="a batch"),
        pytest.param(np.zeros((0, 5), np.uint8), id="no row"),
        pytest.param(np.zeros((0, 5, 3), np.uint8), id="no row in colour"),
    ],
)
def test_other_arrays_are_refused_with_their_type_and_shape(array: np.ndarray) -> None:
    with pytest.raises(ImageError) as caught:
        image_from_array(array, "x")

    assert f"type {array.dtype} and shape {array.shape}" in caught.value.reason


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
