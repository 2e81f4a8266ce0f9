"""Settings of a fine-tuning run, as read from TOML files, recipes and `--set`."""

import dataclasses
import logging
import math
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any

import tomli_w

from vitft.config.defaults import (
    STEP_SETTINGS,
    idle_augmentation,
    with_stage_defaults,
    without_effect,
)
from vitft.config.options import SECTIONS, SETTINGS, current_setting, suggest_setting
from vitft.config.schema import invalid, require, settings_of
from vitft.config.sections import DataSpec, ModelSpec, OptimSpec, TrainSpec, WeightsSpec
from vitft.system.errors import UsageError
from vitft.system.files import read_regular, resource
from vitft.system.rundir import damaged_file
from vitft.system.suggest import suggest
from vitft.system.text import count, describe_os_error, listing

log = logging.getLogger(__name__)


_MAX_TOML_BYTES = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of a fine-tuning run, sufficient to reproduce it."""

    data: DataSpec = field(default_factory=DataSpec)
    weights: WeightsSpec = field(default_factory=WeightsSpec)
    model: ModelSpec = field(default_factory=ModelSpec)
    optim: OptimSpec = field(default_factory=OptimSpec)
    train: TrainSpec = field(default_factory=TrainSpec)

    def __post_init__(self) -> None:
        # The weights and the layers
        is_new, layers = self.weights.name == "none", self.train.layers
        if is_new and self.weights.image_size:
            check_patches(self.weights.image_size, self.model.patch_size)
        require(
            not is_new or layers == "all",
            f"train.layers={layers} would leave randomly initialised weights untrained",
            fix="use --train all with --weights none",
        )
        if not is_new and self.weights.name and self.model != ModelSpec():
            raise _model_without_effect(self.weights.name)
        require(
            "pre_logits" not in self.train.stages or self.weights.pre_logits == "keep",
            f"train.layers={layers} needs the pre_logits layer, but weights.pre_logits=drop "
            "removes it",
            fix="add --pre-logits keep",
        )
        require(
            "lora" not in self.train.stages[:-1],
            f"train.layers={layers} has a stage after lora, which must be the last stage",
            fix="use lora as the last stage, e.g. --train head,lora",
        )
        # The solver and the sampling
        is_lbfgs, is_balanced = self.optim.solver == "lbfgs", self.train.sampling == "balanced"
        require(
            not is_lbfgs or self.solvable,
            "optim.solver=lbfgs can only fit a head on cached features (train.layers=head, "
            "train.augment=none)",
            fix="use --solver adamw or sgd, or --train head without augmentation",
        )
        require(
            not self.train.budget or is_lbfgs,
            f"train.budget={self.train.budget} chooses the layers to train, but other settings "
            "already choose them",
            fix="remove the budget, or remove --train, --solver and settings of the training loop "
            "such as --epochs",
        )
        require(
            not (is_balanced and is_lbfgs),
            "train.sampling=balanced cannot be used with optim.solver=lbfgs",
            fix="add --solver adamw, or use optim.class_weights=true with the default solver",
        )
        require(
            not (is_balanced and self.optim.class_weights),
            "optim.class_weights=true and train.sampling=balanced both balance the classes",
            fix="use only one of them",
        )
        # Augmentation, which frozen layers limit
        train = self.train
        trains_all_blocks = train.stages[-1] in ("all", "lora")
        is_cached = len(train.stages) == 1 and not trains_all_blocks and train.augment == "none"
        require(
            train.views == 0 or is_cached,
            f"train.views={train.views} needs cached features",
            fix="remove it, or use --train head, pre_logits or blocks:N with train.augment=none",
        )
        require(
            train.augment != "shift" or trains_all_blocks,
            "train.augment=shift cannot be combined with the frozen layers of "
            f"train.layers={train.layers}",
            fix="use train.augment=crop, or --train all",
        )
        for name in ("mixup", "cutmix", "erasing", "drop_path"):
            require(
                not getattr(train, name) or trains_all_blocks,
                f"train.{name}={getattr(train, name)} cannot be combined with the frozen layers "
                f"of train.layers={train.layers}, whose outputs are computed only once",
                fix="remove it, or use --train all or lora",
            )

    @property
    def balances(self) -> bool:
        """Whether classes are balanced, by loss weights or by sampling."""
        return self.optim.class_weights or self.train.sampling == "balanced"

    @property
    def solvable(self) -> bool:
        """Whether only a linear head is trained, on features that never change."""
        return self.train.layers == "head" and self.train.augment == "none"

    def solves(self, stage: str) -> bool:
        """Return whether L-BFGS fits a stage; it always fits a head that precedes other stages."""
        return stage == "head" and (self.optim.solver == "lbfgs" or self.train.layers != "head")


def check_patches(image_size: tuple[int, int], patch: int) -> None:
    """Check that patches with this side in pixels cover images (height, width) exactly.

    Raises:
        UsageError: They do not; the fix names the next smaller and larger sides that do.
    """
    common = math.gcd(*image_size)
    sides = [side for side in range(1, common + 1) if common % side == 0]
    near = [*(s for s in sides[1:] if s < patch)][-1:] + [s for s in sides if s > patch][:1]
    require(
        patch in sides,
        f"images of {image_size[0]} x {image_size[1]} pixels cannot be cut into patches of "
        f"{patch} x {patch} pixels (model.patch_size)",
        fix=f"use --set model.patch_size={' or '.join(map(str, near or sides))}, or another "
        f"--image-size, a multiple of {patch}",
    )


def _model_without_effect(weights: str) -> UsageError:
    """Return the error for settings of the architecture with pretrained weights."""
    return UsageError(
        "settings of the section [model] (model.norm etc.) have no effect on pretrained weights"
        f"{f' ({weights})' if weights else ''}",
        fix="remove them, or use --weights none",
    )


def config_from_table(table: Mapping[str, Any]) -> Config:
    """Convert nested tables to settings, with defaults that depend on the trained layers.

    Raises:
        UsageError: A key is unknown, a value has the wrong type or is not allowed, or the settings
            are not compatible.
    """
    sections: dict[str, Any] = {}
    for section, values in with_stage_defaults(table).items():
        if section not in SECTIONS:
            if not isinstance(values, Mapping):
                raise UsageError(f"unknown setting {section}", fix=suggest_setting(section))
            near = suggest(section, SECTIONS, cutoff=0.6)
            fix = f"use the section [{near[0]}]" if near else f"use one of {', '.join(SECTIONS)}"
            raise UsageError(f"unknown section {section}", fix=fix)
        if not isinstance(values, Mapping):
            raise UsageError(
                f"{section} is a section, not a value", fix=f"use it as a table: [{section}]"
            )
        sections[section] = section_from_table(section, values)
    return Config(**sections)


def section_from_table(section: str, values: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Convert a table to the settings of one section, without the checks between sections.

    Raises:
        UsageError: A key is unknown, or a value has the wrong type or is not allowed.
    """
    kinds, converted = settings_of(SECTIONS[section], section), {}
    for name, value in values.items():
        key = f"{section}.{name}"
        if name not in kinds:
            raise UsageError(f"unknown setting {key}", fix=suggest_setting(key))
        try:
            converted[name] = kinds[name].converted(value)
        except ValueError as error:
            raise invalid(key, value, kinds[name]) from error
    return SECTIONS[section](**converted)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the contents of a TOML file as nested tables, with settings under current names.

    Raises:
        UsageError: The file cannot be read or is not valid TOML in UTF-8.
    """
    try:
        table = tomllib.loads(read_regular(path, limit=_MAX_TOML_BYTES).decode("utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {describe_os_error(error)}", fix="check the path"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{path} is not valid TOML: {error}",
            fix='correct the file. Text needs quotes, e.g. layers = "blocks:1"',
        ) from error
    if isinstance(train := table.get("train"), dict):
        named = (current_setting(f"train.{name}", value) for name, value in train.items())
        table["train"] = {key.removeprefix("train."): value for key, value in named}
    return table


def read_run_config(run: Path) -> dict[str, dict[str, Any]]:
    """Return the sections of a run's config.toml without checking the values.

    Raises:
        RunError: The file is missing or not valid TOML, or a section is not a table.
    """
    path = run / "config.toml"
    try:
        table = read_toml(path)
    except UsageError as error:
        raise damaged_file(path, error.problem.removeprefix(f"{path} is ")) from error
    for name, section in table.items():
        if not isinstance(section, dict):
            raise damaged_file(path, f"{name} is not a section")
    return table


def checked_run_config(run: Path) -> Config:
    """Return the checked settings of a run.

    Raises:
        RunError: The file config.toml is missing or damaged, or a setting is invalid.
    """
    table = read_run_config(run)
    try:
        return config_from_table(table)
    except UsageError as error:
        raise damaged_file(run / "config.toml", error.problem) from error


def read_recipe(name: str) -> dict[str, Any]:
    """Return the settings of a bundled recipe or a TOML file, without the section `[recipe]`.

    Raises:
        UsageError: The recipe is unknown, or the file cannot be read or is not valid TOML.
    """
    path = Path(name)
    if not path.exists():
        folder = resource("recipes")
        path = folder / f"{name}.toml"
        if not path.exists():
            bundled, wanted = sorted(p.stem for p in folder.glob("*.toml")), Path(name)
            near = suggest(wanted.stem, bundled)
            if wanted.suffix == ".toml" and not near:
                near = sorted(map(str, Path().glob(f"*/{escape(wanted.name)}")))
            meant = f"did you mean {near[0]}? U" if near else "u"
            raise UsageError(
                f"unknown recipe {name!r}: there is no such file",
                fix=f"{meant}se a TOML file, or one of the recipes {', '.join(bundled)}",
            )
    table = read_toml(path)
    table.pop("recipe", None)
    return table


def parse_setting(text: str) -> tuple[str, Any]:
    """Return the key and the value in text such as `optim.lr=0.01`.

    A value that is not valid TOML is returned as text.

    Raises:
        UsageError: The text is not of the form KEY=VALUE.
    """
    key, equals, raw = text.partition("=")
    if not equals or not key:
        raise UsageError(
            f"invalid --set {text!r}: expected KEY=VALUE", fix="use e.g. --set optim.lr=0.01"
        )
    try:
        return key.strip(), tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), raw.strip() or raw  # data.separator may be a blank


def merge_settings(base: Mapping[str, Any], settings: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return nested tables updated with values given by dotted name; later values take precedence.

    Raises:
        UsageError: A name is unknown.
    """
    result = {k: dict(v) if isinstance(v, Mapping) else v for k, v in base.items()}
    for given, setting in settings:
        key, value = current_setting(given, setting)
        section, _, name = key.partition(".")
        if key not in SETTINGS:
            raise UsageError(f"unknown setting {key}", fix=suggest_setting(key))
        if isinstance(table := result.setdefault(section, {}), dict):
            table[name] = value
    return result


def flat_settings(config: Config) -> dict[str, Any]:
    """Return a mapping from the dotted name of each setting to its value."""
    tables = dataclasses.asdict(config)
    return {f"{s}.{key}": value for s, table in tables.items() for key, value in table.items()}


def to_toml(config: Config) -> str:
    """Convert the settings to TOML.

    Settings that are None are omitted, so that reading the TOML restores their defaults. So is the
    shape of a new model, if the run has weights.
    """
    tables = dataclasses.asdict(config)
    if config.weights.name != "none":
        del tables["model"]
    kept = {s: {k: v for k, v in t.items() if v is not None} for s, t in tables.items()}
    return tomli_w.dumps(kept)


# settings of a new run, as requested by a recipe and by options or arguments ----------------------


def requested_config(recipe: str | None, named: Sequence[tuple[str, Any]]) -> Config:
    """Return the settings of a new run, and log if they replace the solver of a head.

    `named` are settings by dotted name, which take precedence over the recipe or TOML file.

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
        raise _model_without_effect(config.weights.name)  # even if the values are the defaults
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
    """Return a line on the given settings because of which a head is trained, not solved, or ""."""
    optim = table.get("optim", {})
    if not config.solvable or config.optim.solver == "lbfgs" or "solver" in optim:
        return ""
    given = [f"optim.{name}" for name in optim if name in STEP_SETTINGS]
    need = f"{listing(given)} {'needs' if len(given) == 1 else 'need'}"
    return (
        f"solver:     {config.optim.solver} for {count(config.optim.epochs, 'epoch')}, because "
        f"{need} a training loop. Without it, lbfgs would fit the head, which is faster"
    )
