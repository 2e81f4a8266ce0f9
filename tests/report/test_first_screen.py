"""The first screen of a run's page, and metrics that few images can support."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.test_report import at_chance, check_harmless
from tests.support.run_files import FLOWERS, make_run
from vitft.metrics.intervals import wilson_interval
from vitft.predict.validation import mistakes, thumb_name
from vitft.report.chart_sections import confidence_section, learning_section
from vitft.report.charts import score_bar
from vitft.report.first_screen import (
    example_rows,
    first_screen,
    reason_without_weakest,
    score_of,
    weakest_of,
    weakest_sentence,
)
from vitft.report.run_files import Run, Thumbnails, read_run
from vitft.report.run_page import write_report
from vitft.report.summary import key_figures


def test_examples_are_wrong_doubtful_and_right_predictions(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", hardness=2, per_class=20, held_back=10))

    rows = first_screen(run, Thumbnails([run])).examples

    assert [row.kind for row in rows] == ["wrong", "doubtful", "right"]
    wrong, doubtful, right = ([one.prediction for one in row.examples] for row in rows)
    assert not any(one.is_correct for one in wrong)
    assert all(one.is_correct for one in doubtful + right)
    assert len({one.label for one in right}) == len(right)
    assert max(one.probability for one in doubtful) < min(one.probability for one in right)


def test_images_without_thumbnails_are_not_examples(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", hardness=2)
    (run / "thumbs").rename(tmp_path / "elsewhere")

    page = check_harmless(write_report(run).read_text())

    assert "Wrong, most confident first" not in page.text


def test_a_model_at_chance_level_has_a_verdict_in_red_and_no_weakest_class(tmp_path: Path) -> None:
    run = at_chance(make_run(tmp_path / "run"))

    page = check_harmless(write_report(run).read_text())
    screen = first_screen(read_run(run), Thumbnails([]))

    assert (screen.weakest, screen.no_weakest) == (None, "")
    assert any(a.get("class") == "verdict bad" for _, a in page.elements)
    assert "This model always predicts poppy." in page.text


def test_without_mistakes_no_class_is_called_the_weakest(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", hardness=0.01))

    screen = first_screen(run, Thumbnails([run]))

    assert screen.weakest is None
    assert screen.no_weakest.startswith("None of the 12 validation images was misclassified")
    assert screen.verdict.startswith("All 12 validation images were classified correctly, but up")


def test_a_calibration_error_of_zero_is_given_as_its_upper_bound(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    results = json.loads((path / "eval.json").read_text())
    results["calibration"] |= {"ece": 0.0001, "ece_interval": [0.0, 0.074]}
    (path / "eval.json").write_text(json.dumps(results | {"images": 20}))

    (figure,) = (one for one in key_figures(read_run(path)) if one.name == "calibration error")

    assert (figure.value, figure.interval) == ("< 7.4%", "0.0 to 7.4%")


def test_a_calibration_error_of_few_images_is_not_given(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    results = json.loads((path / "eval.json").read_text())
    (path / "eval.json").write_text(json.dumps(results | {"images": 19}))

    run = read_run(path)

    assert "calibration error" not in [figure.name for figure in key_figures(run)]
    section = confidence_section(run)
    assert section is not None
    assert section.text.startswith("Too few images to measure the calibration error. The logits")
    assert "the difference was" not in section.text


def test_the_learning_curve_has_an_interval_at_every_point(tmp_path: Path) -> None:
    section = learning_section(read_run(make_run(tmp_path / "run")))

    assert section is not None
    assert [row[2] for row in section.rows] == ["42.3 to 75.4%", "52.1 to 83.3%", "62.7 to 90.5%"]
    assert section.charts[0].count('stroke-width="1.2"') == 3


def test_a_bar_shows_value_interval_and_baseline() -> None:
    bar = score_bar("accuracy", 1.0, (0.9, 1.0), 0.2)

    assert 'aria-label="accuracy 100.0%, 95% interval 90.0 to 100.0%, baseline 20.0%"' in bar
    assert 'class="band" x="90.00%" y="6" width="10.00%"' in bar
    assert 'class="f-accent" x="99.00%"' in bar  # the mark stays inside the bar


# rules -------------------------------------------------------------------------------------------


def weak_run(tmp_path: Path, *, spots: Any = (), labels: Any = None, **recalls: float) -> Run:
    """Return a run whose classes have these recalls on 20 validation images each."""
    run = read_run(make_run(tmp_path / "run"))
    rows = {
        name: {"images": 20, "recall": r, "recall_interval": wilson_interval(round(20 * r), 20)}
        for name, r in recalls.items()
    }
    more: Any = {**run.results["cross_validation"], "weak_spots": spots}
    results: Any = {**run.results, "per_class": rows, "top1": 0.9, "cross_validation": more}
    if labels:
        run = replace(run, split=replace(run.split, labels=run.classes))
        results["labels"] = {"per_label": labels, "map_interval": (0.5, 0.9), "chance_map": 0.3}
    return replace(run, results=results)


@pytest.mark.parametrize(
    ("recalls", "name", "is_clear"),
    [
        ((0.95, 0.65, 0.7), "poppy", True),
        ((0.95, 0.8, 0.9), "poppy", False),
        ((1.0, 1.0, 0.95), "rose", False),
    ],
)
def test_the_weakest_class_has_the_lowest_recall(
    tmp_path: Path, recalls: tuple[float, ...], name: str, *, is_clear: bool
) -> None:
    run = weak_run(tmp_path, **dict(zip(FLOWERS, recalls, strict=True)))

    worst = weakest_of(run)

    assert worst is not None
    assert (worst.name, worst.measure, worst.value) == (name, "recall", f"{min(recalls):.0%}")
    assert worst.is_clear is is_clear
    assert worst.detail.startswith("on 20 validation images")
    assert worst.trained == "6 training images"
    assert not worst.is_cross_validated
    assert weakest_of(replace(run, classes=("poppy",))) is None
    assert weakest_of(replace(run, classes=("poppy", "rose"))) is not None


def test_recalls_in_cross_validation_come_first_if_there_are_mistakes(tmp_path: Path) -> None:
    spots = [
        {"class": "rose", "recall": 0.9, "images": 50, "taken_for": "daisy"},
        {"class": "daisy", "recall": 0.8, "images": 50, "taken_for": None},
    ]
    recalls = {"daisy": 0.95, "poppy": 0.1, "rose": 0.95}

    worst = weakest_of(weak_run(tmp_path, spots=spots, **recalls))
    right = [{**one, "recall": 1.0} for one in spots]
    validated = weakest_of(weak_run(tmp_path / "other", spots=right, **recalls))

    assert worst is not None
    assert (worst.name, worst.is_cross_validated) == ("daisy", True)
    assert worst.detail == "on 50 images in cross-validation"
    assert validated is not None
    assert (validated.name, validated.is_cross_validated) == ("poppy", False)


def test_the_weakest_class_is_named_in_a_sentence(tmp_path: Path) -> None:
    spots = [{"class": "rose", "recall": 0.5, "images": 50, "taken_for": "daisy"}]
    run = weak_run(tmp_path, spots=spots, daisy=1.0, poppy=1.0, rose=1.0)
    rows = {name: {"ap": ap, "ap_interval": (0.2, 0.8)} for name, ap in
            zip(FLOWERS, (0.9, 0.6, 0.7), strict=True)}  # fmt: skip
    several = weak_run(tmp_path / "several", labels=rows, daisy=1.0, poppy=1.0, rose=1.0)

    low, high = (f"{100 * end:.0f}" for end in wilson_interval(25, 50))
    assert weakest_sentence(run) == (
        "The weakest class is rose, with a recall of 50% on 50 images in cross-validation, most "
        f"often mistaken for daisy (95% interval: {low} to {high}%)."
    )
    assert weakest_sentence(several) == (
        "The weakest label is poppy, with an average precision of 60.0% on 12 validation images "
        "(95% interval: 20.0 to 80.0%)."
    )
    perfect = weak_run(tmp_path / "perfect", daisy=1.0, poppy=1.0, rose=1.0)
    assert weakest_sentence(perfect).startswith("None of the 12 validation images was")
    poor: Any = {**run.results, "balanced_interval": (0.2, 0.5), "cross_validation": None}
    assert weakest_sentence(replace(run, results=poor)) == ""


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((1.0, 1.0, 1.0), "On the validation images, the average precision of each label is 100%."),
        ((1.0, 1.0), "On the validation images, the average precision of each label is 100%."),
        ((1.0,), ""),
        ((1.0, None), ""),
        ((1.0, 0.9), ""),
    ],
)
def test_labels_that_are_all_ranked_right_are_called_so(
    tmp_path: Path, values: tuple[float | None, ...], text: str
) -> None:
    rows = {f"l{i}": {"ap": value, "ap_interval": None} for i, value in enumerate(values)}
    run = weak_run(tmp_path, labels=rows, daisy=1.0, poppy=1.0, rose=1.0)

    assert reason_without_weakest(run) == text


def test_the_score_is_the_accuracy_or_the_mean_average_precision(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    found = {"map": 0.7, "map_interval": (0.6, 0.8), "chance_map": 0.25}
    several: Any = {**run.results, "labels": found}
    labels = replace(run, results=several)

    accuracy, precision = score_of(run), score_of(labels)

    assert accuracy is not None
    assert (accuracy.name, accuracy.baseline) == ("accuracy", "always the largest class: 33.3%")
    assert accuracy.measured_on == "12 validation images"
    assert (accuracy.validated, accuracy.cross_validated) == ("", "")
    test: Any = {**run.results, "images": 90, "top1": 0.5, "top1_interval": (0.4, 0.6)}
    tested = score_of(replace(run, results={**run.results, "test": test}))
    assert tested is not None
    assert (tested.value, tested.measured_on) == ("50.0%", "90 test images")
    assert tested.validated == f"on 12 validation images: {accuracy.value} ({accuracy.interval})"
    assert precision is not None
    assert (precision.name, precision.value) == ("mean average precision", "70.0%")
    assert (precision.interval, precision.baseline) == ("60.0 to 80.0%", "random scores: 25.0%")
    assert score_of(replace(run, results={})) is None  # type: ignore[typeddict-item]


def test_there_are_at_most_four_examples_of_each_kind_with_thumbnails(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(12)]
    run = read_run(make_run(tmp_path / "run", names, hardness=2, per_class=20, held_back=10))

    rows = example_rows(run, Thumbnails([run]))

    assert [(row.kind, len(row.examples)) for row in rows] == [
        ("wrong", 4), ("doubtful", 4), ("right", 4),
    ]  # fmt: skip
    wrong, doubtful, right = ([one.prediction for one in row.examples] for row in rows)
    by_doubt = sorted((p for p in run.predictions if p.is_correct), key=lambda p: p.probability)
    assert wrong == mistakes(run.predictions)[:4]
    assert doubtful[0] == by_doubt[0]
    assert right[0] == by_doubt[-1]
    assert len({one.label for one in doubtful}) == 4
    for one in wrong[:3]:
        (run.path / "thumbs" / thumb_name(one.sha256)).unlink()
    assert [one.prediction for one in example_rows(run, Thumbnails([run]))[0].examples] == (
        mistakes(run.predictions)[3:7]
    )


def test_the_label_with_the_lowest_average_precision_is_named_without_doubt(tmp_path: Path) -> None:
    rows = {name: {"ap": ap, "ap_interval": (0.2, 0.8)} for name, ap in
            zip(FLOWERS, (0.9, 0.6, 0.7), strict=True)}  # fmt: skip

    worst = weakest_of(weak_run(tmp_path, labels=rows, daisy=1.0, poppy=1.0, rose=1.0))

    assert worst is not None
    assert (worst.name, worst.measure) == ("poppy", "average precision")
    assert (worst.value, worst.interval) == ("60.0%", "20.0 to 80.0%")
    assert (worst.is_clear, worst.is_cross_validated) == (True, False)
