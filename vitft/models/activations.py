"""Activation functions of the MLP: the exact GELU, and the approximations used in CLIP and SigLIP.

Sources: Hendrycks and Gimpel 2016 (GELU and both approximations), https://arxiv.org/abs/1606.08415.
"""

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.models.vit_config import Activation


def quick_gelu(x: Tensor) -> Tensor:
    """Return x sigmoid(1.702 x), which differs from the exact GELU by at most 0.021."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATION_FUNCTIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
}
"""Mapping from the names of activation functions, which are the same in timm, to the functions."""
