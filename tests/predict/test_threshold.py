"""Choice of a threshold by the precision on images that the model was not fitted to."""

from pathlib import Path

import numpy as np
import pytest

from vitft.metrics.intervals import wilson_interval
from vitft.predict.threshold import (
    Answers,
    Threshold,
    choose_threshold,
    needed_images,
    smallest_cover,
    unreachable,
)
from vitft.system.errors import RunError, UsageError
from vitft.system.files import write_json
from vitft.system.rundir import RunDir


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


def test_a_single_image_is_no_evidence_for_a_threshold() -> None:
    answers = Answers.sorted([0.9999, *[0.8] * 42], [True] + [True] * 34 + [False] * 8)

    assert smallest_cover(answers, 0.97) == 0
    assert smallest_cover(answers, 0.75) == 43


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


def test_the_number_of_needed_images_is_rounded_up_to_two_digits() -> None:
    answers = Answers.sorted([0.9908] * 100, [True] * 100)  # 0.08 spare mistakes of the one needed

    assert needed_images(answers, 0.99) == 1300  # of 1,250


@pytest.mark.parametrize(
    ("images", "precision", "needed"),
    [
        (2, 0.7, 4),  # of 3.3
        (3, 1 - 1 / 4.1, 5),  # of 4.1
        (3, 1 - 1 / 4.03, 4),  # of 4.03, which is 4 to two digits
        (9, 1 - 1 / 12.1, 13),
        (50, 0.9959, 250),  # of 244
    ],
)
def test_few_needed_images_are_rounded_to_whole_ones(
    images: int, precision: float, needed: int
) -> None:
    answers = Answers.sorted([1.0] * images, [True] * images)

    assert needed_images(answers, precision) == needed


def test_more_images_do_not_help_where_none_are_missing() -> None:
    as_probable = Answers.sorted([0.75], [True])
    refuted = Answers.sorted([1.0] * 4, [False] * 4)  # enough images, and all of them wrong

    assert needed_images(as_probable, 0.75) is None
    assert needed_images(as_probable, 0.9) is None
    assert smallest_cover(refuted, 0.75) == 0
    assert needed_images(refuted, 0.75) is None


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


def test_equal_probabilities_keep_the_order_in_which_they_were_given() -> None:
    answers = Answers.sorted([0.5, 0.9, 0.5], [True, True, False])

    assert answers.probability.tolist() == [0.9, 0.5, 0.5]
    assert answers.correct.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("probability", "correct", "precision", "reason"),
    [
        ([1.0] * 200, [True] * 200, 1.0, "no number of images can prove that mistakes never"),
        (
            [0.85, 0.8, 0.75, 0.7],
            [True, False, False, True],
            0.9,
            "predictions with probabilities of up to 80.0% were wrong",
        ),
        ([0.6, 0.55], [True, True], 0.9, "none of the 2 predictions has a probability above 60.0%"),
    ],
)
def test_the_reason_why_no_threshold_reaches_a_precision_is_stated(
    probability: list[float], correct: list[bool], precision: float, reason: str
) -> None:
    problem = unreachable(Answers.sorted(probability, correct), precision).problem

    assert problem.startswith(f"no threshold reaches a precision of {100 * precision:.1f}%: ")
    assert reason in problem


def test_the_expected_precision_is_stated_only_if_it_is_higher() -> None:
    facts = {"value": 0.5, "interval": (0.3, 0.9), "covered": 4, "validation": 1200}

    same = Threshold(precision=0.75, expected=0.75, **facts)  # type: ignore[arg-type]
    less = Threshold(precision=0.75, expected=0.8, **facts)  # type: ignore[arg-type]

    stated = "threshold 50.0%: precision 75.0% (95% interval 30.0 to 90.0%) on 4 of 1,200"
    assert str(same) == f"{stated} validation images"
    assert str(less) == f"{stated} validation images, 80.0% expected from the probabilities"


def test_a_threshold_covers_the_predictions_at_or_above_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 60)
    arrays = dict(np.load(run / "validation.npz"))
    arrays["train_probability"] = np.linspace(0.5, 0.99, 60)
    arrays["train_correct"] = np.arange(60) >= 20
    RunDir(run).write_arrays("validation.npz", **arrays)
    probability = np.sort([*arrays["train_probability"], *[1 / (1 + np.exp(-18.0))] * 40])[::-1]

    found = choose_threshold(run, 0.95)

    assert 40 < found.covered < 100
    assert found.value == pytest.approx(probability[found.covered - 1])
    assert found.expected == pytest.approx(probability[: found.covered].mean())
    right = int((arrays["train_correct"] & (arrays["train_probability"] >= found.value)).sum())
    assert found.precision == (right + 40) / found.covered
    assert found.interval == wilson_interval(right + 40, found.covered)


@pytest.mark.parametrize(
    ("images", "suggested"),
    [(99, 0.98), (49, 0.97), (33, 0.95), (19, 0.9), (9, 0.8), (4, 0.7), (3, None)],
)
def test_the_highest_precision_that_is_reached_is_suggested(
    images: int, suggested: float | None
) -> None:
    answers = Answers.sorted([1.0] * images, [True] * images)

    fix = unreachable(answers, 0.99).fix

    assert fix.startswith(f"use --precision {suggested}, or" if suggested else "set the threshold")


def test_a_precision_of_99_percent_is_suggested_instead_of_more() -> None:
    answers = Answers.sorted([1.0] * 150, [True] * 150)

    assert unreachable(answers, 0.999).fix.startswith("use --precision 0.99, or")


def test_the_number_of_needed_images_is_enough() -> None:
    few = calibrated(60)
    needed = needed_images(few, 0.99)
    assert needed is not None
    assert needed > 60
    repeats = -(-needed // 60)

    more = Answers.sorted(np.tile(few.probability, repeats).tolist(), [True] * (60 * repeats))

    assert smallest_cover(few, 0.99) == 0
    assert smallest_cover(more, 0.99) > 0


def test_mistakes_among_the_most_probable_predictions_contradict_their_probabilities() -> None:
    certain = [0.999] * 300
    few_wrong = Answers.sorted(certain, [False] * 4 + [True] * 296)
    many_wrong = Answers.sorted(certain, [False] * 12 + [True] * 288)

    assert smallest_cover(few_wrong, 0.98) == 300
    assert smallest_cover(many_wrong, 0.98) == 0  # 12 of 300 where 6 are allowed
    assert needed_images(many_wrong, 0.98) is None


def test_predictions_of_equal_probability_are_all_above_or_all_below() -> None:
    answers = Answers.sorted([0.99] * 50 + [0.9] * 50, [True] * 100)

    found = {smallest_cover(answers, p) for p in (0.90, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96)}

    assert found == {50, 100}


def write_run(path: Path, training: int) -> Path:
    """Write a run with 40 validation images, all certain and right, and training predictions."""
    path.mkdir()
    write_json(path / "class_indices.json", {"0": "cat", "1": "dog"})
    rows = [f"{i}.jpg,{('cat', 'dog')[i % 2]},val,{i:064x}" for i in range(40)]
    (path / "split.csv").write_text("\n".join(["path,label,split,sha256", *rows, ""]))
    logits = np.array([[9.0, -9.0], [-9.0, 9.0]] * 20, np.float32)
    more = {
        "train_probability": np.full(training, 0.9999),
        "train_correct": np.ones(training, bool),
    }
    RunDir(path).write_arrays("validation.npz", logits=logits, **more if training else {})
    return path


def test_the_threshold_states_the_images_it_rests_on(tmp_path: Path) -> None:
    found = choose_threshold(write_run(tmp_path / "run", 160), 0.99)

    assert (found.covered, found.validation, found.training) == (200, 40, 160)
    assert str(found) == (
        "threshold 100.0%: precision 100.0% (95% interval 98.1 to 100.0%) on 200 of 200 "
        "images (40 validation, 160 cross-validated)"
    )


def test_a_precision_below_the_requested_one_is_explained_by_the_expected_one(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run", 160)
    arrays = dict(np.load(run / "validation.npz"))
    arrays["train_correct"][:4] = False
    RunDir(run).write_arrays("validation.npz", **arrays)

    assert str(choose_threshold(run, 0.99)).startswith("threshold 100.0%: precision 98.0% ")
    assert str(choose_threshold(run, 0.99)).endswith(", 100.0% expected from the probabilities")


@pytest.mark.parametrize(
    ("results", "is_stated"), [(None, False), ({}, False), ({"confirmed_in_float32": 0}, True)]
)
def test_a_threshold_from_reduced_precision_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, results: dict[str, int] | None, is_stated: bool
) -> None:
    monkeypatch.setattr("vitft.predict.threshold.read_results", lambda _: results)

    found = choose_threshold(write_run(tmp_path / "run", 160), 0.99)

    assert found.reduced is is_stated
    note = "; measured in the reduced precision of the run, applied in float32"
    assert str(found).endswith(note) is is_stated


def test_too_few_images_are_refused_with_the_number_needed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 0)

    with pytest.raises(UsageError) as refused:
        choose_threshold(run, 0.99)

    assert "99.0% needs about 100 images" in str(refused.value)
    assert "this run has 40" in str(refused.value)
    assert "fix: use --precision 0.97" in str(refused.value)
    assert isinstance(choose_threshold(run, 0.97), Threshold)


def test_a_precision_of_one_is_never_promised(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no threshold reaches a precision of 100"):
        choose_threshold(write_run(tmp_path / "run", 160), 1.0)


def test_a_run_without_validation_predictions_suggests_threshold(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="--threshold"):
        choose_threshold(tmp_path, 0.9)


@pytest.mark.parametrize(
    "arrays",
    [
        pytest.param({"train_probability": np.ones(3)}, id="no answers"),
        pytest.param({"train_probability": np.full(2, 7.0), "train_correct": np.ones(2)}, id="7.0"),
        pytest.param({"train_probability": np.array(["x"]), "train_correct": np.ones(1)}, id="x"),
    ],
)
def test_damaged_training_predictions_are_named(
    tmp_path: Path, arrays: dict[str, np.ndarray[tuple[int], np.dtype[np.generic]]]
) -> None:
    run = write_run(tmp_path / "run", 0)
    with np.load(run / "validation.npz") as file:
        logits = file["logits"]
    RunDir(run).write_arrays("validation.npz", logits=logits, **arrays)

    with pytest.raises(RunError, match=r"validation\.npz"):
        choose_threshold(run, 0.9)


def test_groups_count_instead_of_images() -> None:
    probability, correct = [1.0] * 400, [True] * 400
    clips = [f"clip {i // 40}" for i in range(400)]

    alone, grouped = (
        smallest_cover(Answers.sorted(probability, correct, groups), 0.98)
        for groups in (None, clips)
    )

    assert (alone, grouped) == (400, 0)  # ten clips cannot show a precision of 98%
    single = Answers.sorted(probability, correct, [str(i) for i in range(400)])
    assert smallest_cover(single, 0.98) == 400
