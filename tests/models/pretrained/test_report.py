"""Reports on weights: one line about a loaded model, and one line for each fact."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vitft.data.transforms import EvalTransform
from vitft.models.card import Card
from vitft.models.checkpoint import save_checkpoint
from vitft.models.pretrained.report import (
    LoadReport,
    describe_file,
    describe_head,
    describe_positions,
    format_numbers,
    inspect,
)
from vitft.models.pretrained.weights import open_pretrained
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import RopeConfig, ViTConfig
from vitft.system.errors import UsageError

REPORT = LoadReport(
    source="owner/vit",
    flavour="timm",
    architecture="ViT-B/16 224 px",
    parameters=85_800_000,
    loaded=152,
    dropped=(),
    head="new, 3 classes",
    pre_logits="none",
    positions="14x14 as loaded",
    transform=EvalTransform(mean=(0.5, 0.5, 0.5), std=(0.229, 0.224, 0.225)),
    statistics_source="from timm",
    provenance={},
)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "ViT-B/16 224 px, 85.8 million parameters, owner/vit"),
        ({"parameters": 100_000}, "ViT-B/16 224 px, 0.1 million parameters, owner/vit"),
        ({"parameters": 99_999}, "ViT-B/16 224 px, 99,999 parameters, owner/vit"),
        ({"parameters": 1}, "ViT-B/16 224 px, 1 parameter, owner/vit"),
        ({"parameters": 1_136_000_000}, "ViT-B/16 224 px, 1,136.0 million parameters, owner/vit"),
        ({"source": "/a/b/vit.safetensors"}, "ViT-B/16 224 px, 85.8 million parameters, vit"),
        ({"source": "/a/b/model.safetensors"}, "ViT-B/16 224 px, 85.8 million parameters, b"),
        ({"source": "/a/b/pytorch_model.bin"}, "ViT-B/16 224 px, 85.8 million parameters, b"),
        (
            {"positions": "1x1 -> 2x2, jax"},
            "ViT-B/16 224 px, 85.8 million parameters, owner/vit, positions 1x1 -> 2x2, jax",
        ),
    ],
)
def test_the_headline_names_model_size_and_source(fields: dict[str, object], line: str) -> None:
    assert replace(REPORT, **fields).headline() == f"model:      {line}"  # type: ignore[arg-type]


def test_a_report_has_a_line_for_each_fact() -> None:
    assert REPORT.lines() == [
        "weights:    owner/vit (timm)",
        "model:      ViT-B/16 224 px, 85,800,000 parameters",
        "loaded:     152 tensors",
        "dropped:    nothing",
        "head:       new, 3 classes",
        "pre_logits: none",
        "positions:  14x14 as loaded",
        "pixels:     mean 0.5, std 0.229 0.224 0.225: from timm",
    ]
    more = replace(REPORT, dropped=("a (1,)", "b (2,)"), notes=("one", "two")).lines()
    assert more[3] == "dropped:    a (1,), b (2,)"
    assert more[8:] == ["note:       one", "note:       two"]


@pytest.mark.parametrize(
    ("values", "text"),
    [((0.5,), "0.5"), ((0.5, 0.5, 0.5), "0.5"), ((0.5, 0.5, 0.25), "0.5 0.5 0.25"),
     ((0.123456,), "0.1235")],
)  # fmt: skip
def test_equal_statistics_are_written_once(values: tuple[float, ...], text: str) -> None:
    assert format_numbers(values) == text


def test_positions_are_described_by_both_grids(tiny_config: ViTConfig) -> None:
    wide = replace(tiny_config, image_size=(16, 24))
    rotary = replace(wide, positions=False, rope=RopeConfig())

    assert describe_positions(tiny_config, tiny_config, "jax") == "4x4 as loaded"
    assert describe_positions(tiny_config, wide, "jax") == "4x4 -> 4x6, jax"
    assert describe_positions(rotary, rotary, "jax") == "4x6 rotary, not learned"


def write(
    path: Path, config: ViTConfig, *, head: float = 1.0, classes: tuple[str, ...] = ()
) -> Path:
    state = VisionTransformer(config).state_dict()
    if config.num_classes:
        state["head.weight"] = torch.full_like(state["head.weight"], head)
    card = Card(
        architecture=config,
        transform=EvalTransform(image_size=config.image_size),
        classes=classes,
        weights={"name": "base"},
    )
    save_checkpoint(path, state, card)
    return path


@pytest.mark.parametrize(
    ("head", "classes", "text"),
    [
        (1.0, (), "3 classes"),
        (1.0, ("a", "b", "c"), "3 classes (a, b and c)"),
        (0.0, (), "3 classes, all zeros (untrained)"),
    ],
)
def test_the_head_of_a_file_is_described(
    tmp_path: Path, tiny_config: ViTConfig, head: float, classes: tuple[str, ...], text: str
) -> None:
    weights = open_pretrained(
        write(tmp_path / "x.safetensors", tiny_config, head=head, classes=classes)
    )

    assert describe_head(weights) == text
    unusable = replace(weights, unusable_head="why")
    assert describe_head(unusable) == (text if not head else f"{text}; cannot be used: why")
    body = {name: t for name, t in weights.tensors.items() if not name.startswith("head.")}
    assert describe_head(replace(weights, tensors=body)) == "none"


def test_a_file_is_described_fact_by_fact(tmp_path: Path, tiny_config: ViTConfig) -> None:
    path = write(tmp_path / "x.safetensors", replace(tiny_config, pre_logits=True, registers=2))
    weights = replace(open_pretrained(path), notes=("one",), dropped=("a (1,)",))
    parameters = sum(tensor.numel() for tensor in weights.tensors.values())

    lines = describe_file(weights)

    assert lines == [
        f"file:       {path}",
        f"sha256:     {weights.provenance['sha256']}",
        "format:     vitft checkpoint",
        f"model:      ViT/4 16 px, 2 blocks, width 32, 2 heads, 2 registers, {parameters:,} "
        "parameters",
        "head:       3 classes",
        "pre_logits: yes",
        "positions:  4x4 patches and 3 prefix tokens",
        "pixels:     mean 0.5, std 0.5, bicubic, crop 0.9: from the checkpoint's card",
        "unused:     a (1,)",
        "note:       one",
    ]
    no_prefix = replace(weights.architecture, prefix_positions=False, pre_logits=False)
    plain = describe_file(replace(weights, architecture=no_prefix, dropped=()))
    assert plain[5] == "pre_logits: no"
    assert plain[6] == "positions:  4x4 patches and 0 prefix tokens"
    assert plain[8] == "unused:     nothing"


def test_the_effects_of_loading_are_described_only_on_request(
    tmp_path: Path, tiny_config: ViTConfig
) -> None:
    path = write(tmp_path / "x.safetensors", replace(tiny_config, pre_logits=True))
    plain = inspect(path)

    head = inspect(path, classes=5)[len(plain) :]
    size = inspect(path, image_size=(16, 24), pos_embed="jax")[len(plain) :]
    both = inspect(path, classes=5, image_size=24)[len(plain) :]

    every = len(VisionTransformer(replace(tiny_config, pre_logits=True)).state_dict())
    assert head[0] == f"would be kept:    {every - 4} tensors"
    assert head[1].startswith("would be dropped: ")
    assert {*re.findall(r"[a-z_.]+ \([\d, ]+\)", head[1])} == {
        "head.weight (3, 32)",
        "head.bias (3,)",
        "pre_logits.fc.weight (32, 32)",
        "pre_logits.fc.bias (32,)",
    }
    assert head[2:] == ["would be new:     head.weight (5, 32), head.bias (5,)",
                        "would be resized: nothing"]  # fmt: skip
    assert size == [
        f"would be kept:    {every} tensors",
        "would be dropped: nothing",
        "would be new:     nothing",
        "would be resized: pos_embed 4x4 -> 4x6, jax",
    ]
    assert both[3] == "would be resized: pos_embed 4x4 -> 6x6, bicubic"
    with pytest.raises(UsageError, match=r"^x: the image height \(17 pixels\)"):
        inspect(path, image_size=17)
