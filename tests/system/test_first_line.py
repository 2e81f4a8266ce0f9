"""Commands that import torch, which takes seconds, say at once what they do."""

from pathlib import Path

import pytest

from tests.support.children import python


@pytest.mark.parametrize("with_weights", [False, True])
def test_a_check_loads_pytorch_and_says_so_only_with_weights(
    image_folder: Path, tmp_path: Path, tiny_weights: Path, with_weights: bool
) -> None:
    words = ["check", str(image_folder), *(["--weights", str(tiny_weights)] * with_weights)]
    code = f"import sys; from vitft.cli.main import main; assert main({words!r}) == 0\n"
    done = python(f"{code}sys.exit('torch' in sys.modules)", cwd=tmp_path)

    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == with_weights
    assert (done.stderr.splitlines()[0] == "loading PyTorch") is with_weights
    assert ("loading" in done.stderr) is with_weights
    assert ("Labels     not checked: add --weights NAME" in done.stdout) is not with_weights


def test_explain_names_the_weights_that_it_loads(
    image_folder: Path, tmp_path: Path, tiny_weights: Path
) -> None:
    words = ["explain", str(next(image_folder.rglob("*.png"))), "--weights", str(tiny_weights),
             "--method", "rollout"]  # fmt: skip
    code = f"from vitft.cli.main import main; assert main({words!r}) == 0\n"
    done = python(code, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == f"loading the model of {tiny_weights}"
