"""What trains split among the processes of a team, for models too large to train whole on each.

Every process keeps a slice of each weight, of its gradient, of its average and of the optimiser's
numbers; a block's weights are put together while it computes, and forgotten again.
`torch.distributed.fsdp.fully_shard` ("FSDP2") does it; Zhao et al. 2023, https://arxiv.org/abs/2304.11277.
The tensors of such a model are DTensors; `whole` and `slice_like` go from one kind to the other.
What brings them takes 0.4 s to import, so only a training that is split does.
"""

import copy
import logging

import torch
from torch import Tensor, nn

from vitft.models.vit import Block, VisionTransformer
from vitft.system.errors import UsageError
from vitft.training.distributed import Team, talking

log = logging.getLogger(__name__)


def check_split(model: nn.Module, team: Team, *, precision: str, compiled: bool) -> None:
    """Refuse to split what cannot be, before anything is computed.

    Raises:
        UsageError: A model of timm, or a setting that does not go together with splitting.
    """
    others = {
        "with a model of timm": not isinstance(model, VisionTransformer),
        "with train.precision fp16": precision == "fp16",
        "with train.compile": compiled,
    }
    for what, found in others.items():
        if found:
            raise UsageError(
                f"train.shard does not work {what}",
                fix="leave it out, or use a ViT of vitft's own, bf16 or fp32, not compiled",
            )
    if team.size == 1:
        log.info("train.shard has no effect on one process: torchrun starts several")


def split_up(suffix: nn.Module, team: Team) -> nn.Module:
    """A copy of what trains, split among the team, block by block.

    The model it was copied from stays whole, for everything but the steps.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    copied = copy.deepcopy(suffix)
    mesh = init_device_mesh(next(copied.parameters()).device.type, (team.size,))
    for block in (module for module in copied.modules() if isinstance(module, Block)):
        fully_shard(block, mesh=mesh)
        register_fsdp_forward_method(block, "for_class_token")
    fully_shard(copied, mesh=mesh)
    return copied


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, whose slices may lie with several processes: all of them have to ask."""
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return tensor
    with talking():
        return tensor.full_tensor()


def slice_like(value: Tensor, like: Tensor) -> Tensor:
    """The part of a whole `value` that belongs where `like` is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    moved = value.to(like.device, like.dtype)
    return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)


@torch.no_grad()
def tell(split: nn.Module, suffix: nn.Module) -> None:
    """Give what a split copy has learnt to the model it was copied from: all of them have to."""
    places = dict(suffix.named_parameters())
    for name, parameter in split.named_parameters():
        if parameter.requires_grad:
            places[name].copy_(whole(parameter))
