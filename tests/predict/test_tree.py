"""Answers by a parent class of a tree."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vitft.metrics import Outputs, softmax
from vitft.predict import ClassTree, Marks, Postprocess, Scores, level_covers, marking
from vitft.system import RunDir, RunError, write_json

CLASSES = ("bat", "cat", "dog", "frog")
TABLE = "class,parent\nbat,mammal\ncat,pet\ndog,pet\npet,mammal\nmammal,\n"


@pytest.fixture
def tree(tmp_path: Path) -> ClassTree:
    (tmp_path / "tree.csv").write_text(TABLE)
    return ClassTree.read(tmp_path / "tree.csv", CLASSES)


def test_a_level_has_the_nodes_at_its_depth_and_the_classes_that_are_not_so_deep(
    tree: ClassTree,
) -> None:
    assert tree.nodes == [["frog", "mammal"], ["bat", "frog", "pet"], CLASSES]
    assert [above.tolist() for above in tree.above] == [[1, 1, 1, 0], [0, 2, 2, 1], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("probabilities", "level", "name", "probability"),
    [
        ([0.05, 0.9, 0.05, 0.0], 3, "cat", 0.9),
        ([0.2, 0.45, 0.35, 0.0], 2, "pet", 0.8),
        ([0.4, 0.3, 0.2, 0.1], 1, "mammal", 0.9),  # bat is most probable, and has no parent here
        ([0.3, 0.3, 0.2, 0.2], 1, "mammal", 0.8),
        ([0.2, 0.2, 0.3, 0.3], 0, "dog", 0.3),
        ([0.05, 0.05, 0.05, 0.85], 0, "frog", 0.85),  # a class is an answer at its own level only
    ],
)
def test_the_answer_is_the_lowest_node_that_reaches_the_threshold_of_its_level(
    tree: ClassTree, probabilities: list[float], level: int, name: str, probability: float
) -> None:
    tree = replace(tree, thresholds=(0.79, 0.75, 0.89))
    postprocess = Postprocess(outputs=Outputs.of(CLASSES), threshold=0.89, tree=tree)

    logits = np.log(np.maximum(probabilities, 1e-30), dtype=np.float32)[None]
    (found,) = postprocess([""], Scores(logits))

    assert (found.level, found.answer) == (level, name)
    assert found.probability == pytest.approx(probability)
    assert found.notes == (() if level else ("not sure",))


def unsure_images() -> tuple[np.ndarray, np.ndarray]:
    """Return logits of 60 clear cats, 40 pets, of which one is a bat, and 40 that may be any."""
    clear, pet, any_class = [0.0, 9.0, 0.0, 0.0], [0.0, 7.0, 7.0, 0.0], [1.0, 1.0, 1.0, 0.9]
    logits = np.array([clear] * 60 + [pet] * 40 + [any_class] * 40, np.float32)
    return logits, np.array([1] * 60 + [1, 2] * 19 + [2, 0] + [0, 1, 2, 3] * 10)


def test_a_level_is_judged_by_the_images_without_an_answer_below_it(tree: ClassTree) -> None:
    logits, labels = unsure_images()
    probabilities = softmax(logits.astype(np.float64))

    (second, pets, sure), (first, mammals, none) = level_covers(
        tree, probabilities, labels, 0.9, lowest=0.9
    )

    assert (second, len(pets.correct), int(pets.correct.sum())) == (2, 80, 59)
    assert sure == 40
    assert (first, len(mammals.correct), int(mammals.correct.sum()), none) == (1, 40, 30, 0)
    patients = np.arange(len(labels)) // 20
    covers = level_covers(tree, probabilities, labels, 0.9, lowest=0.9, groups=patients)
    assert [covered for _, _, covered in covers] == [0, 0]  # the pets are of two patients


def write_run(folder: Path, logits: np.ndarray, labels: np.ndarray, validation: int) -> Path:
    """Write a run with so many validation images; the others were cross-validated."""
    write_json(folder / "class_indices.json", {str(i): name for i, name in enumerate(CLASSES)})
    splits = np.where(np.arange(len(labels)) < validation, "val", "train")
    rows = [
        f"{i}.jpg,{CLASSES[label]},{split},{i:064x}"
        for i, (label, split) in enumerate(zip(labels.tolist(), splits, strict=True))
    ]
    (folder / "split.csv").write_text("\n".join(["path,label,split,sha256", *rows, ""]))
    shares = softmax(logits[validation:].astype(np.float64))
    predicted = logits.argmax(axis=1)
    RunDir(folder).write_arrays(
        "validation.npz",
        logits=logits[:validation],
        train_probability=shares.max(axis=1),
        train_correct=(predicted == labels)[validation:],
        train_label_probability=shares[np.arange(len(shares)), labels[validation:]],
        train_logits=logits[validation:],
        cross_validated=np.where(splits == "train", predicted, -1),
    )
    return folder


@pytest.mark.parametrize("validation", [30, 140])
def test_each_level_has_a_threshold_from_validation_and_cross_validated_images(
    tmp_path: Path, tree: ClassTree, validation: int, caplog: pytest.LogCaptureFixture
) -> None:
    logits, labels = unsure_images()
    order = np.random.default_rng(0).permutation(len(labels))
    run = write_run(tmp_path, logits[order], labels[order], validation)
    marks = Marks(precision=0.9, tree=str(tmp_path / "tree.csv"))

    with caplog.at_level(logging.INFO):
        found = marking(Postprocess(outputs=Outputs.of(CLASSES)), marks, run)

    assert found.tree is not None
    top, pets, cats = found.tree.thresholds
    assert cats == found.threshold > 0.99
    assert pets == pytest.approx(2 / (2 + 2 * np.exp(-7)))
    assert top > 1
    assert "level 2: threshold 99.9%: precision 97.5%" in caplog.text
    assert "on 40 of 80 unsure images" in caplog.text
    assert "level 1 has no answers" in caplog.text
    (answer,) = found([""], Scores(np.array([[0.0, 8.0, 8.0, 0.0]], np.float32)))
    assert (answer.answer, answer.level, answer.notes) == ("pet", 2, ())


def test_thresholds_need_the_logits_of_all_held_out_images(tmp_path: Path, tree: ClassTree) -> None:
    run = write_run(tmp_path, *unsure_images(), validation=100)
    arrays = dict(np.load(run / "validation.npz"))
    del arrays["train_logits"]
    RunDir(run).write_arrays("validation.npz", **arrays)
    marks = Marks(precision=0.9, tree=str(tmp_path / "tree.csv"))

    with pytest.raises(RunError, match="has no logits of its cross-validated images"):
        marking(Postprocess(outputs=Outputs.of(CLASSES)), marks, run)
