"""Texts of the sections with charts, and the charts as files."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.run_files import ENVIRONMENT, make_run
from vitft.cli.main import main
from vitft.metrics.results import MIXTURE, SEVERAL_BLOCKS
from vitft.report import charts
from vitft.report.chart_sections import epochs_section, learning_section, penalty_section
from vitft.report.run_files import read_run


def change(path: Path, **values: object) -> None:
    """Change values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("precision", "top1", "text"),
    [
        pytest.param(
            "bf16",
            0.7123,
            "validated again in float32, with an accuracy of 71.2%; during training, in bf16, it "
            "was 70.0%.",
            id="other",
        ),
        pytest.param("bf16", 0.7, "", id="the same"),
        pytest.param("fp32", 0.7123, "", id="in float32 from the start"),
    ],
)
def test_the_page_says_why_the_saved_epoch_has_another_accuracy_than_the_run(
    tmp_path: Path, precision: str, top1: float, text: str
) -> None:
    run = make_run(tmp_path / "run", epochs=True)
    (run / "environment.json").write_text(json.dumps({**ENVIRONMENT, "precision": precision}))
    change(run / "eval.json", best_epoch=2, top1=top1)

    curves = epochs_section(read_run(run))

    assert curves is not None
    assert curves.rows[1][-1] == "70.0%"
    assert ("validated again" in curves.text) == bool(text)
    assert curves.text.endswith(text)


@pytest.mark.parametrize(
    ("blocks", "reads", "text"),
    [
        (1, "last block", "The head was fitted to convergence by L-BFGS."),
        (6, SEVERAL_BLOCKS, "fitted by linear discriminant analysis on the last 6 blocks."),
        (6, MIXTURE, "L-BFGS, and linear discriminant analysis on the last 6 blocks."),
    ],
)
def test_the_page_says_how_the_head_was_fitted(
    tmp_path: Path, blocks: int, reads: str, text: str
) -> None:
    run = make_run(tmp_path / "run")
    head = {"blocks": blocks, "reads": reads, "candidates": [], "last_block_top1": None}
    change(run / "eval.json", head=head)

    section = penalty_section(read_run(run))

    assert section is not None
    assert text in section.text


def with_curve(run: Path, *points: float, gain: float | None) -> Path:
    """Give a run a learning curve with these accuracies of 10, 20, 30 and so on images."""
    curve = [{"images": 10 * i, "top1": top1} for i, top1 in enumerate(points, 1)]
    found = json.loads((run / "eval.json").read_text()).get("cross_validation") or {}
    more = {"images": 50, "of": 50, "top1": points[-1], "top1_interval": [0.1, 0.9]}
    change(
        run / "eval.json", cross_validation=found | more | {"curve": curve, "gain_from_twice": gain}
    )
    return run


@pytest.mark.parametrize(
    ("points", "has_stopped"),
    [
        pytest.param((0.5, 0.7, 0.7, 0.69), True, id="flat at the end"),
        pytest.param((0.7, 0.6, 0.7, 0.72), False, id="rising at the end"),
    ],
)
def test_a_learning_curve_has_stopped_rising_if_its_last_points_do_not_rise(
    tmp_path: Path, points: tuple[float, ...], has_stopped: bool
) -> None:
    run = with_curve(make_run(tmp_path / "run"), *points, gain=None)

    section = learning_section(read_run(run))

    assert section is not None
    assert ("stopped rising" in section.text) == has_stopped


def test_the_extrapolated_point_of_a_learning_curve_is_at_twice_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = with_curve(make_run(tmp_path / "run"), 0.5, 0.7, gain=0.1)
    drawn: list[Any] = []

    def draw(*given: Any, **_: Any) -> str:
        drawn.append(given)
        return ""

    monkeypatch.setattr(charts, "learning_curve_chart", draw)

    section = learning_section(read_run(run))

    assert section is not None
    ((_, measured, extrapolated),) = drawn
    assert measured == [(10, 0.5), (20, 0.7)]
    assert extrapolated == (40, pytest.approx(0.8))
    assert "improve the accuracy by about 10.0 points" in section.text


def test_charts_are_written_as_files_that_need_no_style_sheet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", epochs=True)

    assert main(["report", "--run", str(run), "--charts", str(tmp_path / "charts")]) == 0

    files = sorted((tmp_path / "charts").iterdir())
    names = [file.name for file in files]
    assert names[-1:] == ["loss_by_epoch.svg"]
    assert "accuracy_by_epoch.svg" in names
    assert {f"chart: {file}" for file in files} == {*capsys.readouterr().out.splitlines()}
    assert not (run / "report.html").exists()
    for file in files:
        root = ElementTree.parse(file).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert all("class" not in element.attrib for element in root.iter())


def test_charts_do_not_replace_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "slides").mkdir()
    (tmp_path / "slides" / "mine.txt").write_text("x")

    assert main(["report", "--run", str(run), "--charts", str(tmp_path / "slides")]) == 5

    assert "is not empty" in capsys.readouterr().err
    assert [file.name for file in (tmp_path / "slides").iterdir()] == ["mine.txt"]


def test_a_run_without_results_has_no_charts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    for name in ("eval.json", "metrics.jsonl"):
        (run / name).unlink()

    assert main(["report", "--run", str(run), "--charts", str(tmp_path / "charts")]) == 5

    assert "has no charts" in capsys.readouterr().err
    assert not (tmp_path / "charts").exists()
