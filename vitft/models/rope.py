"""Rotary position embeddings (RoPE): positions encoded in the queries and keys, as in DINOv3.

A plain ViT adds a learned vector to each patch token, once, before the first block. With RoPE,
every block instead rotates the queries and keys of the patches. The K dimensions of a head form
pairs (a, b). Each pair is rotated by an angle t proportional to the row or the column of the patch:

    (a, b)  ->  (a cos t - b sin t,  b cos t + a sin t)

The product of a query rotated by t and a key rotated by s depends only on t - s. The scores
between two patches therefore depend on the distance and direction from one to the other, not on
their absolute positions, and images of any size need no new weights. Values and prefix tokens are
not rotated, so scores between a patch and the class token depend on the patch's position.

For a coordinate c, pair i (from 0 to K / 4 - 1) is rotated by c / base^(4 i / K). In DINOv3 (K =
64, base 100), c runs from -2 pi to 2 pi over the image, whatever its size. The first pair makes two
turns from edge to edge, and the last one turns by less than ten degrees.

Notation: B images, P patches, N tokens (prefix + P), H heads, K head width.

Sources: Su et al. 2021 (RoPE), https://arxiv.org/abs/2104.09864; Fang et al. 2023 (EVA-02),
2303.11331; Bolya et al. 2025 (PE), 2504.13181; Simeoni et al. 2025 (DINOv3), 2508.10104.
"""

import math

import torch
from torch import Tensor, nn

from vitft.models.vit_config import RopeConfig, ViTConfig


class Rotary(nn.Module):
    """Rotation of the queries or keys of the first M tokens: (B, H, M, K) to (B, H, M, K).

    The cosines and sines (N, K) are computed from the configuration and are not saved. For prefix
    tokens, they are 1 and 0.
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
