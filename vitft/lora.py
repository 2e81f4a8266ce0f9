"""Low-rank adaptation: small matrices beside the frozen ones, folded into them at the end.

peft does it; here stand which layers get them and that nothing of it is left in what is saved.

Source: Hu et al. 2022 (LoRA), https://arxiv.org/abs/2106.09685.
"""

import re
from typing import Any

import torch
from torch import nn

from vitft.backbone import Model
from vitft.config import TrainSpec
from vitft.errors import UsageError


def add_adapters(model: Model, spec: TrainSpec) -> None:
    """Put a pair of matrices beside each linear layer that `spec.lora_targets` names, in place.

    They start as nothing: the model still answers what it did.

    Raises:
        UsageError: peft is not installed, or the model has no such layers.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise UsageError(
            "train.freeze lora needs the library peft", fix="pip install 'vitft[lora]'"
        ) from error
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


def fold_adapters(model: nn.Module) -> None:
    """Add each pair of matrices to the layer that it belongs to, which is put back, in place."""
    for path, layer in adapters(model):
        layer.merge()
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, layer.get_base_layer())
