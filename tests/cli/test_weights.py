"""`vitft weights`: list, show, inspect and fetch."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.models.pretrained.test_flavours import CONFIG, google_arrays, random_weights
from vitft.cli.main import main


def test_a_file_is_inspected_for_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "vit.safetensors"
    save_file(random_weights(replace(CONFIG, pre_logits=True)), file)

    assert (
        main(["weights", "inspect", str(file), "--classes", "5", "--image-size", "48", "64"]) == 0
    )

    facts = [line.split() for line in capsys.readouterr().out.splitlines()]
    lines = [" ".join(words) for words in facts]
    assert "format: timm" in lines
    assert "head: 7 classes" in lines
    assert "pre_logits: yes" in lines
    assert "would be kept: 30 tensors" in lines
    assert "would be new: head.weight (5, 192), head.bias (5,)" in lines
    assert "would be resized: pos_embed 4x4 -> 6x8, bicubic" in lines
    dropped = next(line for line in lines if line.startswith("would be dropped:"))
    assert "pre_logits.fc.weight (192, 192)" in dropped


def test_inspecting_without_a_task_reports_no_adaptation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import numpy as np

    state = random_weights(CONFIG)
    state["head.weight"] = torch.zeros(7, 192)
    np.savez(tmp_path / "vit.npz", **google_arrays(CONFIG, state))

    assert main(["weights", "inspect", str(tmp_path / "vit.npz")]) == 0

    text = capsys.readouterr().out
    assert "Google (JAX)" in text
    assert "all zeros (untrained)" in text
    assert "would be" not in text


SAVED_AGAIN = "save or download the file again; it is probably "
ANOTHER_MODEL = "use timm:NAME=FILE with timm's name"


@pytest.mark.parametrize(
    ("removed", "added", "problem", "fix"),
    [
        (
            "blocks.1.mlp|norm1",
            {},
            "missing: blocks.0.norm1.weight, blocks.0.norm1.bias, blocks.1.norm1.weight, "
            "blocks.1.norm1.bias, blocks.1.mlp.fc1.weight and 3 more",
            f"{SAVED_AGAIN}incomplete or edited",
        ),
        (
            "",
            {f"extra.{i}": (2,) for i in range(7)},
            "unknown tensors: extra.0, extra.1, extra.2, extra.3, extra.4 and 2 more",
            "use timm:NAME=FILE",
        ),
        (
            "",
            {"blocks.0.attn.qkv.weight": (80, 192)},
            "wrong shape: blocks.0.attn.qkv.weight (80, 192) instead of (576, 192)",
            f"{SAVED_AGAIN}a mixture of two models",
        ),
        (
            "",
            {"norm.bias": (31,)},
            "wrong shape: norm.bias (31,) instead of (192,)",
            f"{SAVED_AGAIN}a mixture of two models",
        ),
        (
            "",
            {"pos_embed": (1, 18, 192)},
            "17 position embeddings do not form a square grid of patches",
            "put a config.json that states the image size next to the weight file",
        ),
        (
            "pos_embed",
            {},
            "the model seems to have rotary position embeddings",
            "put timm's config.json next to the file",
        ),
        (
            "patch_embed",
            {},
            "patch_embed.proj.weight is missing from the weights",
            "use the weights of a plain Vision Transformer",
        ),
        (".", {"conv1.weight": (8, 3, 7, 7)}, "no plain Vision Transformer", ANOTHER_MODEL),
        (".", {}, "the file contains no tensors", ANOTHER_MODEL),
    ],
)
def test_tensors_that_do_not_fit_a_model_end_the_command_with_their_names_and_a_cause(
    tmp_path: Path,
    image_folder: Path,
    capsys: pytest.CaptureFixture[str],
    removed: str,
    added: dict[str, tuple[int, ...]],
    problem: str,
    fix: str,
) -> None:
    path, out = tmp_path / "a.safetensors", tmp_path / "run"
    whole = random_weights(CONFIG)
    kept = {k: v for k, v in whole.items() if not removed or not re.search(removed, k)}
    save_file(kept | {name: torch.zeros(shape) for name, shape in added.items()}, path)
    words = ["--data", str(image_folder), "--weights", str(path), "--out", str(out)]

    code = main(["finetune", *words])

    *_, error, remedy = capsys.readouterr().err.splitlines()
    assert code == 4
    assert error.startswith(f"vitft: error: {path}: ")
    assert problem in error
    assert remedy.startswith(f"  fix: {fix}")
    assert not out.exists()
