"""SwiGLU: the gated MLP of later models (DINOv2-giant, DINOv3 S+, H+ and 7B, EVA-02, AIMv2).

Instead of one hidden layer with a GELU, there are two: the gate and the value. After SiLU, the gate
is multiplied by the value. One matrix computes both; its first rows belong to the gate.

Notation: B images, N tokens, D width.

Source: Shazeer 2020, https://arxiv.org/abs/2002.05202.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from vitft.models.layers import optional_norm
from vitft.models.vit_config import ViTConfig


class GatedMLP(nn.Module):
    """fc2(silu(gate) * value), where fc1 computes gate and value, for each token (B, N, D)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.width, 2 * config.hidden, bias=config.proj_bias)
        self.norm = optional_norm(config, config.mlp_norm, config.hidden)
        self.fc2 = nn.Linear(config.hidden, config.width, bias=config.proj_bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(self.norm(F.silu(gate) * value))
