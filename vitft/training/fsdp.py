"""Sharded training for models that are too large to train whole in every process.

Every process keeps a slice of each weight, of its gradient, of its average and of the optimiser's
state; the weights of a block are gathered while it computes and freed again.
`torch.distributed.fsdp.fully_shard` ("FSDP2") does it; Zhao et al. 2023, https://arxiv.org/abs/2304.11277.
The tensors of such a model are DTensors; `full_tensor` and `slice_like` convert between them and
plain tensors. Their modules take 0.4 s to import, so only a sharded run imports them.
"""

import copy
import logging

import torch
from torch import Tensor, nn

from vitft.models.vit import Block, VisionTransformer
from vitft.system.errors import UsageError
from vitft.training.distributed import ProcessGroup, report_lost_process

log = logging.getLogger(__name__)


def check_sharding(
    model: nn.Module, group: ProcessGroup, *, precision: str, compiled: bool
) -> None:
    """Refuse models and settings that cannot be sharded, before anything is computed.

    Raises:
        UsageError: A model of timm, or a setting that cannot be combined with sharding.
    """
    others = {
        "a timm model": not isinstance(model, VisionTransformer),
        "train.precision=fp16": precision == "fp16",
        "train.compile=true": compiled,
    }
    for what, found in others.items():
        if found:
            raise UsageError(
                f"train.shard cannot be combined with {what}",
                fix="leave train.shard out, or use a ViT of vitft's own in bf16 or fp32 without "
                "train.compile",
            )
    if group.size == 1:
        log.info("train.shard has no effect on one process; start several with torchrun")


def shard_module(module: nn.Module, group: ProcessGroup) -> nn.Module:
    """Return a copy of the trainable part, sharded over the process group block by block.

    The original stays whole and is used for everything but the training steps.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    copied = copy.deepcopy(module)
    mesh = init_device_mesh(next(copied.parameters()).device.type, (group.size,))
    for block in (module for module in copied.modules() if isinstance(module, Block)):
        fully_shard(block, mesh=mesh)
        register_fsdp_forward_method(block, "for_class_token")
    fully_shard(copied, mesh=mesh)
    return copied


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor. Collective: every rank must call it."""
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return tensor
    with report_lost_process():
        return tensor.full_tensor()


def slice_like(value: Tensor, like: Tensor) -> Tensor:
    """Return the part of a whole `value` that this rank holds of `like`."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    moved = value.to(like.device, like.dtype)
    return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)


@torch.no_grad()
def unshard_into(module: nn.Module, sharded: nn.Module) -> None:
    """Copy the trained parameters of a sharded copy into the module it was made from.

    Collective: every rank must call it.
    """
    originals = dict(module.named_parameters())
    for name, parameter in sharded.named_parameters():
        if parameter.requires_grad:
            originals[name].copy_(full_tensor(parameter))
