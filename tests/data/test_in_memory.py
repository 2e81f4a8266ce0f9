"""Small images in memory: shifts that do not depend on the batch or the process."""

import numpy as np
import pytest
import torch

from vitft.data import draw_shifts, shift_and_flip


def moves_of(images: list[int], *, turns: list[int] | None = None, epoch: int = 0) -> torch.Tensor:
    return draw_shifts(
        torch.tensor(images),
        torch.tensor(turns or [0] * len(images)),
        count=10,
        seed=3,
        epoch=epoch,
        padding=2,
        flip=0.5,
    )


def test_a_move_is_a_crop_of_the_padded_image_and_perhaps_its_mirror_image() -> None:
    random = np.random.default_rng(0)
    pixels = torch.from_numpy(random.integers(0, 256, (20, 6, 5, 3), np.uint8))
    down, across = (torch.from_numpy(random.integers(0, 5, 20)) for _ in range(2))
    mirrored = torch.arange(20) % 2 == 0

    found = shift_and_flip(pixels, torch.stack([down, across, mirrored]), 2)

    padded = np.pad(pixels.numpy(), ((0, 0), (2, 2), (2, 2), (0, 0)))
    for i in range(20):
        wanted = padded[i, down[i] : down[i] + 6, across[i] : across[i] + 5]
        assert np.array_equal(found[i].numpy(), wanted[:, ::-1] if mirrored[i] else wanted)


def test_how_an_image_moves_does_not_depend_on_its_batch() -> None:
    whole, part = moves_of([4, 1, 7, 2]), moves_of([7, 4])

    for all_four, two in zip(whole, part, strict=True):
        assert all_four[[2, 0]].tolist() == two.tolist()


def test_every_move_within_the_padding_occurs() -> None:
    moves = draw_shifts(torch.arange(5000), torch.zeros(5000, dtype=torch.long), count=5000, seed=0,
                        epoch=0, padding=2, flip=0.25)  # fmt: skip

    assert set(moves[0].tolist()) == set(moves[1].tolist()) == {0, 1, 2, 3, 4}
    # Four standard deviations of a share of 5,000 images are 2.4 points.
    assert moves[2].float().mean().item() == pytest.approx(0.25, abs=0.025)
