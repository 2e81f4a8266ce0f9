"""What `vitft check` prints, and where it writes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.run_files import make_run
from vitft.check.folder import CheckResult, check_folder, read_run_settings
from vitft.cli.check import (
    check_command,
    earlier_table,
    examples_by_title,
    fixes_path,
    members,
    print_findings,
    print_next_steps,
    training_command,
)
from vitft.cli.main import build_parser, main
from vitft.config.run import config_from_table, to_toml
from vitft.config.sections import DataSpec, TrainSpec, WeightsSpec
from vitft.data.fixes import Fix
from vitft.system.errors import RunError, UsageError


def group(kind: str, *paths: str, splits: str = "tt", labels_differ: bool = False) -> Any:
    names = {"t": "train", "v": "val", "s": "test"}
    members = [
        {"path": path, "label": "a", "split": names[split]}
        for path, split in zip(paths, splits, strict=False)
    ]
    across = len({*splits}) > 1
    return {
        "kind": kind,
        "members": members,
        "across_split": across,
        "labels_differ": labels_differ,
    }


def audit(**more: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"images": 9, "bad": [], "odd": [], "duplicates": [], "mislabels": []}
    balance = {"largest": ("a", 6), "smallest": ("b", 3), "ratio": 2.0}
    return empty | {"imbalance": balance} | more


def fix(path: str, action: str) -> Fix:
    return cast("Fix", SimpleNamespace(path=path, action=action, new_label=""))


def outcome(**more: Any) -> CheckResult:
    facts: dict[str, Any] = {
        "audit": audit(),
        "former": (),
        "fixes": (),
        "proposed": (),
        "labels_checked": True,
        "counts": "9 images",
        "folder": SimpleNamespace(labels=(), empty=SimpleNamespace(content=()), files=()),
    }
    return cast("CheckResult", SimpleNamespace(**facts | more))


def suspect(path: str) -> dict[str, Any]:
    chances = {"given_probability": 0.1, "suggested_probability": 0.875}
    return {"path": path, "label": "a", "suggested": "b"} | chances


def test_examples_of_each_problem_are_lines_of_text() -> None:
    found = examples_by_title(
        audit(
            bad=[{"path": "x", "reason": "empty file"}],
            odd=[{"path": "y", "reason": "rotated"}],
            duplicates=[
                group("exact", "1", "2"),
                group("near", "3", "4", splits="tv"),
                group("near", "5", "6", splits="ts", labels_differ=True),
            ],
            mislabels=[suspect("z")],
        )
    )

    assert found == {
        "unreadable files": ["x: empty file"],
        "unusual images": ["y: rotated"],
        "groups of identical files": ["1 = 2"],
        "groups of near-duplicates": ["3 = 4", "5 = 6"],
        "of all duplicates, in both training and validation": ["3 = 4"],
        "of all duplicates, in test and other images": ["5 = 6"],
        "of all duplicates, with different labels": ["5 = 6"],
        "probable label errors": ["z: b (88%) rather than a (10%)"],
    }


def test_label_errors_that_were_decided_are_only_counted() -> None:
    found = examples_by_title(audit(mislabels=[suspect("x"), suspect("y"), suspect("z")]), {"y"})

    (title,) = (name for name in found if name.startswith("probable"))
    assert title == "probable label errors (besides 1 already decided)"
    assert [text.partition(":")[0] for text in found[title]] == ["x", "z"]


def test_up_to_four_members_of_a_group_are_named() -> None:
    assert members([group("near", *"abcdef", splits="tttttt")]) == ["a = b = c = d"]


@pytest.mark.parametrize("number", [5, 6])
def test_five_examples_of_a_problem_are_printed(
    capsys: pytest.CaptureFixture[str], number: int
) -> None:
    bad = [{"path": f"{i}.jpg", "reason": "empty file"} for i in range(number)]

    print_findings(outcome(audit=audit(bad=bad)))

    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["9 images", f"unreadable files: {number}"]
    assert lines[2:7] == [f"  {i}.jpg: empty file" for i in range(5)]
    assert ("  ... and 1 more" in lines) is (number == 6)
    assert lines[-1] == "largest class: a (6 images); smallest: b (3 images); ratio 2.0"
    assert not any(line.startswith("unusual") for line in lines)


@pytest.mark.parametrize(
    ("balance", "line"),
    [
        ({"largest": ("a", 3), "smallest": ("b", 3), "ratio": 1.0}, "every class has 3 images"),
        ({"largest": None, "smallest": None, "ratio": None}, "9 images"),
        ({"largest": ("a", 3), "smallest": ("b", 0), "ratio": None}, "9 images"),
    ],
)
def test_the_balance_of_the_classes_is_one_line(
    capsys: pytest.CaptureFixture[str], balance: dict[str, Any], line: str
) -> None:
    print_findings(outcome(audit=audit(imbalance=balance)))

    assert capsys.readouterr().out.splitlines()[-1] == line


@pytest.mark.parametrize("checked", [True, False])
def test_unchecked_labels_are_noted(capsys: pytest.CaptureFixture[str], checked: bool) -> None:
    print_findings(outcome(labels_checked=checked))

    assert ("labels were not checked" in capsys.readouterr().err) is not checked


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        ({}, ["nothing found to fix", "wrong labels may remain: not all of them can be found"]),
        ({"labels_checked": False}, ["nothing found to fix"]),
        (
            {"labels_checked": False, "former": (fix("a", "drop"),)},
            [
                "nothing more found to fix",
                "no page and no table were written: keep using the table that contains your "
                "decisions",
            ],
        ),
    ],
)
def test_without_findings_nothing_is_to_be_done(
    capsys: pytest.CaptureFixture[str], more: dict[str, Any], lines: list[str]
) -> None:
    print_next_steps(outcome(**more), None, None, [])

    assert capsys.readouterr().out.splitlines() == lines


def test_the_proposed_fixes_are_counted_by_action(capsys: pytest.CaptureFixture[str]) -> None:
    actions = ["drop"] * 4 + ["move"] * 3 + ["keep"] * 2 + ["undecided"]
    fixes = tuple(fix(str(i), action) for i, action in enumerate(actions))

    print_next_steps(
        outcome(fixes=fixes, former=fixes[:1]),
        "fixes.csv",
        Path("check.html"),
        ["vitft", "finetune"],
    )

    printed = capsys.readouterr()
    page, table = printed.out.splitlines()
    assert page == "page: check.html shows the images; use it to choose and save the fixes"
    assert table == (
        "proposed fixes: fixes.csv lists 10 files (1 of them from the earlier table), 4 with "
        'action "drop", 3 with "move", 2 with "keep", 1 with "undecided", which are used as they '
        'are until you change it to "keep", "drop" or "move"'
    )
    assert printed.err == (
        "next: review the fixes on the page or in the file, then run "
        "vitft finetune --fixes fixes.csv\n"
    )


def test_only_what_is_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    content = SimpleNamespace(labels=("a",), empty=SimpleNamespace(content=("b",)), files=())

    print_next_steps(
        outcome(fixes=(fix("a", "drop"),), folder=content), "f.csv", Path("c.html"), ["vitft"]
    )

    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "page: c.html shows the images",
        'proposed fixes: f.csv lists 1 file, 1 with action "drop"',
    ]
    assert "remove the empty class folders or add --classes (see above), then run" in printed.err
    assert "--group-duplicates" not in printed.err
    print_next_steps(outcome(), None, Path("c.html"), [])
    assert capsys.readouterr().out.splitlines()[-1] == "no fixes were written"


def test_the_table_is_new_and_outside_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("data/cat", "out"):
        Path(name).mkdir(parents=True)
    Path("out/fixes.csv").touch()
    Path("file").touch()

    assert fixes_path(Path(), Path("data")) == Path("fixes.csv")
    assert fixes_path(Path("out"), Path("data")) == Path("out/fixes-2.csv")
    assert fixes_path(Path("new"), Path("data")) == Path("new/fixes.csv")
    with pytest.raises(RunError, match="file is a file, not a folder"):
        fixes_path(Path("file"), Path("data"))
    with pytest.raises(UsageError, match=r"names a \.csv file"):
        fixes_path(Path("new.csv"), Path("data"))
    for inside in ("data", "data/cat", "data/new"):
        with pytest.raises(UsageError, match="is inside the data directory"):
            fixes_path(Path(inside), Path("data"))


@pytest.mark.parametrize(
    ("name", "former", "table", "noted"),
    [
        ("fixes-2.csv", (), "path,action\na.jpg,drop\n", True),
        ("fixes-2.csv", (), "path,action\na.jpg,undecided\n", False),
        ("fixes-2.csv", (), "path,action\nother.jpg,drop\n", False),
        ("fixes-2.csv", (), "odd,table\n", False),
        ("fixes-2.csv", (fix("a.jpg", "drop"),), "path,action\na.jpg,drop\n", False),
        ("fixes.csv", (), "path,action\na.jpg,drop\n", False),
    ],
)
def test_decisions_that_were_not_applied_are_noted(
    tmp_path: Path, name: str, former: Any, table: str, noted: bool
) -> None:
    (tmp_path / "fixes.csv").write_text(table)
    found = outcome(former=former, folder=SimpleNamespace(files=[SimpleNamespace(path="a.jpg")]))

    text = earlier_table(tmp_path / name, found)

    assert ("of an earlier check was not applied" in text) is noted
    assert noted or text == ""


def test_the_training_command_repeats_what_the_check_used() -> None:
    config = config_from_table({"data": {"path": "d"}, "weights": {"name": "demo"}})

    def command(*words: str, together: bool = False, **data: str) -> list[str]:
        args = build_parser("check").parse_args(["check", "photos", *words])
        spec = config_from_table({"data": {"path": "d", **data}}).data
        return training_command(args, Path("photos"), spec, config, together=together)

    plain = ["vitft", "finetune", "--data", "photos"]
    assert command() == plain
    assert command("--weights", "demo") == [*plain, "--weights", "demo"]
    assert command("--run", "r") == [*plain, "--weights", "demo", "--like", "r"]
    grouped = [*plain, "--weights", "demo", "--like", "r", "--group-duplicates"]
    assert command("--run", "r", together=True) == grouped
    weights = replace(config.weights, name="w.pth", allow_pickle=True)
    config = replace(config, weights=weights)
    pickled = [*plain, "--weights", "w.pth", "--allow-pickle", "--like", "r"]
    assert command("--run", "r") == pickled
    assert command() == plain
    assert command(classes="c.csv") == [*plain, "--classes", "c.csv"]
    assert command(label="species") == plain  # a folder has no columns


def test_by_default_a_table_of_findings_is_printed_and_written_here() -> None:
    args = vars(build_parser("check").parse_args(["check", "photos"]))

    assert args == {
        "data": "photos",
        "set": [],
        "fixes": None,
        "weights": None,
        "run": None,
        "cache": None,
        "device": None,
        "out": ".",
        "format": "table",
        "command": check_command,
    }


def test_a_check_ends_with_success_and_names_its_files(
    image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (image_folder / "red" / "empty.png").touch()

    assert main(["check", str(image_folder), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert main(["check", str(image_folder), "--out", str(tmp_path / "o"), "--format", "json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert f"page: {tmp_path / 'out' / 'check.html'} shows the images" in printed
    assert (found["fixes"], found["page"]) == (
        *(str(tmp_path / "o" / "fixes.csv"), str(tmp_path / "o" / "check.html")),
    )


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the check of a folder is asked; it is done without the weights and the split."""
    monkeypatch.chdir(tmp_path)
    asked: list[dict[str, Any]] = []

    def check(data: Path, **options: Any) -> CheckResult:
        asked.append(options)
        plain = {"weights": WeightsSpec(name=""), "train": TrainSpec(cache="none")}
        return check_folder(data, spec=replace(options["spec"], fixes=""), **plain)  # type: ignore[arg-type]

    monkeypatch.setattr("vitft.check.folder.check_folder", check)
    return asked


def test_a_check_with_a_run_uses_its_settings_and_is_compared_with_its_report(
    image_folder: Path, given: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    (image_folder / "red" / "empty.png").touch()
    shutil.copy(image_folder / "red" / "000.png", image_folder / "red" / "copy.png")
    run = make_run(Path("run"))
    config = config_from_table({"weights": {"name": "w"}, "data": {"seed": 3}})
    (run / "config.toml").write_text(to_toml(config))
    compared = "the report of the run lists 1 probable label error, 0 of them listed here too"

    assert main(["check", str(image_folder), "--run", "run", "--device", "cuda:1"]) == 0

    assert compared in capsys.readouterr().err
    assert compared in Path("check.html").read_text()
    (asked,) = given
    assert asked["weights"] == config.weights
    assert asked["train"] == replace(config.train, device="cuda:1")
    assert asked["split"] == read_run_settings("run")[1]
    assert set(asked["split"].values()) == {"train", "val"}
    assert (asked["spec"].seed, asked["spec"].allow_bad, asked["needs_fixes"]) == (3, True, False)


def test_a_check_without_a_run_has_no_split_and_applies_only_fixes_that_are_named(
    image_folder: Path, given: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    (image_folder / "red" / "empty.png").touch()
    make_run(Path("runs") / "latest")

    assert main(["check", str(image_folder)]) == 0
    assert "the report of the run" not in capsys.readouterr().err
    assert "the report of the run" not in Path("check.html").read_text()
    words = ["--weights", "random:demo", "--cache", "own", "--fixes", "f.csv"]
    assert main(["check", str(image_folder), *words]) == 0

    first, second = given
    usual = DataSpec(allow_bad=True)
    assert first == {
        "spec": usual,
        "weights": WeightsSpec(),
        "train": TrainSpec(),
        "split": None,
        "needs_fixes": False,
    }
    assert second == {
        "spec": replace(usual, fixes="f.csv"),
        "weights": WeightsSpec(name="random:demo"),
        "train": TrainSpec(cache="own"),
        "split": None,
        "needs_fixes": True,
    }
