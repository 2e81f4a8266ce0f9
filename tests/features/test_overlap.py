"""Sizes of batches for a GPU, and batches that are computed and saved in order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from vitft.features import PixelBatch, computed_batches

MPS = torch.device("mps")  # batches are collected as for any GPU; nothing runs there
CPU = torch.device("cpu")


@dataclass
class Numbered:
    """A tiny image whose pixels are all equal to its number, or an image without pixels."""

    number: int
    pixels: np.ndarray[Any, np.dtype[np.uint8]] | None = None


def numbered(number: int) -> Numbered:
    if number % 5 == 3:
        return Numbered(number)  # its features are cached
    return Numbered(number, np.full((2, 2, 3), number, np.uint8))


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
