"""Thresholds of the labels of a multi-label model, chosen for a precision."""

import logging
from pathlib import Path

import numpy as np
import pytest

from vitft.predict import HeldOut, choose_label_thresholds
from vitft.system import RunDir, UsageError, write_json

LABELS = ("cat", "dog", "sea")


def write_labels_run(
    path: Path, *, validation: int = 40, training: int = 0, groups: int = 0
) -> Path:
    """Write a run of three labels.

    Every other image has the first label, of which the model is less and less certain. The second
    label is as probable as not, and wrong every other time. The third one is always wrong. Every
    other training image is cross-validated.
    """
    path.mkdir()
    write_json(path / "class_indices.json", {str(i): name for i, name in enumerate(LABELS)})
    sets = ["cat|dog", "dog", "cat", ""]
    parts = ["val"] * validation + ["train"] * training * 2
    rows = [f"{i}.jpg,{sets[i % 4]},{part},{i:064x}" for i, part in enumerate(parts)]
    header = "path,labels,split,sha256"
    if groups:
        header, rows = f"{header},group", [f"{row},g{i % groups}" for i, row in enumerate(rows)]
    (path / "split.csv").write_text("\n".join([header, *rows, ""]))
    has_cat = np.arange(validation) % 2 == 0
    logits = np.zeros((validation, 3), np.float32)
    logits[:, 0] = np.where(has_cat, 9 - np.arange(validation) / 20, -9.0)
    logits[:, 2] = 3.0
    more = {
        "train_probability": np.tile([0.9995, 0.0001, 0.0001], (training, 1)),
        "train_correct": np.tile([True, False, False], (training, 1)),
        "cross_validated": np.array([-1] * validation + [-1, 2] * training),
    }
    RunDir(path).write_arrays("validation.npz", logits=logits, **more if training else {})
    return path


def test_each_label_has_its_own_threshold_or_is_never_assigned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = write_labels_run(tmp_path / "run")

    with caplog.at_level(logging.INFO):
        found = choose_label_thresholds(run, 0.9, LABELS)

    assert found == pytest.approx((1 / (1 + np.exp(-(9 - 38 / 20))), 1.0, 1.0))
    assert "cat: threshold 99.9%, precision 100.0% on 20 images, recall 100.0%" in caplog.text
    assert "dog: threshold" not in caplog.text
    assert "never assigned, because no threshold reaches a precision of 90%: dog and sea" in (
        caplog.text
    )


def test_groups_count_instead_of_images(tmp_path: Path) -> None:
    run = write_labels_run(tmp_path / "run", groups=8)

    assert choose_label_thresholds(run, 0.7, LABELS)[0] < 1
    with pytest.raises(UsageError, match="no label reaches a precision of 90%"):
        choose_label_thresholds(run, 0.9, LABELS)


def test_groups_are_those_of_the_images_that_were_cross_validated(tmp_path: Path) -> None:
    run = write_labels_run(tmp_path / "run", validation=4, training=3, groups=4)

    groups = HeldOut.read(run).label_answers()[2]

    assert groups is not None
    assert groups.tolist() == [0, 1, 2, 3, 1, 3, 1]


def test_copies_count_once(tmp_path: Path) -> None:
    run, other = (write_labels_run(tmp_path / name, validation=80) for name in "ab")
    text = (run / "split.csv").read_text()
    for i in range(40, 80):  # copies of the first 40 images
        text = text.replace(f"{i:064x}", f"{i - 40:064x}")
    (run / "split.csv").write_text(text)

    assert choose_label_thresholds(other, 0.95, LABELS)[0] < 1
    with pytest.raises(UsageError, match="on 40 images"):
        choose_label_thresholds(run, 0.95, LABELS)


def test_the_recall_is_a_fraction_of_the_images_with_the_label(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = write_labels_run(tmp_path / "run")
    with np.load(run / "validation.npz") as file:
        logits = file["logits"]
    logits[:8:2, 0] = -9.0  # four of the twenty cats are missed
    RunDir(run).write_arrays("validation.npz", logits=logits)

    with caplog.at_level(logging.INFO):
        choose_label_thresholds(run, 0.9, LABELS)

    assert "precision 100.0% on 16 images, recall 80.0%" in caplog.text
