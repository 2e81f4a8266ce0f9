"""What trains and how it moves: the freeze boundary, learning rate, optimiser.

Decisions here are pure functions; the loop that applies them is `loop`.
"""

import math

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from vitft.backbone import Model, TimmModel
from vitft.config import OptimSpec
from vitft.errors import UsageError


def frozen_blocks(freeze: str, depth: int) -> int | None:
    """How many leading blocks stay as they are; None when the embedding trains as well.

    `depth` itself means that the whole encoder is frozen: only what follows the pooled feature
    trains.

    Raises:
        UsageError: More blocks to train than the model has.
    """
    if freeze in ("head", "pre_logits"):
        return depth
    if freeze == "none":
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
    if freeze in ("head", "pre_logits"):
        return part.startswith("head") or (part == "pre_logits" and freeze == "pre_logits")
    assert frozen is not None
    if part == "blocks":
        return int(rest.partition(".")[0]) >= frozen
    return part in ("norm", "fc_norm", "pre_logits", "head", "head_dist")


def lr_at(step: int, total: int, *, peak: float, warmup: float, final: float = 0.0) -> float:
    """Learning rate of step `step` of `total`: linear warm-up, then cosine down to `final * peak`.

    Source: Loshchilov & Hutter 2017 (SGDR), https://arxiv.org/abs/1608.03983, without restarts.
    """
    ramp = round(total * warmup)
    if step < ramp:
        return peak * (step + 1) / ramp
    progress = min(1.0, (step - ramp) / max(1, total - ramp))
    return peak * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress)))


def make_optimizer(model: nn.Module, spec: OptimSpec) -> Optimizer:
    """SGD or AdamW over the parameters that train."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if spec.solver == "sgd":
        return SGD(trained, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay)
    return AdamW(trained, lr=spec.lr, weight_decay=spec.weight_decay)
