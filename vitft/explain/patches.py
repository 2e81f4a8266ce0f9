"""How a ViT turns an image into tokens: patches, projections and position embeddings.

The figure is drawn by `report.patch_plot`. Shapes use the notation of `models.vit`.

Source: Dosovitskiy et al. 2021, section 3.1, https://arxiv.org/abs/2010.11929
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from vitft.data.inspection import Pixels, decode_images
from vitft.explain.explainer import ExplainedImage, picture_stem
from vitft.explain.model import ExplainedModel
from vitft.models.timm_model import require_vit
from vitft.models.vit import VisionTransformer
from vitft.report.plots import PatchTokens, patches_png
from vitft.system.errors import ImageError
from vitft.system.files import write_atomically, writing


@torch.no_grad()
def patch_tokens(model: VisionTransformer, pixels: torch.Tensor) -> PatchTokens:
    """Return the tokens of one normalised image (1, channels, S, S) and the parts of their sum."""
    config = model.config
    positions = None
    if model.pos_embed is not None:
        first = config.num_prefix if config.prefix_positions else 0
        positions = model.pos_embed[0, first:].float().cpu().numpy()
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
    net: nn.Module, inputs: Callable[[Pixels], torch.Tensor], view: Pixels, title: str
) -> bytes:
    """Return a PNG that shows how a model, not from timm, turns an image (S, S, 3) into tokens.

    `inputs` normalises images (B, S, S, 3) for the model.
    """
    vit = require_vit(net, "a picture of the patches")
    return patches_png(view, patch_tokens(vit, inputs(view[None])), title)


def write_patch_figures(
    model: ExplainedModel, images: Sequence[str], out: Path
) -> Iterator[ExplainedImage]:
    """Write a figure per image, and yield its path or the error of an unreadable image, in order.

    Raises:
        UsageError: The model is a timm model.
        RunError: The folder is not writable.
        ResourceError: The disk is full.
    """
    require_vit(model.net, "--patches")
    transform = model.transform
    views = decode_images(
        images, lambda _, image: transform.pixels(image), grey_range=transform.grey_range
    )
    for number, (path, view) in enumerate(zip(images, views, strict=True)):
        done = ExplainedImage(path=path)
        if isinstance(view, ImageError):
            yield replace(done, error=view.reason)
            continue
        file = out / f"{picture_stem(number, path)}-patches.png"
        content = patch_figure(model.net, model.inputs, view, title=Path(path).name)
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
        write_atomically(file, content)
        yield replace(done, file=file)
