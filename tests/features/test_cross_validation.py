"""Cross-validation of linear heads on fixed features."""

import pytest
import torch

from tests.features.test_head import blobs
from vitft.features.head import (
    cross_validate,
    gain_from_twice,
    solve_head,
    stratified_folds,
    stratified_subset,
)


def test_folds_are_stratified() -> None:
    y = torch.tensor([0] * 23 + [1] * 7 + [2] * 4)

    held = stratified_folds(y, 5, seed=0)

    for label in range(3):
        counts = torch.bincount(held[y == label], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert torch.bincount(held).max() - torch.bincount(held).min() <= 1


def test_a_subset_keeps_the_class_proportions() -> None:
    y = torch.tensor([0] * 800 + [1] * 200)

    rows = stratified_subset(y, 100, seed=0)

    assert torch.bincount(y[rows]).tolist() == [80, 20]


@pytest.mark.parametrize(
    ("points", "gain"),
    [
        pytest.param([(1, 0.8), (2, 0.4), (4, 0.2), (8, 0.1)], 0.05, id="halved by doubling"),
        pytest.param([(1, 0.2), (2, 0.2), (4, 0.3), (8, 0.3)], None, id="more images do not help"),
        pytest.param([(1, 0.2), (2, 0.1), (4, 0.0), (8, 0.0)], None, id="no errors left"),
    ],
)
def test_the_gain_from_twice_the_images_follows_the_power_law(
    points: list[tuple[float, float]], gain: float | None
) -> None:
    found = gain_from_twice(points)

    assert found == (None if gain is None else pytest.approx(gain))


def test_every_image_is_scored_by_a_head_that_was_not_fitted_to_it() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(120, 60, generator=generator), torch.arange(3).repeat(40)

    told, held_out = cross_validate(x, y, ["a", "b", "c"], l2=1e-4, balanced=False, seed=0)

    assert told["images"] == 120
    assert told["top1"] < 0.5  # noise: a third by chance, all of it if judged on what was seen
    assert told["top1_interval"][0] < 1 / 3 < told["top1_interval"][1] or told["top1"] < 1 / 3
    assert [point["images"] for point in told["curve"]] == [12, 24, 48, 96]
    assert len(told["weak_spots"]) == 3
    right = (held_out.logits.argmax(dim=-1) == y[held_out.rows]).float().mean().item()
    assert right == pytest.approx(told["top1"])


def test_copies_of_an_image_are_held_out_together() -> None:
    _, y = blobs()
    noisy = torch.randn(len(y), 30, generator=torch.Generator().manual_seed(3))
    twice, pictures = torch.arange(len(y)).repeat(2), torch.cat([noisy, noisy])

    held = stratified_folds(y.repeat(2), 5, seed=0, groups=twice)
    solved = solve_head(
        pictures, y.repeat(2), classes=3, l2=0, balanced=False, seed=0, groups=twice
    )

    assert torch.equal(held[: len(y)], held[len(y) :])
    assert max(tried.top1 for tried in solved.path) < 0.5  # a third is chance
