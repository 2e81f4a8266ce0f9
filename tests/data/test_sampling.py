"""Selection and order of the images of an epoch."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import draw_folder
from tests.training.test_distributed import check_same_run, home, launch, options_of  # noqa: F401
from tests.training.test_stages import outcome, resumed, start, stop_after
from vitft.cli.main import main
from vitft.config.run import config_from_table
from vitft.data.sampling import describe_epoch, images_per_epoch, repeat_counts, sample_order
from vitft.system.errors import UsageError
from vitft.training import batches as feed

SKEWED = [0] * 20 + [1] * 7 + [2] * 3  # 30 images, 10 of each class in a balanced epoch
BALANCED: dict[str, dict[str, Any]] = {
    "train": {"freeze": "none", "augment": "crop", "sampling": "balanced"},
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


def classes_of(epoch: int, seed: int = 0) -> Counter[int]:
    return Counter(np.array(SKEWED)[sample_order(SKEWED, seed, epoch, balanced=True)].tolist())


def test_an_epoch_is_every_image_once_by_default() -> None:
    order = sample_order(SKEWED, 0, 0, balanced=False)

    assert sorted(order.tolist()) == list(range(30))
    # The order of runs of earlier versions, which may have been stopped in the middle.
    assert order.tolist() == np.random.default_rng([0, 0]).permutation(30).tolist()


@pytest.mark.parametrize("epoch", range(5))
def test_in_a_balanced_epoch_each_class_is_equally_frequent(epoch: int) -> None:
    assert classes_of(epoch) == {0: 10, 1: 10, 2: 10}


@pytest.mark.parametrize("epochs", [1, 2, 3, 7])
def test_over_a_run_every_image_of_a_class_is_used_equally_often(epochs: int) -> None:
    used = Counter(
        i for e in range(epochs) for i in sample_order(SKEWED, 3, e, balanced=True).tolist()
    )

    for label in range(3):
        own = [used[i] for i, known in enumerate(SKEWED) if known == label]
        assert max(own) - min(own) <= 1


def test_a_balanced_epoch_is_as_long_as_another_less_what_does_not_divide() -> None:
    assert images_per_epoch([0, 0, 0, 0, 1, 1, 2], balanced=True) == 6
    assert images_per_epoch([0, 0, 0, 0, 1, 1, 2], balanced=False) == 7
    assert images_per_epoch([], balanced=True) == 0
    # A class without training images takes no part.
    assert Counter(sample_order([4, 4, 7], 0, 0, balanced=True).tolist())[2] == 1


def test_the_order_belongs_to_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return sample_order(SKEWED, seed, epoch, balanced=True).tolist()

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2)
    assert order(0, 1) != order(1, 1)


def test_a_balanced_order_is_that_of_runs_of_earlier_versions() -> None:
    orders = [
        sample_order([0, 0, 0, 1, 1], 0, 1, balanced=True).tolist(),
        sample_order([0] * 5 + [1] * 3, 7, 2, balanced=True).tolist(),
    ]

    assert orders == [[4, 1, 3, 1], [7, 0, 4, 2, 6, 5, 1, 5]]


def test_repeated_images_are_counted() -> None:
    assert repeat_counts(np.array([3, 1, 3, 3, 1])) == [0, 0, 1, 2, 1]


def test_a_balanced_epoch_is_described() -> None:
    said = describe_epoch(SKEWED, ("daisy", "poppy", "rose"))

    assert "10 images from each of 3 classes, 30 in total" in said
    assert "an image of rose is used 3.3 times and an image of daisy 0.5 times" in said
    assert "every image is used once" in describe_epoch([0, 0, 1, 1], ("a", "b"))
    rest = describe_epoch([0, 0, 0, 0, 0, 1, 1, 2], ("a", "b", "c"))
    assert "2 images from each of 3 classes, 6 in total" in rest
    assert "an image of c is used 2.0 times and an image of a 0.4 times" in rest


def test_a_repeated_image_gets_another_crop(
    skewed: Path, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []
    whole = feed.view_key

    def noted(*parts: Any) -> str:
        keys.append(whole(*parts))
        return keys[-1]

    monkeypatch.setattr(feed, "view_key", noted)
    start(skewed, tiny_weights, tmp_path / "run", BALANCED)

    assert len(keys) > 20
    assert len({*keys}) == len(keys)
    assert [key for key in keys if key.startswith("0/0/red/") and not key.endswith(".png")]


@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("freeze", ["none", "blocks:1"])
def test_a_balanced_training_is_resumed_bit_for_bit(
    skewed: Path,
    tiny_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    freeze: str,
    count: int,
) -> None:
    augment = "crop" if freeze == "none" else "none"  # the last block reads kept tokens
    settings: dict[str, dict[str, Any]] = {
        **BALANCED,
        "train": {"freeze": freeze, "augment": augment, "sampling": "balanced"},
    }
    whole = start(skewed, tiny_weights, tmp_path / "whole", settings)

    with monkeypatch.context() as patch:
        stop_after(patch, count)
        stopped = start(skewed, tiny_weights, tmp_path / "stopped", settings)
    assert stopped.status == "terminated"

    assert outcome(resumed(stopped.run).run) == outcome(whole.run)


def test_a_head_in_front_of_balanced_steps_is_solved_with_equal_classes(
    skewed: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    table: dict[str, dict[str, Any]] = {
        "train": {"freeze": "head,none", "sampling": "balanced"},
        "optim": {"epochs": 1},
    }
    config = config_from_table(table)

    assert config.solves("head")
    assert config.balances
    assert start(skewed, tiny_weights, tmp_path / "run", table).figures["epochs"] == 2


@pytest.mark.parametrize(
    ("table", "message"),
    [
        pytest.param(
            {"train": {"sampling": "balanced"}}, r"optim\.class_weights", id="a head is solved"
        ),
        pytest.param(
            {"train": {"sampling": "balanced"}, "optim": {"solver": "sgd", "class_weights": True}},
            "both balance",
            id="weights as well",
        ),
        pytest.param({"train": {"sampling": "even"}}, "shuffled or balanced", id="another word"),
    ],
)
def test_what_does_not_go_together_is_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config_from_table(table)


def test_two_processes_draw_what_one_draws(
    home: Path,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    for path in sorted((home / "data" / "red").iterdir())[3:]:
        path.unlink()
    options = ["--freeze", "none", "--epochs", "2", "--batch-size", "4", "--lr", "0.01"]
    options += ["--set", "train.sampling=balanced", "--set", "train.precision=fp32"]
    assert main(["finetune", *options_of(home, tmp_path / "one"), *options]) == 0
    two = launch(home, *options_of(home, tmp_path / "two"), *options)

    assert two.returncode == 0, two.stderr
    assert "balanced sampling" in two.stderr
    check_same_run(tmp_path / "two", tmp_path / "one")
