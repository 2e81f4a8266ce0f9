"""Low-rank adaptation: small matrices beside the frozen ones, folded into them at the end.

peft does it; here stand which layers get them, that nothing of it is left in what is saved, and the
folder in which they are kept by themselves for who asks for it.

Source: Hu et al. 2022 (LoRA), https://arxiv.org/abs/2106.09685.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vitft.config.training import TrainSpec
from vitft.models.timm_model import Model, TimmModel
from vitft.system.errors import UsageError
from vitft.system.extras import require_extra
from vitft.system.files import whole_folder


def add_adapters(model: Model, spec: TrainSpec) -> None:
    """Put a pair of matrices beside each linear layer that `spec.lora_targets` names, in place.

    They start as nothing: the model still answers what it did.

    Raises:
        UsageError: peft is not installed, the model has no such layers, or they could not be kept
            by themselves as `spec` asks.
    """
    require_extra("lora", feature="train.freeze=lora")
    from peft import LoraConfig, inject_adapter_in_model

    if spec.keep_adapter and isinstance(model, TimmModel):
        raise UsageError(
            "--keep-adapter is for vitft's own ViTs, whose layers are called as in timm",
            fix="leave it out: the trained model itself is saved in any case",
        )
    if adapters(model):
        return
    targets = [name for name, _ in linear_layers(model, spec.lora_targets.split(","))]
    if not targets:
        raise UsageError(
            f"the model has no linear layers called {spec.lora_targets}",
            fix="name those it has: --set train.lora_targets=...",
        )
    device = next(model.parameters()).device
    torch.manual_seed(spec.seed)
    config = LoraConfig(r=spec.lora_rank, lora_alpha=spec.lora_alpha, target_modules=targets)
    inject_adapter_in_model(config, model)
    model.to(device)


def linear_layers(model: nn.Module, names: list[str]) -> list[tuple[str, nn.Linear]]:
    """The linear layers, heads left out, whose last name is one of `names`."""
    return [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and path.rpartition(".")[2] in names
        and not re.match(r"(head|pre_logits)\b", path)
    ]


def adapters(model: nn.Module) -> list[tuple[str, Any]]:
    """The layers that carry an adapter, each with its path."""
    return [(path, m) for path, m in model.named_modules() if hasattr(m, "get_base_layer")]


def fold_adapters(model: nn.Module) -> dict[str, Tensor]:
    """Add each pair of matrices to the layer that it belongs to, which is put back, in place.

    Returns:
        Copies of the matrices, A (r, in) and B (out, r) of each layer, by peft's names for them.
    """
    pairs: dict[str, Tensor] = {}
    for path, layer in adapters(model):
        for side in ("lora_A", "lora_B"):
            (matrix,) = getattr(layer, side).values()
            pairs[f"{path}.{side}.weight"] = matrix.weight.detach().cpu().clone()
        layer.merge()
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, layer.get_base_layer())
    return pairs


def write_adapter(
    folder: Path, pairs: Mapping[str, Tensor], model: nn.Module, spec: TrainSpec, *, base: str
) -> None:
    """Write what LoRA trained, with the head, as a folder that `peft.PeftModel` opens.

    Args:
        folder: A new one.
        pairs: What `fold_adapters` returned.
        model: Where the trained head is taken from; as saved, so its answers are calibrated.
        spec: Rank and weight of the matrices.
        base: What the pretrained weights are called.

    Raises:
        RunError: The folder cannot be written.
        ResourceError: The disk is full.
    """
    from peft import LoraConfig

    heads = {n: t for n, t in model.state_dict().items() if n.startswith("head")}
    tensors = {**pairs, **{name: tensor.detach().cpu() for name, tensor in heads.items()}}
    config = LoraConfig(
        r=spec.lora_rank,
        lora_alpha=spec.lora_alpha,
        target_modules=sorted({name.rpartition(".lora_")[0] for name in pairs}),
        modules_to_save=sorted({name.partition(".")[0] for name in heads}),
        base_model_name_or_path=base,
        inference_mode=True,
    )
    with whole_folder(folder) as fresh:
        config.save_pretrained(str(fresh))
        named = {f"base_model.model.{n}": t.contiguous() for n, t in sorted(tensors.items())}
        save_file(named, fresh / "adapter_model.safetensors", metadata={"format": "pt"})
