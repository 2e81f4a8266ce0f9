"""The command `vitft recipes`."""

import json
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from vitft.cli import output
from vitft.cli.main import main
from vitft.system.files import resource


def test_every_recipe_is_listed_with_its_purpose_and_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["recipes"]) == 0

    printed = capsys.readouterr()
    names = sorted(path.stem for path in resource("recipes").glob("*.toml"))
    text = " ".join(printed.out.split())
    for name in names:
        recipe = tomllib.loads((resource("recipes") / f"{name}.toml").read_text())["recipe"]
        assert f"{name}: {' '.join(recipe['what'].split())}" in text
        assert f"\n    {recipe['command']}\n" in f"{printed.out}\n"
    assert printed.out.count("\n    result  ") == printed.out.count("\n    time    ") == len(names)
    assert "vitft finetune --recipe NAME --set KEY=VALUE" in printed.err


def test_the_list_can_be_read_by_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "--format", "json"]) == 0

    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert [*found] == [path.stem for path in sorted(resource("recipes").glob("*.toml"))]
    assert {"what", "command", "expected", "time"} <= {*next(iter(found.values()))}
    assert printed.err == ""


def test_one_recipe_is_printed_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(iter(sorted(resource("recipes").glob("*.toml"))))

    assert main(["recipes", path.stem]) == 0
    assert capsys.readouterr().out == path.read_text().rstrip("\n") + "\n"
    own = tmp_path / "own.toml"
    own.write_text(path.read_text())
    assert main(["recipes", str(own)]) == 0
    assert capsys.readouterr().out == path.read_text().rstrip("\n") + "\n"
    assert main(["recipes", "no-such"]) == 2


def test_long_texts_of_a_recipe_are_indented_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = Console(width=60, force_terminal=True, highlight=False, soft_wrap=True, emoji=False)
    monkeypatch.setattr(output, "stdout", lambda: narrow)

    assert main(["recipes"]) == 0

    lines = [line for line in capsys.readouterr().out.splitlines() if "vitft" not in line]
    depths = [len(line) - len(line.lstrip()) for line in lines]
    assert {*depths} == {0, 4, 12}
    for above, depth in zip(lines[:-1], depths[1:], strict=True):
        if depth == 12:  # continues one of three kinds of texts
            assert above.startswith(("    for     ", "    result  ", "    time    ", " " * 12))
