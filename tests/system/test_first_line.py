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


@pytest.mark.parametrize("with_weights", [False, True])
def test_a_check_says_that_it_loads_pytorch_only_if_it_does(
    image_folder: Path, tmp_path: Path, tiny_weights: Path, with_weights: bool
) -> None:
    options = ["--weights", str(tiny_weights)] if with_weights else []
    done = subprocess.run(
        [sys.executable, "-m", "vitft", "check", str(image_folder), *options],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stderr
    assert (done.stderr.splitlines()[0] == "loading PyTorch") is with_weights
    assert ("loading" in done.stderr) is with_weights
