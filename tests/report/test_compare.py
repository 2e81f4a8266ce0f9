"""Comparison of runs: shared images, significance of the differences, page and JSON."""

import hashlib
import json
from pathlib import Path

import pytest

from tests.report.test_decisions import with_fixes
from tests.report.test_report import check_harmless
from tests.support.run_files import HOSTILE, make_run
from vitft.cli.main import main
from vitft.config import config_from_table, read_toml, to_toml
from vitft.report import RunComparison, compare_runs, comparison_results, read_run, write_comparison


def compared(*runs: Path) -> RunComparison:
    return compare_runs([read_run(run) for run in runs])


# added training images ---------------------------------------------------------------------------


def grown(path: Path, *, hardness: float, **settings: object) -> Path:
    """A run like those of `make_run`, with 20 further training images."""
    run = make_run(path, per_class=60, held_back=50, hardness=hardness)
    rows = [f"x/{i}.jpg,rose,train,{i:064}" for i in range(20)]
    with (run / "split.csv").open("a") as file:
        file.write("\n".join(rows) + "\n")
    table = read_toml(run / "config.toml")
    for key, value in {"data.like": "runs/first", **settings}.items():
        section, _, name = key.partition(".")
        table[section][name] = value
    (run / "config.toml").write_text(to_toml(config_from_table(table)))
    return run


def test_added_images_get_no_credit_if_another_setting_differs(tmp_path: Path) -> None:
    few = make_run(tmp_path / "few", per_class=60, held_back=50, hardness=2, seed=1)
    more = grown(tmp_path / "more", hardness=0.5, **{"optim.l2": 3.0})

    (text,) = compared(few, more).conclusions

    assert text.startswith("B is more accurate than A on these images, by ")
    assert "training images" not in text


def test_images_that_fixes_relabelled_or_left_out_are_counted(tmp_path: Path) -> None:
    one, other = make_run(tmp_path / "one"), make_run(tmp_path / "other", held_back=3)
    table = (other / "split.csv").read_text()
    (other / "split.csv").write_text(table.replace("0/000.jpg,daisy", "0/000.jpg,rose"))
    fixes = tmp_path / "fixes.csv"
    fixes.write_text(
        "path,action,new_label\n0/000.jpg,move,rose\n0/001.jpg,keep,rose\n0/003.jpg,drop,\n"
    )
    with_fixes(other, fixes, hashlib.sha256(fixes.read_bytes()).hexdigest())

    notes = compared(one, other).limits

    assert (
        "The runs have 12 and 9 validation images that count, and only the 8 "
        "images that all of them share, with the same label, are compared." in notes
    )
    assert "Excluded: 1 validation image that has different labels in the runs." in notes
    settings = comparison_results(compared(one, other))["settings"]
    assert "data.fixes" in settings
    assert "data.fixes_digest" not in settings


def test_images_that_trained_the_weights_of_a_run_are_not_compared(tmp_path: Path) -> None:
    earlier = make_run(tmp_path / "earlier", held_back=2)
    one, other = make_run(tmp_path / "one"), make_run(tmp_path / "other", seed=1)
    text = (other / "config.toml").read_text().replace('"demo"', f'"{earlier}"')
    (other / "config.toml").write_text(text.replace("keep_head = false", "keep_head = true"))

    found = compared(one, other)

    assert len(found.images) == 6  # of 12
    assert "Excluded: 6 validation images known from training" in " ".join(found.limits)


# the page -----------------------------------------------------------------------------------------


def winners(html: str) -> int:
    return sum("winner" in (a.get("class") or "") for _, a in check_harmless(html).elements)


def test_green_marks_a_significant_difference_and_never_a_tie(tmp_path: Path) -> None:
    good = make_run(tmp_path / "good", per_class=60, held_back=50, hardness=0.5)
    same = make_run(tmp_path / "same", per_class=60, held_back=50, hardness=0.5)
    poor = make_run(tmp_path / "poor", per_class=60, held_back=50, hardness=5, seed=1)

    tie, clear = compared(good, same), compared(poor, good)

    assert (tie.winner, clear.winner) == (None, 1)
    assert winners(write_comparison(tie, tmp_path / "tie.html").read_text()) == 0
    assert winners(write_comparison(clear, tmp_path / "clear.html").read_text()) >= 1


# the command -------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_json_contains_the_conclusions_of_the_terminal(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(here / "good", per_class=60, held_back=50, hardness=0.5)
    poor = make_run(here / "poor", per_class=60, held_back=50, hardness=2, seed=1)

    assert main(["compare", "good", "poor", "--format", "json", "--out", "j.html"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert main(["compare", "good", "poor", "--out", "page.html", "-v"]) == 0
    printed = capsys.readouterr()

    (pair,) = answer["pairs"]
    assert pair["conclusion"] in printed.out.splitlines()
    assert (pair["test"], pair["significant"]) == ("mid-p McNemar", True)
    assert pair["more_accurate"] == answer["winner"] == "good"
    assert (pair["added"], pair["fixes"]) == (None, None)
    assert answer["limit"] in printed.err.splitlines()
    assert answer["data"] == [{"run": "poor", "labels_changed": 0, "left_out": 0, "added": 0}]
    more = grown(here / "more", hardness=0.5)
    added = comparison_results(compared(poor, more))["pairs"][0]["added"]
    assert added == {"run": "more", "images": 20, "settings": []}


def test_hostile_names_stay_text_in_a_comparison(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {i * 10: f"{name} {i}".replace("/", "\u2044") for i, name in enumerate(HOSTILE)}
    folders = ["<img src=x onerror=alert(1)>", "=1+1\x1b[2J"]
    for seed, folder in enumerate(folders):
        make_run(here / folder, HOSTILE, hardness=3, seed=seed, names=names)

    main(["compare", *folders, "--out", "page.html"])
    table = capsys.readouterr().out
    main(["compare", *folders, "--out", "page2.html", "--format", "json"])

    page = check_harmless((here / "page.html").read_text())
    assert folders[0] in page.text
    assert "\x1b" not in table
    answer = capsys.readouterr().out
    assert "\x1b" not in answer
    assert json.loads(answer)["runs"][1]["name"] == folders[1]
