"""Attribution maps of timm models: gradient times activation on a feature map of the network.

On the last feature map, this is Grad-CAM without averaging the gradient over positions (HiResCAM),
so each position keeps its own weight. If the head averages the positions, as in most CNNs, the two
methods are equal. On an earlier map of channels, the gradient is averaged as in Grad-CAM, because
single positions are noisy there (benchmarks/notebook/explanations.md).
Attention weights are not needed, so the method supports CNNs, hierarchical Transformers and
MLP-Mixers.

Notation: B images, C classes, D channels; gh and gw are the numbers of rows and columns of a
feature map.

Sources: Selvaraju et al. 2017 (Grad-CAM), https://arxiv.org/abs/1610.02391; Draelos and Carin 2020
(HiResCAM), https://arxiv.org/abs/2011.08891.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitft.models.timm_model import TimmModel
from vitft.system.errors import UsageError

_MAX_ASPECT_ERROR = 1.5
"""Maximum ratio between the aspect ratios of a feature map and the image. The aspect ratios of
small maps differ because their sides are rounded.
"""

_MIN_SIDE = 6
"""Minimum number of rows and columns of the feature map that is used, if the network has such a
map. CNNs have 7x7 positions in the last stage for images of 224 pixels, but 2x2 for 64 pixels.
"""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Arrangement of channels and image positions in a tensor (B, ...)."""

    channels: int
    """Index of the channel dimension."""
    prefix: int
    """Number of tokens before the positions, e.g. 1 for a class token."""
    grid: tuple[int, int]
    """Numbers of rows and columns of the positions."""

    def sum_channels(self, values: Tensor) -> Tensor:
        """Return the sums over the channels at each position: (B, ...) to (B, gh, gw)."""
        return values.sum(self.channels).flatten(1)[:, self.prefix :].unflatten(1, self.grid)

    def mean_position(self, values: Tensor) -> Tensor:
        """Return the mean over the positions, with the number of dimensions of `values`."""
        if self.channels == 2:
            return values[:, self.prefix :].mean(dim=1, keepdim=True)
        return values.mean(dim=[d for d in (1, 2, 3) if d != self.channels], keepdim=True)


def _find_layout(
    shape: Sequence[int], image_size: tuple[int, int], prefixes: Sequence[int]
) -> _Layout | None:
    """Return the layout of a tensor of this shape, or None if it cannot be determined.

    Maps are (B, D, gh, gw) or (B, gh, gw, D), and tokens are (B, prefix + gh*gw, D). The positions
    must have about the same aspect ratio as the image. `prefixes` are the possible numbers of
    tokens before the positions.
    """
    aspect = image_size[0] / image_size[1]

    def error(grid: tuple[int, int]) -> float:
        ratio = grid[0] / grid[1] / aspect
        return max(ratio, 1 / ratio)

    layouts: list[_Layout] = []
    if len(shape) == 4:
        layouts = [_Layout(1, 0, (shape[2], shape[3])), _Layout(3, 0, (shape[1], shape[2]))]
    if len(shape) == 3:
        for prefix in prefixes:
            count = shape[1] - prefix
            rows = max(1, round(math.sqrt(max(0, count) * aspect)))
            if count > 0 and count % rows == 0:
                layouts.append(_Layout(2, prefix, (rows, count // rows)))
    errors = [error(layout.grid) for layout in layouts]
    if not errors or min(errors) > _MAX_ASPECT_ERROR:
        return None
    return layouts[errors.index(min(errors))]


def feature_relevance(
    model: TimmModel, pixels: Tensor, target: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the relevance of each position for a class (B, gh, gw), and the logits (B, C).

    The last feature map is used whose positions affect the class score and which has at least
    `_MIN_SIDE` rows and columns; if there is none, the largest map. For small images, the maps of
    the last stage have too few positions to show where the evidence is.

    If layers follow the map, the difference from the mean position is used instead of the
    activation. It shows what distinguishes a position from the rest of the image. Without it,
    gradient times activation would even be zero for the tokens that enter the last block of a
    Transformer whose head reads the class token: the LayerNorm is invariant to their scale.

    Raises:
        UsageError: No layer of the network has positions that correspond to parts of the image.
    """
    with torch.inference_mode(False), torch.enable_grad():
        outputs, logits = model.trace(pixels.clone().requires_grad_())
        wanted = logits.argmax(dim=-1) if target is None else target
        score = logits.gather(1, wanted[:, None]).sum()  # images do not affect each other
        gradients = torch.autograd.grad(score, outputs, allow_unused=True) if outputs else ()
    prefixes = sorted({getattr(model.net, "num_prefix_tokens", 0), 0, 1}, reverse=True)
    size = pixels.shape[-2], pixels.shape[-1]
    found: list[Tensor] = []  # from the last map to the first
    matter: list[Tensor] = []
    for output, gradient in zip(reversed(outputs), reversed(gradients), strict=True):
        layout = _find_layout(output.shape, size, prefixes)
        if layout is None or gradient is None:
            continue
        matters = bool(layout.sum_channels(gradient.abs()).any())
        values = output.detach()
        if output is not outputs[-1]:
            values = values - layout.mean_position(values)
            gradient = gradient if layout.channels == 2 else layout.mean_position(gradient)
        found.append(layout.sum_channels(values * gradient).clamp(min=0))
        if matters:
            matter.append(found[-1])
            if min(layout.grid) >= _MIN_SIDE:
                break
    if not found:
        raise UsageError(
            f"timm's {model.config.timm} cannot be explained: the outputs of its layers do not "
            "correspond to parts of the image",
            fix="use another model, e.g. timm:resnet50 or one listed by `vitft weights list`",
        )
    return max(matter or found[-1:], key=Tensor.numel), logits.detach()
