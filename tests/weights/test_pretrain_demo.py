"""The script that trains the bundled backbone, from drawing to a file that loads."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from formulas import formula_image

from vitft.models import load_checkpoint

SCRIPT = Path(__file__).parents[2] / "weights" / "pretrain_demo.py"


def pretrain(out: Path) -> str:
    """What a training of nine steps on a few images prints at its end."""
    few = ("--classes", "4", "--images", "20", "--steps", "1", "--batch", "4")
    done = subprocess.run(
        [sys.executable, SCRIPT, "--out", out, *few], check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()[-1].removeprefix(str(out))


@pytest.mark.long
def test_the_same_command_twice_gives_the_same_file_and_says_how_it_was_made(
    tmp_path: Path,
) -> None:
    first, again = (pretrain(tmp_path / name) for name in ("a.safetensors", "b.safetensors"))
    _, card = load_checkpoint(tmp_path / "a.safetensors")

    assert first == again
    assert "sha256" in first
    assert card.weights["training"].startswith("9 steps of 4 images")
    assert card.weights["data"].startswith("4 classes")
    assert card.architecture.num_classes == 0


def test_the_target_tells_form_and_colour_and_no_form_has_its_own_colour() -> None:
    spec = importlib.util.spec_from_file_location("pretrain_demo", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    side = script.ARCHITECTURE.image_size[0] + script.MARGIN
    drawn = torch.zeros(5, 40, side, side, 3, dtype=torch.uint8)

    seen = torch.cat([b.labels for b in script.batches(drawn, 8, steps=30, seed=0)])

    forms, colours = seen[:, : script.CLASSES], seen[:, script.CLASSES :]
    assert forms.sum(dim=1) == pytest.approx(script.FORM)
    assert colours.sum(dim=1) == pytest.approx(1 - script.FORM)
    pairs = set(zip(forms.argmax(dim=1).tolist(), colours.argmax(dim=1).tolist(), strict=True))
    assert pairs == {(form, colour) for form in range(5) for colour in range(script.COLOURS)}
    whole = script.draw_class((3, 2, 0))
    kind = script.colour_of(3, 1)
    assert np.array_equal(whole[1], formula_image(3, 1, size=side, wild=1.0, colour=kind))
