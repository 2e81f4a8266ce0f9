"""Classes, targets, temperatures and counts of an evaluation."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.export_run import figures
from vitft.data.labelled import LabelledImages
from vitft.metrics.calibration import bin_by_confidence, calibration_error, softmax
from vitft.predict.evaluate import (
    Evaluation,
    before_temperature,
    check_classes,
    evaluated_data,
    nothing_left,
    targets_by_label,
)
from vitft.predict.labelled_prediction import LabelledPrediction
from vitft.predict.prediction import Prediction
from vitft.predict.run_images import COPY_NOTE, GROUP_NOTE, PATH_NOTE, TRAINED_NOTE
from vitft.system.errors import DataError, RunError

KNOWN = ("cat", "dog", "owl")


def data(*classes: str, labels: tuple[str, ...] = ()) -> LabelledImages:
    images = tuple((f"{i}.jpg", name) for i, name in enumerate(classes))
    return LabelledImages(source="d", root=".", classes=classes, images=images, labels=labels)


def left_out(*notes: str, error: str = "", path: str = "a.jpg") -> LabelledPrediction:
    return LabelledPrediction("cat", Prediction(path=path, notes=notes, error=error))


def test_classes_of_the_model_may_be_missing_but_none_added() -> None:
    for classes in (("cat",), KNOWN, ("owl", "cat")):
        check_classes(data(*classes), KNOWN, several=False)
    with pytest.raises(DataError, match="unknown to the model: bat; missing from the data: owl"):
        check_classes(data("bat", "cat", "dog"), KNOWN, several=False)
    with pytest.raises(DataError, match=r"model: bat of 1\.jpg and cow; missing"):
        check_classes(replace(data("cat", "bat", "cow"), source="d.csv"), KNOWN, several=False)
    with pytest.raises(DataError, match="missing from the data: none") as refused:
        check_classes(data("xyzzy", *KNOWN), KNOWN, several=False)
    assert refused.value.fix.startswith("use the class names of the model")
    with pytest.raises(DataError) as refused:
        check_classes(data("dgo"), KNOWN, several=False)
    assert refused.value.fix == "rename dgo to dog if they are the same class"


def test_an_empty_class_folder_that_the_model_does_not_know_is_called_empty() -> None:
    with pytest.raises(DataError, match="unknown to the model: cats") as refused:
        check_classes(replace(data(*KNOWN), classes=("cats", *KNOWN)), KNOWN, several=False)

    assert refused.value.fix == "remove the class folder cats, which is empty"


def test_up_to_eleven_unknown_classes_are_named() -> None:
    for number, end in ((11, "x10;"), (12, "and 2 more;")):
        names = sorted(f"x{i:02}" for i in range(number))
        with pytest.raises(DataError) as refused:
            check_classes(data(*names), KNOWN, several=False)
        assert f"{end} missing from the data: cat, dog and owl)" in refused.value.problem


@pytest.mark.parametrize(
    ("found", "several", "is_kind"),
    [
        (data("cat|dog", labels=("cat", "bat")), False, True),
        (data("cat|dog"), False, True),
        (data("bat"), False, False),
        (data("cat|bat", labels=("cat", "bat")), True, False),
        (data("cat|bat"), True, False),
    ],
)
def test_data_of_several_labels_is_refused_as_such_by_a_model_of_one(
    found: LabelledImages, several: bool, is_kind: bool
) -> None:
    with pytest.raises(DataError) as refused:
        check_classes(found, KNOWN, several=several)

    assert ("gives images several labels" in refused.value.problem) is is_kind


def test_targets_are_indices_or_flags_of_each_label() -> None:
    assert targets_by_label(data("owl"), KNOWN, several=False) == {"cat": 0, "dog": 1, "owl": 2}
    sets = data("", "cat|owl", "dog", labels=KNOWN)
    found = {k: v.tolist() for k, v in targets_by_label(sets, KNOWN, several=True).items()}
    assert found == {
        "": [False, False, False],
        "cat|owl": [True, False, True],
        "dog": [False, True, False],
    }
    one = targets_by_label(data("owl"), KNOWN, several=True)
    assert one["owl"].tolist() == [False, False, True]
    with pytest.raises(DataError, match="the data in d is multi-label"):
        targets_by_label(sets, KNOWN, several=False)


def test_if_nothing_is_left_the_reason_is_named() -> None:
    notes = [TRAINED_NOTE, COPY_NOTE, PATH_NOTE, GROUP_NOTE]
    every = nothing_left(data(), [left_out(note) for note in notes])
    some = nothing_left(data(), [left_out(TRAINED_NOTE), left_out(error="bad"), left_out()])
    broken = [left_out(error="empty file", path=f"{i}.jpg") for i in range(5)]

    assert every.problem.endswith("the model was trained on 4 of 4 images in d")
    assert some.problem.endswith("trained on 1 of 3 images in d, and 2 cannot be read")
    assert nothing_left(data(), broken).problem == (
        "cannot read any image in d (0.jpg: empty file; 1.jpg: empty file; 2.jpg: empty file)"
    )


def test_images_are_counted_by_the_reason_for_leaving_them_out() -> None:
    rows = [
        *(left_out(TRAINED_NOTE) for _ in range(5)),
        *(left_out(COPY_NOTE) for _ in range(4)),
        *(left_out(PATH_NOTE) for _ in range(3)),
        *(left_out(GROUP_NOTE, "another") for _ in range(2)),
        left_out(error="empty file", path="x.jpg"),
        left_out(),
    ]

    found = evaluated_data(data(), rows, ["a", "b", "a", "a"], 7)
    unknown = evaluated_data(data(), rows, ["a"], None)
    none = evaluated_data(data(), [], [], 0)

    assert found == {
        "path": "d",
        "unreadable": [{"path": "x.jpg", "reason": "empty file"}],
        "trained": 5,
        "trained_copies": 4,
        "trained_paths": 3,
        "trained_groups": 2,
        "validated": 7,
        "copies": 2,
    }
    assert {unknown["trained"], unknown["trained_copies"], unknown["validated"]} == {None}
    assert (none["trained"], none["validated"], none["copies"]) == (0, 0, 0)


LOGITS, LABELS = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]]), torch.tensor([0, 1, 1])


def write_eval(folder: Path, **more: Any) -> None:
    (folder / "eval.json").write_text(json.dumps({**figures(["a", "b"]), **more}))


def error_of(probability: Any, correct: Any) -> float:
    return calibration_error(bin_by_confidence(probability, correct))[0]


def test_the_error_before_scaling_is_that_of_the_raw_logits(tmp_path: Path) -> None:
    assert before_temperature(tmp_path, LOGITS, LABELS) == (None, None)
    write_eval(tmp_path)
    assert before_temperature(tmp_path, LOGITS, LABELS) == (None, None)
    calibration = {
        "ece": 0.1,
        "ece_interval": [0, 0.2],
        "ece_binned": 0.1,
        "ece_before": None,
        "note": None,
        "bins": [],
        "temperature": 2.0,
    }
    write_eval(tmp_path, calibration=calibration)

    error, temperature = before_temperature(tmp_path, LOGITS, LABELS)

    raw = softmax(LOGITS.double().numpy() * 2)
    assert temperature == 2.0
    assert error == pytest.approx(error_of(raw.max(axis=1), np.array([True, True, False])))
    write_eval(tmp_path, calibration={**calibration, "temperature": None})
    assert before_temperature(tmp_path, LOGITS, LABELS) == (None, None)
    (tmp_path / "eval.json").write_text("{")
    with pytest.raises(RunError, match="damaged run"):
        before_temperature(tmp_path, LOGITS, LABELS)


def test_the_error_before_scaling_of_a_multi_label_model_undoes_the_temperature_of_each_label(
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(0)
    labels = torch.from_numpy(random.integers(0, 2, (200, 2)))
    logits = torch.from_numpy(random.normal(size=(200, 2))) + 2 * labels - 1
    scores = dict.fromkeys(("map", "chance_map", "micro_f1", "macro_f1"), 0.5)
    intervals = dict.fromkeys(("map_interval", "micro_f1_interval", "macro_f1_interval"))
    row = {"ap": 0.5, "ap_interval": None}
    per_label = {"a": {**row, "temperature": 3.0}, "b": row}
    write_eval(tmp_path, labels={**scores, **intervals, "per_label": per_label})

    error, temperature = before_temperature(tmp_path, logits, labels)

    raw = logits.numpy() * [3.0, 1.0]
    probability = 1 / (1 + np.exp(-np.abs(raw)))
    expected = error_of(probability.ravel(), ((raw >= 0) == labels.numpy()).ravel())
    assert temperature is None
    assert error == pytest.approx(expected)
    assert expected > 0.02


def test_an_evaluation_is_written_to_a_new_folder_only(tmp_path: Path) -> None:
    done = Evaluation(results={"images": 1}, predictions=(left_out(path="a.jpg"),))  # type: ignore[typeddict-item]

    assert done.write(tmp_path / "out") == tmp_path / "out"

    assert json.loads((tmp_path / "out" / "eval.json").read_text()) == {"images": 1}
    table = (tmp_path / "out" / "predictions.csv").read_bytes()
    assert table.count(b"\r\n") == 2
    assert table.endswith(b"a.jpg,cat,,,,,,\r\n")
    with pytest.raises(RunError, match="is not empty"):
        replace(done).write(tmp_path / "out")
