"""Choice of the trainable parameters of a model; all other parameters are frozen.

The freeze boundary separates the frozen first layers of a model from the trainable last layers.
"""

import re

from vitft.models.timm_model import Model
from vitft.models.vit_config import frozen_blocks
from vitft.system.errors import UsageError


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
