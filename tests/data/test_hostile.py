"""40 names that have broken pages, terminals or spreadsheets, through every output."""

import re
from pathlib import Path

import pytest

from tests.conftest import draw_folder
from tests.report.test_report import check_harmless
from tests.support.run_files import HOSTILE
from vitft.cli.main import main

CLASSES = {
    "blue": "<img src=x onerror=alert(1)>",
    "green": "=cmd|' C calc'!A0",
    "red": "gpj.\u202eexe\x1b[31m",
}
HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f\u200b\u202e\ufeff]")


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose classes and files bear such names, as the current folder's `data`."""
    folder = draw_folder(tmp_path / "data", per_class=14)
    names = iter(HOSTILE)
    for plain, name in CLASSES.items():
        for file in sorted((folder / plain).iterdir()):
            file.rename(file.with_name(f"{next(names, 'x').replace('/', '_')} {file.stem}.png"))
        (folder / plain).rename(folder / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_names_stay_text_from_training_to_page_table_and_spreadsheet(
    hostile: Path, tiny_weights: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ["--data", "data", "--weights", str(tiny_weights)]
    assert main(["finetune", *given, "--out", "<b>a</b>"]) == 0
    steps = ["--set", "optim.solver=adamw", "--epochs", "1", "--lr", "0.00001"]
    assert main(["finetune", *given, *steps, "--out", "=b"]) == 0
    assert main(["compare", "<b>a</b>", "=b", "--out", "compare.html"]) == 0
    for style in ("table", "json", "jsonl"):  # a CSV cell holds the exact name, for programs
        main(["predict", "data", "--run", "<b>a</b>", "--format", style])

    shown = capfd.readouterr()
    for text in (shown.out, shown.err):
        assert not HIDDEN.search(text)
    for page in ("<b>a</b>/report.html", "=b/report.html", "compare.html"):
        html = (hostile / page).read_text()
        assert CLASSES["blue"] in check_harmless(html).text
        assert not HIDDEN.search(html)
