"""Sizes of batches for a GPU, and batches that are computed and saved in order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from vitft.data.loading import Pixels
from vitft.features.overlap import PixelBatch, computed_batches, gpu_sizes, pixel_batches

MPS = torch.device("mps")  # batches are collected as for any GPU; nothing runs there
CPU = torch.device("cpu")


@dataclass
class Numbered:
    """A tiny image whose pixels are all equal to its number, or an image without pixels."""

    number: int
    pixels: Pixels | None = None


def numbered(number: int) -> Numbered:
    if number % 5 == 3:
        return Numbered(number)  # its features are cached
    return Numbered(number, np.full((2, 2, 3), number, np.uint8))


@pytest.mark.parametrize(
    ("images", "workers", "batch", "chunk"),
    [
        pytest.param(1, 2, 16, 1, id="one image"),
        pytest.param(511, 2, 16, 7, id="not yet sixteen batches of 32"),
        pytest.param(512, 2, 32, 8, id="sixteen batches of 32"),
        pytest.param(127, 2, 16, 1, id="not yet 32 chunks of two for each worker"),
        pytest.param(128, 2, 16, 2, id="32 chunks of two for each worker"),
        pytest.param(1023, 2, 32, 15, id="not yet 32 chunks of 16"),
        pytest.param(1024, 2, 64, 16, id="32 chunks of 16"),
        pytest.param(10_000, 2, 200, 16, id="as many as fit into memory"),
        pytest.param(96, 0, 16, 3, id="no workers"),
    ],
)
def test_batches_and_chunks_are_small_in_a_short_pass(
    images: int, workers: int, batch: int, chunk: int
) -> None:
    assert gpu_sizes(images, most=200, workers=workers) == (batch, chunk)


@pytest.mark.parametrize("size", [4, 7])
def test_pixels_are_collected_batch_by_batch(size: int) -> None:
    found = list(pixel_batches(map(numbered, range(18)), size, MPS))

    assert [len(batch.images) for batch in found] == [size] * (18 // size) + [18 % size]
    assert [image.number for batch in found for image in batch.images] == list(range(18))
    for batch in found:
        expected = [image.number for image in batch.images if image.number % 5 != 3]
        assert [image.number for image in batch.missing] == expected
        assert batch.pixels is not None
        assert batch.pixels[:, 0, 0, 0].tolist() == expected
        assert batch.pixels.shape == (len(expected), 2, 2, 3)
        assert all(image.pixels is None for image in batch.images)


def test_a_batch_of_images_without_pixels_has_no_tensor() -> None:
    (batch,) = pixel_batches([Numbered(3), Numbered(8)], 2, MPS)

    assert (batch.pixels, batch.missing) == (None, [])
    assert list(pixel_batches([], 2, MPS)) == []


@pytest.mark.parametrize(
    ("device", "sizes"),
    [
        pytest.param(CPU, [20] * 3 + [3], id="cpu"),
        pytest.param(MPS, [16] * 3 + [15], id="gpu"),  # a short pass has small batches
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_every_image_is_computed_saved_and_yielded_in_order(
    device: torch.device, sizes: list[int], workers: int
) -> None:
    started: list[int] = []
    finished: list[int] = []
    saved: list[list[int]] = []

    def start(batch: PixelBatch[Numbered]) -> Callable[[], None]:
        numbers = [image.number for image in batch.missing]
        assert batch.pixels is not None
        assert batch.pixels[:, 1, 1, 2].tolist() == numbers
        started.extend(numbers)
        return lambda: finished.extend(numbers)

    def save(images: Sequence[Numbered]) -> None:
        numbers = [image.number for image in images]
        assert {n for n in numbers if n % 5 != 3} <= {*finished}
        saved.append(numbers)

    batches = computed_batches(
        range(63),
        lambda chunk: [numbered(number) for number in chunk],
        start,
        save,
        size=20,
        workers=workers,
        device=device,
    )
    found = [[image.number for image in batch] for batch in batches]

    assert [len(batch) for batch in found] == sizes
    assert [number for batch in found for number in batch] == list(range(63))
    assert saved == found
    assert sorted(started) == sorted(finished) == [n for n in range(63) if n % 5 != 3]
