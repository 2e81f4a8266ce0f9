"""What the weights themselves show: the three pictures of figure 7 of the ViT paper, as numbers.

Drawing is in `plots`. Letters as in `model`; gh, gw are the rows and columns of the grid.

Source: Dosovitskiy et al. 2021, figure 7 and appendix D.7, https://arxiv.org/abs/2010.11929
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitft.explain.attribution import traced
from vitft.models.stem import StdConv2d
from vitft.models.vit import VisionTransformer

Array = np.ndarray[Any, np.dtype[np.float32]]
COMPONENTS = 28
"""How many principal components the paper shows."""


@torch.no_grad()
def patch_filters(model: VisionTransformer, count: int = COMPONENTS) -> tuple[Array, Array]:
    """The principal components of the first convolution's filters.

    Of a hybrid that is the root of its ResNet, whose filters have mean 0 and variance 1 in use.

    Returns:
        Components as pictures, (n, kernel, kernel, 3), each stretched over 0 to 1, grey where the
        model does not read three channels; and their shares of the variance (n,). n is `count` or,
        if fewer, the filters or numbers in one.
    """
    first = next(m for m in model.patch_embed.modules() if isinstance(m, nn.Conv2d))
    kernels = first.weight.detach().float().cpu()  # (D, channels, k, k)
    if isinstance(first, StdConv2d):
        flat = kernels.flatten(1)
        spread = flat.std(dim=1, correction=0, keepdim=True)
        kernels = ((flat - flat.mean(dim=1, keepdim=True)) / (spread + 1e-8)).view_as(kernels)
    rows = kernels.flatten(1) - kernels.flatten(1).mean(dim=0)  # (D, channels * k * k)
    _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
    parts = directions[:count].unflatten(1, kernels.shape[1:])  # (n, channels, k, k)
    planes = parts if parts.shape[1] == 3 else parts.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    low, high = planes.amin(dim=(1, 2, 3), keepdim=True), planes.amax(dim=(1, 2, 3), keepdim=True)
    pictures = (planes - low) / (high - low).clamp(min=1e-12)
    shares = sizes**2 / (sizes**2).sum().clamp(min=1e-12)
    return pictures.permute(0, 2, 3, 1).numpy(), shares[:count].numpy()


@torch.no_grad()
def position_similarity(model: VisionTransformer) -> Array:
    """Cosine of every patch's position with every other's: (gh, gw, gh, gw), -1 to 1."""
    config = model.config
    first = config.num_prefix if config.prefix_positions else 0
    rows = F.normalize(model.pos_embed[0, first:].float().cpu(), dim=-1)  # (P, D)
    return (rows @ rows.T).unflatten(1, config.grid).unflatten(0, config.grid).numpy()


@torch.no_grad()
def attention_distance(model: VisionTransformer, batches: Iterable[Tensor]) -> tuple[Array, int]:
    """How far, in pixels, each head looks on average: (L, H), and over how many images.

    For every patch, the distances to all patches are averaged with its attention to them as
    weights; attention to the prefix tokens has no distance and is left out of the average.

    Args:
        model: In eval mode.
        batches: Normalised images (B, channels, S, S) on the model's device.
    """
    config, first = model.config, model.config.num_prefix
    distance = patch_distances(config.grid, config.patch_size).to(model.pos_embed.device)
    total, count = torch.zeros(config.depth, config.heads, dtype=torch.float64), 0
    for pixels in batches:
        for block, (maps, _) in enumerate(traced(model, model.embed(pixels))):
            paid = maps[:, :, first:, first:].float()  # (B, H, P, P)
            far = (paid * distance).sum(dim=-1) / paid.sum(dim=-1).clamp(min=1e-12)
            total[block] += far.mean(dim=-1).sum(dim=0).cpu()
        count += len(pixels)
    return (total / max(1, count)).float().numpy(), count


def patch_distances(grid: tuple[int, int], patch: tuple[int, int]) -> Tensor:
    """Pixels between the centres of any two patches: (P, P)."""
    rows, columns = (torch.arange(n) * side for n, side in zip(grid, patch, strict=True))
    centres = torch.cartesian_prod(rows.float(), columns.float())  # (P, 2)
    return torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")


def uniform_distance(model: VisionTransformer) -> float:
    """The average distance of a head that looks everywhere alike, in pixels."""
    return float(patch_distances(model.config.grid, model.config.patch_size).mean())
