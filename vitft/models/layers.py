"""Layers of the blocks and heads, rotary position embeddings, and convolutions before the patches.

The parameters have the same names as in timm.

Notation: B images, S image side in pixels, P patches, N tokens (prefix + P), D width, H heads, K
head width (D / H), F feature channels, h and w sides of a feature map.

Sources: Ba et al. 2016 (LayerNorm), https://arxiv.org/abs/1607.06450; Zhang and Sennrich 2019
(RMSNorm), 1910.07467; Hendrycks and Gimpel 2016 (GELU and both approximations), 1606.08415; Shazeer
2020 (SwiGLU), 2002.05202; Touvron et al. 2021 (LayerScale), 2103.17239; Huang et al. 2016
(stochastic depth), 1603.09382; Zhai et al. 2022 (MAP head), appendix A, 2106.04560; Zhai et al.
2023 (SigLIP), 2303.15343; Su et al. 2021 (RoPE), 2104.09864; Fang et al. 2023 (EVA-02), 2303.11331;
Bolya et al. 2025 (PE), 2504.13181; Simeoni et al. 2025 (DINOv3), 2508.10104; Kolesnikov et al. 2020
(BiT), 1912.11370; Qiao et al. 2019 (weight standardisation), 1903.10520; Xiao et al. 2021
(convolutional stems), 2106.14881; google-research/vision_transformer.
"""

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitft.models.vit_config import Activation, RopeConfig, ViTConfig, conv_strides


def build_norm(config: ViTConfig, size: int = 0, *, is_there: bool = True) -> nn.Module:
    """Return a LayerNorm or RMSNorm for `size` dimensions (default: D), or else the identity."""
    if not is_there:
        return nn.Identity()
    kind = nn.RMSNorm if config.norm_layer == "rmsnorm" else nn.LayerNorm
    return kind(size or config.width, eps=config.norm_eps)


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)  # differs from the exact GELU by at most 0.021


_ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "quick_gelu": _quick_gelu,
}
"""Mapping from the names of activation functions, which are the same in timm, to the functions."""


class MLP(nn.Module):
    """Two linear layers with an activation in between, applied to each token (B, N, D).

    With `is_gated`, it is SwiGLU: the first layer computes a gate (its first rows) and a value, and
    the value is multiplied by SiLU of the gate.
    """

    def __init__(self, config: ViTConfig, *, is_gated: bool = False) -> None:
        super().__init__()
        hidden, bias = config.hidden, config.proj_bias
        self.is_gated, self.activation = is_gated, _ACTIVATIONS[config.activation]
        self.fc1 = nn.Linear(config.width, 2 * hidden if is_gated else hidden, bias=bias)
        self.norm = build_norm(config, hidden, is_there=config.mlp_norm)
        self.fc2 = nn.Linear(hidden, config.width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc1(x)
        if self.is_gated:
            gate, value = hidden.chunk(2, dim=-1)
            return self.fc2(self.norm(F.silu(gate) * value))
        return self.fc2(self.norm(self.activation(hidden)))


class LayerScale(nn.Module):
    """Learned factor for each of the D channels of a residual branch (B, N, D)."""

    def __init__(self, width: int, initial: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), initial))

    def forward(self, branch: Tensor) -> Tensor:
        return branch * self.gamma


class DropPath(nn.Module):
    """Stochastic depth: skips a residual branch (B, N, D) for random images during training.

    Branches that are not skipped are scaled up so that the expected value does not change.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return branch
        kept = torch.rand(branch.shape[0], 1, 1, device=branch.device) >= self.rate  # (B, 1, 1)
        return branch * kept.to(branch.dtype) / (1 - self.rate)


class AttentionPool(nn.Module):
    """Attention with one learned query, then a residual MLP: (B, N, D) to (B, D)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.pool_heads or config.heads
        self.latent = nn.Parameter(torch.zeros(1, 1, width))
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        self.norm = build_norm(config)
        self.mlp = MLP(config)

    def split_heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the query (B, H, 1, K), and the keys and values (B, H, N, K) of tokens `x`."""
        q = self.q(self.latent.expand(x.shape[0], -1, -1))  # (B, 1, D)
        k, v = self.kv(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return q.unflatten(-1, (self.heads, -1)).transpose(1, 2), k, v

    def join_heads(self, mixed: Tensor) -> Tensor:
        """Combine the heads' weighted values: (B, H, 1, K) to (B, 1, D)."""
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def refine(self, pooled: Tensor) -> Tensor:
        """Apply the residual MLP: (B, 1, D) to (B, D)."""
        return (pooled + self.mlp(self.norm(pooled)))[:, 0]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split_heads(x)
        return self.refine(self.join_heads(F.scaled_dot_product_attention(q, k, v)))


class Rotary(nn.Module):
    """Rotary position embeddings (RoPE): positions encoded in the queries and keys, as in DINOv3.

    A plain ViT adds a learned vector to each patch token, once, before the first block. With RoPE,
    every block instead rotates the queries and keys of the patches. The K dimensions of a head form
    pairs (a, b). Each pair is rotated by an angle t proportional to the row or column of the patch:

        (a, b)  ->  (a cos t - b sin t,  b cos t + a sin t)

    The product of a query rotated by t and a key rotated by s depends only on t - s. The scores
    between two patches therefore depend on the distance and direction from one to the other, and
    images of any size need no new weights. Values and prefix tokens are not rotated.

    For a coordinate c, pair i (from 0 to K / 4 - 1) is rotated by c / base^(4 i / K). In DINOv3
    (K = 64, base 100), c runs from -2 pi to 2 pi over the image, whatever its size. The first pair
    makes two turns from edge to edge, and the last one turns by less than ten degrees.

    The cosines and sines (N, K) are computed from the configuration and are not saved. `forward`
    rotates the first M tokens: (B, H, M, K) to (B, H, M, K).
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ViTConfig, rope: RopeConfig) -> None:
        super().__init__()
        self.halves, size = rope.halves, config.width // config.heads
        # The angles of the patches: (P, K / 2)
        axes: list[Tensor] = []
        for axis, number in enumerate(config.grid):
            places = torch.arange(number, dtype=torch.float32, device="cpu")
            if rope.unit:
                axes.append(2 * math.pi * (2 * ((places + 0.5) / number) - 1))
            elif rope.grid is None:
                axes.append(places + rope.offset)
            else:
                axes.append((places + rope.offset) / number * rope.grid[axis])
        both = torch.meshgrid(*axes, indexing="ij")  # each (rows, columns)
        coordinates = torch.stack(both[::-1] if rope.x_first else both, dim=-1)
        exponents = torch.arange(size // 4, dtype=torch.float32, device="cpu") / (size // 4)
        frequencies = 1 / rope.base**exponents  # (K / 4,)
        # (rows, columns, 2, K / 4): the pairs of the first coordinate precede those of the second
        angles = (coordinates[..., None] * frequencies).flatten(2).flatten(0, 1)
        prefix = torch.zeros(config.num_prefix, size // 2, device="cpu")
        angles = torch.cat([prefix, angles])  # (N, K / 2)
        cos, sin = angles.cos(), angles.sin()
        # (a, b) * (cos t, cos t) + (b, a) * (-sin t, sin t), element by element, for all pairs
        device = torch.get_default_device()  # on "meta", weights are assigned later; tables are not
        for name, pair in (("cos", (cos, cos)), ("sin", (-sin, sin))):
            table = torch.cat(pair, -1) if rope.halves else torch.stack(pair, -1).flatten(-2)
            table = table if device.type == "meta" else table.to(device)
            self.register_buffer(name, table, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[-2]
        if self.halves:
            swapped = x.roll(x.shape[-1] // 2, dims=-1)
        else:
            swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return x * self.cos[:count] + swapped * self.sin[:count]


def _pad_same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """Pad a feature map (B, F, h, w) before a convolution or pooling, like SAME in TensorFlow."""
    pads: list[int] = []
    for side in (x.shape[-1], x.shape[-2]):
        total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads, value=value) if any(pads) else x


class StdConv2d(nn.Conv2d):
    """Convolution with SAME padding and with kernels standardised to mean 0 and variance 1."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, bias=False)

    @property
    def kernels(self) -> Tensor:
        """The standardised kernels."""
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        return (self.weight - mean) * torch.rsqrt(variance + 1e-8)

    def forward(self, x: Tensor) -> Tensor:
        x = _pad_same(x, self.kernel_size[0], self.stride[0])
        return F.conv2d(x, self.kernels, stride=self.stride)


class _Root(nn.Module):
    """Start of a ResNet: pixels (B, channels, S, S) to (B, 64, S/4, S/4)."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.conv = StdConv2d(in_channels, 64, 7, stride=2)
        self.norm = nn.GroupNorm(32, 64)

    def forward(self, pixels: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(pixels)))
        return F.max_pool2d(_pad_same(x, 3, 2, value=-float("inf")), 3, stride=2)


class _Bottleneck(nn.Module):
    """Residual block of a ResNet, with three convolutions: 1x1, 3x3 and 1x1."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, is_first: bool) -> None:
        super().__init__()
        inner = outputs // 4
        self.downsample: nn.Module = nn.Identity()
        if is_first:  # projects the input to the output's shape
            conv, norm = StdConv2d(inputs, outputs, 1, stride=stride), nn.GroupNorm(32, outputs)
            self.downsample = nn.Sequential(OrderedDict(conv=conv, norm=norm))
        self.conv1, self.norm1 = StdConv2d(inputs, inner, 1), nn.GroupNorm(32, inner)
        self.conv2, self.norm2 = StdConv2d(inner, inner, 3, stride=stride), nn.GroupNorm(32, inner)
        self.conv3, self.norm3 = StdConv2d(inner, outputs, 1), nn.GroupNorm(32, outputs)

    def forward(self, x: Tensor) -> Tensor:
        branch = F.relu(self.norm1(self.conv1(x)))
        branch = F.relu(self.norm2(self.conv2(branch)))
        return F.relu(self.norm3(self.conv3(branch)) + self.downsample(x))


def build_stem(
    in_channels: int, stages: tuple[int, ...] | None, convs: tuple[int, ...], patch: tuple[int, int]
) -> tuple[nn.Module, int]:
    """Return the module that precedes the patch projection, and its number of output channels.

    It maps pixels (B, channels, S, S) to a feature map (B, F, h, w).

    - If `stages` has values, the module is the ResNet of a hybrid: the number of bottlenecks in
      each stage. Every stage except the first halves the sides of the feature map.
    - If `stages` is (), it is only the root of a ResNet. timm then omits `stem.` from the names.
    - If `stages` is None, it is a stack of 3x3 convolutions with the output channels `convs`, or
      the identity if `convs` is empty.
    """
    if stages == ():
        return _Root(in_channels), 64
    if stages is not None:
        trunk, inputs = nn.Sequential(), 64
        for i, depth in enumerate(stages):
            outputs = 256 * 2**i
            first = _Bottleneck(inputs, outputs, stride=1 if i == 0 else 2, is_first=True)
            others = (_Bottleneck(outputs, outputs, 1, is_first=False) for _ in range(depth - 1))
            trunk.append(nn.Sequential(OrderedDict(blocks=nn.Sequential(first, *others))))
            inputs = outputs
        return nn.Sequential(OrderedDict(stem=_Root(in_channels), stages=trunk)), inputs
    layers, inputs = nn.Sequential(), in_channels
    for outputs, stride in zip(convs, conv_strides(convs, patch), strict=True):
        conv = StdConv2d(inputs, outputs, 3, stride=stride)
        groups = math.gcd(8, outputs, outputs // 2)  # at least two channels per group
        norm = nn.GroupNorm(groups, outputs)
        layers.append(nn.Sequential(OrderedDict(conv=conv, norm=norm, relu=nn.ReLU())))
        inputs = outputs
    return layers if convs else nn.Identity(), inputs
