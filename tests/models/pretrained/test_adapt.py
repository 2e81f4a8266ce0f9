"""Adapting tensors: positions, channels, patches, tokens and pooling."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.ndimage import zoom
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models import adapt_input_conv
from torch import Tensor

from tests.contract.built.weights import random_weights
from tests.models.pretrained.test_flavours import CONFIG
from vitft import LoadReport, load_pretrained
from vitft.models import ViTConfig


def adapted(
    folder: Path, config: ViTConfig, **options: Any
) -> tuple[dict[str, Tensor], dict[str, Tensor], LoadReport]:
    """Return random weights, the tensors of the model that loads them, and its report."""
    state = random_weights(config)
    save_file(state, folder / "any.safetensors")
    model, report = load_pretrained(folder / "any.safetensors", **options)
    return state, model.state_dict(), report


GRIDS = [
    pytest.param(14, (24, 24), id="14 to 24"),
    pytest.param(14, (7, 21), id="14 to 7x21"),
    pytest.param(37, (16, 16), id="37 to 16"),
    pytest.param(7, (12, 12), id="7 to 12"),
]


@pytest.mark.parametrize("rule", ["bicubic", "jax"])
@pytest.mark.parametrize(("side", "grid"), GRIDS)
def test_positions_are_resampled_as_by_timm_or_google(
    side: int, grid: tuple[int, int], rule: str, tmp_path: Path
) -> None:
    config = replace(CONFIG, image_size=(8 * side, 8 * side), depth=1)
    size = 8 * grid[0], 8 * grid[1]

    before, after, _ = adapted(tmp_path, config, image_size=size, pos_embed=rule)

    pos, resized = before["pos_embed"], after["pos_embed"]
    assert torch.equal(resized[:, 0], pos[:, 0])  # the class token has no place in the picture
    if rule == "bicubic":
        theirs = resample_abs_pos_embed(pos, list(grid), num_prefix_tokens=1)
        assert (resized - theirs).abs().max() <= 1e-6
        return
    table = pos[0, 1:].reshape(side, side, -1).numpy()
    expected = zoom(table, (grid[0] / side, grid[1] / side, 1), order=1)
    assert np.abs(resized[0, 1:].reshape(*grid, -1).numpy() - expected).max() <= 1e-5


@pytest.mark.parametrize(
    ("channels", "note"),
    [
        (1, "the kernels for 3 channels are summed to fit 1 channel"),
        (2, "the kernels for 3 channels are repeated and scaled to fit 2 channels"),
        (8, "the kernels for 3 channels are repeated and scaled to fit 8 channels"),
    ],
)
def test_kernels_for_other_channels_equal_timms(channels: int, note: str, tmp_path: Path) -> None:
    before, after, report = adapted(tmp_path, CONFIG, in_channels=channels)

    name = "patch_embed.proj.weight"
    torch.testing.assert_close(after[name], adapt_input_conv(channels, before[name].clone()))
    assert note in report.notes


def test_a_single_channel_is_repeated_and_keeps_the_response_to_grey_images(tmp_path: Path) -> None:
    before, after, _ = adapted(tmp_path, replace(CONFIG, in_channels=1), in_channels=3)

    kernel = before["patch_embed.proj.weight"]
    torch.testing.assert_close(after["patch_embed.proj.weight"], kernel.expand(-1, 3, -1, -1) / 3)


@pytest.mark.parametrize("registers", [0, 2])
def test_a_distillation_token_becomes_the_first_register(registers: int, tmp_path: Path) -> None:
    source = replace(CONFIG, distilled=True, registers=registers)

    before, after, report = adapted(tmp_path, source, num_classes=5)

    found = after["reg_token"]
    assert torch.equal(found[:, :1], before["dist_token"])
    assert torch.equal(found[:, 1:], before.get("reg_token", found[:, 1:]))
    assert found.shape[1] == registers + 1
    assert "the distillation token is used as a register, and the head reads only the class " in (
        " ".join(report.notes)
    )
    assert "dist_token" not in after


def test_mean_pooling_takes_the_last_norm_and_back(tmp_path: Path) -> None:
    before, there, noted = adapted(tmp_path, CONFIG, pool="mean")
    mean, back, undone = adapted(tmp_path, replace(CONFIG, pool="mean"), pool="cls")

    assert torch.equal(there["fc_norm.weight"], before["norm.weight"])
    assert "norm in the file is loaded as fc_norm because pool=mean" in noted.notes
    assert "fc_norm in the file is loaded as norm because pool=cls" in undone.notes
    assert torch.equal(back["norm.bias"], mean["fc_norm.bias"])
