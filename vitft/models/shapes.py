"""Names and shapes of the tensors of a Vision Transformer, derived from its configuration.

They match `vit.VisionTransformer(config).state_dict()`. Neither torch nor memory for the tensors is
needed, so a file can be checked before a model is built.
"""

import itertools
import math
from collections.abc import Iterator

from vitft.models.vit_config import ViTConfig
from vitft.system.safetensors_file import TensorFacts

_Shape = tuple[int, ...]


def vit_shapes(config: ViTConfig) -> dict[str, TensorFacts]:
    """Return the type and shape of each tensor of a Vision Transformer."""
    return {name: TensorFacts("F32", shape) for name, shape in _named_shapes(config)}


def _named_shapes(config: ViTConfig) -> Iterator[tuple[str, _Shape]]:
    """Yield the name and shape of each tensor of a Vision Transformer."""
    width = config.width
    rows = config.num_prefix if config.prefix_positions else 0
    if config.class_token:
        yield "cls_token", (1, 1, width)
    if config.distilled:
        yield "dist_token", (1, 1, width)
    if config.registers:
        yield "reg_token", (1, config.registers, width)
    if config.positions:
        yield "pos_embed", (1, rows + math.prod(config.grid), width)
    yield from _patch_shapes(config)
    if config.embed_norm:
        yield from _model_norm(config, "norm_pre")
    for i in range(config.depth):
        yield from _block_shapes(config, f"blocks.{i}")
    yield from _output_shapes(config)


def _output_shapes(config: ViTConfig) -> Iterator[tuple[str, _Shape]]:
    """Yield the name and shape of each tensor after the last block."""
    width = config.width
    if config.final_norm:
        yield from _model_norm(config, config.last_norm)
    if config.pool == "map":
        yield "attn_pool.latent", (1, 1, width)
        yield from linear("attn_pool.q", width, width)
        yield from linear("attn_pool.kv", width, 2 * width)
        yield from linear("attn_pool.proj", width, width)
        yield from _model_norm(config, "attn_pool.norm")
        yield from _mlp_shapes(config, "attn_pool.mlp", parts=1)
    if config.pre_logits:
        yield from linear("pre_logits.fc", width, width)
    if config.num_classes:
        inputs = config.feature_size if config.read_blocks > 1 else width
        yield from linear("head", inputs, config.num_classes)
        if config.read_blocks > 1:
            yield from linear("last_head", width, config.num_classes)
        if config.distilled:
            yield from linear("head_dist", width, config.num_classes)


def _block_shapes(config: ViTConfig, name: str) -> Iterator[tuple[str, _Shape]]:
    """Yield the name and shape of each tensor of the encoder layer `name`."""
    width, bias = config.width, config.proj_bias
    yield from _model_norm(config, f"{name}.norm1")
    yield from linear(f"{name}.attn.qkv", width, 3 * width, bias=config.qkv_bias)
    yield from linear(f"{name}.attn.proj", width, width, bias=bias)
    if config.attn_norm:
        yield from _model_norm(config, f"{name}.attn.norm")
    yield from _model_norm(config, f"{name}.norm2")
    yield from _mlp_shapes(config, f"{name}.mlp", parts=2 if config.gated_mlp else 1)
    if config.layer_scale:
        yield f"{name}.ls1.gamma", (width,)
        yield f"{name}.ls2.gamma", (width,)


def _mlp_shapes(config: ViTConfig, name: str, *, parts: int) -> Iterator[tuple[str, _Shape]]:
    """Yield the name and shape of each tensor of the MLP `name`.

    `parts` is the number of hidden layers that the first matrix computes: 2 if there is a gate,
    otherwise 1.
    """
    yield from linear(f"{name}.fc1", config.width, parts * config.hidden, bias=config.proj_bias)
    if config.mlp_norm:
        yield from _model_norm(config, f"{name}.norm", config.hidden)
    yield from linear(f"{name}.fc2", config.hidden, config.width, bias=config.proj_bias)


def _patch_shapes(config: ViTConfig) -> Iterator[tuple[str, _Shape]]:
    """Yield the name and shape of each tensor of the layers that convert pixels to tokens."""
    channels, place = config.in_channels, "patch_embed.backbone"
    if config.stem is not None:
        root = f"{place}.stem" if config.stem else place
        yield f"{root}.conv.weight", (64, channels, 7, 7)
        yield from _norm(f"{root}.norm", 64)
        channels = 64
        for i, depth in enumerate(config.stem):
            for j in range(depth):
                unit = f"{place}.stages.{i}.blocks.{j}"
                yield from _bottleneck_shapes(unit, channels, 256 * 2**i, is_first=j == 0)
                channels = 256 * 2**i
    for i, outputs in enumerate(config.convs):
        yield f"{place}.{i}.conv.weight", (outputs, channels, 3, 3)
        yield from _norm(f"{place}.{i}.norm", outputs)
        channels = outputs
    kernel = (side // config.stride for side in config.patch_size)
    yield "patch_embed.proj.weight", (config.width, channels, *kernel)
    if not config.embed_norm:
        yield "patch_embed.proj.bias", (config.width,)
    if config.patch_norm:
        yield from _model_norm(config, "patch_embed.norm")


def _bottleneck_shapes(
    name: str, inputs: int, outputs: int, *, is_first: bool
) -> Iterator[tuple[str, _Shape]]:
    """Yield the name and shape of each tensor of the ResNet residual block `name`."""
    inner = outputs // 4
    kernels = {"conv1": (inner, inputs, 1, 1), "conv2": (inner, inner, 3, 3)}
    kernels["conv3"] = (outputs, inner, 1, 1)
    for number, (conv, shape) in enumerate(kernels.items(), start=1):
        yield f"{name}.{conv}.weight", shape
        yield from _norm(f"{name}.norm{number}", shape[0])
    if is_first:
        yield f"{name}.downsample.conv.weight", (outputs, inputs, 1, 1)
        yield from _norm(f"{name}.downsample.norm", outputs)


def linear(
    name: str, inputs: int, outputs: int, *, bias: bool = True
) -> Iterator[tuple[str, _Shape]]:
    """Yield the name and shape of each tensor of the linear layer `name`."""
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)


def _model_norm(
    config: ViTConfig, name: str, size: int | None = None
) -> Iterator[tuple[str, _Shape]]:
    """Yield the name and shape of each tensor of a LayerNorm or RMSNorm (default size: D)."""
    shapes = _norm(name, config.width if size is None else size)
    yield from itertools.islice(shapes, 1) if config.norm_layer == "rmsnorm" else shapes


def _norm(name: str, size: int) -> Iterator[tuple[str, _Shape]]:
    """Yield the name and shape of each tensor of the normalisation layer `name`."""
    yield f"{name}.weight", (size,)
    yield f"{name}.bias", (size,)
