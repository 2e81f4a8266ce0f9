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


def on_terminal(*words: str) -> list[str]:
    """Return the lines that a command prints on a terminal of 80 columns."""
    leader, follower = pty.openpty()
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "vitft", *words]
    with subprocess.Popen(command, stdout=follower, stderr=subprocess.DEVNULL, env=variables):
        os.close(follower)
        text = b""
        try:
            while part := os.read(leader, 65536):
                text += part
        except OSError:  # Linux reports the end of a terminal as an error
            pass
        os.close(leader)
    return [line.rstrip() for line in re.sub(r"\x1b\[\d*m", "", text.decode()).splitlines()]


@pytest.mark.parametrize(
    ("words", "row"),
    [
        pytest.param(
            ["list", "--all"],
            "vit_base_patch16_224_in21k                  imagenet-21k        apache-2.0",
            id="a column of text is wrapped before another is left out",
        ),
        pytest.param(
            ["list"],
            "vit_small_patch32_224.augreg_in21k_ft_in1k  fast      apache-2.0     92",
            id="words are not broken",
        ),
    ],
)
def test_a_narrow_table_keeps_its_columns_and_words(words: list[str], row: str) -> None:
    found = on_terminal("weights", *words)

    assert any(line.startswith(row) for line in found), found


def test_class_names_are_wrapped_between_words(
    tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = draw_folder(tmp_path / "data", per_class=6)
    (data / "red").rename(data / FLOWER)
    assert main(["finetune", "--data", "data", "--weights", str(tiny_weights), "--out", "run"]) == 0

    evaluated = on_terminal("-v", "evaluate", "--run", "run", "--data", "data")

    table = " ".join(evaluated[next(i for i, line in enumerate(evaluated) if "recall" in line) :])
    assert set(FLOWER.split()) <= set(table.split())
    assert any(line.split() == ["true", "\\", "predicted", "1", "2", "3"] for line in evaluated)
