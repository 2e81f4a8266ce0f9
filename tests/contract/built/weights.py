"""Weight files as training scripts, libraries and hubs write them, all with the same small model.

Notation: D width.
"""

import argparse
import json
import os
import pathlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from vitft.models import VisionTransformer, ViTConfig, architecture_config

CONFIG = ViTConfig(
    image_size=(16, 16), patch_size=(8, 8), width=64, depth=2, heads=1, num_classes=3
)
OPTIMISER = {
    "state": {0: {"exp_avg": torch.ones(5), "step": torch.tensor(3.0)}},
    "param_groups": [],
}
TORCHVISION = {
    "cls_token": "class_token",
    "pos_embed": "encoder.pos_embedding",
    "patch_embed.proj": "conv_proj",
    "blocks.": "encoder.layers.encoder_layer_",
    "norm1": "ln_1",
    "norm2": "ln_2",
    "attn.qkv.": "self_attention.in_proj_",
    "attn.proj": "self_attention.out_proj",
    "mlp.fc1": "mlp.0",
    "mlp.fc2": "mlp.3",
    "head.": "heads.head.",
}
HUGGING_FACE = {
    "cls_token": "vit.embeddings.cls_token",
    "pos_embed": "vit.embeddings.position_embeddings",
    "patch_embed.proj": "vit.embeddings.patch_embeddings.projection",
    "blocks.": "vit.encoder.layer.",
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
    "head.": "classifier.",
}


def random_weights(config: ViTConfig, seed: int = 0) -> dict[str, Tensor]:
    """Return a state dict without zeros, so that the head and every bias have an effect."""
    random = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(tensor.shape, generator=random) * 0.05 + float("norm" in name)
        for name, tensor in VisionTransformer(config).state_dict().items()
    }


def state(seed: int = 0) -> dict[str, Tensor]:
    """Return the tensors of the small model."""
    return random_weights(CONFIG, seed)


def under(root: str, seed: int = 0) -> dict[str, Tensor]:
    """Return the state dict with a root before all names."""
    return {root + name: tensor for name, tensor in state(seed).items()}


def renamed(names: Mapping[str, str], norm: str) -> dict[str, Tensor]:
    """Return the state dict under other names; `norm` is the name of the last norm."""
    result: dict[str, Tensor] = {}
    for name, tensor in state().items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        result[norm + name.removeprefix("norm") if name.startswith("norm.") else name] = tensor
    return result


def hugging_face(root: str = "") -> dict[str, Tensor]:
    """Return the state dict under the names of transformers."""
    result: dict[str, Tensor] = {}
    for name, tensor in renamed(HUGGING_FACE, "vit.layernorm").items():
        parts = zip(("query", "key", "value"), tensor.chunk(3), strict=False)
        if "attn.qkv" in name:
            result |= {
                root + name.replace("attn.qkv", f"attention.attention.{p}"): t for p, t in parts
            }
        else:
            result[root + name] = tensor
    return result


def settings() -> argparse.Namespace:
    """Return settings as a training script stores them."""
    return argparse.Namespace(lr=0.1, out=pathlib.Path("out"))


def forms() -> dict[str, Any]:
    """Return the content of pickles with the same logits as the plain file, by file name."""
    plain, ones = state(), torch.ones(2, 2)
    roots = (
        "backbone.", "encoder.", "visual.", "visual.trunk.", "image_encoder.", "trunk.", "net.",
        "model.", "module.", "module.model.", "vit.", "base_model.", "network.0.", "encoder_q.",
        "feature_extractor.",
    )  # fmt: skip
    return {
        "plain.pth": plain,
        "model_best.pth.tar": {"epoch": 3, "arch": "vit", "state_dict": plain, "best": ones[0, 0]},
        "no_suffix": {"state_dict": plain},
        "called.safetensors": plain,
        "called.zip": plain,
        "lightning.ckpt": {
            "state_dict": under("model.") | {"criterion.weight": ones},
            "pytorch-lightning_version": "2.5",
            "hyper_parameters": {"lr": 0.1},
            "optimizer_states": [OPTIMISER],
            "callbacks": {"ModelCheckpoint": {"best_model_score": ones[0, 0]}},
        },
        "timm_ema.pth.tar": {
            "state_dict": state(1), "state_dict_ema": plain, "optimizer": OPTIMISER,
            "args": settings(), "metric": np.float64(3.5), "random": np.arange(3.0),
        },
        "deit_ema.pth": {"model": state(1), "model_ema": plain, "args": settings()},
        "ema_inside.pth": under("net.", 1) | under("ema_model.module."),
        "dino.pth": {
            "student": under("module.backbone.", 1) | {"module.head.mlp.0.weight": ones},
            "teacher": under("backbone.") | {"head.last_layer.weight_g": ones},
            "args": settings(),
            "dino_loss": {"center": ones},
        },
        "moco.pth.tar": {
            "state_dict": under("module.base_encoder.")
            | under("module.momentum_encoder.", 1)
            | {"module.predictor.0.weight": ones},
        },
        "mae.pth": {
            "model": plain
            | {"mask_token": ones, "decoder_pos_embed": ones, "decoder_blocks.0.norm.bias": ones},
            "scaler": {},
        },
        "criterion.pth": plain | {"criterion.weight": ones},
        "checkpoint_key.pth": {"checkpoint": plain},
        "deep.pth": {"checkpoint": {"model": {"weights": plain}}, "optimizer": OPTIMISER},
        "compiled.pth": under("_orig_mod."),
        "sharded_training.pth": {
            "model": {
                "_fsdp_wrapped_module." + name.replace(".norm1", "._fsdp_wrapped_module.norm1"): t
                for name, t in plain.items()
            }
        },
        "swa.pth": under("module.") | {"n_averaged": torch.tensor(3)},
        "torchvision.pth": renamed(TORCHVISION, "encoder.ln"),
        "torchvision_ddp.pth": {
            "model": {f"module.{n}": t for n, t in renamed(TORCHVISION, "encoder.ln").items()},
            "args": settings(),
        },
        "hf.pth": hugging_face(),
        "hf_lightning.ckpt": {"state_dict": hugging_face("model.") | {"loss.weight": ones}},
        "step.pth": {"step": 5, **plain, "best": np.float32(0.5)},
        **{f"root {root}pth": under(root) | {"other.weight": ones} for root in roots},
    }  # fmt: skip


def checkpoints(folder: Path) -> None:
    """Write all files of `forms`, one of them in torch's older format, and others like them."""
    for name, content in forms().items():
        torch.save(content, folder / name)
    ema = forms()["timm_ema.pth.tar"]
    torch.save(ema, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    save_file(under("backbone."), folder / "root.safetensors")
    save_file(state(), folder / "called.bin")


def folders(folder: Path) -> None:
    """Write folders of weights: one file, files beside it, several parts, several files, none."""
    for name in ("hub", "one", "parts", "pickled_parts", "two", "other"):
        (folder / name).mkdir()
    torch.save(hugging_face(), folder / "hub" / "pytorch_model.bin")
    torch.save(settings(), folder / "hub" / "training_args.bin")
    torch.save(OPTIMISER, folder / "hub" / "optimizer.pt")
    torch.save({"state_dict": under("model.")}, folder / "one" / "epoch=3.ckpt")
    for name in ("epoch=3.ckpt", "last.ckpt"):
        torch.save({"state_dict": under("model.")}, folder / "two" / name)
    (folder / "other" / "tf_model.h5").write_bytes(b"\x89HDF")
    for place, stem, suffix in (
        ("parts", "model", "safetensors"),
        ("pickled_parts", "pytorch_model", "bin"),
    ):
        index: dict[str, str] = {}
        for number in (1, 2):
            file = f"{stem}-0000{number}-of-00002.{suffix}"
            part = {n: t for i, (n, t) in enumerate(state().items(), 1) if i % 2 == number - 1}
            if suffix == "bin":
                torch.save(part, folder / place / file)
            else:
                save_file(part, folder / place / file)
            index |= dict.fromkeys(part, file)
        text = json.dumps({"metadata": {}, "weight_map": index})
        (folder / place / f"{stem}.{suffix}.index.json").write_text(text)


def google(folder: Path) -> None:
    """Write arrays of Google's layout with the state of an optimiser, which repeats their names."""
    arrays: dict[str, Any] = {
        "embedding/kernel": np.ones((8, 8, 3, 64), np.float32),
        "embedding/bias": np.ones(64, np.float32),
        "cls": np.ones((1, 1, 64), np.float32),
        "Transformer/posembed_input/pos_embedding": np.ones((1, 5, 64), np.float32),
        "Transformer/encoder_norm/scale": np.ones(64, np.float32),
        "Transformer/encoder_norm/bias": np.ones(64, np.float32),
    }
    block = "Transformer/encoderblock_0/"
    for layer, shape in (
        ("MlpBlock_3/Dense_0", (64, 256)),
        ("MlpBlock_3/Dense_1", (256, 64)),
        ("LayerNorm_0", ()),
        ("LayerNorm_2", ()),
        *(
            (f"MultiHeadDotProductAttention_1/{part}", (64, 2, 32))
            for part in ("query", "key", "value")
        ),
        ("MultiHeadDotProductAttention_1/out", (2, 32, 64)),
    ):
        bias = shape[1:] if layer.endswith(("query", "key", "value")) else shape[-1:] or (64,)
        arrays[f"{block}{layer}/bias"] = np.ones(bias, np.float32)
        arrays[f"{block}{layer}/{'kernel' if shape else 'scale'}"] = np.ones(
            shape or 64, np.float32
        )
    arrays |= {"head/kernel": np.zeros((64, 9), np.float32), "head/bias": np.zeros(9, np.float32)}
    state_of: dict[str, Any] = {
        f"opt/state/0/mu/{name}": array * 0 for name, array in arrays.items()
    }
    target: dict[str, Any] = {f"opt/target/{name}": array for name, array in arrays.items()}
    state_of["opt/state/step"] = np.array(5)
    np.savez(folder / "vit.npz", **target, **state_of)


def refused(folder: Path) -> None:
    """Write files that are refused: two models, other architectures, no weights, code."""

    class Code:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.system, ("touch CODE-WAS-RUN",)

    plain, ones = state(), torch.ones(2, 2)
    contents: dict[str, Any] = {
        "two.pth": {"best": plain, "last": state(1)},
        "distilled.ckpt": {"state_dict": under("student.") | under("teacher.", 1)},
        "beit.pth": {"model": plain | {"blocks.0.attn.relative_position_bias_table": ones}},
        "simmim.pth": {
            "model": under("encoder.") | {"encoder.blocks.0.attn.relative_position_index": ones}
        },
        "lora.pth": under("base_model.model.")
        | {"base_model.model.blocks.0.attn.qkv.lora_A.default.weight": ones},
        "norms.pth": plain | {"blocks.0.attn.q_norm.weight": ones},
        "resnet.pth": {
            "counts": {"batches": ones},
            "net": {"conv1.weight": ones, "layer1.0.bn1.weight": ones},
        },
        "swin.pth": {"patch_embed.proj.weight": ones, "layers.0.blocks.0.norm1.weight": ones},
        "arrays.pth": {name: tensor.numpy() for name, tensor in plain.items()},
        "optimiser.pt": {"param_groups": [], "lr": 0.1},
        "code.ckpt": {"state_dict": plain, "hyper_parameters": argparse.Namespace(x=Code())},
        "code_in_array.pth": {"state_dict": plain, "x": np.array([Code()], dtype=object)},
        "model.pth": torch.nn.Linear(2, 2),
    }
    for name, content in contents.items():
        torch.save(content, folder / name)


def timm_ema(folder: Path) -> None:
    """Write a checkpoint of timm's training script for one of timm's small networks."""
    import timm

    torch.manual_seed(0)
    raw, average = (timm.create_model("test_vit", num_classes=3).state_dict() for _ in range(2))
    content = {"state_dict": raw, "state_dict_ema": average, "optimizer": OPTIMISER}
    torch.save({**content, "args": settings()}, folder / "timm_vit.pth")


def unfit(folder: Path) -> None:
    """Write state dicts that lack tensors or have others, or numbers that are not finite."""
    plain = state()
    without = {
        text: {name: tensor for name, tensor in plain.items() if text not in name}
        for text in ("blocks.0.", "blocks.1.mlp", "pos_embed", "patch_embed")
    }
    halves = {name: tensor.half() for name, tensor in plain.items()}
    contents: dict[str, dict[str, Tensor]] = {
        "half.safetensors": halves,
        "gap.safetensors": without["blocks.0."],
        "incomplete.safetensors": without["blocks.1.mlp"],
        "no_positions.safetensors": without["pos_embed"],
        "no_patches.safetensors": without["patch_embed"],
        "more.safetensors": plain | {f"extra.{number}": torch.ones(2) for number in range(7)},
        "five.safetensors": plain | {f"extra.{number}": torch.ones(2) for number in range(5)},
        "mixture.safetensors": plain | {"norm.bias": torch.ones(31)},
        "oblong.safetensors": plain | {"pos_embed": torch.ones(1, 8, 64)},
        "twice.safetensors": plain | {"module.cls_token": torch.ones(1, 1, 64)},
        "nan.safetensors": plain | {"norm.bias": torch.full((64,), float("nan"))},
        "quantised.safetensors": plain | {"norm.bias": torch.ones(64, dtype=torch.int8)},
        "narrow.safetensors": dict(VisionTransformer(replace(CONFIG, width=60)).state_dict()),
        "nothing.safetensors": {},
    }
    for name, content in contents.items():
        save_file(content, folder / name)
    (folder / "cut.safetensors").write_bytes((folder / "half.safetensors").read_bytes()[:-9])
    (folder / "pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    (folder / "page.safetensors").write_text("<!DOCTYPE html><html>")
    (folder / "empty.npz").write_bytes(b"")


def other_pooling(folder: Path) -> None:
    """Write w, a model with a head for a pooling that vitft's own model lacks."""
    (folder / "w").mkdir()
    save_file(state(), folder / "w" / "model.safetensors")
    config: dict[str, Any] = {"architecture": "vit_tiny_patch16_224", "global_pool": "avgmax"}
    config |= {
        "pretrained_cfg": {"label_names": ["cat", "dog", "owl"]},
        "model_args": {"num_heads": 1},
    }
    (folder / "w" / "config.json").write_text(json.dumps(config))


def published(folder: Path) -> None:
    """Write a ViT-Tiny of 1,000 classes to a folder that is named as timm's weights of ImageNet."""
    config = replace(architecture_config("vit_tiny_patch16_224"), num_classes=1000)
    place = folder / "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    place.mkdir()
    save_file(random_weights(config), place / "model.safetensors")


def deep(folder: Path) -> None:
    """Write deep.safetensors, a model of eight blocks."""
    save_file(VisionTransformer(replace(CONFIG, depth=8)).state_dict(), folder / "deep.safetensors")


# the cache of downloads ---------------------------------------------------------------------------

CACHED = "vit_small_patch16_224.augreg_in21k_ft_in1k"


def cached(folder: Path) -> None:
    """Fill the cache `hub` with four damaged files, and write weights named `CACHED`.

    The files are those of recommended weights, two of which are default weights. The last ones are
    the only ones that are more accurate than `CACHED`.
    """
    for repo in (
        "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k",
        "timm/deit3_small_patch16_224.fb_in22k_ft_in1k",
        f"timm/{CACHED}",
        "google/vit-base-patch16-224-in21k",
    ):
        cache, commit = folder / "hub" / f"models--{repo.replace('/', '--')}", "0" * 40
        for name, content in (
            ("refs/main", commit),
            (f"snapshots/{commit}/model.safetensors", "damaged"),
        ):
            (cache / name).parent.mkdir(parents=True)
            (cache / name).write_text(content)
    save_file(state(), folder / f"{CACHED}.safetensors")
