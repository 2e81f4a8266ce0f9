"""What trains: which parameters lie behind the freeze boundary."""

from vitft.models.timm_model import Model, TimmModel
from vitft.system.errors import UsageError


def frozen_blocks(freeze: str, depth: int) -> int | None:
    """How many leading blocks stay as they are; None when the embedding trains as well.

    `depth` itself means that the whole encoder is frozen: only what follows the pooled feature
    trains.

    Raises:
        UsageError: More blocks to train than the model has.
    """
    if freeze in ("head", "pre_logits"):
        return depth
    if freeze in ("none", "lora"):
        return None
    trained = int(freeze.removeprefix("blocks:"))
    if trained > depth:
        raise UsageError(
            f"train.freeze is {freeze}, but the model has {depth} blocks",
            fix=f"use blocks:1 to blocks:{depth}, or none to train everything",
        )
    return depth - trained


def freeze_model(model: Model, freeze: str) -> list[str]:
    """Let only the parameters behind the boundary train; returns their names.

    Raises:
        UsageError: `pre_logits` is asked of a model that has none, or blocks of a model of timm.
    """
    if freeze == "pre_logits" and not model.config.pre_logits:
        raise UsageError(
            "train.freeze is pre_logits, but the model has no pre_logits layer",
            fix="load weights that have one with --pre-logits keep, or use --freeze head",
        )
    if isinstance(model, TimmModel) and freeze.startswith("blocks:"):
        raise UsageError(
            f"train.freeze is {freeze}, but only vitft's own ViTs are cut between blocks, and this "
            f"is timm's {model.config.timm}",
            fix="use head (probe) or none (train everything)",
        )
    frozen = frozen_blocks(freeze, model.config.depth)
    trained = []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trains(name, freeze, frozen))
        if parameter.requires_grad:
            trained.append(name)
    return trained


def trains(name: str, freeze: str, frozen: int | None) -> bool:
    """Whether the parameter `name` lies behind the freeze boundary."""
    part, _, rest = name.partition(".")
    if freeze == "none":
        return True
    if freeze == "lora":
        return ".lora_" in name or part.startswith("head")
    if freeze in ("head", "pre_logits"):
        return part.startswith("head") or (part == "pre_logits" and freeze == "pre_logits")
    assert frozen is not None
    if part == "blocks":
        return int(rest.partition(".")[0]) >= frozen
    return part in ("norm", "fc_norm", "pre_logits", "head", "head_dist")
