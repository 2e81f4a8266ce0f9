"""Tables on a terminal of 80 columns, which are wrapped between words."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import draw_folder
from tests.support.children import ROOT
from vitft.cli.main import main

FLOWER = "a flower of the meadows with many narrow petals around a yellow disc"


def on_terminal(*words: str, columns: int = 80) -> tuple[list[str], str]:
    """Return the lines that a command prints on a terminal, and its notes in a pipe."""
    leader, follower = pty.openpty()
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": f"{columns}", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "vitft", *words]
    piped, text = subprocess.PIPE, b""
    with subprocess.Popen(command, stdout=follower, stderr=piped, env=variables) as process:
        os.close(follower)
        try:
            while part := os.read(leader, 65536):
                text += part
        except OSError:  # Linux reports the end of a terminal as an error
            pass
        os.close(leader)
        notes = process.stderr.read().decode() if process.stderr else ""
    lines = re.sub(r"\x1b\[\d*m", "", text.decode()).splitlines()
    return [line.rstrip() for line in lines], notes


@pytest.mark.parametrize(
    ("words", "row"),
    [
        # a column of text is wrapped before another is left out
        (["list", "--all"], f"{'vit_base_patch16_224_in21k':42}  imagenet-21k        apache-2.0"),
        # words are not broken
        (["list"], "vit_small_patch32_224.augreg_in21k_ft_in1k  fast      apache-2.0     92"),
    ],
)
def test_a_narrow_table_keeps_its_columns_and_words(words: list[str], row: str) -> None:
    found, _ = on_terminal("weights", *words)

    assert any(line.startswith(row) for line in found), found


@pytest.mark.parametrize(
    ("columns", "heading", "hidden"),
    [
        (72, f"{'name':42}  trained on        licence", "classes and px"),
        (71, f"{'name':42}  licence", "trained on, classes and px"),
    ],
)
def test_columns_for_which_there_is_no_room_are_named(
    columns: int, heading: str, hidden: str
) -> None:
    found, notes = on_terminal(
        *("weights", "list", "--size", "tiny", "--data", "imagenet-21k, imagenet"), columns=columns
    )

    assert found[0] == heading
    assert f"the terminal is too narrow: {hidden}. To show all, append `| cat`" in notes


def test_class_names_are_wrapped_between_words(
    tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = draw_folder(tmp_path / "data", per_class=6)
    (data / "red").rename(data / FLOWER)
    assert main(["finetune", "--data", "data", "--weights", str(tiny_weights), "--out", "run"]) == 0

    for old, new in (("blue", "x"), ("green", "blue"), ("x", "green")):
        (data / old).rename(data / new)

    evaluated, _ = on_terminal("-v", "evaluate", "--run", "run", "--data", "data")

    table = " ".join(evaluated[next(i for i, line in enumerate(evaluated) if "recall" in line) :])
    assert set(FLOWER.split()) <= set(table.split())
    # The matrix would be too wide
    confusions = evaluated[evaluated.index("class  predicted as  images") + 1 :]
    assert [line.split() for line in confusions] == [["blue", "green", "1"], ["green", "blue", "1"]]
