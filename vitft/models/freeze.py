"""Choice of the trainable parameters of a model; all other parameters are frozen.

The freeze boundary separates the frozen first layers of a model from the trainable last layers.
"""

from vitft.models.timm_model import Model, TimmModel
from vitft.system.errors import UsageError
from vitft.system.text import count


def frozen_blocks(layers: str, depth: int) -> int | None:
    """Return how many of the first blocks are frozen, or None if `layers` is `all` or `lora`.

    The embedding is frozen together with these blocks. None means that no block is frozen as a
    whole: either the whole model or adapters in its layers are trained. A return value of `depth`
    means that the whole encoder is frozen: only layers after pooling are trained.

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
        UsageError: The model does not have the layers named by `layers`, or cannot be cut before
            them.
    """
    if layers == "pre_logits" and not model.config.pre_logits:
        raise UsageError(
            "train.layers=pre_logits cannot be used: the model has no pre_logits layer",
            fix="use --train head, or load weights that have this layer and add --pre-logits keep",
        )
    frozen = frozen_blocks(layers, len(model.blocks))
    if isinstance(model, TimmModel) and layers.startswith("blocks:") and frozen is not None:
        after = model.trained_after(frozen)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in after)
    else:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(_is_trained(name, layers, frozen))
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def _is_trained(name: str, layers: str, frozen: int | None) -> bool:
    """Return whether the parameter `name` is trained; `frozen` is the result of `frozen_blocks`."""
    part, _, rest = name.partition(".")
    if layers == "all":
        return True
    if layers == "lora":
        return ".lora_" in name or part.startswith("head")
    if layers in ("head", "pre_logits"):
        return part.startswith("head") or (part == "pre_logits" and layers == "pre_logits")
    assert frozen is not None
    if part == "blocks":
        return int(rest.partition(".")[0]) >= frozen
    return part in ("norm", "fc_norm", "attn_pool", "pre_logits", "head", "head_dist")
