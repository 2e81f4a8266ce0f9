"""Choice of the trainable parameters of a model; all other parameters are frozen.

The freeze boundary separates the frozen first layers of a model from the trainable last layers.
"""

import re

from vitft.models.timm_model import Model
from vitft.system.errors import UsageError
from vitft.system.text import count


def frozen_blocks(layers: str, depth: int) -> int | None:
    """Return how many of the first blocks are frozen, or None if `layers` is `all` or `lora`.

    The embedding is frozen together with these blocks. If they are all `depth` blocks, only layers
    after pooling are trained.

    Raises:
        UsageError: `layers` specifies more blocks than the model has.
    """
    if layers in ("head", "pre_logits"):
        return depth
    if layers in ("all", "lora"):
        return None
    trained = int(layers.removeprefix("blocks:"))
    if not depth:
        raise UsageError(
            f"train.layers={layers} cannot be used: timm does not list the blocks of this model",
            fix="use --train head (linear probe), --train lora or --train all (whole model)",
        )
    if trained > depth:
        raise UsageError(
            f"train.layers={layers} cannot be used: the model has only {count(depth, 'block')}",
            fix=f"use --train blocks:N with N from 1 to {depth}, or --train all (whole model)",
        )
    return depth - trained


def freeze_model(model: Model, layers: str) -> list[str]:
    """Set `requires_grad` of every parameter and return the names of the trainable parameters.

    Raises:
        UsageError: The model does not have these layers, or cannot be cut before them.
    """
    if layers == "pre_logits" and not model.config.pre_logits:
        raise UsageError(
            "train.layers=pre_logits cannot be used: the model has no pre_logits layer",
            fix="use --train head, or load weights that have this layer and add --pre-logits keep",
        )
    frozen = frozen_blocks(layers, len(model.blocks))
    every = dict(model.named_parameters())
    if frozen is None or layers == "head":
        pattern = {"all": "", "lora": r"head|.*\.lora_", "head": "head"}[layers]
        trained = frozenset(name for name in every if re.match(pattern, name))
    else:
        trained = model.trained_after(frozen)
    for name, parameter in every.items():
        parameter.requires_grad_(name in trained)
    return [name for name in every if name in trained]
