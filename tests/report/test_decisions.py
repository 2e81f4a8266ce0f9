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
from tests.support.run_files import FLOWERS, HOSTILE, make_run
from vitft.cli.main import main
from vitft.cli.summary import suggest_next_steps
from vitft.config.run import checked_run_config, config_from_table, read_toml, to_toml
from vitft.data.fixes import Fix, write_fixes
from vitft.data.proposals import propose_fixes
from vitft.report.decisions import make_decisions, undecided_findings, undecided_numbers
from vitft.report.run_decisions import run_decisions
from vitft.report.run_files import Thumbnails, folder_uri, read_run
from vitft.report.run_page import write_report
from vitft.system.text import escape_formula

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
    end = time.monotonic() + 20
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
def test_without_decisions_the_page_saves_the_table_that_check_wrote(
    here: Path, tmp_path: Path, tiny_weights: Path
) -> None:
    data = drawn(tmp_path)
    assert main(["check", str(data), "--weights", str(tiny_weights)]) == 0

    with Chromium(str(CHROMIUM), tmp_path / "profile", here / "check.html") as browser:
        table = saved(browser, tmp_path / "saved")
        pictures = browser.evaluate("document.querySelectorAll('.decide img').length")
        assert browser.complaints() == []

    assert table == (here / "fixes.csv").read_bytes()
    assert pictures >= 3  # the wrong label and both copies


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


@needs_chromium
def test_a_duplicate_can_be_moved_to_the_class_suggested_on_its_other_card(
    here: Path, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run")  # the first image has a doubtful label and is a duplicate

    with Chromium(str(CHROMIUM), tmp_path / "profile", write_report(run)) as browser:
        card = "document.querySelector('#mislabels .decide')"
        file = browser.evaluate(f"{card}.dataset.file")
        other = f"document.querySelector('#duplicates .decide[data-file=\"{file}\"]')"
        suggested = browser.evaluate(f"{card}.querySelector('.second').textContent")
        named = f"{other}.querySelector('select').selectedOptions[0].textContent"
        before = browser.evaluate(named)
        browser.evaluate(f"{card}.querySelector('input[value=suggested]').click()")
        after = browser.evaluate(named)
        table = saved(browser, tmp_path / "saved").decode("utf-8-sig")

    assert before == "Move to …"
    assert after == suggested
    (row,) = [row for row in csv.DictReader(table.splitlines()) if row["path"] == "0/000.jpg"]
    assert (row["action"], row["new_label"]) == ("move", suggested)


def press(browser: Chromium, key: str, code: int) -> None:
    for kind in ("keyDown", "keyUp"):
        browser.send(
            "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
        )


@needs_chromium
def test_a_picture_opens_enlarged_with_its_caption(here: Path, tmp_path: Path) -> None:
    data = drawn(tmp_path)
    assert main(["check", str(data)]) == 0
    card = at(Path(NAMES[1], "copy.png"))

    with Chromium(str(CHROMIUM), tmp_path / "profile", here / "check.html") as browser:
        browser.send(
            "Emulation.setDeviceMetricsOverride",
            width=390, height=844, deviceScaleFactor=1, mobile=True,
        )  # fmt: skip
        browser.evaluate(f"{card}.querySelector('img').focus()")
        press(browser, "Enter", 13)
        opened, text, link, narrow = (
            browser.evaluate(code)
            for code in (
                "document.querySelector('dialog').open",
                "document.querySelector('dialog').textContent",
                "document.querySelector('dialog a').href",
                "document.querySelector('dialog').getBoundingClientRect().right <= 390",
            )
        )
        press(browser, "Escape", 27)
        closed = browser.evaluate("!document.querySelector('dialog').open")
        back = browser.evaluate(f"document.activeElement === {card}.querySelector('img')")
        browser.evaluate(f"{card}.querySelector('img').click()")
        clicked = browser.evaluate("document.querySelector('dialog').open")
        browser.evaluate("document.querySelector('dialog button').click()")
        again = browser.evaluate("document.querySelector('dialog').open")
        assert browser.complaints() == []

    assert (opened, closed, back, clicked, again) == (True, True, True, True, False)
    assert narrow
    assert f"{NAMES[1]}/copy.png" in text
    assert link == (data / NAMES[1] / "copy.png").as_uri()


def test_a_page_does_not_link_to_images_in_arrays(tmp_path: Path) -> None:
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(b"")

    assert folder_uri(tmp_path / "none") == folder_uri(Path("relative")) == ""
    assert folder_uri(tmp_path) == ""
    assert folder_uri(tmp_path.parent) == tmp_path.parent.as_uri()


def test_a_check_writes_a_page_beside_the_table_and_overwrites_nothing(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "check.html").write_text("mine")
    data = drawn(tmp_path)

    assert main(["check", str(data), "--out", "found"]) == 0
    assert main(["check", str(data)]) == 0

    printed = capsys.readouterr()
    assert "page: found/check.html shows the images" in printed.out
    assert "page: check-2.html shows the images" in printed.out
    assert (here / "check.html").read_text() == "mine"
    page = check_harmless((here / "found" / "check.html").read_text())
    assert "1 group of duplicates , 76 unusual images , 1 unreadable file in 77" in page.text
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


@pytest.mark.parametrize("kept", [0, 1])
def test_a_run_and_its_page_count_the_same_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: int
) -> None:
    run = make_run(tmp_path / "run")
    audit = json.loads((run / "audit.json").read_text())
    others = read_run(run).rows[-2:]
    members = [{"path": row.path, "label": "rose", "split": "train"} for row in others]
    near = {"kind": "near", "members": members, "across_split": False, "labels_differ": False}
    audit["duplicates"].append(near)
    audit["mislabels"].append({**audit["mislabels"][0], "path": others[0].path})
    (run / "audit.json").write_text(json.dumps(audit))
    fixes = [Fix(path=item["path"], action="keep") for item in audit["mislabels"][:kept]]
    write_fixes(tmp_path / "fixes.csv", fixes)
    digest = hashlib.sha256((tmp_path / "fixes.csv").read_bytes()).hexdigest()
    with_fixes(run, tmp_path / "fixes.csv", digest)

    suggest_next_steps(run, checked_run_config(run), which="")
    page = check_harmless(write_report(run).read_text()).text

    (step,) = re.findall(r"decide on (.*) in", " ".join(capsys.readouterr().err.split()))
    labels, groups = (int(number) for number in re.findall(r"(\d+) [pg]", step))
    beside = f", besides {kept} already decided" * kept
    assert f"Probable label errors ({labels}{beside})" in page
    assert f"Duplicates ({groups}{beside})" in page
    assert labels == groups == 2 - kept  # the kept image is also one of two identical files


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


@pytest.mark.parametrize(
    ("table", "recorded", "times"),
    [
        pytest.param({}, {}, 1, id="near-duplicates"),
        pytest.param({"group_duplicates": True}, {}, 1, id="grouped already"),
        pytest.param({"split": "random"}, {}, 0, id="another split"),
        pytest.param({}, {"own_split": True}, 0, id="a split of the data"),
    ],
)
def test_the_next_command_groups_duplicates_if_there_are_near_ones(
    tmp_path: Path, table: dict[str, object], recorded: dict[str, bool], times: int
) -> None:
    path = make_run(tmp_path / "run")
    audit = json.loads((path / "audit.json").read_text()) | recorded
    audit["duplicates"][0]["kind"] = "near"
    (path / "audit.json").write_text(json.dumps(audit))
    settings = read_toml(path / "config.toml")
    settings["data"] |= table
    (path / "config.toml").write_text(to_toml(config_from_table(settings)))

    found = run_decisions(read_run(path), Thumbnails([read_run(path)]))

    assert found is not None
    assert found.steps[0][1].count("--group-duplicates") == times


def test_the_next_command_holds_out_the_same_images_and_applies_one_table(tmp_path: Path) -> None:
    run = with_fixes(make_run(tmp_path / "run"), tmp_path / "gone.csv", "ab" * 32)

    found = run_decisions(read_run(run), Thumbnails([read_run(run)]))

    assert found is not None
    repeat, compare = (command for _, command in found.steps)
    assert repeat.endswith(f" --fixes ~/Downloads/fixes.csv --like {run}")
    assert "data.fixes" not in repeat
    assert "--group-duplicates" not in repeat
    assert compare == f"vitft compare {run} runs/latest"
    assert FLOWERS[0] in found.table


def test_a_run_without_findings_has_no_controls(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    audit = json.loads((run / "audit.json").read_text())
    audit |= {"bad": [], "odd": [], "duplicates": [], "mislabels": []}
    (run / "audit.json").write_text(json.dumps(audit))

    page = check_harmless(write_report(run).read_text())

    assert "No probable label errors, duplicates" in page.text
    assert not any(tag in ("input", "select") for tag, _ in page.elements)


# findings ----------------------------------------------------------------------------------------


def made(**audit: Any) -> Any:
    """Return the part of a page for these findings, without thumbnails."""
    found: Any = {"mislabels": [], "duplicates": [], "odd": [], "bad": [], **audit}
    return make_decisions(
        found,
        propose_fixes(found),
        classes=FLOWERS,
        labels={"a.jpg": "daisy"},
        thumbnail=lambda path: f"data:{path}",
        several=False,
    )


def mislabel(path: str) -> dict[str, Any]:
    return {
        "path": path,
        "label": "daisy",
        "suggested": "rose",
        "given_probability": 0.1,
        "suggested_probability": 0.8,
    }


def copies(*paths: str, kind: str = "near", parts: str = "", **flags: bool) -> dict[str, Any]:
    """Return a group of duplicates in the train (t), validation (v) or test (e) part."""
    names = {"t": "train", "v": "val", "e": "test"}
    members = [
        {"path": path, "label": "daisy", "split": names[part]}
        for path, part in zip(paths, parts or "t" * len(paths), strict=True)
    ]
    usual = {"across_split": False, "labels_differ": False}
    return {"kind": kind, "members": members, **usual, **flags}


@pytest.mark.parametrize(("number", "shown"), [(39, 39), (40, 40), (41, 40), (100, 40)])
def test_forty_findings_of_each_kind_are_shown_and_the_others_counted(
    number: int, shown: int
) -> None:
    paths = [f"{i}.jpg" for i in range(number)]
    part = made(
        mislabels=[mislabel(path) for path in paths],
        duplicates=[copies(path, f"x{path}") for path in paths],
        odd=[{"path": path, "reason": "dark"} for path in paths],
        bad=[{"path": path, "reason": "empty file"} for path in paths],
    )

    assert [section.id for section in part.sections] == ["mislabels", "duplicates", "odd", "bad"]
    assert {section.more for section in part.sections} == {number - shown}
    labels, groups, odd, _ = part.sections
    assert len(labels.groups[0].cards) == len(groups.groups) == len(odd.groups[0].cards) == shown
    assert (labels.number, groups.number) == (
        f"{number} probable label errors", f"{number} groups of duplicates",
    )  # fmt: skip
    assert odd.number == f"{number} unusual images"
    assert {section.kept for section in part.sections} == {0}
    numbers = [c.number for s in part.sections for group in s.groups for c in group.cards]
    assert numbers == [*range(1, len(numbers) + 1)]


@pytest.mark.parametrize(("members", "more"), [(2, 0), (6, 0), (7, 1), (9, 3)])
def test_six_files_of_a_group_are_shown(members: int, more: int) -> None:
    part = made(duplicates=[copies(*(f"{i}.jpg" for i in range(members)))])

    (group,) = part.sections[0].groups
    assert len(group.cards) == min(6, members)
    assert group.more == more


def test_groups_across_parts_or_with_several_labels_come_first() -> None:
    part = made(
        duplicates=[
            copies("a", "b"),
            copies("c", "d", kind="exact", labels_differ=True),
            copies("e", "f", parts="tv", across_split=True),
            copies("g", "h"),
        ]
    )

    (section,) = part.sections
    assert [(group.title, group.warnings) for group in section.groups] == [
        ("Identical files", ["with different labels"]),
        ("Near-duplicates", ["in training and validation"]),
        ("Near-duplicates", []),
        ("Near-duplicates", []),
    ]
    assert [card.path for card in section.groups[2].cards] == ["a", "b"]
    assert [card.detail for card in section.groups[1].cards] == ["training", "validation"]


TEST_LEAK = "Near-duplicates of test images can make the test accuracy too high."
TRAIN_LEAK = "Duplicates across training and validation can make the accuracy too high."


@pytest.mark.parametrize(
    ("group", "warnings"),
    [
        (copies("a", "b", parts="tv", across_split=True), [TRAIN_LEAK]),
        (copies("a", "b", parts="te", across_split=True), [TEST_LEAK]),
        (copies("a", "b", parts="te", across_split=True, kind="exact"), []),
        (copies("a", "b", parts="ee"), []),
        (copies("a", "b", "c", parts="tve", across_split=True), [TRAIN_LEAK, TEST_LEAK]),
        (copies("a", "b"), []),
    ],
)
def test_duplicates_across_parts_are_warned_of(group: Any, warnings: list[str]) -> None:
    (section,) = made(duplicates=[group]).sections

    assert [text for text in (TRAIN_LEAK, TEST_LEAK) if text in section.text] == warnings


def test_a_card_shows_the_label_the_suggestion_and_their_probabilities() -> None:
    part = made(mislabels=[mislabel("a.jpg")], bad=[{"path": "z.jpg", "reason": "empty file"}])

    (card,), (bad,) = (section.groups[0].cards for section in part.sections)
    assert (card.label, card.suggested, card.class_index) == ("daisy", "rose", 2)
    assert (card.label_probability, card.suggested_probability) == (0.1, 0.8)
    assert (card.thumbnail, card.is_readable) == ("data:a.jpg", True)
    assert (bad.detail, bad.is_readable, bad.class_index) == ("empty file", False, None)
    assert (bad.number, card.number) == (2, 1)
    assert part.can_decide
    assert part.about == ""
    assert made() is None


def test_findings_that_earlier_fixes_settle_are_not_counted() -> None:
    audit: Any = {
        "mislabels": [mislabel("a"), mislabel("b")],
        "duplicates": [copies("a", "b", "c"), copies("d", "e")],
    }

    assert undecided_numbers(audit) == (2, 2)
    assert undecided_numbers(audit, {"a"}) == (1, 2)
    assert undecided_numbers(audit, {"a", "b"}) == (0, 1)
    assert undecided_findings(audit) == "2 probable label errors and 2 groups of duplicates"
    assert undecided_findings(audit, {"a", "b"}) == "1 group of duplicates"
    assert undecided_findings(audit, {"a", "b", "d"}) == ""
    audit["duplicates"][0]["across_split"] = True
    audit["duplicates"][1]["across_split"] = False
    audit["mislabels"] = []
    assert undecided_findings(audit) == "2 groups of duplicates (1 across splits)"
    assert undecided_findings(audit, {"a", "b"}) == "1 group of duplicates"


@pytest.mark.parametrize(
    ("audit", "text"),
    [
        ({"mislabels": [mislabel("a")], "odd": [{"path": "b", "reason": ""}]}, ""),
        ({"mislabels": [mislabel("a")], "odd": [{"path": "a", "reason": ""}]},
         "In total: 2 findings on 1 file."),
        ({"duplicates": [copies("a", "b")]}, "In total: 1 finding on 2 files."),
    ],
)  # fmt: skip
def test_findings_and_files_are_counted_if_they_differ(audit: Any, text: str) -> None:
    about = made(**audit).about

    assert about.startswith(text)
    assert bool(about) == bool(text)
