"""Which parameters each way to train a model trains."""

from dataclasses import replace

import pytest
import torch

from vitft.models import VisionTransformer, ViTConfig, freeze_model


def meta_model(config: ViTConfig) -> VisionTransformer:
    with torch.device("meta"):
        return VisionTransformer(config)


@pytest.mark.parametrize(
    ("fields", "layers", "parts"),
    [
        ({}, "head", {"head"}),
        ({"distilled": True}, "head", {"head", "head_dist"}),
        ({"pre_logits": True}, "head", {"head"}),
        ({"pre_logits": True}, "pre_logits", {"head", "pre_logits"}),
        ({}, "blocks:1", {"blocks.1", "norm", "head"}),
        ({}, "blocks:2", {"blocks.0", "blocks.1", "norm", "head"}),
        ({"pool": "mean"}, "blocks:1", {"blocks.1", "fc_norm", "head"}),
        ({"pool": "map"}, "blocks:1", {"blocks.1", "norm", "attn_pool", "head"}),
        ({"distilled": True}, "blocks:1", {"blocks.1", "norm", "head", "head_dist"}),
        ({"pre_logits": True}, "blocks:1", {"blocks.1", "norm", "pre_logits", "head"}),
        ({"depth": 3}, "blocks:1", {"blocks.2", "norm", "head"}),
        (
            {"embed_norm": True},
            "all",
            {"cls_token", "pos_embed", "patch_embed", "norm_pre", "blocks.0", "blocks.1", "norm",
             "head"},
        ),
    ],
)  # fmt: skip
def test_exactly_the_last_layers_are_trained(
    fields: dict[str, object], layers: str, parts: set[str], tiny_config: ViTConfig
) -> None:
    model = meta_model(replace(tiny_config, **fields))  # type: ignore[arg-type]
    trained: list[str] = []

    for name in (layers, "head" if layers == "all" else "all", layers):  # nothing is left over
        trained = freeze_model(model, name)

    every = [name for name, _ in model.named_parameters()]
    assert trained == [n for n, p in model.named_parameters() if p.requires_grad]
    assert trained == [n for n in every if any(n == p or n.startswith(f"{p}.") for p in parts)]
    found = {".".join(n.split(".")[: 2 if n.startswith("blocks.") else 1]) for n in trained}
    assert found == parts


def test_block_ten_comes_after_block_two(tiny_config: ViTConfig) -> None:
    trained = freeze_model(meta_model(replace(tiny_config, depth=12)), "blocks:10")

    numbers = {int(name.split(".")[1]) for name in trained if name.startswith("blocks.")}
    assert numbers == {*range(2, 12)}
