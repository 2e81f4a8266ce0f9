"""What is set unless the user says otherwise, by what trains.

Sources: AdamW with layer-wise decay and smoothed labels as in published fine-tuning of ViTs
(Touvron et al. 2021, 2012.12877; Bao et al. 2022, 2106.08254; Steiner et al. 2021, 2106.10270),
with figures measured here (docs/experiments.md).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from vitft.system.errors import UsageError

FINE_TUNING: Mapping[str, Mapping[str, Any]] = {
    "optim": {
        "solver": "adamw",
        "epochs": 10,
        "batch_size": 32,
        "weight_decay": 0.05,
        "layer_decay": 0.75,
        "label_smoothing": 0.1,
        "clip": 1.0,
    },
    "train": {"augment": "crop", "crop_scale": 0.4},
}
FROM_SCRATCH: Mapping[str, Mapping[str, Any]] = {
    "optim": {
        "solver": "adamw",
        "lr": 1e-3,
        "epochs": 100,
        "batch_size": 256,
        "weight_decay": 0.05,
        "warmup": 0.05,
        "label_smoothing": 0.1,
        "clip": 1.0,
    },
    "train": {"freeze": "none", "augment": "shift"},
}
"""For `--weights none`: every layer alike, and many epochs (Touvron et al. 2021, 2012.12877)."""
STEPS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "head": {"optim": {"solver": "adamw"}},
    "pre_logits": {"optim": {"solver": "adamw"}},
    "blocks": {"optim": {"solver": "adamw", "weight_decay": 0.05, "epochs": 10}},
    "none": FINE_TUNING,
    "lora": {
        **FINE_TUNING,
        "optim": {**FINE_TUNING["optim"], "layer_decay": 1.0, "weight_decay": 0.0},
    },
}
"""By the last of the things that train; a head alone is solved, not stepped, unless asked."""

LEARNING_RATES = {"head": 1e-2, "pre_logits": 1e-3, "blocks": 1e-4, "lora": 1e-3, "none": 5e-4}
"""Peaks for a model 192 wide."""

STEP_KEYS = frozenset(
    {
        *("lr", "schedule", "final_lr", "warmup", "layer_decay", "momentum", "weight_decay"),
        *("epochs", "batch_size", "micro_batch", "clip", "label_smoothing", "ema", "patience"),
    }
)
"""Settings that only mean something to a solver that takes steps: naming one asks for steps."""
SOLVE_KEYS = frozenset({"l2"})
"""Settings that only mean something to `lbfgs`."""


def usual_lr(freeze: str, width: int) -> float:
    """The peak learning rate where the user names none.

    Hidden layers of wider models take proportionally smaller steps (Yang et al. 2022, 2203.03466,
    table 3); a head on frozen features does not depend on it.
    """
    kind = freeze.rpartition(",")[2].strip().partition(":")[0]
    lr = LEARNING_RATES[kind]
    return lr * 192 / max(192, width) if kind in ("blocks", "lora", "none") else lr


def check_effect(solver: str, stages: int, named: Iterable[str]) -> None:
    """Refuse a setting that the user named and that the chosen solver would not look at.

    Raises:
        UsageError: With the setting and the solver that it needs.
    """
    unseen = STEP_KEYS if solver == "lbfgs" else SOLVE_KEYS if stages == 1 else frozenset()
    for key in named:
        section, _, name = key.partition(".")
        if section == "optim" and name in unseen:
            other = "adamw" if solver == "lbfgs" else "lbfgs"
            raise UsageError(
                f"{key} has no effect on the solver {solver}",
                fix=f"leave it out, or choose --set optim.solver={other}",
            )


def with_mode_defaults(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings that suit what trains, below those that are named."""
    train, optim = table.get("train", {}), table.get("optim", {})
    if not isinstance(train, Mapping) or not isinstance(optim, Mapping):
        return table  # `build` says what is wrong with it
    weights = table.get("weights", {})
    if isinstance(weights, Mapping) and weights.get("name") == "none":
        return below(table, FROM_SCRATCH)
    freeze = str(train.get("freeze", "head"))
    plain_head = (
        freeze == "head" and train.get("augment", "none") == "none" and not STEP_KEYS & {*optim}
    )
    if optim.get("solver", "lbfgs" if plain_head else "") == "lbfgs":
        return table
    usual = STEPS.get(freeze.rpartition(",")[2].strip().partition(":")[0], {})
    return below(table, usual)


def below(table: Mapping[str, Any], usual: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Settings with the usual ones where they name none."""
    parts = {key: {**usual.get(key, {}), **table.get(key, {})} for key in ("optim", "train")}
    return {**table, **parts}
