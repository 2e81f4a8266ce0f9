"""Attribution maps: one value per patch of the image.

The maps of a Vision Transformer are computed from attention and its gradients, and those of a timm
model from a feature map. `trace_attention` runs the blocks with explicit attention weights instead
of a fused kernel. The logits are computed from them, and gradients flow back to them. This needs
neither hooks nor a second implementation of the blocks.

Shapes use the notation of `models.vit`; gh and gw are the numbers of rows and columns of the patch
grid.

Sources: Abnar and Zuidema 2020 (rollout), https://arxiv.org/abs/2005.00928; Chefer, Gur and Wolf
2021 (relevance from attention and its gradients), https://arxiv.org/abs/2103.15679.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitft.explain.heatmaps import Method
from vitft.models.layers import AttentionPool
from vitft.models.timm_model import Model, TimmModel
from vitft.models.vit import Attention, Block, VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.system.device import BatchLimit, exact_float32
from vitft.system.errors import RunError, UsageError
from vitft.system.text import percent

# attribution maps of timm models: gradient times activation on a feature map of the network -------

_MAX_ASPECT_ERROR = 1.5
"""Maximum ratio between the aspect ratios of a feature map and the image. The aspect ratios of
small maps differ because their sides are rounded."""
_MIN_SIDE = 6
"""Minimum number of rows and columns of the feature map that is used, if the network has such a
map. CNNs have 7x7 positions in the last stage for images of 224 pixels, but 2x2 for 64 pixels."""


def _arranged(
    values: Tensor, image_size: tuple[int, int], prefixes: Sequence[int]
) -> Tensor | None:
    """Return values as (B, gh, gw, D), or None if their positions are not those of the image.

    Maps are (B, D, gh, gw) or (B, gh, gw, D), and tokens are (B, prefix + gh*gw, D).
    """
    aspect, found = image_size[0] / image_size[1], list[Tensor]()
    if values.ndim == 4:
        found = [values.movedim(1, 3), values]
    for prefix in prefixes if values.ndim == 3 else ():
        count = values.shape[1] - prefix
        rows = round(math.sqrt(max(0, count) * aspect))
        if rows and count % rows == 0:
            found.append(values[:, prefix:].unflatten(1, (rows, count // rows)))

    def error(positions: Tensor) -> float:
        ratio = positions.shape[1] / positions.shape[2] / aspect
        return max(ratio, 1 / ratio)

    best = min(found, key=error, default=None)
    return best if best is not None and error(best) <= _MAX_ASPECT_ERROR else None


def _feature_relevance(
    model: TimmModel, pixels: Tensor, target: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the relevance of each position for a class (B, gh, gw), and the logits (B, C).

    The map is the last one whose positions affect the class score and that has at least `_MIN_SIDE`
    rows and columns, or else the largest. For small images, the maps of the last stage have too few
    positions to show where the evidence is.

    If layers follow the map, the difference from the mean position is used instead of the
    activation. It shows what distinguishes a position from the rest of the image. Without it,
    gradient times activation would even be zero for the tokens that enter the last block of a
    Transformer whose head reads the class token: the LayerNorm is invariant to their scale.
    """
    with torch.inference_mode(False), torch.enable_grad():
        outputs, logits = model.trace(pixels.clone().requires_grad_())
        wanted = logits.argmax(dim=-1) if target is None else target
        score = logits.gather(1, wanted[:, None]).sum()  # images do not affect each other
        gradients: Sequence[Tensor | None] = ()
        if outputs:
            gradients = torch.autograd.grad(score, outputs, allow_unused=True)
    prefixes = sorted({getattr(model.net, "num_prefix_tokens", 0), 0, 1}, reverse=True)
    size = pixels.shape[-2], pixels.shape[-1]
    found: list[Tensor] = []  # from the last map to the first
    matter: list[Tensor] = []
    for output, gradient in zip(reversed(outputs), reversed(gradients), strict=True):
        values = _arranged(output.detach(), size, prefixes)
        slope = None if gradient is None else _arranged(gradient, size, prefixes)
        if values is None or slope is None:
            continue
        matters = bool(slope.any())
        if output is not outputs[-1]:
            values = values - values.mean(dim=(1, 2), keepdim=True)
            slope = slope if output.ndim == 3 else slope.mean(dim=(1, 2), keepdim=True)
        found.append((values * slope).sum(dim=3).clamp(min=0))
        if matters:
            matter.append(found[-1])
            if min(found[-1].shape[1:]) >= _MIN_SIDE:
                break
    if not found:
        raise UsageError(
            f"timm's {model.config.timm} cannot be explained: the outputs of its layers do not "
            "correspond to parts of the image",
            fix="use another model, e.g. timm:resnet50 or one listed by `vitft weights list`",
        )
    return max(matter or found[-1:], key=Tensor.numel), logits.detach()


# attribution maps: one value per patch of the image -----------------------------------------------

_MAX_WEIGHTS = 20_000_000
"""Maximum number of attention weights in memory (80 MB), over all blocks, heads and images."""
_TIMM_IMAGES = 8  # number of images per backward pass of a timm model
_FUSE_HEADS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda maps: maps.mean(dim=1),
    "max": lambda maps: maps.amax(dim=1),
    "min": lambda maps: maps.amin(dim=1),
}


def relevance_map(
    model: Model, pixels: Tensor, target: Tensor | None = None
) -> NDArray[np.float32]:
    """Return the relevance of each patch for a class, scaled to [0, 1] within each image.

    `pixels` are normalised images (B, channels, S, S), and `target` contains class indices (B,), or
    is None for the predicted classes. A map (gh, gw) is zero if no patch is relevant to the class.
    """
    return scale_maps(explain(model, pixels, Method(), target)[0])


def explain(
    model: Model, pixels: Tensor, method: Method, target: Tensor | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the attribution maps (B, gh, gw), non-negative, and the logits (B, C) of images.

    Only the relevance method uses the `target` classes (B,). Without a head, features (B, D) take
    the place of the logits.

    Raises:
        UsageError: The model lacks something that the method needs, or its structure does not
            support attribution maps.
        RunError: The attribution values are not finite.
        ResourceError: A single image does not fit in memory.
    """
    _check_method(model, method)

    def compute(part: slice) -> tuple[Tensor, Tensor]:
        classes = None if target is None else target[part].to(pixels.device)
        with exact_float32(pixels.device):
            if model.attends:
                return _attribute_patches(model, pixels[part], method, classes)
            return _feature_relevance(model, pixels[part], classes)

    images = _TIMM_IMAGES
    if model.attends:  # as many as have weights that fit in memory
        config = model.config
        tokens = config.num_prefix + config.grid[0] * config.grid[1]
        images = max(1, _MAX_WEIGHTS // (config.depth * config.heads * tokens**2))
    found = BatchLimit(images).split(compute, len(pixels))
    maps, logits = (torch.cat(parts).float().cpu() for parts in zip(*found, strict=True))
    if not bool(torch.isfinite(maps).all()):
        raise RunError(
            "the attribution maps of this model contain infinite or NaN values: its training "
            "diverged",
            fix="train again with a lower learning rate",
        )
    return maps.numpy(), logits.numpy()


def map_title(model: Model, method: Method) -> str:
    """Return the name of a model's map, e.g. "attention of the class token, block 11, head 2"."""
    if not model.attends or method.name == "relevance":
        return "relevance"
    parts = [method.name]
    if method.name == "attention":
        block = model.config.depth - 1 if method.block is None else method.block
        parts = [attention_title(model.config), f"block {block}"]
    parts.append(f"{method.fusion} of heads" if method.head is None else f"head {method.head}")
    if method.discard:
        parts.append(f"{percent(method.discard, 0)} discarded")
    return ", ".join(parts)


def attention_title(config: ViTConfig) -> str:
    """Return the name of attention maps, with the tokens whose attention they show (queries)."""
    if config.pool != "cls":
        return "attention averaged over all patches"
    return f"attention of the class {'and distillation tokens' if config.distilled else 'token'}"


def _check_method(model: Model, method: Method) -> None:
    """Check that the model has the attention layers, block, head and classes that are needed."""
    if method.name != "relevance":
        config = model.require_vit(f"the method {method.name}").config
        wanted = (("block", method.block, config.depth), ("head", method.head, config.heads))
        for part, number, count in wanted:
            if number is not None and not 0 <= number < count:
                raise UsageError(
                    f"the model has no {part} {number}", fix=f"use a {part} from 0 to {count - 1}"
                )
    elif not model.config.num_classes:
        raise UsageError(
            "relevance needs a model with classes, but these weights have none",
            fix="use the method rollout or attention, or fine-tune the weights first"
            if model.attends
            else "fine-tune the weights first",
        )


def _attribute_patches(
    model: VisionTransformer, pixels: Tensor, method: Method, target: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Apply a method; return the attribution maps (B, gh, gw) and the logits (B, C)."""
    pooling: list[Tensor] = []
    if method.name == "relevance":
        tokens, logits = relevance(model, pixels, target)  # (B, N), (B, C)
    else:
        with torch.no_grad():
            if method.name == "rollout":
                matrix, outputs = rollout(
                    model, pixels, fusion=method.fusion, discard=method.discard
                )
            else:
                traced = list(trace_attention(model, model.embed(pixels)))
                maps = traced[-1 if method.block is None else method.block][0]  # (B, H, N, N)
                head = method.head
                matrix = _FUSE_HEADS[method.fusion](maps) if head is None else maps[:, head]
                outputs = [after for _, after in traced]
            logits = model.classify(_pool_explicitly(model, pooling, outputs))
            # The rows (B, N, N) of the tokens that the head reads are averaged: (B, N). Attention
            # pooling weights them by the mean over the heads of its attention (B, H, 1, N).
            config = model.config
            is_cls = config.pool == "cls"
            read = matrix[:, : config.num_read] if is_cls else matrix[:, config.num_prefix :]
            tokens = (pooling[0].mean(dim=1) @ matrix)[:, 0] if pooling else read.mean(dim=1)
    return tokens[:, model.config.num_prefix :].unflatten(1, model.config.grid), logits


def attention_maps(model: VisionTransformer, pixels: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the attention maps (B, H, N, N) of each block, whose rows sum to 1, and the logits."""
    steps = list(trace_attention(model, model.embed(pixels)))
    pooled = _pool_explicitly(model, [], [tokens for _, tokens in steps])
    return [maps for maps, _ in steps], model.classify(pooled)


def trace_attention(model: VisionTransformer, tokens: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Run all blocks; yield the attention maps (B, H, N, N) and the output (B, N, D) of each."""
    for block in cast("Iterable[Block]", model.blocks):
        maps: list[Tensor] = []
        attend = functools.partial(_attend_explicitly, block.attn, maps)
        tokens = block.add_branches(tokens, tokens, attend)
        yield maps[0], tokens


def _attend_explicitly(
    attention: Attention | AttentionPool, maps: list[Tensor], x: Tensor
) -> Tensor:
    """Compute the attention output for tokens (B, N, D); append the attention weights to `maps`."""
    q, k, values = attention.split_heads(x)  # each (B, H, N, K)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    weights = scores.softmax(dim=-1)  # (B, H, N, N), or (B, H, 1, N) for attention pooling
    maps.append(weights)
    return attention.join_heads(weights @ values)  # (B, N, D) or (B, 1, D)


def _pool_explicitly(
    model: VisionTransformer, maps: list[Tensor], outputs: Sequence[Tensor]
) -> Tensor:
    """Compute `model.pool` for the outputs (B, N, D) of all blocks.

    With attention pooling, its attention weights (B, H, 1, N) are appended to `maps`.
    """
    *earlier, last = outputs[-model.config.read_blocks :]
    if model.attn_pool is None:
        return model.pool(last, earlier)
    mixed = _attend_explicitly(model.attn_pool, maps, model.norm(last))  # (B, 1, D)
    return model.attn_pool.refine(mixed)


def rollout(
    model: VisionTransformer, pixels: Tensor, *, fusion: str = "mean", discard: float = 0.0
) -> tuple[Tensor, Sequence[Tensor]]:
    """Multiply the attention maps of all blocks, adding the identity for residual connections.

    Returns:
        The fraction of each input token (columns) in each output token (rows), (B, N, N), where
        each row sums to 1; and the outputs (B, N, D) that the head reads.

    Source: Abnar and Zuidema 2020, section 3; for fusion by maximum or minimum and for discarding,
    J. Gildenblat, "Exploring Explainability for Vision Transformers", 2020.
    """
    outputs: Sequence[Tensor] = []
    product: Tensor | None = None
    for maps, after in trace_attention(model, model.embed(pixels)):
        fused = discard_weakest(_FUSE_HEADS[fusion](maps.float()), discard)
        both = fused + torch.eye(fused.shape[-1], device=fused.device)
        mixing = both / both.sum(dim=-1, keepdim=True)
        product = mixing if product is None else mixing @ product  # (B, N, N)
        outputs = [*outputs, after][-model.config.read_blocks :]
    assert product is not None, "a model has at least one block"
    return product, outputs


def discard_weakest(fused: Tensor, fraction: float) -> Tensor:
    """Set the weakest `fraction` of the connections (B, N, N) of each image to 0.

    The connection of the first token to itself is kept.
    """
    count = int(fused[0].numel() * fraction)
    if not count:
        return fused
    flat = fused.flatten(1)
    weakest = flat.topk(count, dim=-1, largest=False, sorted=False).indices  # (B, count)
    kept = flat.scatter(1, weakest, 0).view_as(fused)
    kept[:, 0, 0] = fused[:, 0, 0]
    return kept


def relevance(
    model: VisionTransformer, pixels: Tensor, target: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Propagate attention through all blocks, weighted by its gradient for a class.

    For each block, the positive part of attention times gradient is averaged over the heads. The
    mean is multiplied by the relevance accumulated so far, and the product is added to this
    relevance (equations 5 and 6). The paper does not cover mean pooling. It is treated here as
    another attention layer, with weight 1 / P for every patch. Attention pooling is also treated as
    an attention layer, with its own weights. If the head reads several blocks, reading the output
    of each block is treated in the same way.

    Returns:
        The non-negative relevance of each token, (B, N), and the logits (B, C).

    Source: Chefer, Gur and Wolf 2021, section 3.
    """
    with torch.inference_mode(False), torch.enable_grad():
        tokens = model.embed(pixels.clone()).detach().requires_grad_()  # (B, N, D)
        steps = list(trace_attention(model, tokens))
        maps = [weights for weights, _ in steps]
        # Gradients of these views come only from the head, not from later blocks.
        read = [tokens.view_as(tokens) for _, tokens in steps[-model.config.read_blocks :]]
        pooling: list[Tensor] = []
        logits = model.classify(_pool_explicitly(model, pooling, read))  # (B, C)
        wanted = logits.argmax(dim=-1) if target is None else target
        score = logits.gather(1, wanted[:, None]).sum()  # images do not affect each other
        gradients = torch.autograd.grad(score, [*maps, *(pooling or read)])
    # The relevance is the product of an initial row and one matrix (B, N, N) per block. Starting at
    # the last block, each step multiplies a vector by a matrix. The paper starts at the first block
    # and must therefore multiply matrices.
    count, config = len(maps), model.config
    is_another_layer = config.pool != "cls" or config.read_blocks > 1
    initial: list[Tensor] = []  # one (B, 1, N) for each block that the head reads
    for x, gradient in zip(pooling or read, gradients[count:], strict=True):
        if pooling:
            initial.append(_weight_by_gradient(x.detach(), gradient))
        elif is_another_layer:
            pooled = (x.detach() * gradient).sum(dim=-1).clamp(min=0)  # weight times gradient
            initial.append(pooled[:, None].float())
        else:
            initial.append(torch.zeros((len(x), 1, x.shape[1]), device=x.device))
            initial[0][..., : config.num_read] = 1 / config.num_read
    rows = torch.zeros_like(initial[-1])
    for i in reversed(range(count)):
        if i >= count - len(initial):
            rows = rows + initial[i - count]
        rows = rows + rows @ _weight_by_gradient(maps[i].detach(), gradients[i])
    if not is_another_layer:
        rows = rows - initial[0]  # the identity in equation 3
    return rows[:, 0], logits.detach()


def _weight_by_gradient(maps: Tensor, gradient: Tensor) -> Tensor:
    """Return the positive part of maps (B, H, M, N) times gradient, averaged over the heads."""
    return (maps * gradient).clamp(min=0).float().mean(dim=1)  # (B, M, N)


def scale_maps(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the maps (B, gh, gw), each scaled to [0, 1]; constant maps become 0."""
    low, high = values.min(axis=(1, 2), keepdims=True), values.max(axis=(1, 2), keepdims=True)
    span = high - low
    is_varying = span > 1e-6 * high
    scaled = (values - low) / np.where(is_varying, span, 1)
    return np.where(is_varying, scaled, 0).astype(np.float32)
