"""Selection and order of the images of an epoch."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import draw_folder
from tests.support.training_data import row
from tests.training.test_stages import outcome, resumed, start, stop_after
from vitft.config import TrainSpec
from vitft.training import epoch_order

SKEWED = [0] * 20 + [1] * 7 + [2] * 3  # 30 images, 10 of each class in a balanced epoch
BALANCED: dict[str, dict[str, Any]] = {
    "train": {"layers": "all", "augment": "crop", "sampling": "balanced"},
    "optim": {"epochs": 3, "batch_size": 8, "lr": 1e-2},
}


@pytest.fixture
def skewed(tmp_path: Path) -> Path:
    """Three classes of 12, 6 and 3 images."""
    root = draw_folder(tmp_path / "skewed", per_class=12)
    for name, kept in (("green", 6), ("red", 3)):
        for path in sorted((root / name).iterdir())[kept:]:
            path.unlink()
    return root


ROWS = [row(str(i), label) for i, label in enumerate(SKEWED)]


def order_of(epoch: int, seed: int = 0, *, balanced: bool = True) -> list[int]:
    train = TrainSpec(seed=seed, sampling="balanced" if balanced else "shuffled")
    return epoch_order(ROWS, train, epoch).tolist()


def test_an_epoch_is_every_image_once_by_default() -> None:
    order = order_of(0, balanced=False)

    assert sorted(order) == list(range(30))
    # The order of runs of earlier versions, which may have been stopped in the middle.
    assert order == np.random.default_rng([0, 0]).permutation(30).tolist()


@pytest.mark.parametrize("epoch", range(5))
def test_in_a_balanced_epoch_each_class_is_equally_frequent(epoch: int) -> None:
    assert Counter(SKEWED[i] for i in order_of(epoch)) == {0: 10, 1: 10, 2: 10}


@pytest.mark.parametrize("epochs", [1, 2, 3, 7])
def test_over_a_run_every_image_of_a_class_is_used_equally_often(epochs: int) -> None:
    used = Counter(i for epoch in range(epochs) for i in order_of(epoch, 3))

    for label in range(3):
        own = [used[i] for i, known in enumerate(SKEWED) if known == label]
        assert max(own) - min(own) <= 1


def test_the_order_belongs_to_seed_and_epoch() -> None:
    assert order_of(1) == order_of(1)
    assert order_of(1) != order_of(2)
    assert order_of(1) != order_of(1, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("layers", ["all", "blocks:1"])
def test_a_balanced_training_is_resumed_bit_for_bit(
    skewed: Path,
    tiny_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layers: str,
    count: int,
) -> None:
    augment = "crop" if layers == "all" else "none"  # the last block reads kept tokens
    settings: dict[str, dict[str, Any]] = {
        **BALANCED,
        "train": {"layers": layers, "augment": augment, "sampling": "balanced"},
    }
    whole = start(skewed, tiny_weights, tmp_path / "whole", settings)

    with monkeypatch.context() as patch:
        stop_after(patch, count)
        stopped = start(skewed, tiny_weights, tmp_path / "stopped", settings)
    assert stopped.status == "terminated"

    assert outcome(resumed(stopped.run).run) == outcome(whole.run)
