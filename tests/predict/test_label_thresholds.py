"""Thresholds of the labels of a multi-label model, chosen for a precision."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from tests.predict.test_threshold import write_run
from vitft.predict.label_thresholds import choose_label_thresholds
from vitft.predict.request import requested_thresholds
from vitft.predict.threshold import choose_threshold
from vitft.predict.torch_engine import Predictor
from vitft.system.errors import RunError, UsageError
from vitft.system.files import write_json
from vitft.system.rundir import RunDir
from vitft.system.spelling import option, parameter

LABELS = ("cat", "dog", "sea")


def write_labels_run(path: Path, *, validation: int = 40, training: int = 0) -> Path:
    """Write a run of three labels.

    Every other image has the first label, of which the model is less and less certain. The second
    label is as probable as not, and wrong every other time. The third one is always wrong.
    """
    path.mkdir()
    write_json(path / "class_indices.json", {str(i): name for i, name in enumerate(LABELS)})
    sets = ["cat|dog", "dog", "cat", ""]
    rows = [f"{i}.jpg,{sets[i % 4]},val,{i:064x}" for i in range(validation)]
    (path / "split.csv").write_text("\n".join(["path,labels,split,sha256", *rows, ""]))
    has_cat = np.arange(validation) % 2 == 0
    logits = np.zeros((validation, 3), np.float32)
    logits[:, 0] = np.where(has_cat, 9 - np.arange(validation) / 20, -9.0)
    logits[:, 2] = 3.0
    more = {
        "train_probability": np.tile([0.9995, 0.0001, 0.0001], (training, 1)),
        "train_correct": np.tile([True, False, False], (training, 1)),
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
    assert "never assigned, because no threshold reaches a precision of 90.0%: dog and sea" in (
        caplog.text
    )


def test_every_label_that_reaches_the_precision_has_a_threshold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = write_labels_run(tmp_path / "run")

    with caplog.at_level(logging.INFO):
        found = choose_label_thresholds(run, 0.45, LABELS)

    assert found[0] < 0.001  # half of all images have the first label
    assert found[1] == pytest.approx(0.5)
    assert "dog: threshold 50.0%, precision 50.0% on 40 images, recall 100.0%" in caplog.text


def test_cross_validated_training_images_count_as_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alone = write_labels_run(tmp_path / "alone")
    run = write_labels_run(tmp_path / "run", training=100)

    with caplog.at_level(logging.INFO):
        found = choose_label_thresholds(run, 0.99, LABELS)

    assert found == pytest.approx((1 / (1 + np.exp(-7.1)), 1.0, 1.0))
    assert "cat: threshold 99.9%, precision 100.0% on 120 images, recall 100.0%" in caplog.text
    with pytest.raises(UsageError, match=r"no label reaches a precision of 99\.0% .* 40 images"):
        choose_label_thresholds(alone, 0.99, LABELS)


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


def test_errors_name_the_options_as_the_user_spells_them(tmp_path: Path) -> None:
    run = write_labels_run(tmp_path / "run")

    for spell, precision, threshold in (
        (option, "--precision,", "--threshold 0.8"),
        (parameter, "precision,", "threshold=0.8"),
    ):
        with pytest.raises(UsageError) as refused:
            choose_label_thresholds(run, 1.0, LABELS, spell)
        assert refused.value.fix == (
            f"use a lower {precision} or set one threshold directly, e.g. {threshold}"
        )


@pytest.mark.parametrize("kind", ["empty folder", "no validation images", "one class per image"])
def test_a_run_without_predictions_of_several_labels_is_refused(tmp_path: Path, kind: str) -> None:
    run = tmp_path / "run"
    if kind == "one class per image":
        write_run(run, 0)
    elif kind == "empty folder":
        run.mkdir()
    else:
        write_labels_run(run, validation=0)
        (run / "split.csv").write_text(f"path,labels,split,sha256\na.jpg,cat,train,{'0' * 64}\n")

    with pytest.raises(RunError, match="has no validation predictions"):
        choose_label_thresholds(run, 0.5, LABELS[: 2 if kind == "one class per image" else 3])


def test_the_kind_of_the_model_decides_which_threshold_is_chosen(tmp_path: Path) -> None:
    several = write_labels_run(tmp_path / "several")
    one = write_run(tmp_path / "one", 160)
    engine = SimpleNamespace(thresholds=(0.5,) * 3, classes=LABELS)
    plain = SimpleNamespace(thresholds=(), classes=("cat", "dog"))

    assert requested_thresholds(None, 0.9, several, cast("Predictor", engine)) == (
        0.0,
        choose_label_thresholds(several, 0.9, LABELS),
    )
    assert requested_thresholds(None, 0.99, one, cast("Predictor", plain)) == (
        choose_threshold(one, 0.99).value,
        (),
    )
