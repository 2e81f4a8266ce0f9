"""The first screen of a run's page, and metrics that few images can support."""

import json
from pathlib import Path

from tests.report.test_report import at_chance, check_harmless
from tests.support.run_files import make_run
from vitft.report.chart_sections import confidence_section, learning_section
from vitft.report.charts import score_bar
from vitft.report.first_screen import first_screen
from vitft.report.run_files import Thumbnails, read_run
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
