"""Commands that import torch, which takes seconds, say at once what they do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.limits import HANG_S

PROGRAM = """
import sys, time
from vitft.system import console
from vitft.system.imports import heavy_imports
console.PLAIN_INTERVAL_S = 0.05
console.show_log({level})
with heavy_imports("loading the model of runs/a"):
    time.sleep(0.5)
print("torch" in sys.modules)
"""


def shown(level: str, **environment: str) -> tuple[str, list[str]]:
    """Return stdout and the lines on stderr of a program that imports for half a second."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(level=level)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
        env=os.environ | environment,
    )
    return done.stdout, done.stderr.splitlines()


def test_the_import_is_announced_and_then_reported_regularly() -> None:
    out, lines = shown("20")

    assert lines[0] == "loading the model of runs/a"
    assert "loading the model of runs/a: still running after 0 s" in lines[1:]
    assert out == "False\n"


@pytest.mark.parametrize(
    ("level", "environment"),
    [("30", {}), ("20", {"RANK": "1"})],
    ids=["quiet", "another process of the job"],
)
def test_the_import_is_not_announced(level: str, environment: dict[str, str]) -> None:
    assert shown(level, **environment) == ("False\n", [])


@pytest.mark.parametrize(
    ("options", "line"),
    [([], "loading PyTorch"), (["--run", "runs/none"], "loading the model of runs/none")],
    ids=["no model", "run"],
)
def test_the_first_line_of_a_check_says_what_is_loaded(
    image_folder: Path, tmp_path: Path, options: list[str], line: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vitft", "check", str(image_folder), *options],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        cwd=tmp_path,
    )

    assert done.stderr.splitlines()[0] == line
