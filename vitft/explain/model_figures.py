"""Figures of a model as in the ViT paper, and of how it turns an image into tokens.

The figures are drawn by `report.plots`. Shapes use the notation of `models.vit`; gh and gw are the
numbers of rows and columns of the patch grid.

Source: Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929: figure 7 and appendix D.7 for
filters, position embeddings and attention distances, section 3.1 for tokens
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitft.data.images import Pixels, decode_images, stack_batches
from vitft.explain.attribution import trace_attention
from vitft.explain.explainer import ExplainedImage, ExplainedModel, safe_stem, write_into
from vitft.models.timm_model import Model
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.report.plots import PatchTokens, distance_png, filters_png, patches_png, positions_png
from vitft.system.errors import ImageError

_MAX_DISTANCE_IMAGES = 128
"""Maximum number of images for averaging the attention distance, as in the paper."""


def write_model_figures(
    model: ExplainedModel, images: Sequence[str], out: Path
) -> tuple[list[str], list[ImageError]]:
    """Write filters.png, positions.png (of learned embeddings only) and distance.png to a folder.

    The attention distance is averaged over at most 128 images, evenly spaced in the list. If none
    is readable, distance.png is omitted. Return the names of the files, and errors for the images
    that could not be read.
    """
    vit = model.net.require_vit("--model")
    figures = {"filters.png": filters_png(*patch_filters(vit), title=f"{model.name}: filters")}
    if vit.pos_embed is not None:
        similarity, title = position_similarity(vit.config, vit.pos_embed), "position embeddings"
        figures["positions.png"] = positions_png(similarity, title=f"{model.name}: {title}")
    some = images[:: max(1, len(images) // _MAX_DISTANCE_IMAGES)][:_MAX_DISTANCE_IMAGES]
    stacks = list(stack_batches(_views(model, some), 8))
    batches = (model.inputs(pixels) for _, pixels, _ in stacks if len(pixels))
    distance, count = attention_distance(vit, batches)
    if count:
        config, title = vit.config, f"{model.name}: attention distance"
        uniform = float(_patch_distances(config.grid, config.patch_size).mean())
        figures["distance.png"] = distance_png(distance, count, uniform, title)
    for name, content in figures.items():
        write_into(out, name, content)
    return [*figures], [error for _, _, failed in stacks for _, error in failed]


def _views(model: ExplainedModel, images: Sequence[str]) -> Iterator[Pixels | ImageError]:
    """Yield each image as the model sees it, or the error of an unreadable one."""
    how = model.transform
    return decode_images(images, lambda _, image: how.pixels(image), grey_range=how.grey_range)


@torch.no_grad()
def patch_filters(
    model: VisionTransformer, count: int = 28
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Compute the principal components of the first convolution's filters.

    In a hybrid model, this convolution is the root of the ResNet, and its filters are standardised
    to mean 0 and variance 1, as in the forward pass.

    Returns:
        Up to `count` components as images (n, kernel, kernel, 3), and the fraction of the variance
        that each one explains, (n,). Every image is scaled to [0, 1], and is grey unless the model
        has three input channels.
    """
    kernels = model.patch_embed.first_kernels.float().cpu()  # (D, channels, k, k)
    rows = kernels.flatten(1) - kernels.flatten(1).mean(dim=0)  # (D, channels * k * k)
    _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
    parts = directions[:count].unflatten(1, kernels.shape[1:])  # (n, channels, k, k)
    planes = parts if parts.shape[1] == 3 else parts.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    low, high = planes.amin(dim=(1, 2, 3), keepdim=True), planes.amax(dim=(1, 2, 3), keepdim=True)
    images = (planes - low) / (high - low).clamp(min=1e-12)
    variance = sizes**2 / (sizes**2).sum().clamp(min=1e-12)
    return images.permute(0, 2, 3, 1).numpy(), variance[:count].numpy()


@torch.no_grad()
def position_similarity(config: ViTConfig, positions: Tensor) -> NDArray[np.float32]:
    """Return the cosine similarities (gh, gw, gh, gw) of position embeddings (1, N or P, D)."""
    rows = F.normalize(positions[0, config.num_placed_prefix :].float().cpu(), dim=-1)  # (P, D)
    return (rows @ rows.T).unflatten(1, config.grid).unflatten(0, config.grid).numpy()


@torch.no_grad()
def attention_distance(
    model: VisionTransformer, batches: Iterable[Tensor]
) -> tuple[NDArray[np.float32], int]:
    """Return the mean attention distance (L, H) of each head in pixels, and the number of images.

    For each patch, the distances to all patches are averaged, weighted by the attention to them.
    Attention to the prefix tokens is ignored because they have no position.
    """
    config, first = model.config, model.config.num_prefix
    distance = _patch_distances(config.grid, config.patch_size)
    distance = distance.to(model.patch_embed.proj.weight.device)
    total, count = torch.zeros(config.depth, config.heads, dtype=torch.float64), 0
    for pixels in batches:
        for block, (maps, _) in enumerate(trace_attention(model, model.embed(pixels))):
            weights = maps[:, :, first:, first:].float()  # (B, H, P, P)
            means = (weights * distance).sum(dim=-1) / weights.sum(dim=-1).clamp(min=1e-12)
            total[block] += means.mean(dim=-1).sum(dim=0).cpu()
        count += len(pixels)
    return (total / max(1, count)).float().numpy(), count


def _patch_distances(grid: tuple[int, int], patch: tuple[int, int]) -> Tensor:
    """Return the distances (P, P) in pixels between all pairs of patch centres."""
    rows, columns = (torch.arange(n) * side for n, side in zip(grid, patch, strict=True))
    centres = torch.cartesian_prod(rows.float(), columns.float())  # (P, 2)
    return torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")


# how a ViT turns an image into tokens: patches, projections and position embeddings ---------------


@torch.no_grad()
def patch_tokens(model: VisionTransformer, pixels: torch.Tensor) -> PatchTokens:
    """Return the tokens of one normalised image (1, channels, S, S) and the parts of their sum."""
    config = model.config
    positions = None
    if model.pos_embed is not None:
        positions = model.pos_embed[0, config.num_placed_prefix :].float().cpu().numpy()
    prefix = {"class": config.class_token, "distillation": config.distilled}
    names = [f"{name} token" for name, is_there in prefix.items() if is_there]
    if config.registers:
        names.append("register" if config.registers == 1 else f"{config.registers} registers")
    return PatchTokens(
        grid=config.grid,
        projections=model.patch_embed(pixels)[0].float().cpu().numpy(),
        positions=positions,
        tokens=model.embed(pixels)[0, config.num_prefix :].float().cpu().numpy(),
        prefix=tuple(names),
        is_linear=config.stem is None and not config.convs and not config.patch_norm,
        has_bias=model.patch_embed.proj.bias is not None,
        is_sum=not config.embed_norm,
        channels=config.in_channels,
    )


def patch_figure(
    net: Model, inputs: Callable[[Pixels], torch.Tensor], view: Pixels, title: str
) -> bytes:
    """Return a PNG that shows how a model, not from timm, turns an image (S, S, 3) into tokens.

    `inputs` normalises images (B, S, S, 3) for the model.
    """
    vit = net.require_vit("an image of the patches")
    return patches_png(view, patch_tokens(vit, inputs(view[None])), title)


def write_patch_figures(
    model: ExplainedModel, images: Sequence[str], out: Path
) -> Iterator[ExplainedImage]:
    """Write a figure per image, and yield its path or the error of an unreadable image."""
    model.net.require_vit("--patches")
    views = zip(images, _views(model, images), strict=True)
    for number, (path, view) in enumerate(views, start=1):
        if isinstance(view, ImageError):
            yield ExplainedImage(path=path, error=view.reason)
            continue
        content = patch_figure(model.net, model.inputs, view, title=Path(path).name)
        name = f"{number:03}-{safe_stem(path)}-patches.png"
        yield ExplainedImage(path=path, file=write_into(out, name, content))
