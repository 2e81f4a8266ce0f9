"""Decisions on the pages of a run and of `vitft check`, and the table that they save."""

import csv
import hashlib
import json
import re
import shutil
import time
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import draw_folder
from tests.report.test_report import check_harmless
from tests.support.chromium import Chromium
from tests.support.limits import HANG_S
from tests.support.run_files import HOSTILE, make_run
from vitft.cli.main import main
from vitft.config import config_from_table, read_toml, to_toml
from vitft.data import Fix, write_fixes
from vitft.report import write_report
from vitft.system import escape_formula

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
NAMES = ("Löwenzahn 蒲公英 وردة", "=1+1", 'two, "words"')


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def drawn(root: Path) -> Path:
    """Draw three classes with names of any script, a wrong label, two copies and a torn file."""
    data = draw_folder(root / "colours", per_class=25)
    for old, new in zip(("blue", "green", "red"), NAMES, strict=True):
        (data / old).rename(data / new)
    (data / NAMES[2] / "003.png").rename(data / NAMES[0] / "moved.png")
    shutil.copy(data / NAMES[1] / "004.png", data / NAMES[1] / "copy.png")
    (data / NAMES[1] / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return data


def saved(browser: Chromium, folder: Path) -> bytes:
    """Select the button that saves the table, and return the file that the browser saves."""
    folder.mkdir(exist_ok=True)
    browser.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    browser.evaluate("document.getElementById('save').click()")
    end = time.monotonic() + HANG_S
    while not (found := [p for p in sorted(folder.glob("fixes*.csv")) if p.stat().st_size]):
        assert time.monotonic() < end, "nothing was saved"
        time.sleep(0.05)
    return found[-1].read_bytes()


def table_of(html: str) -> dict[str, Any]:
    """Return the table in a page, which its script reads."""
    (found,) = re.findall(r'data-table="([^"]*)"', html)
    return dict(json.loads(unescape(found)))


def at(path: Path) -> str:
    """Return a selector of the first card that shows the path of a file."""
    return (
        "[...document.querySelectorAll('.decide')]"
        f".find((card) => card.textContent.includes({json.dumps(str(path))}))"
    )


@needs_chromium
def test_decisions_are_saved_applied_and_compared(
    here: Path, tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, weights = drawn(tmp_path), str(tiny_weights)
    options = ["--data", str(data), "--weights", weights, "--set", "data.allow_bad=true"]
    assert main(["finetune", *options, "--out", "first"]) == 0
    page = here / "first" / "report.html"

    with Chromium(str(CHROMIUM), tmp_path / "profile", page) as browser:
        card, copy = at(Path(NAMES[0], "moved.png")), at(Path(NAMES[1], "copy.png"))
        browser.evaluate(f"{card}.querySelector('input[value=suggested]').click()")
        browser.evaluate(f"{copy}.querySelector('input[value=drop]').click()")
        tally = browser.evaluate("document.getElementById('tally').textContent")
        table = saved(browser, tmp_path / "saved")
        browser.send("Page.reload")
        browser.wait_for("document.readyState === 'complete' && document.querySelector('.changed')")
        again = browser.evaluate("document.getElementById('tally').textContent")
        assert browser.complaints() == []

    rows = {row["path"]: row for row in csv.DictReader(table.decode("utf-8-sig").splitlines())}
    assert tally == again
    assert tally.startswith(f"{len(rows)} files in the table: ")
    assert "1 to move, 0 to keep, " in tally
    undecided = sum(row["action"] == "undecided" for row in rows.values())
    assert f", {undecided} undecided. You decided on " in tally
    assert rows[f"{NAMES[0]}/moved.png"]["new_label"] == NAMES[2]
    fixes = tmp_path / "saved" / "fixes.csv"
    again_options = [*options, "--fixes", str(fixes), "--like", "first", "--out", "second"]
    assert main(["finetune", *again_options]) == 0
    with (here / "second" / "split.csv").open(newline="", encoding="utf-8") as file:
        labels = {row["path"]: row["label"] for row in csv.DictReader(file)}
    assert labels[f"{NAMES[0]}/moved.png"] == NAMES[2]
    assert f"{NAMES[1]}/copy.png" not in labels
    assert main(["compare", "first", "second", "--out", "compare.html"]) == 0
    assert "page: compare.html" in capsys.readouterr().err


@needs_chromium
def test_what_was_kept_after_a_look_is_told_from_what_nobody_decided(
    here: Path, tmp_path: Path, tiny_weights: Path
) -> None:
    command = ["check", str(drawn(tmp_path)), "--weights", str(tiny_weights)]
    assert main(command) == 0
    card = at(Path(NAMES[0], "moved.png"))
    kept = f"{card}.querySelector('input[value=keep]')"

    with Chromium(str(CHROMIUM), tmp_path / "profile", here / "check.html") as browser:
        before = browser.evaluate(f"[...{card}.querySelectorAll('input')].some((i) => i.checked)")
        browser.evaluate(f"{kept}.click()")
        tally = browser.evaluate("document.getElementById('tally').textContent")
        first = saved(browser, tmp_path / "saved")
    fixes = tmp_path / "saved" / "fixes.csv"
    assert main([*command, "--fixes", str(fixes), "--out", "again"]) == 0
    with Chromium(str(CHROMIUM), tmp_path / "later", here / "again" / "check.html") as browser:
        after = browser.evaluate(f"{kept}.checked")
        second = saved(browser, tmp_path / "later_saved")

    assert (before, after) == (False, True)
    assert " 1 to keep, " in tally
    assert b"moved.png,keep," in first
    assert b"moved.png,keep," in second
    assert second == (here / "again" / "fixes.csv").read_bytes()


@needs_chromium
def test_one_decision_holds_for_all_cards_of_a_file_and_the_keyboard_is_enough(
    here: Path, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run")  # the first image has a doubtful label and is a duplicate

    with Chromium(str(CHROMIUM), tmp_path / "profile", write_report(run)) as browser:
        browser.evaluate("document.querySelector('.decide input').focus()")
        for kind in ("keyDown", "keyUp"):
            browser.send(
                "Input.dispatchKeyEvent",
                type=kind, key="ArrowRight", code="ArrowRight", windowsVirtualKeyCode=39,
            )  # fmt: skip
        file = browser.evaluate("document.querySelector('.decide').dataset.file")
        cards, dropped = (
            browser.evaluate(
                f"document.querySelectorAll('.decide[data-file=\"{file}\"]{more}').length"
            )
            for more in ("", "[data-action=drop]")
        )

    assert cards == dropped == 3  # doubtful, a duplicate and unusual


def test_a_check_writes_a_page_beside_the_table_and_overwrites_nothing(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "check.html").write_text("mine")
    data = drawn(tmp_path)

    assert main(["check", str(data), "--out", "found"]) == 0
    assert main(["check", str(data)]) == 0

    printed = capsys.readouterr()
    assert "found/check.html: choose and save" in printed.out
    assert "check-2.html: choose and save" in printed.out
    assert (here / "check.html").read_text() == "mine"
    page = check_harmless((here / "found" / "check.html").read_text())
    found = ("1 group of duplicates", "76 unusual images", "1 unreadable file in 77")
    assert all(text in page.text for text in found)
    assert "In total: 78 findings on 77 files." in page.text  # 75 drawn, a copy and a torn file
    assert "Labels were not checked." in page.text
    assert f"vitft finetune --data {data} --fixes ~/Downloads/fixes.csv" in page.text


def test_an_unreadable_file_can_only_be_dropped_or_left_undecided(
    here: Path, tmp_path: Path
) -> None:
    assert main(["check", str(drawn(tmp_path))]) == 0

    html = (here / "check.html").read_text()

    cards = re.findall(r'<figure class="card decide".*?</figure>', html, re.DOTALL)
    (torn,) = (card for card in cards if "torn.png" in card)
    (copy, *_) = (card for card in cards if "copy.png" in card)
    assert re.findall(r'value="(\w+)"', torn) == ["undecided", "drop"]
    assert re.findall(r'value="(\w+)"', copy) == ["keep", "drop"]
    assert ("<select" in torn, "<select" in copy) == (False, True)


def test_names_that_break_pages_and_tables_stay_text(tmp_path: Path) -> None:
    names = {i * 10: f"{name} {i}".replace("/", "\u2044") for i, name in enumerate(HOSTILE)}
    run = make_run(tmp_path / "run", HOSTILE, hardness=3, names=names)

    html = write_report(run).read_text()

    check_harmless(html)
    table = table_of(html)
    cells = [cell for _, cell in table["classes"]]
    assert [*csv.reader([",".join(cells)], strict=True)] == [[*map(escape_formula, HOSTILE)]]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]


def with_fixes(run: Path, table: Path, digest: str) -> Path:
    settings = read_toml(run / "config.toml")
    settings["data"] |= {"fixes": str(table), "fixes_digest": digest}
    (run / "config.toml").write_text(to_toml(config_from_table(settings)))
    return run


def test_the_saved_table_repeats_the_fixes_that_the_run_applied(tmp_path: Path) -> None:
    table = tmp_path / "fixes.csv"
    write_fixes(table, [Fix(path="1/x.jpg", action="move", label="rose", new_label="daisy")])
    digest = hashlib.sha256(table.read_bytes()).hexdigest()
    run = with_fixes(make_run(tmp_path / "run"), table, digest)

    html = write_report(run).read_text()
    table.write_text("path,action\n")
    changed = check_harmless(write_report(run).read_text())

    assert table_of(html)["former"] == [["1/x.jpg", "move", "1/x.jpg,move,rose,daisy,,,"]]
    assert "also contains 1 earlier decision" in check_harmless(html).text
    assert "which cannot be shown here" in changed.text
    assert "has changed" in changed.text
