"""The command `vitft compare`."""

import json
from pathlib import Path

import pytest

from tests.support.run_files import make_run
from vitft.cli.compare import disputed_text
from vitft.cli.main import main
from vitft.config.run import config_from_table, to_toml
from vitft.report.comparison import RunComparison, compare_runs
from vitft.report.run_files import read_run
from vitft.system.errors import UsageError


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate("abc"):
        make_run(Path(name), per_class=30, held_back=20, hardness=2, seed=i)
    return ["a", "b", "c"]


def compared(*names: str) -> RunComparison:
    return compare_runs([read_run(Path(name)) for name in names])


def test_a_table_of_two_runs_has_one_test(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a").rename("flowers")
    assert main(["compare", "flowers", "b"]) == 0

    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == compared("flowers", "b").conclusions()[0]
    assert "validation images compared: 60" in lines
    assert "mid-p McNemar test on the shared images" in lines
    assert lines.count("settings in which the runs differ") == 0
    (row,) = (line for line in lines if line.startswith("B b    "))  # names are on the left
    assert row.endswith("%")  # and numbers on the right
    head = next(line for line in lines if line.startswith("run  "))
    ends = [head.index(title) + len(title) for title in ("accuracy", "95% interval")]
    assert [row[end - 1 : end + 2] for end in ends] == ["%  ", "%  "]
    assert (
        f"add --out compare.html for a page{disputed_text(compared('flowers', 'b'))}" in printed.err
    )


def test_several_tests_are_corrected(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *runs]) == 0

    title = (
        "mid-p McNemar test on the shared images, p-values corrected for multiple testing (Holm)"
    )
    assert title in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(("name", "kind"), [("page.html", "page"), ("f.PNG", "figure")])
def test_a_page_or_a_figure_is_written_by_its_name(
    runs: list[str], capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    if kind == "figure":
        pytest.importorskip("matplotlib")

    assert main(["compare", "a", "b", "--out", name]) == 0

    printed = capsys.readouterr()
    assert f"{kind}: {name}" in printed.err
    assert "add --out" not in printed.err
    content = Path(name).read_bytes()
    assert content.startswith(b"\x89PNG" if kind == "figure" else b"<!")


def test_json_has_no_table(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "b", "--format", "json"]) == 0

    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2


def test_disputed_images_are_those_on_which_the_runs_disagree(runs: list[str]) -> None:
    found = compared("a", "b")
    disputed = [image for image in found.images if image.disputed]
    wrong = [i for i in disputed if not i.is_correct(0) and not i.is_correct(1)]

    assert disputed
    assert wrong
    assert disputed_text(found) == (
        f" with the {len(disputed)} images on which the runs disagree "
        f"({len(wrong)} of them with different wrong predictions)"
    )
    make_run(Path("d"), per_class=30, held_back=20, hardness=2)
    assert disputed_text(compared("a", "d")) == ""


def test_only_a_figure_requires_matplotlib(
    runs: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    required: list[tuple[str, str]] = []

    def missing(extra: str, *, feature: str) -> None:
        required.append((extra, feature))
        raise UsageError("matplotlib is not installed", fix="install it")

    monkeypatch.setattr("vitft.cli.compare.require_extra", missing)

    assert main(["compare", "a", "b", "--out", "page.html"]) == 0
    assert main(["compare", "a", "b"]) == 0
    assert required == []
    assert main(["compare", "a", "b", "--out", "f.png"]) == 2
    assert required == [("plots", "a figure of the comparison")]
    assert not Path("f.png").exists()


def test_settings_that_differ_follow_the_tests_and_notes_are_last(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, optim in (("a", {"l2": 2.0}), ("b", {"solver": "adamw", "epochs": 5})):
        (Path(name) / "config.toml").write_text(to_toml(config_from_table({"optim": optim})))
    found = compared("a", "b")

    assert main(["compare", "a", "b"]) == 0

    printed = capsys.readouterr()
    lines = [line.rstrip() for line in printed.out.splitlines()]
    assert lines[1] == found.next_step()
    assert lines[2] == ""
    place = lines.index("settings in which the runs differ")
    assert lines[place - 1] == ""
    assert lines[place + 1].split() == ["setting", *found.letters]
    rows = [line.split() for line in lines[place + 2 : -1]]
    assert [row[0] for row in rows] == [row[0] for row in found.setting_rows()]
    assert "optim.l2" in (row[0] for row in rows)
    assert lines[-1] == found.usual_settings_text()
    assert lines[-1].startswith("not in this list (without effect in some runs and at defaults")
    notes = printed.err.splitlines()
    assert notes[: len(found.limits)] == [*found.limits]
    assert notes[len(found.limits)] == found.power_text()
    assert notes[-1].startswith("add --out compare.html")
