"""Text in figures drawn with matplotlib."""

import io
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("matplotlib")

from tests.support.limits import HANG_S
from vitft.report.plots import AccuracyCurve, accuracy_curves_png, drawable

FIGURES = Path(__file__).parents[2] / "docs" / "figures.py"


def test_text_of_any_script_is_drawn_or_escaped_but_never_as_boxes() -> None:
    text, families = drawable("Löwenzahn وردة\nЖук \U0010fffd")  # no font has the last character

    assert text == "Löwenzahn وردة\nЖук \\U0010fffd"
    assert families[0] == "DejaVu Sans"


def test_a_figure_with_names_of_any_script_has_no_missing_glyphs() -> None:
    curve = AccuracyCurve(
        name="蒲公英 وردة",
        accuracies=[0.5, 0.8],
        intervals=[(0.4, 0.6), (0.7, 0.9)],
        is_baseline=False,
    )

    png = accuracy_curves_png([1, 2], [curve], majority=0.2, title="牡丹", detail="d")

    assert Image.open(io.BytesIO(png), formats=["PNG"]).width > 600  # a warning would be an error


def test_the_figures_of_the_lesson_name_the_runs_that_are_missing(tmp_path: Path) -> None:
    command = [sys.executable, str(FIGURES), str(tmp_path), str(tmp_path / "figures")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)

    assert done.returncode == 2
    assert f"no finished run {tmp_path / 'digits'}, " in done.stderr
    assert str(tmp_path / "post") in done.stderr
    assert not (tmp_path / "figures").exists()


def test_the_figure_of_norms_says_which_training_seeds_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw_norms = runpy.run_path(str(FIGURES))["draw_norms"]
    rows = "".join(f'{{"epoch": {epoch}, "val_top1": 0.5}}\n' for epoch in (1, 2))
    for name in ("pre", "post", "pre1", "post1", "pre2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(rows)
        (tmp_path / name / "eval.json").write_text("{}")

    draw_norms(tmp_path, tmp_path)

    first, second = capsys.readouterr().out.splitlines()
    assert first == str(tmp_path / "teach_norm.svg")
    assert second.endswith(f"no run {tmp_path / 'post2'}")
