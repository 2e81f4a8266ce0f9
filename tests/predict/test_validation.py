"""Validation predictions of a run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.run_files import FLOWERS, make_run
from vitft.predict import HeldOut
from vitft.system import RunDir, RunError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", per_class=3, held_back=2)


def test_predictions_have_the_facts_of_split_csv_in_its_order(run: Path) -> None:
    with np.load(run / "validation.npz") as file:
        logits = file["logits"].astype(np.float64)
    every = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    held_out = HeldOut.read(run)

    found, rows = held_out.validation, held_out.split.val

    assert [one.path for one in found] == [row.path for row in rows]
    assert [one.sha256 for one in found] == [row.sha256 for row in rows]
    assert [one.label for one in found] == ["daisy"] * 2 + ["poppy"] * 2 + ["rose"] * 2
    for one, probabilities in zip(found, every, strict=True):
        assert one.predicted == one.most_probable == FLOWERS[probabilities.argmax()]
        assert one.probability == pytest.approx(probabilities.max())
        assert one.label_probability == pytest.approx(probabilities[FLOWERS.index(one.label)])


@pytest.mark.parametrize(
    ("probability", "correct", "valid"),
    [
        (np.array([0.0, 1.0]), np.array([True, False]), True),
        (np.full((2, 3), 0.5), np.ones((2, 3), bool), True),
        (np.array([-0.01, 1.0]), np.array([True, False]), False),
        (np.array([0.5, 1.01]), np.array([True, False]), False),
        (np.array([0.5, 0.5]), np.array([True]), False),
        (np.full((2, 3, 1), 0.5), np.ones((2, 3, 1), bool), False),
    ],
)
def test_cross_validated_predictions_are_probabilities(
    run: Path, probability: Any, correct: Any, valid: bool
) -> None:
    with np.load(run / "validation.npz") as file:
        logits = file["logits"]
    given = {f"train_{name}probability": probability for name in ("", "label_")}
    RunDir(run).write_arrays("validation.npz", logits=logits, train_correct=correct, **given)

    if valid:
        found = HeldOut.read(run)
        assert (found.probability == probability).all()
        assert (found.correct == correct).all()
    else:
        with pytest.raises(RunError, match=r"train_(probability|correct) is not valid"):
            HeldOut.read(run)


def test_runs_of_earlier_versions_can_be_read_but_have_no_answers_of_training_images(
    run: Path,
) -> None:
    with np.load(run / "validation.npz") as file:
        logits = file["logits"]
    trained = [row.split == "train" for row in HeldOut.read(run).split.rows]
    given = {"train_probability": np.full(3, 0.5), "train_correct": np.ones(3, bool)}
    scored = np.array(trained) - 1  # class 0 for training images, else -1
    RunDir(run).write_arrays("validation.npz", logits=logits, cross_validated=scored, **given)

    held_out = HeldOut.read(run)

    assert len(held_out.validation) == 6
    with pytest.raises(RunError, match="was trained by an earlier version"):
        held_out.answers()
