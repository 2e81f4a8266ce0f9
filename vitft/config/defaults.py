"""Default settings, which depend on the trained layers.

Sources: AdamW with layer-wise learning rate decay and label smoothing, as in published recipes for
fine-tuning ViTs (Touvron et al. 2021, 2012.12877; Bao et al. 2022, 2106.08254; Steiner et al. 2021,
2106.10270), with values from our own measurements (benchmarks/notebook/fine_tuning.md).
"""

from collections.abc import Mapping
from typing import Any

_ADAMW = {"solver": "adamw", "weight_decay": 0.05, "label_smoothing": 0.1, "clip": 1.0}
_FINE_TUNING: Mapping[str, Mapping[str, Any]] = {
    "optim": {**_ADAMW, "epochs": 10, "layer_decay": 0.75},
    "train": {"augment": "crop", "crop_scale": 0.4},
}
FROM_SCRATCH: Mapping[str, Mapping[str, Any]] = {
    "optim": {**_ADAMW, "lr": 1e-3, "epochs": 100, "batch_size": 256, "warmup": 0.05},
    "train": {"layers": "all", "augment": "shift"},
}
"""Defaults for `--weights none`: many epochs, no layer decay (Touvron et al. 2021, 2012.12877)."""
STAGE_DEFAULTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "head": {"optim": {"solver": "adamw"}},
    "pre_logits": {"optim": {"solver": "adamw"}},
    "blocks": {"optim": {"solver": "adamw", "weight_decay": 0.05, "epochs": 10}},
    "all": _FINE_TUNING,
    "lora": {
        **_FINE_TUNING,
        "optim": {**_FINE_TUNING["optim"], "layer_decay": 1.0, "weight_decay": 0.0},
    },
}
"""Defaults for SGD and AdamW, by the kind of the last training stage. For a head alone, the default
solver is L-BFGS."""

LEARNING_RATES = {"head": 1e-2, "pre_logits": 1e-3, "blocks": 1e-4, "lora": 1e-3, "all": 5e-4}
"""Peak learning rates for a model of width 192, by kind of the last stage."""

_BATCH_SIZES = (8, 32)
"""Smallest and largest default batch size."""
_STEPS_PER_EPOCH = 40
"""Number of steps per epoch for which batches smaller than the largest are used by default."""

STEP_SETTINGS = frozenset({
    "lr", "schedule", "final_lr", "warmup", "layer_decay", "momentum", "weight_decay", "epochs",
    "batch_size", "micro_batch", "clip", "label_smoothing", "ema", "interpolation", "patience",
})  # fmt: skip
"""Settings of `[optim]` that apply only to SGD and AdamW; setting one of them selects AdamW."""
_LBFGS_SETTINGS = frozenset({"l2"})
"""Settings of `[optim]` that apply only to L-BFGS."""


def default_lr(layers: str, width: int) -> float:
    """Return the default peak learning rate of the last stage for a model of a given width.

    Hidden layers of wider models need proportionally smaller rates (Yang et al. 2022, 2203.03466,
    table 3); a head or a pre_logits layer on frozen features does not.
    """
    lr = LEARNING_RATES[kind := _last_stage_kind(layers)]
    return lr * 192 / max(192, width) if kind in ("blocks", "lora", "all") else lr


def default_batch_size(layers: str, images: int, *, batch_norm: bool) -> int:
    """Return the default batch size of the last stage.

    With few images, more steps on smaller batches reach a lower loss in the same time
    (benchmarks/notebook/fine_tuning.md). So blocks, adapters and whole models are trained on
    batches that give an epoch at least `_STEPS_PER_EPOCH` steps. Small batches have noisy
    statistics, so models with BatchNorm always have the largest.
    """
    smallest, largest = _BATCH_SIZES
    if batch_norm or _last_stage_kind(layers) not in ("blocks", "lora", "all"):
        return largest
    size = largest
    while size > smallest and images < _STEPS_PER_EPOCH * size:
        size //= 2
    return size


def _last_stage_kind(layers: str) -> str:
    """Return the kind of the last stage, such as `blocks` for `head,blocks:2`."""
    return layers.rpartition(",")[2].strip().partition(":")[0]


def without_effect(solver: str, stages: int) -> frozenset[str]:
    """Return the dotted names of the settings that have no effect with this solver and stages."""
    unused = STEP_SETTINGS if solver == "lbfgs" else _LBFGS_SETTINGS if stages == 1 else frozenset()
    return frozenset(f"optim.{name}" for name in unused)


def idle_augmentation(augment: str, views: int) -> frozenset[str]:
    """Return the dotted names of the settings that have no effect with this augmentation."""
    if augment == "none" and not views:
        return frozenset({"train.flip", "train.crop_scale", "train.padding"})
    return frozenset({"train.crop_scale" if augment == "shift" else "train.padding"})


def with_stage_defaults(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings, with missing ones set to defaults that depend on the trained layers."""
    train, optim = table.get("train", {}), table.get("optim", {})
    if not isinstance(train, Mapping) or not isinstance(optim, Mapping):
        return table  # rejected by `config_from_table`
    weights, defaults = table.get("weights", {}), FROM_SCRATCH
    if not isinstance(weights, Mapping) or weights.get("name") != "none":
        layers = str(train.get("layers", "head"))
        is_plain = train.get("augment", "none") == "none" and not STEP_SETTINGS & {*optim}
        plain_head = layers == "head" and is_plain
        if optim.get("solver", "lbfgs" if plain_head else "") == "lbfgs":
            return table
        defaults = STAGE_DEFAULTS.get(_last_stage_kind(layers), {})
    parts = {key: {**defaults.get(key, {}), **table.get(key, {})} for key in ("optim", "train")}
    return {**table, **parts}
