"""Settings of a new run, as requested by a recipe and by options or arguments."""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from vitft.config.defaults import STEP_SETTINGS, idle_augmentation, without_effect
from vitft.config.run import (
    Config,
    config_from_table,
    merge_settings,
    model_without_effect,
    read_recipe,
)
from vitft.system.errors import UsageError
from vitft.system.text import count, listing

log = logging.getLogger(__name__)


def requested_config(recipe: str | None, named: Sequence[tuple[str, Any]]) -> Config:
    """Return the settings of a new run, and log it if they replace the solver of a head.

    Args:
        recipe: Name of a recipe, or path of a TOML file with settings.
        named: Settings by dotted name, which take precedence over the recipe.

    Raises:
        UsageError: The recipe is unknown, or a setting is unknown, is invalid or has no effect. The
            error names the recipe if it would also occur without `named`.
    """
    base = read_recipe(recipe) if recipe else {}
    table = merge_settings(base, named)
    try:
        config = config_from_table(table)
    except UsageError as error:
        if recipe and _problem_of(base) == error.problem:
            raise UsageError(f"{recipe}: {error.problem}", fix=error.fix) from error
        raise
    if config.weights.name != "none" and any(key.startswith("model.") for key, _ in named):
        raise model_without_effect(config.weights.name)  # even if the values are the defaults
    solver, train = config.optim.solver, config.train
    unused = without_effect(solver, len(train.stages))
    idle = idle_augmentation(train.augment, train.views) if not train.budget else ()
    for key, value in named:
        if key in unused:
            other = "adamw" if solver == "lbfgs" else "lbfgs"
            raise UsageError(
                f"{key} has no effect with solver {solver}",
                fix=f"remove it, or use --solver {other}",
            )
        if key in idle and value:  # a flip of 0 is obeyed without augmentation, too
            other = "--train all --set train.augment=shift"
            raise UsageError(
                f"{key} has no effect with train.augment={train.augment}",
                fix=f"remove it, or add {other if key == 'train.padding' else '--views 3'}",
            )
    if (note := _implied_solver(table, config)) and os.environ.get("RANK", "0") == "0":
        log.info(note)
    return config


def _problem_of(table: Mapping[str, Any]) -> str:
    """Return the problem with the settings of a recipe, or an empty string."""
    try:
        config_from_table(table)
    except UsageError as error:
        return error.problem
    return ""


def _implied_solver(table: Mapping[str, Any], config: Config) -> str:
    """Return a line that names the settings because of which a head is trained and not solved.

    The result is empty if the head is solved or cannot be, or if the solver was chosen by name.

    Args:
        table: The settings that were given, by section.
        config: The settings with all defaults.
    """
    optim = table.get("optim", {})
    if not config.solvable or config.optim.solver == "lbfgs" or "solver" in optim:
        return ""
    given = [f"optim.{name}" for name in optim if name in STEP_SETTINGS]
    need = f"{listing(given)} {'needs' if len(given) == 1 else 'need'}"
    return (
        f"solver:     {config.optim.solver} for {count(config.optim.epochs, 'epoch')}, because "
        f"{need} a training loop; without it, the head would be solved by lbfgs, which is faster"
    )
