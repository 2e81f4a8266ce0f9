"""Commands that import torch, which takes seconds, say at once what they do."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.limits import HANG_S


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
