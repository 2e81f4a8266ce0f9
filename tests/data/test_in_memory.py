"""Small images in memory: shifts that do not depend on the batch or the process."""

import numpy as np
import pytest
import torch

from vitft.data.augment import Shifts, default_padding, draw_shifts, fits, shift_and_flip


def moves_of(images: list[int], *, turns: list[int] | None = None, epoch: int = 0) -> Shifts:
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

    found = shift_and_flip(pixels, Shifts(down, across, mirrored), 2)

    padded = np.pad(pixels.numpy(), ((0, 0), (2, 2), (2, 2), (0, 0)))
    for i in range(20):
        wanted = padded[i, down[i] : down[i] + 6, across[i] : across[i] + 5]
        assert np.array_equal(found[i].numpy(), wanted[:, ::-1] if mirrored[i] else wanted)


def test_how_an_image_moves_does_not_depend_on_its_batch() -> None:
    whole, part = moves_of([4, 1, 7, 2]), moves_of([7, 4])

    for all_four, two in zip(whole, part, strict=True):
        assert all_four[[2, 0]].tolist() == two.tolist()


def test_an_image_moves_differently_in_each_epoch_and_each_turn() -> None:
    images = list(range(10))
    tables = [
        torch.stack([*map(torch.Tensor.long, moves)]).tolist()
        for moves in (moves_of(images), moves_of(images, epoch=1), moves_of(images, turns=[1] * 10))
    ]

    assert tables[0] != tables[1]
    assert tables[0] != tables[2]
    assert tables[1] != tables[2]


def test_every_move_within_the_padding_occurs() -> None:
    moves = draw_shifts(torch.arange(5000), torch.zeros(5000, dtype=torch.long), count=5000, seed=0,
                        epoch=0, padding=2, flip=0.25)  # fmt: skip

    assert set(moves.down.tolist()) == set(moves.across.tolist()) == {0, 1, 2, 3, 4}
    # Four standard deviations of a share of 5,000 images are 2.4 points.
    assert moves.mirrored.float().mean().item() == pytest.approx(0.25, abs=0.025)


@pytest.mark.parametrize(
    ("count", "size", "fitting"),
    [
        pytest.param(60_000, (32, 32), True, id="CIFAR"),
        pytest.param(10, (65, 32), False, id="too large"),
        pytest.param(10, (32, 65), False, id="too wide"),
        pytest.param(100_000, (64, 64), False, id="too many"),
        pytest.param(2**30 // (64 * 64 * 3), (64, 64), True, id="just a gibibyte"),
        pytest.param(2**30 // (64 * 64 * 3) + 1, (64, 64), False, id="more than a gibibyte"),
    ],
)
def test_small_images_are_held_in_memory(count: int, size: tuple[int, int], fitting: bool) -> None:
    assert fits(count, size, 3) is fitting


@pytest.mark.parametrize(
    ("named", "side", "padding"), [(0, 32, 4), (2, 32, 2), (0, 4, 1), (0, 39, 4)]
)
def test_the_padding_is_an_eighth_of_the_side_unless_named(
    named: int, side: int, padding: int
) -> None:
    assert default_padding(named, (side, side)) == padding
    assert default_padding(named, (side, 100)) == default_padding(named, (100, side)) == padding


def test_the_moves_of_a_seed_are_those_of_runs_of_earlier_versions() -> None:
    moves = draw_shifts(
        torch.tensor([0, 3, 1, 3]), torch.tensor([0, 0, 0, 1]),
        count=4, seed=1, epoch=2, padding=4, flip=0.5,
    )  # fmt: skip

    assert moves.down.tolist() == [0, 2, 0, 5]
    assert moves.across.tolist() == [6, 7, 7, 8]
    assert moves.mirrored.tolist() == [False, True, True, False]
