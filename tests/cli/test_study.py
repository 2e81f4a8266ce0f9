"""The command `vitft study`."""

from pathlib import Path

import pytest

from tests.conftest import draw_folder
from vitft.cli.main import build_parser, main
from vitft.cli.study import study_command


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
