"""Convolutions before the patch projection: their feature map is cut into patches, not the image.

- The ResNet of a hybrid: weight-standardised convolutions with GroupNorm and TensorFlow's SAME
  padding, under timm's names.
- A convolutional stem: a few such convolutions, for models trained from random weights.

Notation: B images, S image side in pixels (the height and width may differ), F feature channels,
h and w sides of a feature map.

Sources: Kolesnikov et al. 2020 (BiT), https://arxiv.org/abs/1912.11370; Qiao et al. 2019 (weight
standardisation), 1903.10520; Xiao et al. 2021 (convolutional stems), 2106.14881;
google-research/vision_transformer.
"""

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitft.models.vit_config import conv_strides


def pad_same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """Pad a feature map (B, F, h, w) before a convolution or pooling, like SAME in TensorFlow.

    Each side of the output of the convolution or pooling is then ceil(side / stride). If the total
    padding of an axis is odd, the extra row or column is added at the bottom or right.
    """
    pads: list[int] = []
    for side in (x.shape[-1], x.shape[-2]):
        total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads, value=value) if any(pads) else x


class StdConv2d(nn.Conv2d):
    """Convolution with SAME padding and with kernels standardised to mean 0 and variance 1."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        kernels = (self.weight - mean) * torch.rsqrt(variance + 1e-8)
        x = pad_same(x, self.kernel_size[0], self.stride[0])
        return F.conv2d(x, kernels, stride=self.stride)


class _Root(nn.Module):
    """Start of a ResNet: pixels (B, channels, S, S) to (B, 64, S/4, S/4)."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.conv = StdConv2d(in_channels, 64, 7, stride=2)
        self.norm = nn.GroupNorm(32, 64)

    def forward(self, pixels: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(pixels)))
        return F.max_pool2d(pad_same(x, 3, 2, value=-float("inf")), 3, stride=2)


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
