"""Text in figures drawn with matplotlib."""

import io
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.font_manager import fontManager
from PIL import Image

pytest.importorskip("matplotlib")

from matplotlib import colormaps

from tests.support.limits import HANG_S
from vitft.report import plots
from vitft.report.plots import (
    AccuracyCurve,
    accuracy_curves_png,
    distance_png,
    drawable,
    filters_png,
)

FIGURES = Path(__file__).parents[2] / "docs" / "figures.py"


def test_text_of_any_script_is_drawn_or_escaped_but_never_as_boxes() -> None:
    text, families = drawable("Löwenzahn وردة\nЖук \U0010fffd")  # no font has the last character

    assert text == "Löwenzahn وردة\nЖук \\U0010fffd"
    assert families[0] == "DejaVu Sans"


def test_a_character_that_no_font_has_is_reported_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "family_with", lambda c: "" if c in "数字" else "DejaVu Sans")
    plots.warn_of_missing_font.cache_clear()

    for _ in range(2):
        assert drawable("数字 x")[0] == r"\u6570\u5b57 x"

    (record,) = caplog.records
    assert r"codes such as \u6570, because no font on this machine has 数字:" in record.getMessage()


def test_a_font_installed_after_the_list_was_cached_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: list[str] = []
    own = fontManager.ttflist[0].fname
    monkeypatch.setattr(plots, "findSystemFonts", lambda: [own, "/new/cjk.ttc"])
    monkeypatch.setattr(fontManager, "addfont", added.append)
    plots.add_new_fonts.cache_clear()

    plots.add_new_fonts()

    assert added == ["/new/cjk.ttc"]
    plots.add_new_fonts.cache_clear()


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


def test_a_white_filter_has_a_frame() -> None:
    png = filters_png(np.ones((2, 2, 2, 3), np.float32), np.full(2, 0.5, np.float32), "m")

    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    rows = pixels[len(pixels) // 2 :]  # below the title
    assert (rows.min(axis=-1) < 200).any(axis=0).sum() > 100


def test_the_heads_in_the_figure_of_distances_have_a_legend() -> None:
    distance = np.full((3, 4), np.arange(2, 6), np.float32)

    png = distance_png(distance, images=5, uniform=3.0, title="m")

    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    legend = pixels[:, round(0.8 * pixels.shape[1]) :].reshape(-1, 3)
    for colour in colormaps["viridis"](np.linspace(0, 0.95, 4)):
        wanted = np.round(255 * colour[:3])
        assert (np.abs(legend - wanted).max(axis=-1) <= 2).any()
