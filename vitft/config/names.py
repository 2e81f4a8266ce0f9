"""Names of all settings, and suggestions for unknown names."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from vitft.config.schema import setting_types
from vitft.config.sections import DataSpec, ModelSpec, OptimSpec, TrainSpec, WeightsSpec

SECTIONS: Mapping[str, type] = {
    "data": DataSpec,
    "weights": WeightsSpec,
    "model": ModelSpec,
    "optim": OptimSpec,
    "train": TrainSpec,
}
SETTINGS = tuple(
    f"{name}.{key}" for name, section in SECTIONS.items() for key in setting_types(section)
)
"""Dotted names of all settings."""

ALIASES: Mapping[str, tuple[str, ...]] = {
    "data.path": (
        *("dataset", "data_dir", "data_path", "image_folder", "train_dir", "directory"),
        *("input", "inputs", "input_dir", "source", "image", "images", "image_dir", "folder"),
    ),
    "data.label": ("label_column", "target", "target_column", "y_col", "class_column"),
    "data.path_column": ("x_col", "image_column", "file_column", "filename_column"),
    "data.group": ("group_column", "groups", "patient", "patient_id"),
    "data.classes": ("class_map", "class_mapping", "label_map", "class_names"),
    "data.like": ("previous_run", "base_run", "same_split"),
    "data.val_rate": ("val_split", "validation_split", "val_size", "val_ratio", "test_size"),
    "train.seed": ("random_state", "random_seed", "manual_seed"),
    "weights.name": ("model_name", "pretrained", "checkpoint", "backbone", "arch"),
    "weights.image_size": ("img_size", "imgsz", "input_size", "resolution"),
    "weights.fit": ("crop_mode", "resize_mode", "letterbox"),
    "weights.crop": ("crop_pct", "crop_fraction", "center_crop"),
    "model.width": ("embed_dim", "hidden_size", "hidden_dim", "dim"),
    "model.depth": ("num_layers", "num_hidden_layers", "num_blocks"),
    "model.heads": ("num_heads", "num_attention_heads"),
    "model.registers": ("reg_tokens", "num_register_tokens"),
    "model.layer_scale": ("init_values", "layerscale_value"),
    "optim.solver": ("optimizer", "optimiser", "opt"),
    "optim.lr": ("learning_rate", "lrate", "base_lr", "lr0", "blr", "eta"),
    "optim.schedule": ("scheduler", "lr_scheduler", "lr_scheduler_type", "sched"),
    "optim.final_lr": ("min_lr", "eta_min"),
    "optim.warmup": ("warmup_ratio", "warmup_steps", "warmup_epochs"),
    "optim.layer_decay": ("layerwise_lr_decay", "llrd"),
    "optim.weight_decay": ("wd", "decay"),
    "optim.l2": ("c", "alpha", "penalty", "reg", "regularization"),
    "optim.epochs": ("num_epochs", "max_epochs", "num_train_epochs", "n_epochs"),
    "optim.batch_size": ("bs", "batch", "per_device_train_batch_size"),
    "optim.micro_batch": ("gradient_accumulation_steps", "grad_accum_steps", "accum_iter"),
    "optim.clip": ("grad_clip", "clip_grad", "max_grad_norm", "gradient_clip_val"),
    "optim.label_smoothing": ("smoothing", "label_smoothing_factor"),
    "optim.ema": ("model_ema", "model_ema_decay", "ema_decay"),
    "optim.patience": ("early_stopping", "early_stopping_patience"),
    "optim.class_weights": ("class_weight", "balanced"),
    "train.layers": ("freeze", "unfreeze", "trainable_layers", "freeze_layers"),
    "train.augment": ("augmentation", "transforms", "auto_augment", "aa"),
    "train.erasing": ("random_erasing", "reprob"),
    "train.drop_path": ("dropout", "drop_rate", "drop_path_rate", "stochastic_depth"),
    "train.sampling": ("sampler", "weighted_sampler"),
    "train.device": ("gpu", "gpus", "cuda", "accelerator"),
    "train.precision": ("amp", "mixed_precision", "dtype", "fp16", "bf16"),
    "train.compile": ("torch_compile", "torchcompile"),
    "train.lora_rank": ("r", "rank"),
    "train.lora_targets": ("target_modules",),
    "train.checkpointing": ("gradient_checkpointing", "grad_checkpointing"),
    "train.shard": ("fsdp",),
    "train.tracker": ("logger", "loggers", "report_to", "log_with"),
}
"""Names that other tools use for the settings."""

FORMER_NAMES: Mapping[str, str] = {"train.freeze": "train.layers"}
"""Former names of settings, which still work."""


def current_setting(key: str, value: Any) -> tuple[str, Any]:  # noqa: ANN401
    """Return a setting under its current name, and with the current word for its value."""
    key = FORMER_NAMES.get(key, key)
    if key == "train.layers" and isinstance(value, str):
        value = re.sub(r"\bnone\b", "all", value)
    return key, value


SHORT_NAME = 3
"""Number of characters up to which a name is short, and similar to others by chance."""
CLOSE = 0.8
"""Minimum similarity of short names, and of names of other sections."""


def find_setting(name: str, *, cutoff: float = 0.6) -> str | None:
    """Return the setting that an unknown name most likely means, or None if no name is similar.

    The last part of the name is matched first: `train.lr` means `optim.lr`, not `train.flip`. Then
    similar names of the same section are searched; those of other sections must be very similar.
    A name is similar if difflib's ratio is at least `cutoff`, and for short names `CLOSE`.
    """
    section, _, last = name.lower().replace("-", "_").rpartition(".")
    known: dict[str, list[str]] = {}
    for setting in SETTINGS:
        known.setdefault(setting.partition(".")[2], []).append(setting)
    for setting, aliases in ALIASES.items():
        for alias in aliases:
            known.setdefault(alias, []).append(setting)
    begun = [name for name in SETTINGS if section and name.startswith(f"{section}.{last}")]
    if last not in known and len(begun) == 1:
        return begun[0]
    names = [key for key in known if len(key) > SHORT_NAME or f"{section}.{key}" in SETTINGS]
    own = [key for key in names if any(n.startswith(f"{section}.") for n in known[key])]
    close = max(cutoff, CLOSE)
    near = (
        get_close_matches(last, known, n=1, cutoff=1)
        or get_close_matches(last, own, n=1, cutoff=close if len(last) <= SHORT_NAME else cutoff)
        or get_close_matches(last, names, n=1, cutoff=close if section else cutoff)
    )
    candidates = known[near[0]] if near else []
    return min(candidates, key=lambda name: not name.startswith(f"{section}."), default=None)


def suggest_setting(key: str) -> str:
    """Return the suggested fix for an unknown setting."""
    if (found := find_setting(key)) is not None:
        return f"use {found}"
    section = key.partition(".")[0]
    names = [name for name in SETTINGS if name.startswith(f"{section}.")]
    return (
        f"use one of {', '.join(names)}"
        if names
        else f"use one of the sections {', '.join(SECTIONS)}"
    )
