"""Sections of a run's page: confusions, classes, class sizes and what was not checked."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.run_files import make_run
from vitft.data.split import Row
from vitft.predict.validation import ValidationPrediction
from vitft.report.run_files import Run, read_run
from vitft.report.run_page import (
    balance_section,
    class_rows,
    confusion_counts,
    confusion_of,
    cross_validated_counts,
    report_of_new_run,
    run_page,
    unchecked,
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return read_run(make_run(tmp_path / "run"))


def with_results(run: Run, **results: Any) -> Run:
    """Return the run with some results changed."""
    return replace(run, results={**run.results, **results})  # type: ignore[typeddict-item]


def prediction(number: int, label: str, predicted: str) -> ValidationPrediction:
    return ValidationPrediction(
        path=f"{number}.jpg",
        sha256=f"{number:064}",
        label=label,
        predicted=predicted,
        probability=0.6,
        label_probability=0.4,
    )


# confusions --------------------------------------------------------------------------------------


def test_a_cell_tells_its_classes_its_images_and_its_fraction_of_the_row() -> None:
    found = confusion_of("ab", {(0, 0): 9, (0, 1): 3, (1, 1): 5})

    assert found is not None
    (right, wrong), (none, whole) = found.matrix
    assert (right.count, right.fraction, right.cell) == (9, "75%", "0-0")
    assert right.text == "9 of 12 images of a classified correctly"
    assert (wrong.count, wrong.fraction, wrong.cell) == (3, "25%", "0-1")
    assert wrong.text == "3 of 12 images of a classified as b"
    assert (none.count, none.fraction, none.shade) == (0, "0%", "")
    assert (whole.shade, right.shade, wrong.shade) == ("right-5", "right-4", "wrong-1")
    assert found.pairs == [wrong]
    assert found.more == 0
    assert confusion_of("ab", {}) is None
    empty = confusion_of("ab", {(0, 0): 1})
    assert empty is not None
    assert empty.matrix[1][0].fraction == ""  # a class without images


@pytest.mark.parametrize(
    ("images", "shade"), [(1, "wrong-0"), (16, "wrong-0"), (17, "wrong-1"), (50, "wrong-3"),
                          (99, "wrong-5"), (100, "wrong-5")]
)  # fmt: skip
def test_shades_are_sixths_of_the_row(images: int, shade: str) -> None:
    found = confusion_of("ab", {(0, 1): images, (0, 0): 100 - images})

    assert found is not None
    assert found.matrix[0][1].shade == shade


@pytest.mark.parametrize(("classes", "rows"), [(20, 20), (21, 0)])
def test_up_to_twenty_classes_have_a_matrix_and_more_have_thirty_pairs(
    classes: int, rows: int
) -> None:
    names = [f"c{i}" for i in range(classes)]
    counts = {(i, (i + k) % classes): 1 + i * k for i in range(16) for k in (1, 2)}

    found = confusion_of(names, counts)

    assert found is not None
    assert len(found.matrix) == rows
    assert [pair.count for pair in found.pairs] == sorted(counts.values(), reverse=True)[:30]
    assert found.more == 2


def test_confusions_are_counted_from_predictions_or_results(run: Run) -> None:
    pairs = [("daisy", "rose"), ("daisy", "rose"), ("rose", "rose")]
    own = replace(run, predictions=tuple(prediction(i, *pair) for i, pair in enumerate(pairs)))

    assert confusion_counts(own) == {(0, 2): 2, (2, 2): 1}
    matrix = [[3, 0, 1], [0, 4, 0], [0, 0, 4]]
    older = with_results(replace(run, predictions=()), confusion=matrix)
    assert dict(confusion_counts(older)) == {(0, 0): 3, (0, 2): 1, (1, 1): 4, (2, 2): 4}
    assert confusion_counts(replace(older, classes=("daisy", "poppy"))) == {}
    assert confusion_counts(replace(own, split=replace(run.split, labels=run.classes))) == {}


def test_cross_validated_confusions_need_more_images_than_the_validation(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    with np.load(path / "validation.npz") as file:
        logits = file["logits"]
    predicted = np.array([row.label for row in read_run(path).rows])
    predicted[0] = 2
    np.savez(path / "validation.npz", logits=logits, cross_validated=predicted)
    run = read_run(path)

    assert cross_validated_counts(run) == {(0, 0): 9, (0, 2): 1, (1, 1): 10, (2, 2): 10}
    many = [prediction(i, "daisy", "daisy") for i in range(30)]
    assert cross_validated_counts(replace(run, predictions=tuple(many[:29]))).total() == 30
    assert not cross_validated_counts(replace(run, predictions=tuple(many)))
    assert not cross_validated_counts(with_results(run, best_epoch=2))
    assert run_page(run)["num_cross_validated"] == 30


# classes -----------------------------------------------------------------------------------------


def test_classes_are_sorted_by_recall_with_undefined_ones_last(run: Run) -> None:
    usual: Any = {"recall_interval": (0.1, 0.9), "precision": 0.5, "images": 4}
    per_class = {
        "poppy": {**usual, "recall": 0.75},
        "tulip": {**usual, "recall": None, "recall_interval": None, "images": 0},
        "rose": {**usual, "recall": 0.25},
        "daisy": {**usual, "recall": 0.25},
    }
    wrong = [("rose", "daisy"), ("rose", "poppy"), ("rose", "poppy"), ("daisy", "rose"),
             ("daisy", "poppy")]  # fmt: skip
    predictions = tuple(prediction(i, *pair) for i, pair in enumerate(wrong))

    rows = class_rows(with_results(replace(run, predictions=predictions), per_class=per_class))

    assert [row.name for row in rows] == ["daisy", "rose", "poppy", "tulip"]
    assert [row.confused_with for row in rows] == ["rose or poppy (1)", "poppy (2)", "–", "–"]
    assert [row.train for row in rows] == [6, 6, 6, 0]
    assert ['aria-label="recall 25.0%' in row.bar for row in rows] == [True, True, False, False]
    assert rows[3].bar == ""
    assert {(row.ap, row.threshold) for row in rows} == {("", "")}


def test_labels_have_their_precision_and_threshold(run: Run) -> None:
    per_label = {
        name: {"ap": 0.8, "ap_interval": (0.6, 0.9), "threshold": 0.35} for name in run.classes
    }

    rows = class_rows(with_results(run, labels={"per_label": per_label}))

    assert {(row.ap, row.threshold) for row in rows} == {("80.0% (60 to 90%)", "35%")}


@pytest.mark.parametrize(("classes", "has_bars"), [(100, True), (101, False)])
def test_bars_are_drawn_for_up_to_a_hundred_classes(
    run: Run, classes: int, *, has_bars: bool
) -> None:
    names = tuple(f"c{i}" for i in range(classes))
    metrics = {"recall": 0.5, "recall_interval": (0.1, 0.9), "images": 4}

    rows = class_rows(with_results(replace(run, classes=names), per_class={"c0": metrics}))

    assert bool(rows[0].bar) is has_bars


def sized(run: Run, *sizes: tuple[int, int]) -> Run:
    """Return the run with so many training and validation images of each class."""
    rows = [
        Row(f"{label}/{part}{i}", label, part, f"{label} {part} {i}")  # type: ignore[arg-type]
        for label, numbers in enumerate(sizes)
        for part, number in zip(("train", "val"), numbers, strict=True)
        for i in range(number)
    ]
    rows.append(Row("0/t", 0, "test", "t"))
    return replace(run, rows=tuple(rows), split=replace(run.split, rows=tuple(rows)))


def test_class_sizes_are_fractions_of_the_largest(run: Run) -> None:
    uneven = balance_section(sized(run, (3, 1), (6, 2), (1, 1)))
    even = balance_section(sized(run, (3, 1), (2, 2), (1, 3)))

    assert uneven is not None
    text, rows = uneven
    assert text == "Classes have 2 (rose) to 8 images (poppy)."
    assert rows == [
        ("daisy", 3, 1, 37.5, 12.5),
        ("poppy", 6, 2, 75, 25),
        ("rose", 1, 1, 12.5, 12.5),
    ]
    assert even is not None
    assert even[0] == "Every class has 4 images."
    assert balance_section(replace(run, rows=())) is None


# what was left out -------------------------------------------------------------------------------


def settings(run: Run, **sections: dict[str, Any]) -> Run:
    config = {key: {**run.config[key], **sections.get(key, {})} for key in run.config}
    return replace(run, config=config)


@pytest.mark.parametrize(
    ("freeze", "text"),
    [("head", ""), ("pre_logits", ""), ("head,none", ""), ("none", "Because the features changed"),
     ("blocks:2", "Because the features changed")],
)  # fmt: skip
def test_trained_features_are_not_searched_for_label_errors(
    run: Run, freeze: str, text: str
) -> None:
    found = unchecked(settings(run, train={"freeze": freeze}))

    assert found.startswith(text)
    assert bool(found) == bool(text)


def test_a_sample_is_called_one(run: Run) -> None:
    more: Any = run.results["cross_validation"]
    part = with_results(run, cross_validation={**more, "images": 29, "of": 30})

    text = unchecked(part)
    grouped = unchecked(settings(part, data={"group_duplicates": True}))

    assert text.startswith("Labels were checked on a sample of 29 images, and near-duplicates were")
    assert grouped == "Labels were checked on a sample of 29 images."
    assert unchecked(run) == ""
    few = {key: value for key, value in run.results.items() if key != "cross_validation"}
    assert unchecked(replace(run, results=few)).startswith("Labels were not checked")  # type: ignore[arg-type]
    del few["l2"]
    assert unchecked(replace(run, results=few)) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(("wrong", "shown", "unfolded"), [(301, 300, 24), (20, 20, 20)])
def test_at_most_300_mistakes_are_shown_and_24_of_them_unfolded(
    run: Run, monkeypatch: pytest.MonkeyPatch, wrong: int, shown: int, unfolded: int
) -> None:
    monkeypatch.setattr(Run, "thumbnail", lambda *_, **__: "data:image/jpeg;base64,")
    many = tuple(prediction(i, "daisy", "rose") for i in range(wrong))

    page: Any = run_page(replace(run, predictions=many))

    assert (len(page["mistakes"]), page["num_mistakes"], page["unfolded"]) == (shown, wrong, 24)
    assert len(page["with_attention"]) == unfolded


def test_up_to_three_doubtful_images_of_a_class_and_sixty_of_all_are_shown(run: Run) -> None:
    names = tuple(f"c{i}" for i in range(21))
    right = tuple(prediction(i, names[i // 5], names[i // 5]) for i in range(5 * len(names)))
    older = replace(run, classes=names, rows=())

    many: Any = run_page(replace(older, predictions=right))
    few: Any = run_page(replace(older, predictions=right[:10]))

    assert len(many["least_confident"]) == 60
    assert [one.label for one in few["least_confident"]] == ["c0"] * 3 + ["c1"] * 3


def budget(chosen: str) -> dict[str, Any]:
    return {"seconds": 60, "trials": [], "skipped": [], "chosen": chosen}


@pytest.mark.parametrize(
    ("chosen", "is_choice"), [("", False), ("head", False), ("blocks:2", True)]
)
def test_a_choice_of_the_time_budget_is_that_of_further_layers(
    run: Run, chosen: str, *, is_choice: bool
) -> None:
    page = run_page(with_results(run, budget=budget(chosen)))

    assert page["is_budget_choice"] is is_choice
    assert run_page(run)["is_budget_choice"] is False


def test_only_the_main_process_writes_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_run(tmp_path / "run")

    monkeypatch.setenv("RANK", "1")
    assert report_of_new_run(path) is None
    assert not (path / "report.html").exists()
    for rank in ("0", None):
        monkeypatch.delenv("RANK") if rank is None else monkeypatch.setenv("RANK", rank)
        assert report_of_new_run(path) == path / "report.html"
    (path / "eval.json").write_text("{")
    assert report_of_new_run(path) is None
    assert "the report was not written: " in caplog.text


def names_of(rows: Sequence[Any]) -> list[str]:
    return [row.name for row in rows]


def test_equal_recalls_are_in_alphabetical_order(run: Run) -> None:
    metrics = {"recall": 1.0, "recall_interval": (0.5, 1.0), "images": 4}

    rows = class_rows(with_results(run, per_class=dict.fromkeys("cab", metrics)))

    assert names_of(rows) == ["a", "b", "c"]
