"""Checkpoints: writing, verifying and reading model.safetensors."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from vitft.data import EvalTransform
from vitft.models import (
    Card,
    TimmConfig,
    VisionTransformer,
    ViTConfig,
    load_checkpoint,
    save_checkpoint,
)
from vitft.predict import NumpyEngine
from vitft.system import RunError


def card_of(config: ViTConfig) -> Card:
    return Card(
        architecture=config,
        transform=EvalTransform(image_size=config.image_size, mean=(0.1, 0.2, 0.3)),
        classes=("a", "b\n", "ü"),
        weights={"name": "tiny", "sha256": "0"},
        split="abc",
    )


def test_equal_weights_give_equal_files(tmp_path: Path, tiny_vit: VisionTransformer) -> None:
    card = Card(architecture=tiny_vit.config, transform=EvalTransform(), classes=("a", "b", "ä"))
    paths = [tmp_path / f"{i}.safetensors" for i in range(6)]

    for path in paths:  # the library writes the metadata in another order each time
        save_checkpoint(path, tiny_vit.state_dict(), card)

    assert len({path.read_bytes() for path in paths}) == 1
    content = paths[0].read_bytes()
    assert int.from_bytes(content[:8], "little") % 8 == 0  # tensors are aligned


def test_any_damage_to_the_file_is_detected(tmp_path: Path, tiny_vit: VisionTransformer) -> None:
    path, rng = tmp_path / "model.safetensors", random.Random(0)
    save_checkpoint(path, tiny_vit.state_dict(), card_of(tiny_vit.config))
    whole = path.read_bytes()

    header = 8 + int.from_bytes(whole[:8], "little")

    for place in [*range(0, header, 4), *rng.sample(range(header, len(whole)), 60)]:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        with pytest.raises(RunError):
            load_checkpoint(path)

    for length in rng.sample(range(len(whole)), 30):
        path.write_bytes(whole[:length])
        with pytest.raises(RunError):
            load_checkpoint(path)


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


def test_both_engines_compute_the_digest_that_was_written(
    tmp_path: Path, tiny_vit: VisionTransformer
) -> None:
    path, card = tmp_path / "model.safetensors", card_of(tiny_vit.config)

    written = save_checkpoint(path, tiny_vit.state_dict(), card)

    with safe_open(path, framework="pt") as file:
        assert file.metadata()["vitft.sha256"] == written
    engine = NumpyEngine.open(path)
    assert engine is not None
    assert engine.scores(np.zeros((1, 16, 16, 3), np.uint8)).logits.shape == (1, 3)
    assert load_checkpoint(path, digest=lambda: written)[1] == card
    with pytest.raises(RunError, match="sha256 of the contents differs"):
        load_checkpoint(path, digest=lambda: "0" * 64)


KINDS = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool"


@pytest.mark.parametrize("kind", KINDS.split())
def test_tensors_of_every_type_are_read_as_written(tmp_path: Path, kind: str) -> None:
    shape = TimmConfig(timm="resnet18", image_size=(8, 8))
    card = Card(architecture=shape, transform=EvalTransform(image_size=(8, 8)))
    state = {"x": torch.ones(2, 2, dtype=getattr(torch, kind))}

    save_checkpoint(tmp_path / "x.safetensors", state, card)
    found, _ = load_checkpoint(tmp_path / "x.safetensors")  # which compares the digests

    assert torch.equal(found["x"], state["x"])
    assert found["x"].dtype == state["x"].dtype
