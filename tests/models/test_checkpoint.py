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
from vitft.models.checkpoint import (
    build_model,
    facts_of,
    holds_timm,
    load_checkpoint,
    save_checkpoint,
    state_digest,
    timm_on_meta,
)
from vitft.models.checkpoint_file import content_digest, lacks_card, open_checkpoint
from vitft.models.timm_config import TimmConfig
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


def test_both_engines_compute_the_digest_that_was_written(
    tmp_path: Path, tiny_vit: VisionTransformer
) -> None:
    path, card = tmp_path / "model.safetensors", card_of(tiny_vit.config)

    written = save_checkpoint(path, tiny_vit.state_dict(), card)

    opened = open_checkpoint(path)
    assert opened.digest() == written == opened.metadata["vitft.sha256"]
    assert opened.card == card
    assert [*opened.tensors] == sorted(tiny_vit.state_dict())
    assert opened.path == path
    assert load_checkpoint(path, digest=lambda: written)[1] == card
    with pytest.raises(RunError, match="sha256 of the contents differs"):
        load_checkpoint(path, digest=lambda: "0" * 64)


def test_a_digest_covers_the_type_shape_name_and_values_of_each_tensor() -> None:
    zero = torch.zeros(2, 3)
    states = [
        {"a": zero},
        {"b": zero},
        {"a": zero.T},
        {"a": zero.int()},
        {"a": zero + 1},
        {"a": zero, "b": zero},
    ]

    digests = {state_digest("card", state) for state in states} | {state_digest("", states[0])}

    assert len(digests) == 7
    assert state_digest("x", {"a": zero, "b": zero + 1}) == state_digest(
        "x", {"b": zero + 1, "a": zero}
    )


@pytest.mark.parametrize(
    "kind",
    [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
    ],
)
def test_every_type_of_tensor_has_the_name_and_digest_of_its_file(
    tmp_path: Path, kind: str
) -> None:
    from vitft.system.safetensors_file import map_tensors, read_header

    state = {"x": torch.ones(2, 2, dtype=getattr(torch, kind))}
    save_file(state, tmp_path / "x.safetensors")

    header = read_header(tmp_path / "x.safetensors")
    data = map_tensors(tmp_path / "x.safetensors", header)

    assert facts_of(state) == dict(header.tensors)
    assert content_digest("card", header.tensors, data) == state_digest("card", state)


def test_a_tensor_of_an_unknown_type_is_named(tmp_path: Path) -> None:
    complex_numbers = {"x": torch.ones(2, dtype=torch.complex64)}

    assert facts_of(complex_numbers)["x"].dtype == "torch.complex64"


def test_what_kind_of_model_a_file_holds_is_read_from_its_header(
    tmp_path: Path, tiny_vit: VisionTransformer
) -> None:
    ours, theirs, other = (tmp_path / f"{name}.safetensors" for name in ("ours", "timm", "other"))
    save_checkpoint(ours, tiny_vit.state_dict(), card_of(tiny_vit.config))
    config = TimmConfig(timm="test_resnet", image_size=(16, 16))
    card = Card(architecture=config, transform=EvalTransform(image_size=(16, 16)))
    save_checkpoint(theirs, {"x": torch.zeros(1)}, card)
    save_file({"x": torch.zeros(1)}, other)
    (tmp_path / "damaged.safetensors").write_bytes(b"damaged")
    theirs.with_suffix(".SAFETENSORS").write_bytes(theirs.read_bytes())
    theirs.with_suffix(".bin").write_bytes(theirs.read_bytes())

    found = {path.name: holds_timm(path) for path in tmp_path.iterdir()}

    assert [name for name in sorted(found) if found[name]] == [
        "timm.SAFETENSORS",
        "timm.safetensors",
    ]
    assert not holds_timm(tmp_path / "missing.safetensors")
    lacking = [path.name for path in sorted(tmp_path.iterdir()) if lacks_card(path)]
    assert lacking == ["other.safetensors"]
    assert not lacks_card(tmp_path / "missing.safetensors")


def test_a_timm_model_is_built_from_its_tensors_in_eval_mode() -> None:
    config = TimmConfig(timm="test_resnet", image_size=(16, 16), num_classes=3)
    empty = timm_on_meta(config)
    assert all(tensor.is_meta for tensor in empty.state_dict().values())
    state = {name: torch.ones(t.shape, dtype=t.dtype) for name, t in empty.state_dict().items()}

    model = build_model(state, config)

    assert not model.training
    assert all(
        tensor is not None and bool((tensor == 1).all()) for tensor in model.state_dict().values()
    )
    with pytest.raises(RunError, match="weights do not match the architecture: missing"):
        build_model({}, config)


@pytest.mark.parametrize("error", [RuntimeError, ValueError, TypeError, AssertionError, KeyError])
def test_what_timm_cannot_build_is_reported_with_its_image_size(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    with pytest.raises(RunError, match="nonesuch"):
        timm_on_meta(TimmConfig(timm="nonesuch", image_size=(32, 32)))

    def refuse(_: TimmConfig) -> None:
        raise error("why")

    monkeypatch.setattr("vitft.models.checkpoint.TimmModel", refuse)
    with pytest.raises(RunError, match=r"timm cannot build resnet18 for 17x33 pixels: '?why"):
        timm_on_meta(TimmConfig(timm="resnet18", image_size=(17, 33)))
