"""The recipe of the bundled backbone still runs, from drawing to a file that loads."""

import subprocess
import sys
from pathlib import Path

from vitft.checkpoint import load_checkpoint

SCRIPT = Path(__file__).parent.parent / "weights" / "pretrain_demo.py"


def pretrain(out: Path) -> str:
    """What a training of nine steps on a few images prints at its end."""
    few = ("--classes", "4", "--images", "20", "--steps", "1")
    done = subprocess.run(
        [sys.executable, SCRIPT, "--out", out, *few], check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()[-1].removeprefix(str(out))


def test_the_same_command_twice_gives_the_same_file_and_says_how_it_was_made(
    tmp_path: Path,
) -> None:
    first, again = (pretrain(tmp_path / name) for name in ("a.safetensors", "b.safetensors"))
    _, card = load_checkpoint(tmp_path / "a.safetensors")

    assert first == again
    assert "sha256" in first
    assert card.weights["training"].startswith("9 steps of 32 images")
    assert card.weights["data"].startswith("4 classes")
    assert card.architecture.num_classes == 0
