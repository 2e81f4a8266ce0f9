"""Choice of what is trained: the last layers of a model, or low-rank adapters (LoRA).

The freeze boundary separates the frozen first layers of a model from the trainable last layers.
peft implements the adapters. A saved checkpoint contains only the merged weights; on request, an
adapter folder for peft is written as well.

Source: Hu et al. 2022 (LoRA), https://arxiv.org/abs/2106.09685.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from vitft.config.sections import TrainSpec
from vitft.models.timm_model import Model
from vitft.models.vit_config import frozen_blocks
from vitft.system.errors import UsageError
from vitft.system.files import atomic_folder, write_atomically
from vitft.system.imports import require_extra


def freeze_model(model: Model, layers: str) -> list[str]:
    """Set `requires_grad` of every parameter and return the names of the trainable parameters.

    Raises:
        UsageError: The model does not have these layers, or cannot be cut before them.
    """
    if layers == "pre_logits" and not model.config.pre_logits:
        raise UsageError(
            "train.layers=pre_logits cannot be used: the model has no pre_logits layer",
            fix="use --train head, or load weights that have this layer and add --pre-logits keep",
        )
    frozen = frozen_blocks(layers, len(model.blocks))
    every = dict(model.named_parameters())
    if frozen is None or layers == "head":
        pattern = {"all": "", "lora": r"head|.*\.lora_", "head": "head"}[layers]
        trained = frozenset(name for name in every if re.match(pattern, name))
    else:
        trained = model.trained_after(frozen)
    for name, parameter in every.items():
        parameter.requires_grad_(name in trained)
    return [name for name in every if name in trained]


def add_adapters(model: Model, spec: TrainSpec) -> None:
    """Add an adapter to each linear layer named in `spec.lora_targets`, in place.

    The head and the pre_logits layer get none. New adapters do not change the outputs of the model.
    A model that already has adapters is left unchanged.

    Raises:
        UsageError: peft is not installed, or the model does not suit `spec`.
    """
    require_extra("lora", feature="train.layers=lora")
    from peft import LoraConfig, inject_adapter_in_model

    if spec.keep_adapter:
        model.require_vit("--keep-adapter")
    if _adapted_layers(model):
        return
    names = spec.lora_targets.split(",")
    targets = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and path.rpartition(".")[2] in names
        and not re.match(r"(head|pre_logits)\b", path)
    ]
    if not targets:
        raise UsageError(
            f"the model has no linear layers named {spec.lora_targets}",
            fix="choose layers of this model with --set train.lora_targets=...",
        )
    device = next(model.parameters()).device
    torch.manual_seed(spec.seed)
    config = LoraConfig(r=spec.lora_rank, lora_alpha=spec.lora_alpha, target_modules=targets)
    inject_adapter_in_model(config, model)
    model.to(device)


def _adapted_layers(model: nn.Module) -> list[tuple[str, Any]]:
    """Return the path and module of each layer that has an adapter."""
    return [(path, m) for path, m in model.named_modules() if hasattr(m, "get_base_layer")]


def merge_adapters(model: nn.Module) -> dict[str, Tensor]:
    """Merge every adapter into the weights of its layer and remove the adapter, in place.

    Return copies of the adapter matrices on the CPU, under peft's names: for each layer, A
    (r, inputs) and B (outputs, r), where r is the rank.
    """
    matrices: dict[str, Tensor] = {}
    for path, layer in _adapted_layers(model):
        for side in ("lora_A", "lora_B"):
            (matrix,) = getattr(layer, side).values()
            matrices[f"{path}.{side}.weight"] = matrix.weight.detach().cpu().clone()
        layer.merge()
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, layer.get_base_layer())
    return matrices


def write_adapter(
    folder: Path, matrices: Mapping[str, Tensor], model: nn.Module, spec: TrainSpec, *, base: str
) -> None:
    """Write the adapters from `merge_adapters` and the heads of the saved model to a new folder.

    `peft.PeftModel` can load it. `base` is the name of the pretrained weights.
    """
    from peft import LoraConfig

    state = model.state_dict()
    heads = {name: tensor.cpu() for name, tensor in state.items() if name.startswith("head")}
    config = LoraConfig(
        r=spec.lora_rank,
        lora_alpha=spec.lora_alpha,
        target_modules=sorted({name.rpartition(".lora_")[0] for name in matrices}),
        modules_to_save=sorted({name.partition(".")[0] for name in heads}),
        base_model_name_or_path=base,
        inference_mode=True,
    )
    with atomic_folder(folder) as fresh:
        config.save_pretrained(str(fresh))
        tensors = sorted({**matrices, **heads}.items())
        named = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in tensors}
        content = to_safetensors(named, metadata={"format": "pt"})  # save_file ignores the umask
        write_atomically(fresh / "adapter_model.safetensors", content)
