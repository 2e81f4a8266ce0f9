"""The command `vitft study`."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import draw_folder
from vitft.cli.main import build_parser, main
from vitft.cli.study import study_command
from vitft.config.sections import TrainSpec
from vitft.study.results import HEAD_NOTE
from vitft.system.errors import RunError


@pytest.fixture
def colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    return draw_folder(Path("colours"), per_class=6)


def test_by_default_five_numbers_of_images_are_drawn_three_times() -> None:
    args = vars(
        build_parser("study").parse_args(["study", "--data", "d", "--weights", "demo", "none"])
    )

    assert args == {
        "data": "d",
        "weights": ["demo", "none"],
        "shots": [5, 10, 25, 50, 100],
        "seeds": 3,
        "no_baselines": False,
        "out": None,
        "cache": None,
        "device": None,
        "allow_pickle": False,
        "set": [],
        "command": study_command,
    }


def test_accuracies_are_a_table_and_the_command_can_be_repeated(
    colours: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", "colours", "--weights", "histogram", "--shots", "1", "2", "40"]

    assert main(["study", *words, "--seeds", "2"]) == 0

    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].split() == ["images", "per", "class", "1", "2"]
    assert lines[0].startswith("images per class  ")
    assert lines[0].endswith("  2")
    assert [line.split()[0] for line in lines[1:3]] == ["histogram", "pixels"]
    assert lines[3].startswith("histogram compared with pixels at 2 images per class: ")
    assert lines[-1] == "written: study-colours/study.png, study.md, study.json"
    skipped = "skipping --shots 40: the smallest class has too few images for more than 5"
    assert skipped in printed.err
    assert "\N{PLUS-MINUS SIGN} is the longer side of the interval" in printed.err
    assert HEAD_NOTE in printed.err
    command = "    vitft study --data colours --weights histogram --shots 1 2 --seeds 2"
    assert command in Path("study-colours/study.md").read_text().splitlines()


def test_baselines_may_be_left_out(colours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", "colours", "--weights", "pixels", "--shots", "1", "--seeds", "1"]

    assert main(["study", *words, "--no-baselines", "--out", "o"]) == 0

    printed = capsys.readouterr()
    assert [line.split()[0] for line in printed.out.splitlines()[1:2]] == ["pixels"]
    assert "histogram" not in printed.out
    assert "skipping" not in printed.err
    assert "--seeds 1 --no-baselines" in Path("o/study.md").read_text()


def test_the_repeated_command_may_read_pickles_if_the_first_one_might(colours: Path) -> None:
    words = ["--data", "colours", "--weights", "pixels", "--shots", "1", "--seeds", "1"]

    assert main(["study", *words, "--allow-pickle", "--no-baselines"]) == 0

    command = f"    vitft study {' '.join(words)} --no-baselines --allow-pickle"
    assert command in Path("study-colours/study.md").read_text().splitlines()


def test_settings_of_the_features_are_passed_on(
    colours: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[tuple[Any, dict[str, Any]]] = []

    def run_study(plan: Any, **options: Any) -> None:
        given.append((plan, options))
        raise RunError("no study", fix="none")

    monkeypatch.setattr("vitft.study.run.run_study", run_study)
    Path("w.pth").touch()
    words = ["study", "--data", "colours", "--weights", "w.pth", "--shots", "2"]

    assert main(words) == 4
    assert "w.pth is a Python pickle" in capsys.readouterr().err
    assert given == []
    assert main([*words, "--allow-pickle", "--cache", "own", "--device", "cpu"]) == 5
    plan, options = given[0]
    assert [source.weights for source in plan.sources] == ["w.pth", "pixels", "histogram"]
    assert (plan.seeds, plan.shots, plan.out) == (3, (2,), Path("study-colours"))
    assert options["allow_pickle"] is True
    assert options["data"].path == "colours"
    assert (options["train"].cache, options["train"].device) == ("own", "cpu")
    assert main(["study", "--data", "colours", "--weights", "pixels", "--shots", "2"]) == 5
    _, usual = given[1]
    assert (usual["train"], usual["allow_pickle"]) == (TrainSpec(), False)
