"""Validation predictions of a run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.predict.test_label_thresholds import LABELS, write_labels_run
from tests.support.run_files import FLOWERS, make_run, with_cross_validated
from vitft.predict.validation import (
    ValidationPrediction,
    least_confident,
    mistakes,
    most_confident,
    read_classes,
    read_cross_validated,
    read_logits,
    read_split,
    read_thresholds,
    read_training_predictions,
    read_validation_predictions,
    thumb_name,
)
from vitft.system.errors import RunError
from vitft.system.files import write_json
from vitft.system.rundir import RunDir


def prediction(path: str, label: str, probability: float, predicted: str) -> ValidationPrediction:
    return ValidationPrediction(
        path=path,
        sha256="0" * 64,
        label=label,
        predicted=predicted,
        probability=probability,
        label_probability=probability if label == predicted else 0.1,
    )


def test_the_most_confident_mistakes_come_first() -> None:
    rows = [
        prediction("a", "cat", 0.6, "dog"),
        prediction("c", "cat", 0.9, "dog"),
        prediction("b", "dog", 0.9, "cat"),
        prediction("d", "cat", 0.99, "cat"),
    ]

    assert [found.path for found in mistakes(rows)] == ["b", "c", "a"]


def test_the_least_confident_correct_predictions_are_a_few_of_each_class() -> None:
    rows = [
        *(prediction(f"cat {i}", "cat", 0.5 + i / 100, "cat") for i in range(5)),
        *(prediction(f"dog {i}", "dog", 0.515 + i / 100, "dog") for i in range(5)),
        prediction("wrong", "dog", 0.4, "cat"),
    ]

    found = least_confident(rows, per_class=2, most=9)

    assert [p.path for p in found] == ["cat 0", "cat 1", "dog 0", "dog 1"]
    assert least_confident(rows, per_class=2, most=3) == found[:3]


def test_the_most_confident_correct_predictions_are_one_of_each_class() -> None:
    rows = [
        prediction("cat 2", "cat", 0.8, "cat"),
        prediction("cat 1", "cat", 0.8, "cat"),
        prediction("cat 0", "cat", 0.7, "cat"),
        prediction("dog 0", "dog", 0.9, "dog"),
        prediction("owl 0", "owl", 0.6, "owl"),
        prediction("wrong", "owl", 0.99, "cat"),
    ]

    found = most_confident(rows, most=9)

    assert [p.path for p in found] == ["dog 0", "cat 1", "owl 0"]
    assert most_confident(rows, most=2) == found[:2]


def test_a_thumbnail_is_called_by_the_beginning_of_the_digest() -> None:
    digest = "0123456789abcdef" * 4

    assert thumb_name(digest) == "0123456789abcdef.jpg"
    assert thumb_name(digest, attention=True) == "0123456789abcdef-attention.jpg"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", per_class=3, held_back=2)


def test_predictions_have_the_facts_of_split_csv_in_its_order(run: Path) -> None:
    split = read_split(run, FLOWERS)
    with np.load(run / "validation.npz") as file:
        logits = file["logits"].astype(np.float64)
    every = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    found = read_validation_predictions(run)

    assert [one.path for one in found] == [row.path for row in split.val]
    assert [one.sha256 for one in found] == [row.sha256 for row in split.val]
    assert [one.label for one in found] == ["daisy"] * 2 + ["poppy"] * 2 + ["rose"] * 2
    for one, probabilities in zip(found, every, strict=True):
        assert one.predicted == one.most_probable == FLOWERS[probabilities.argmax()]
        assert one.probability == pytest.approx(probabilities.max())
        assert one.label_probability == pytest.approx(probabilities[FLOWERS.index(one.label)])


def test_predictions_of_several_labels_are_those_at_the_thresholds_of_the_run(
    tmp_path: Path,
) -> None:
    run = write_labels_run(tmp_path / "run", validation=4)
    write_thresholds(run, cat=0.5, dog=0.4, sea=0.99)

    found = read_validation_predictions(run)

    assert [one.label for one in found] == ["cat|dog", "dog", "cat", ""]
    assert [one.predicted for one in found] == ["cat|dog", "dog", "cat|dog", "dog"]
    assert [one.most_probable for one in found] == ["cat", "sea", "cat", "sea"]
    assert [one.is_correct for one in found] == [True, True, False, False]


def write_thresholds(run: Path, **thresholds: float) -> None:
    """Write an eval.json of a multi-label model, as far as it is checked."""
    import json

    from tests.support.run_files import make_run

    other = make_run(run.parent / "other")
    results = json.loads((other / "eval.json").read_text())
    per_label = {
        name: {"ap": 0.5, "ap_interval": [0.1, 0.9], "threshold": value, "temperature": 1.0}
        for name, value in thresholds.items()
    }
    each = {"map": 0.5, "map_interval": [0.1, 0.9], "chance_map": 0.3}
    each |= {"macro_f1": 0.5, "macro_f1_interval": [0.1, 0.9]}
    each |= {"micro_f1": 0.5, "micro_f1_interval": [0.1, 0.9]}
    write_json(run / "eval.json", {**results, "labels": {**each, "per_label": per_label}})


def test_each_label_needs_a_threshold(tmp_path: Path) -> None:
    run = write_labels_run(tmp_path / "run", validation=4)

    assert read_thresholds(run, ()) == ()
    with pytest.raises(RunError, match="does not have a threshold for each label"):
        read_thresholds(run, LABELS)
    write_thresholds(run, cat=0.5, dog=0.4)
    with pytest.raises(RunError, match="does not have a threshold for each label"):
        read_thresholds(run, LABELS)
    assert read_thresholds(run, LABELS[:2]) == (0.5, 0.4)
    assert read_thresholds(run, ("dog", "cat")) == (0.4, 0.5)


def test_a_run_without_logits_or_without_a_split_has_no_predictions(run: Path) -> None:
    (run / "validation.npz").unlink()
    assert read_validation_predictions(run) == ()
    assert read_logits(run, 6, 3) is None
    (run / "split.csv").unlink()

    assert read_validation_predictions(run) == ()
    assert read_split(run, FLOWERS).rows == ()
    assert read_split(run, FLOWERS).classes == FLOWERS


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"0": "a", "2": "b"}, "not numbered 0, 1, 2"),
        ({"1": "a", "2": "b"}, "not numbered 0, 1, 2"),
        ({"0": "a", "1": "a"}, "appears twice"),
        ({"0": 1}, "is 1 instead of text"),
    ],
)
def test_damaged_class_names_are_refused(
    tmp_path: Path, table: dict[str, Any], reason: str
) -> None:
    write_json(tmp_path / "class_indices.json", table)

    with pytest.raises(RunError, match=reason):
        read_classes(tmp_path)


def test_class_names_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    assert read_classes(tmp_path) == ()
    table = {str(i): f"class {i}" for i in (1, 10, 0, *range(2, 10))}
    write_json(tmp_path / "class_indices.json", table)

    assert read_classes(tmp_path) == tuple(f"class {i}" for i in range(11))


def test_labels_of_rows_are_indices_into_the_classes_of_the_model(run: Path) -> None:
    wider = ("aster", *FLOWERS, "tulip")

    split = read_split(run, wider)

    assert split.classes == wider
    assert [wider[row.label] for row in split.rows] == [name for name in FLOWERS for _ in range(3)]
    with pytest.raises(RunError, match=r"class 'poppy' is not in class_indices\.json"):
        read_split(run, ("daisy", "rose"))


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"others": np.zeros((6, 3))}, "it has no logits"),
        ({"logits": np.zeros((5, 3))}, r"of shape \(6, 3\); the shape is \(5, 3\)"),
        ({"logits": np.zeros((6, 4))}, r"the shape is \(6, 4\)"),
        ({"logits": np.full((6, 3), np.nan)}, "must be finite"),
        ({"logits": np.full((6, 3), np.inf)}, "must be finite"),
    ],
)
def test_damaged_logits_are_refused(run: Path, arrays: dict[str, Any], reason: str) -> None:
    RunDir(run).write_arrays("validation.npz", **arrays)

    with pytest.raises(RunError, match=reason):
        read_logits(run, 6, 3)


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
    RunDir(run).write_arrays("validation.npz", train_probability=probability, train_correct=correct)

    if valid:
        found = read_training_predictions(run)
        assert (found[0] == probability).all()
        assert (found[1] == correct).all()
    else:
        with pytest.raises(RunError, match="train_probability or train_correct is not valid"):
            read_training_predictions(run)


def test_a_run_without_cross_validated_predictions_has_none(run: Path) -> None:
    probability, correct = read_training_predictions(run)

    assert (len(probability), len(correct)) == (0, 0)
    assert read_cross_validated(run, read_split(run, FLOWERS)) == {}
    (run / "validation.npz").unlink()
    assert read_cross_validated(run, read_split(run, FLOWERS)) == {}


def test_cross_validated_classes_are_found_by_digest(run: Path) -> None:
    with_cross_validated(run, wrong=1)
    split = read_split(run, FLOWERS)

    found = read_cross_validated(run, split)

    assert len(found) == 9
    assert [found[row.sha256] for row in split.rows] == [
        *(FLOWERS[row.label] for row in split.rows[:-1]),
        "daisy",
    ]


@pytest.mark.parametrize(
    ("values", "valid"),
    [
        ([-1, 0, 1, 2, 0, 1, 2, 0, 1], True),
        ([-2, 0, 1, 2, 0, 1, 2, 0, 1], False),
        ([3, 0, 1, 2, 0, 1, 2, 0, 1], False),
        ([0, 1, 2, 0, 1, 2, 0, 1], False),
    ],
)
def test_cross_validated_classes_are_indices_or_unknown(
    run: Path, values: list[int], valid: bool
) -> None:
    split = read_split(run, FLOWERS)
    RunDir(run).write_arrays("validation.npz", cross_validated=np.array(values))

    if valid:
        found = read_cross_validated(run, split)
        assert split.rows[0].sha256 not in found
        assert found[split.rows[1].sha256] == "daisy"
        assert len(found) == 8
    else:
        with pytest.raises(RunError, match="cross_validated is not valid"):
            read_cross_validated(run, split)
