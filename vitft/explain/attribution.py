"""Where a Vision Transformer looked: a model and pixels in, one number per patch out.

The blocks run with their attention spelled out (`traced`), so that the maps are those of
`Attention.maps`, the answer is computed from them, and gradients reach them. Nothing is hooked,
and nothing of the model is written down a second time.

Letters as in `model`, and gh, gw the rows and columns of the grid of patches.

Sources: Abnar and Zuidema 2020 (rollout), https://arxiv.org/abs/2005.00928; Chefer, Gur and Wolf
2021 (relevance through attention and its gradients), 2103.15679.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from vitft.explain.method import Method
from vitft.models.timm_model import TimmModel
from vitft.models.vit import Attention, Block, VisionTransformer, attention_weights
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import RunError, UsageError

Array = np.ndarray[Any, np.dtype[np.float32]]
NUMBERS_AT_ONCE = 20_000_000
"""Attention weights kept at a time, all blocks and heads of some images; 80 MB."""
FLAT = 1e-6
"""Maps whose values differ by less than this share of the largest show nothing."""

FUSED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda maps: maps.mean(dim=1),
    "max": lambda maps: maps.amax(dim=1),
    "min": lambda maps: maps.amin(dim=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """What each patch counted, and what the model answered."""

    values: Array
    """(B, gh, gw), not negative, in the method's own scale."""
    logits: Array
    """(B, C); features where the model has no head."""


def relevance_map(model: nn.Module, pixels: Tensor, target: Tensor | None = None) -> Array:
    """How much each patch spoke for a class, from 0 to 1 within each image.

    Args:
        model: A VisionTransformer with a head, in eval mode; it is left as it was.
        pixels: Normalised images (B, channels, S, S) on the model's device.
        target: Class indices (B,); None for each image's best class.

    Returns:
        (B, gh, gw), zero everywhere if no patch spoke for the class.

    Raises:
        UsageError: The model has no attention of ours, or no classes.
    """
    return scaled(explain(model, pixels, Method(), target).values)


def explain(model: nn.Module, pixels: Tensor, method: Method, target: Tensor | None = None) -> Heat:
    """What each patch counted by a method; `target` (B,) matters to relevance alone.

    Raises:
        UsageError: The model has no attention of ours, no classes or no such block or head.
        RunError: The numbers are not finite.
    """
    own = explainable(model)
    check_parts(own.config, method)
    size = images_at_once(own.config)
    parts = pixels.split(size)  # one empty part of no images
    targets = [None] * len(parts) if target is None else target.to(pixels.device).split(size)
    heats, logits = [], []
    for part, wanted in zip(parts, targets, strict=True):
        drawn, scores = drawn_from(own, part, method, wanted)
        heats.append(drawn[:, own.config.num_prefix :].unflatten(1, own.config.grid))
        logits.append(scores)
    values = torch.cat(heats).float().cpu().numpy()
    if not np.isfinite(values).all():
        raise RunError(
            "the attention of this model is not finite",
            fix="its weights are damaged or have diverged; train again with a lower learning rate",
        )
    return Heat(values=values, logits=torch.cat(logits).float().cpu().numpy())


def explainable(model: nn.Module) -> VisionTransformer:
    """The model, if it is one whose attention can be seen."""
    if isinstance(model, VisionTransformer):
        return model
    raise UsageError(
        f"{what(model)} hides its attention: explaining needs vitft's own transformer",
        fix="fine-tune weights of `vitft weights list`, without timm: in front of the name",
    )


def check_parts(config: ViTConfig, method: Method) -> None:
    """Refuse a block, a head or a class that the model does not have."""
    parts = (("block", method.block, config.depth), ("head", method.head, config.heads))
    for what, number, count in parts:
        if number is not None and not 0 <= number < count:
            raise UsageError(
                f"the model has no {what} {number}", fix=f"{what}s go from 0 to {count - 1}"
            )
    if method.name == "relevance" and not config.num_classes:
        raise UsageError(
            "these weights have no classes that patches could be relevant for",
            fix="use --method rollout or attention, or fine-tune them first",
        )


def images_at_once(config: ViTConfig) -> int:
    """How many images are explained together, by the size of their maps."""
    tokens = config.num_prefix + config.grid[0] * config.grid[1]
    return max(1, NUMBERS_AT_ONCE // (config.depth * config.heads * tokens**2))


def drawn_from(
    model: VisionTransformer, pixels: Tensor, method: Method, target: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What the head's input drew from each token, (B, N), and the logits (B, C)."""
    if method.name == "relevance":
        return relevance(model, pixels, target)
    with torch.no_grad():
        if method.name == "rollout":
            mixed, logits = rollout(model, pixels, fusion=method.fusion, discard=method.discard)
            return pooled_rows(model.config, mixed), logits
        maps, logits = attention_maps(model, pixels)
        chosen = maps[-1 if method.block is None else method.block]  # (B, H, N, N)
        one = FUSED[method.fusion](chosen) if method.head is None else chosen[:, method.head]
        return pooled_rows(model.config, one), logits


def pooled_rows(config: ViTConfig, matrix: Tensor) -> Tensor:
    """The rows that the head reads, averaged: (B, N, N) to (B, N).

    The class tokens' rows, or with mean pooling those of the patches.
    """
    is_cls = config.pool == "cls"
    rows = matrix[:, : config.num_read] if is_cls else matrix[:, config.num_prefix :]
    return rows.mean(dim=1)


def attention_maps(model: VisionTransformer, pixels: Tensor) -> tuple[list[Tensor], Tensor]:
    """The maps (B, H, N, N) of every block, whose rows sum to 1, and the logits (B, C)."""
    steps = list(traced(model, model.embed(pixels)))
    return [maps for maps, _ in steps], model.classify(model.pool(steps[-1][1]))


def traced(model: VisionTransformer, tokens: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Run all blocks; of each its attention maps (B, H, N, N) and the tokens after it (B, N, D)."""
    for block in cast("Iterable[Block]", model.blocks):
        kept: list[Tensor] = []
        tokens = block.add_branches(tokens, tokens, functools.partial(mix_seen, block.attn, kept))
        yield kept[0], tokens


def mix_seen(attention: Attention, kept: list[Tensor], x: Tensor) -> Tensor:
    """`Attention.forward` of tokens (B, N, D) by way of its maps, which are put into `kept`."""
    q, k, values = attention.split_heads(x)  # each (B, H, N, K)
    maps = attention_weights(q, k)  # (B, H, N, N), those of `Attention.maps`
    kept.append(maps)
    return attention.proj((maps @ values).transpose(1, 2).flatten(2))  # (B, N, D)


def rollout(
    model: VisionTransformer, pixels: Tensor, *, fusion: str = "mean", discard: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Attention multiplied through all blocks, half of each block being its shortcut.

    Returns:
        How much each token (rows) holds of each input token (columns), (B, N, N), rows sum to 1;
        and the logits (B, C).

    Source: Abnar and Zuidema 2020, section 3; fusing by max or min and discarding weak
    connections as in J. Gildenblat's "Exploring Explainability for Vision Transformers", 2020.
    """
    tokens = model.embed(pixels)
    held = torch.eye(tokens.shape[1], device=tokens.device)  # (N, N), then (B, N, N)
    for maps, after in traced(model, tokens):
        held = with_shortcut(without_weak(FUSED[fusion](maps.float()), discard)) @ held
        tokens = after
    return held, model.classify(model.pool(tokens))


def without_weak(fused: Tensor, discard: float) -> Tensor:
    """Zero each image's weakest connections (B, N, N); the class token keeps itself."""
    count = int(fused[0].numel() * discard)
    if not count:
        return fused
    weakest = (
        fused.flatten(1).topk(count, dim=-1, largest=False, sorted=False).indices
    )  # (B, count)
    kept = fused.flatten(1).scatter(1, weakest, 0).view_as(fused)
    kept[:, 0, 0] = fused[:, 0, 0]
    return kept


def with_shortcut(fused: Tensor) -> Tensor:
    """Attention (B, N, N) beside the residual connection, in equal parts; rows sum to 1."""
    both = fused + torch.eye(fused.shape[-1], device=fused.device)
    return both / both.sum(dim=-1, keepdim=True)


def relevance(
    model: VisionTransformer, pixels: Tensor, target: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention weighted by what it did for a class, carried through all blocks.

    Each block adds the mean over its heads of the positive part of map times gradient, and through
    it what its inputs had gathered before (equations 5 and 6). Mean pooling, which the paper does
    not have, is treated as one more attention, in which every patch has the weight 1 / P.

    Args:
        model: In eval mode, with a head.
        pixels: Normalised images (B, channels, S, S).
        target: Class indices (B,); None for each image's best class.

    Returns:
        What the class took from each token, (B, N), not negative; and the logits (B, C).

    Source: Chefer, Gur and Wolf 2021, section 3.
    """
    with torch.inference_mode(False), torch.enable_grad():
        tokens = model.embed(pixels.clone()).detach().requires_grad_()  # (B, N, D)
        steps = list(traced(model, tokens))
        last = steps[-1][1]  # (B, N, D)
        logits = model.classify(model.pool(last))  # (B, C)
        wanted = logits.argmax(dim=-1) if target is None else target
        score = logits.gather(1, wanted[:, None]).sum()  # images do not touch each other
        maps = [weights for weights, _ in steps]
        *slopes, last_slope = torch.autograd.grad(score, [*maps, last])
    starts = started_rows(model.config, last.detach(), last_slope)  # (B, 1, N)
    rows = starts
    for weights, slope in zip(reversed(maps), reversed(slopes), strict=True):
        spoken = (weights.detach() * slope).clamp(min=0).float().mean(dim=1)  # (B, N, N)
        rows = rows + rows @ spoken
    if model.config.pool == "cls":
        rows = rows - starts  # the identity that the tokens start from
    return rows[:, 0], logits.detach()


def started_rows(config: ViTConfig, last: Tensor, last_slope: Tensor) -> Tensor:
    """What the pooling takes of each token behind the last block (B, N, D), as (B, 1, N).

    Relevance is these rows times one matrix (B, N, N) for each block. From the last block to the
    first that is a vector times a matrix each time; the other way round, in the order of the paper,
    it would be a product of matrices.
    """
    if config.pool == "mean":
        pooling = (last * last_slope).sum(dim=-1).clamp(min=0)  # weight times slope
        return pooling[:, None].float()
    rows = torch.zeros((len(last), 1, last.shape[1]), device=last.device)
    rows[..., : config.num_read] = 1 / config.num_read
    return rows


def scaled(values: Array) -> Array:
    """Each image's smallest value to 0 and its largest to 1: (B, gh, gw); a flat map to 0."""
    low = values.min(axis=(1, 2), keepdims=True)
    high = values.max(axis=(1, 2), keepdims=True)
    spread = high - low
    shown = spread > FLAT * high
    return np.where(shown, (values - low) / np.where(shown, spread, 1), 0).astype(np.float32)


def what(model: nn.Module) -> str:
    """The model in words."""
    return f"timm's {model.config.timm}" if isinstance(model, TimmModel) else type(model).__name__
