"""Patches and tokens of images: the facts that a figure states, and the files that are written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitft.data.transforms import EvalTransform
from vitft.explain.model import ExplainedModel
from vitft.explain.patches import patch_tokens, write_patch_figures
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import RopeConfig, ViTConfig
from vitft.system.errors import UsageError


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ("class token",)),
        ({"distilled": True}, ("class token", "distillation token")),
        ({"registers": 1}, ("class token", "register")),
        ({"registers": 4}, ("class token", "4 registers")),
        ({"class_token": False, "pool": "mean"}, ()),
    ],
)
def test_the_tokens_before_the_patches_are_named(
    tiny_config: ViTConfig, fields: dict[str, Any], names: tuple[str, ...]
) -> None:
    model = VisionTransformer(replace(tiny_config, **fields)).eval()

    assert patch_tokens(model, torch.zeros(1, 3, 16, 16)).prefix == names


@pytest.mark.parametrize(
    ("fields", "is_linear", "has_bias", "is_sum"),
    [
        ({}, True, True, True),
        ({"embed_norm": True}, True, False, False),
        ({"patch_norm": True}, False, True, True),
        ({"convs": (8,)}, False, True, True),
        ({"stem": ()}, False, True, True),
    ],
)
def test_a_figure_states_what_is_computed(
    tiny_config: ViTConfig, fields: dict[str, Any], is_linear: bool, has_bias: bool, is_sum: bool
) -> None:
    model = VisionTransformer(replace(tiny_config, in_channels=1, **fields)).eval()

    parts = patch_tokens(model, torch.zeros(1, 1, 16, 16))

    assert (parts.is_linear, parts.has_bias, parts.is_sum) == (is_linear, has_bias, is_sum)
    assert (parts.grid, parts.channels) == ((4, 4), 1)


@pytest.mark.parametrize("prefix", [True, False])
def test_positions_are_those_of_the_patches(tiny_config: ViTConfig, prefix: bool) -> None:
    model = VisionTransformer(replace(tiny_config, prefix_positions=prefix, registers=2)).eval()
    rotary = VisionTransformer(replace(tiny_config, positions=False, rope=RopeConfig())).eval()
    assert model.pos_embed is not None

    found = patch_tokens(model, torch.zeros(1, 3, 16, 16)).positions

    assert found is not None
    assert found == pytest.approx(model.pos_embed.detach()[0, 3 * prefix :].numpy())
    assert patch_tokens(rotary, torch.zeros(1, 3, 16, 16)).positions is None


def test_each_readable_image_has_a_numbered_figure(
    tmp_path: Path, tiny_vit: VisionTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []

    def drawn(view: Any, parts: Any, title: str) -> bytes:
        assert view.shape == (16, 16, 3)
        assert parts.grid == (4, 4)
        titles.append(title)
        return title.encode()

    monkeypatch.setattr("vitft.explain.patches.patches_png", drawn)
    model = ExplainedModel(
        name="x", net=tiny_vit, transform=EvalTransform(image_size=(16, 16)), classes=()
    )
    (tmp_path / "bad.png").write_text("<html>")
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(tmp_path / "good.png")
    paths = [str(tmp_path / name) for name in ("bad.png", "good.png")]

    bad, good = write_patch_figures(model, paths, tmp_path / "new" / "out")

    assert (bad.path, bad.file, bool(bad.error)) == (paths[0], None, True)
    assert good.file == tmp_path / "new" / "out" / "002-good-patches.png"
    assert good.file.read_bytes() == b"good.png"
    assert (good.path, good.error, titles) == (paths[1], "", ["good.png"])


def test_a_model_without_patches_is_refused_at_once(tmp_path: Path) -> None:
    net: Any = torch.nn.Linear(1, 1)
    model = ExplainedModel(name="x", net=net, transform=EvalTransform(), classes=())

    with pytest.raises(UsageError, match="--patches"):
        [*write_patch_figures(model, [], tmp_path)]
