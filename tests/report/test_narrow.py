"""Pages on a phone, 390 pixels wide, in a browser."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.chromium import Chromium
from tests.support.run_files import make_run
from vitft.report import compare_runs, read_run, write_comparison, write_report

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
CUT = """[...document.querySelectorAll("main *")].filter((element) => {
    const { width, right } = element.getBoundingClientRect();
    return width && right > innerWidth && !element.closest("details:not([open])");
}).map((element) => element.outerHTML.slice(0, 80))"""


PHONE: Any = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}


def comparison_page(folder: Path) -> Path:
    runs = [make_run(folder / name, seed=seed, hardness=2) for seed, name in enumerate("ab")]
    return write_comparison(compare_runs([*map(read_run, runs)]), folder / "page.html")


def run_page(folder: Path) -> Path:
    return write_report(make_run(folder / "run"))


@pytest.mark.parametrize("page", [run_page, comparison_page])
def test_tables_charts_and_bars_fit_the_screen_of_a_phone(
    tmp_path: Path, page: Callable[[Path], Path]
) -> None:
    with Chromium(str(CHROMIUM), tmp_path / "profile", page(tmp_path)) as browser:
        browser.send("Emulation.setDeviceMetricsOverride", **PHONE)
        cut = browser.evaluate(CUT)
        bars = browser.evaluate(
            "[...document.querySelectorAll('#classes .score-bar')].map((bar) => bar.clientWidth)"
        )

    assert cut == []
    assert all(width > 300 for width in bars)  # of 361 between the margins


def test_on_a_phone_the_first_screen_has_pictures(tmp_path: Path) -> None:
    with Chromium(str(CHROMIUM), tmp_path / "profile", run_page(tmp_path)) as browser:
        browser.send("Emulation.setDeviceMetricsOverride", **PHONE)
        bottom = browser.evaluate(
            "document.querySelector('.strip img').getBoundingClientRect().bottom"
        )

    assert bottom < 844
