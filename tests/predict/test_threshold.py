"""Choice of a threshold by the precision on images that the model was not fitted to."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitft.metrics import wilson_interval
from vitft.predict import Answers, certain_cover, choose_threshold, needed_images, smallest_cover
from vitft.system import RunDir, UsageError, write_json


def calibrated(images: int, *, seed: int = 0) -> Answers:
    """Return answers whose probabilities are true; 92% are right, a fifth is above 0.999."""
    random = np.random.default_rng(seed)
    probability = 1 - np.minimum(random.exponential(0.08, images), 0.8) ** 1.5 * 3 ** (-1)
    probability = np.where(random.random(images) < 0.25, probability - 0.25, probability)
    correct = random.random(images) < probability
    return Answers.sorted(probability.tolist(), correct.tolist())


def oracle_cover(answers: Answers, precision: float) -> float:
    """Return the largest fraction of answers that reaches the precision."""
    n = np.arange(1, len(answers.probability) + 1)
    reached = np.flatnonzero(np.cumsum(answers.correct) >= precision * n)
    return float(reached[-1] + 1) / len(n)


@pytest.mark.parametrize("precision", [0.95, 0.97, 0.99])
def test_a_threshold_keeps_nearly_as_many_new_images_as_possible(precision: float) -> None:
    new = calibrated(50_000, seed=99)
    best = oracle_cover(new, precision)
    kept, reached = [], []
    for seed in range(10):
        answers = calibrated(1200, seed=seed)
        threshold = answers.probability[smallest_cover(answers, precision) - 1]
        above = new.probability >= threshold
        kept.append(above.mean())
        reached.append(new.correct[above].mean())

    assert min(kept) > best - 0.10
    assert np.mean(reached) >= precision
    assert min(reached) > precision - 0.01


@pytest.mark.parametrize(
    ("precision", "images"), [(0.99, 100), (0.97, 34), (0.95, 20), (0.75, 4), (0.5, 2)]
)
def test_certain_and_correct_predictions_need_one_spare_mistake(
    precision: float, images: int
) -> None:
    few = Answers.sorted([1.0] * (images - 1), [True] * (images - 1))
    enough = Answers.sorted([1.0] * images, [True] * images)

    assert smallest_cover(few, precision) == 0
    assert needed_images(few, precision) == images
    assert smallest_cover(enough, precision) == images


@pytest.mark.parametrize(
    ("probability", "precision", "needed"),
    [
        ([0.9908] * 100, 0.99, 1300),  # of 1,250: rounded up to two digits
        ([1.0] * 50, 0.9959, 250),  # of 244
        ([1.0] * 9, 1 - 1 / 12.1, 13),
        ([1.0] * 3, 1 - 1 / 4.03, 4),  # which is 4 to two digits
        ([0.75], 0.75, None),  # more of them leave no spare mistake either
    ],
)
def test_the_number_of_needed_images_is_rounded_up_to_two_digits(
    probability: list[float], precision: float, needed: int | None
) -> None:
    answers = Answers.sorted(probability, [True] * len(probability))

    assert needed_images(answers, precision) == needed


@pytest.mark.parametrize(
    ("wrong", "images", "precision", "accepted"),
    [
        (10, 300, 0.98, True),  # 10 or more of 300 mistakes at 2%: probability 0.08
        (11, 300, 0.98, False),  # 0.04
        (2, 20, 0.95, True),  # 0.26
        (3, 20, 0.95, True),  # 0.08
        (4, 20, 0.95, False),  # 0.02
    ],
)
def test_a_precision_is_rejected_if_so_many_mistakes_have_a_probability_below_5_percent(
    wrong: int, images: int, precision: float, accepted: bool
) -> None:
    answers = Answers.sorted([1.0] * images, [False] * wrong + [True] * (images - wrong))

    assert smallest_cover(answers, precision) == (images if accepted else 0)


def test_a_threshold_covers_the_predictions_at_or_above_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 60)
    arrays = dict(np.load(run / "validation.npz"))
    arrays["train_probability"] = np.linspace(0.5, 0.99, 60)
    correct = with_mistakes(arrays, 20)
    RunDir(run).write_arrays("validation.npz", **arrays)
    probability = np.sort([*arrays["train_probability"], *[1 / (1 + np.exp(-18.0))] * 40])[::-1]

    found = choose_threshold(run, 0.95)

    assert 40 < found.covered < 100
    assert found.value == pytest.approx(probability[found.covered - 1])
    assert found.expected == pytest.approx(probability[: found.covered].mean())
    right = int((correct & (arrays["train_probability"] >= found.value)).sum())
    assert found.precision == (right + 40) / found.covered
    assert found.interval == wilson_interval(right + 40, found.covered)


def test_a_failed_test_does_not_claim_that_no_threshold_passes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 60)
    arrays = dict(np.load(run / "validation.npz"))
    with_mistakes(arrays, 20)
    RunDir(run).write_arrays("validation.npz", **arrays)

    with pytest.raises(UsageError) as error:
        choose_threshold(run, 0.95, confidence=0.95)

    assert error.value.problem == (
        "the test of a precision of 95% with 95% confidence fails: there are too many mistakes for "
        "so few images"
    )


def test_the_number_of_needed_images_is_enough() -> None:
    few = calibrated(60)
    needed = needed_images(few, 0.99)
    assert needed is not None
    assert needed > 60
    repeats = -(-needed // 60)

    more = Answers.sorted(np.tile(few.probability, repeats).tolist(), [True] * (60 * repeats))

    assert smallest_cover(few, 0.99) == 0
    assert smallest_cover(more, 0.99) > 0
    wrong = Answers.sorted([0.999] * 300, [False] * 12 + [True] * 288)
    assert needed_images(wrong, 0.98) is None  # 12 mistakes among the most probable, not 6


def test_predictions_of_equal_probability_are_all_above_or_all_below() -> None:
    answers = Answers.sorted([0.99] * 50 + [0.9] * 50, [True] * 100)

    found = {smallest_cover(answers, p) for p in (0.90, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96)}

    assert found == {50, 100}


def write_run(path: Path, training: int) -> Path:
    """Write a run with 40 validation images, all certain and right, and training predictions."""
    path.mkdir()
    write_json(path / "class_indices.json", {"0": "cat", "1": "dog"})
    names = [f"{i}.jpg,{('cat', 'dog')[i % 2]}" for i in range(40 + training)]
    rows = [f"{one},{'val' if i < 40 else 'train'},{i:064x}" for i, one in enumerate(names)]
    (path / "split.csv").write_text("\n".join(["path,label,split,sha256", *rows, ""]))
    logits = np.array([[9.0, -9.0], [-9.0, 9.0]] * 20, np.float32)
    more = {
        "train_probability": np.full(training, 0.9999),
        "train_correct": np.ones(training, bool),
        "train_label_probability": np.full(training, 0.9999),
        "cross_validated": np.array([-1] * 40 + [i % 2 for i in range(training)]),
    }
    RunDir(path).write_arrays("validation.npz", logits=logits, **more if training else {})
    return path


def with_mistakes(arrays: dict[str, Any], wrong: int) -> Any:
    """Make the predictions of the first training images wrong, and return which are right."""
    correct = np.arange(len(arrays["train_correct"])) >= wrong
    arrays["train_correct"] = correct
    arrays["cross_validated"][40 : 40 + wrong] ^= 1
    return correct


@pytest.mark.parametrize(
    "cover",
    [
        lambda answers: smallest_cover(answers, 0.98),  # which ten clips cannot show
        lambda answers: certain_cover(answers, 0.95, 0.95),  # for which 59 independent images do
    ],
)
def test_groups_count_instead_of_images(cover: Callable[[Answers], int]) -> None:
    clips, single = [f"clip {i // 40}" for i in range(400)], [str(i) for i in range(400)]

    alone, grouped, apart = (
        cover(Answers.sorted([1.0] * 400, [True] * 400, groups)) for groups in (None, clips, single)
    )

    assert (alone, grouped, apart) == (400, 0, 400)


def test_images_below_a_threshold_do_not_move_it() -> None:
    clips = [f"clip {i // 2}" for i in range(400)]
    sure = Answers.sorted([0.99] * 400, [True] * 400, clips)
    more = Answers.sorted(
        [*[0.99] * 400, *[0.5] * 100],
        [*[True] * 400, *[False] * 100],
        [*clips, *[f"clip {i // 2}" for i in range(100)]],
    )

    assert smallest_cover(more, 0.9) == smallest_cover(sure, 0.9) == 400


def tail(mistakes: int, images: int, chance: float) -> float:
    """Return the exact probability of so many mistakes or fewer."""
    return math.fsum(
        math.comb(images, k) * chance**k * (1 - chance) ** (images - k) for k in range(mistakes + 1)
    )


@pytest.mark.parametrize(
    ("wrong", "images", "precision", "confidence"),
    [
        (0, 59, 0.95, 0.95),
        (1, 93, 0.95, 0.95),
        (0, 29, 0.9, 0.95),
        (3, 257, 0.97, 0.95),
        (0, 22, 0.9, 0.9),
        (12, 57, 0.7, 0.9),
    ],
)
def test_a_certain_precision_needs_so_many_images(
    wrong: int, images: int, precision: float, confidence: float
) -> None:
    found = []
    for number in (images - 1, images):
        answers = Answers.sorted([0.999] * number, [False] * wrong + [True] * (number - wrong))
        found.append(certain_cover(answers, precision, confidence))
        assert bool(found[-1]) == (tail(wrong, number, 1 - precision) <= 1 - confidence)

    assert found == [0, images]


@pytest.mark.parametrize("seed", range(4))
def test_thresholds_are_tested_from_the_clearest_one_down(seed: int) -> None:
    answers = calibrated(300, seed=seed)
    n, expected = np.arange(1, 301), np.cumsum(1 - answers.probability)
    clearness = np.where(n < 59, -np.inf, (0.05 * n - expected) / np.sqrt(n))

    last = int(clearness.argmax())
    while last < 300 and tail(int((~answers.correct)[: last + 1].sum()), last + 1, 0.05) <= 0.05:
        last += 1

    assert certain_cover(answers, 0.95, 0.95) == (last if last > clearness.argmax() else 0)
