"""Checkpoints: writing, verifying and reading model.safetensors."""

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from vitft.data.transforms import EvalTransform
from vitft.models.card import Card
from vitft.models.checkpoint import build_model, load_checkpoint, save_checkpoint
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import ResourceError, RunError


def card_of(config: ViTConfig) -> Card:
    return Card(
        architecture=config,
        transform=EvalTransform(image_size=config.image_size, mean=(0.1, 0.2, 0.3)),
        classes=("a", "b\n", "ü"),
        weights={"name": "tiny", "sha256": "0"},
        split="abc",
    )


def test_weights_and_card_round_trip(tmp_path: Path, tiny_vit: VisionTransformer) -> None:
    path, card = tmp_path / "model.safetensors", card_of(tiny_vit.config)

    save_checkpoint(path, tiny_vit.state_dict(), card)
    state, found = load_checkpoint(path)

    assert found == card
    assert all(torch.equal(value, tiny_vit.state_dict()[name]) for name, value in state.items())
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_equal_weights_give_equal_files(tmp_path: Path, tiny_vit: VisionTransformer) -> None:
    card = Card(architecture=tiny_vit.config, transform=EvalTransform(), classes=("a", "b", "ä"))
    paths = [tmp_path / f"{i}.safetensors" for i in range(6)]

    for path in paths:  # the library writes the metadata in another order each time
        save_checkpoint(path, tiny_vit.state_dict(), card)

    assert len({path.read_bytes() for path in paths}) == 1
    content = paths[0].read_bytes()
    assert int.from_bytes(content[:8], "little") % 8 == 0  # tensors are aligned


def test_a_model_is_built_around_the_tensors_of_the_file(
    tmp_path: Path, tiny_vit: VisionTransformer
) -> None:
    path, pixels = tmp_path / "model.safetensors", torch.randn(2, 3, 16, 16)
    save_checkpoint(path, tiny_vit.state_dict(), card_of(tiny_vit.config))
    state, card = load_checkpoint(path)

    model = build_model(state, card.architecture)

    assert isinstance(model, VisionTransformer)
    assert (
        model.blocks[0].attn.qkv.weight.data_ptr() == state["blocks.0.attn.qkv.weight"].data_ptr()
    )
    assert torch.equal(model(pixels), tiny_vit(pixels))


def test_any_damage_to_the_file_is_detected(tmp_path: Path, tiny_vit: VisionTransformer) -> None:
    path, rng = tmp_path / "model.safetensors", random.Random(0)
    save_checkpoint(path, tiny_vit.state_dict(), card_of(tiny_vit.config))
    whole = path.read_bytes()

    header = 8 + int.from_bytes(whole[:8], "little")

    for place in [*range(header), *rng.sample(range(header, len(whole)), 200)]:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        with pytest.raises(RunError):
            load_checkpoint(path)

    for length in rng.sample(range(len(whole)), 100):
        path.write_bytes(whole[:length])
        with pytest.raises(RunError):
            load_checkpoint(path)


def test_a_foreign_safetensors_file_is_reported(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")

    with pytest.raises(RunError, match="not written by vitft"):
        load_checkpoint(tmp_path / "x.safetensors")


@pytest.mark.parametrize("version", ["0", "99", None])
def test_a_checkpoint_of_another_format_is_refused(
    tmp_path: Path, tiny_vit: VisionTransformer, version: str | None
) -> None:
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, tiny_vit.state_dict(), card_of(tiny_vit.config))
    with safe_open(path, framework="pt") as file:
        metadata = {**file.metadata(), "vitft.format": version}
    known = {name: text for name, text in metadata.items() if text is not None}
    save_file(tiny_vit.state_dict(), path, metadata=known)  # the digest still matches

    with pytest.raises(RunError, match=f"has checkpoint format {version}, but this version"):
        load_checkpoint(path)


def test_a_missing_checkpoint_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not found"):
        load_checkpoint(tmp_path / "x.safetensors")


def test_tensors_that_do_not_fit_the_architecture_are_reported(tiny_vit: VisionTransformer) -> None:
    other = replace(tiny_vit.config, num_classes=4)

    with pytest.raises(RunError, match=r"do not match.*head\.bias \(3,\) instead of \(4,\)"):
        build_model(tiny_vit.state_dict(), other)


def test_a_full_disk_keeps_the_previous_file(
    tmp_path: Path, tiny_vit: VisionTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, tiny_vit.state_dict(), card_of(tiny_vit.config))
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError, match="disk full"):
        save_checkpoint(path, tiny_vit.state_dict(), card_of(tiny_vit.config))

    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
