"""Settings of a fine-tuning run: their names, and values from files, options and arguments."""

import dataclasses
import logging
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from vitft.config.defaults import (
    STEP_SETTINGS,
    idle_augmentation,
    with_stage_defaults,
    without_effect,
)
from vitft.config.schema import invalid, require, settings_of, shown_value
from vitft.config.sections import DataSpec, ModelSpec, OptimSpec, TrainSpec, WeightsSpec
from vitft.system.errors import UsageError
from vitft.system.files import read_regular, resource
from vitft.system.rundir import damaged_file
from vitft.system.suggest import suggest
from vitft.system.text import count, describe_os_error, listing

log = logging.getLogger(__name__)
_MAX_TOML_BYTES = 2**24

# names of all settings, and suggestions for unknown names -----------------------------------------

SECTIONS: Mapping[str, type] = {
    "data": DataSpec,
    "weights": WeightsSpec,
    "model": ModelSpec,
    "train": TrainSpec,
    "optim": OptimSpec,
}
SETTINGS = {
    setting.key: setting
    for name, section in SECTIONS.items()
    for setting in settings_of(section, name).values()
}
"""All settings by dotted name."""
FINETUNE_OPTIONS = tuple(setting for setting in SETTINGS.values() if setting.help)
"""Settings that have an option of `vitft finetune`."""
SEED_SETTINGS = ("data.seed", "train.seed")
"""Settings that the option `--seed` sets."""


def _current_setting(key: str, value: Any) -> tuple[str, Any]:  # noqa: ANN401
    """Return a setting under its current name, and with the current word for its value."""
    key = "train.layers" if key == "train.freeze" else key  # its former name
    if key == "train.layers" and isinstance(value, str):
        value = re.sub(r"\bnone\b", "all", value)
    return key, value


_SHORT_NAME, _SIMILAR, _CLOSE = 3, 0.6, 0.8
"""Number of characters up to which a name is similar to others by chance; minimum ratio of difflib
for longer names of the same section, and for all others."""


def find_setting(name: str) -> str | None:
    """Return the setting that an unknown name most likely means, or None if no name is similar.

    The last part of the name is matched first: `train.lr` means `optim.lr`, not `train.flip`.
    """
    section, _, last = name.lower().replace("-", "_").rpartition(".")
    known: dict[str, list[str]] = {}
    for key, setting in SETTINGS.items():
        for other in (key.partition(".")[2], *setting.aliases.split()):
            known.setdefault(other, []).append(key)
    begun = [name for name in SETTINGS if section and name.startswith(f"{section}.{last}")]
    if last not in known and len(begun) == 1:
        return begun[0]
    names = [key for key in known if len(key) > _SHORT_NAME or f"{section}.{key}" in SETTINGS]
    own = [key for key in names if any(n.startswith(f"{section}.") for n in known[key])]
    near = (
        suggest(last, known, cutoff=1)
        or suggest(last, own, cutoff=_CLOSE if len(last) <= _SHORT_NAME else _SIMILAR)
        or suggest(last, names, cutoff=_CLOSE if section else _SIMILAR)
    )
    candidates = known[near[0]] if near else []
    return min(candidates, key=lambda name: not name.startswith(f"{section}."), default=None)


def _suggest_setting(key: str) -> str:
    """Return the suggested fix for an unknown setting."""
    if (found := find_setting(key)) is not None:
        return f"use {found}"
    section = key.partition(".")[0]
    names = ", ".join(name for name in SETTINGS if name.startswith(f"{section}."))
    return f"use one of {names or 'the sections ' + ', '.join(SECTIONS)}"


# all settings of a run, with the checks between sections ------------------------------------------


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
            not (self.train.teacher and is_lbfgs),
            f"train.teacher={self.train.teacher} has no use with optim.solver=lbfgs, which fits "
            "the head to the labels",
            fix="use --train blocks:N, lora or all without --budget, or --solver adamw",
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
        is_solved = self.solves(self.train.stages[0]) and not self.train.budget
        require(
            not self.weights.keep_head or (is_solved and self.train.head_blocks < 2),
            "weights.keep_head needs a head that lbfgs fits to the last block, without a budget",
            fix="remove --keep-head, or use --train head without options such as --epochs",
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
    """Check that patches with this side in pixels cover images (height, width) exactly."""
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
    return UsageError(
        "settings of the section [model] (model.norm etc.) have no effect on pretrained weights"
        f"{f' ({weights})' if weights else ''}",
        fix="remove them, or use --weights none",
    )


def config_from_table(table: Mapping[str, Any]) -> Config:
    """Convert nested tables to settings, with defaults that depend on the trained layers.

    Raises:
        UsageError: A key is unknown, a value is not allowed, or settings are not compatible.
    """
    sections: dict[str, Any] = {}
    for section, values in with_stage_defaults(table).items():
        if section not in SECTIONS:
            if not isinstance(values, Mapping):
                raise UsageError(f"unknown setting {section}", fix=_suggest_setting(section))
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
    """Convert a table to the settings of one section, without the checks between sections."""
    kinds, converted = settings_of(SECTIONS[section], section), {}
    for name, value in values.items():
        key = f"{section}.{name}"
        if name not in kinds:
            raise UsageError(f"unknown setting {key}", fix=_suggest_setting(key))
        try:
            converted[name] = kinds[name].converted(value)
        except ValueError as error:
            raise invalid(key, value, kinds[name]) from error
    return SECTIONS[section](**converted)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the contents of a TOML file as nested tables, with settings under current names."""
    try:
        table = tomllib.loads(read_regular(path, limit=_MAX_TOML_BYTES).decode("utf-8"))
    except OSError as error:
        problem = f"cannot read {path}: {describe_os_error(error)}"
        raise UsageError(problem, fix="check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{path} is not valid TOML: {error}",
            fix='correct the file. Text needs quotes, e.g. layers = "blocks:1"',
        ) from error
    if isinstance(train := table.get("train"), dict):
        named = (_current_setting(f"train.{name}", value) for name, value in train.items())
        table["train"] = {key.removeprefix("train."): value for key, value in named}
    return table


def read_run_config(run: Path) -> dict[str, dict[str, Any]]:
    """Return the sections of a run's config.toml without checking the values."""
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
    """Return the settings of a run; a file config.toml that is not valid is a RunError."""
    try:
        return config_from_table(read_run_config(run))
    except UsageError as error:
        raise damaged_file(run / "config.toml", error.problem) from error


def read_recipe(name: str) -> dict[str, Any]:
    """Return the settings of a bundled recipe or a TOML file, without the section `[recipe]`."""
    path = Path(name)
    if not path.exists():
        folder = resource("recipes")
        path = folder / f"{name}.toml"
        if not path.exists():
            bundled = sorted(p.stem for p in folder.glob("*.toml"))
            near = suggest(Path(name).stem, bundled)
            meant = f"did you mean {near[0]}? U" if near else "u"
            raise UsageError(
                f"unknown recipe {name!r}: there is no such file",
                fix=f"{meant}se a TOML file, or one of the recipes {', '.join(bundled)}",
            )
    table = read_toml(path)
    table.pop("recipe", None)
    return table


def parse_setting(text: str) -> tuple[str, Any]:
    """Return the key and the value in text such as `optim.lr=0.01`; other than TOML is text."""
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
    """Return nested tables updated with values given by dotted name; later values replace them."""
    result = {k: dict(v) if isinstance(v, Mapping) else v for k, v in base.items()}
    for given, setting in settings:
        key, value = _current_setting(given, setting)
        section, _, name = key.partition(".")
        if key not in SETTINGS:
            raise UsageError(f"unknown setting {key}", fix=_suggest_setting(key))
        if isinstance(table := result.setdefault(section, {}), dict):
            table[name] = value
    return result


def to_toml(config: Config) -> str:
    """Convert the settings to TOML, without those that are None, i.e. have their defaults."""
    tables = dataclasses.asdict(config)
    if config.weights.name != "none":
        del tables["model"]
    kept = {s: {k: v for k, v in t.items() if v is not None} for s, t in tables.items()}
    return tomli_w.dumps(kept)


# settings of a new run, as requested by a recipe and by options or arguments ----------------------


def requested_config(recipe: str | None, named: Sequence[tuple[str, Any]]) -> Config:
    """Return the settings of a new run, and log if they replace the solver of a head.

    `named` are settings by dotted name, which take precedence over the recipe or TOML file. Those
    without effect are an error. An error that would occur without them, too, names the recipe.
    """
    base = read_recipe(recipe) if recipe else {}
    if any(key == "train.teacher" and value is not None for key, value in named):
        base.get("train", {}).pop("teacher_digest", None)  # that of the recipe's teacher
    table = merge_settings(base, named)
    try:
        config = config_from_table(table)
    except UsageError as error:
        try:
            config_from_table(base)
        except UsageError as own:
            if recipe and own.problem == error.problem:
                raise UsageError(f"{recipe}: {error.problem}", fix=error.fix) from error
        raise
    if config.weights.name != "none" and any(key.startswith("model.") for key, _ in named):
        raise _model_without_effect(config.weights.name)  # even if the values are the defaults
    solver, train = config.optim.solver, config.train
    unused = without_effect(solver, len(train.stages))
    idle = idle_augmentation(train.augment, train.views) if not train.budget else ()
    for key, value in named:
        other = "adamw" if solver == "lbfgs" else "lbfgs"
        require(
            key not in unused,
            f"{key} has no effect with solver {solver}",
            fix=f"remove it, or use --solver {other}",
        )
        more = "--train all --set train.augment=shift" if key == "train.padding" else "--views 3"
        require(
            key not in idle or not value,  # a flip of 0 is obeyed without augmentation, too
            f"{key} has no effect with train.augment={train.augment}",
            fix=f"remove it, or add {more}",
        )
        require(
            key != "train.teacher_weight" or bool(train.teacher),
            f"{key} has no effect without a teacher",
            fix="remove it, or add --teacher RUN",
        )
    # A head that is trained, not solved, because of settings other than the solver
    optim, is_first = table.get("optim", {}), os.environ.get("RANK", "0") == "0"
    if config.solvable and solver != "lbfgs" and "solver" not in optim and is_first:
        given = [f"optim.{name}" for name in optim if name in STEP_SETTINGS]
        log.info(
            f"solver:     {solver} for {count(config.optim.epochs, 'epoch')}, because of "
            f"{listing(given)}. Without a training loop, lbfgs would fit the head, which is faster"
        )
    return config


# options of `vitft finetune`, arguments of `vitft.finetune` and the corresponding settings --------


def _option_settings(values: Mapping[str, object]) -> list[tuple[str, object]]:
    """Convert option values that are not None, by keyword, to settings; `seed` sets two of them."""
    settings: list[tuple[str, object]] = []
    for option in FINETUNE_OPTIONS:
        value = values.get(option.keyword)
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        is_empty = isinstance(value, str) and not value
        require(not is_empty, f"{option.flag} is empty", fix="use a value, or leave it out")
        if isinstance(value, Sequence) and not isinstance(value, str):
            if option.type is str:
                value = ",".join(value)
            elif option.length and len(value) == 1:
                value = value[0]  # a single side length
        settings.append((option.key, value))
    settings += [(name, values.get("seed")) for name in SEED_SETTINGS]
    return [(key, value) for key, value in settings if value is not None]


def joined_settings(
    options: Mapping[str, object], others: Iterable[tuple[str, object]], where: str
) -> list[tuple[str, object]]:
    """Return the settings of options and other ones, none of them twice."""
    given, others = _option_settings(options), [*others]
    if twice := {key for key, _ in given} & {key for key, _ in others}:
        raise UsageError(f"{min(twice)} is set both {where}", fix="remove one of them")
    return [*given, *others]


def setting_words(key: str, value: object) -> list[str]:
    """Return the words of a command that set a setting: its own option, or `--set` without one."""
    option = SETTINGS[key]
    values = [*value] if isinstance(value, (list, tuple)) else [value]
    if key == "weights.image_size" and len({*values}) == 1:
        values = values[:1]  # a single side length
    texts = [shown_value(one) for one in values]
    has_flag = option.help and texts and not any(text.startswith("-") for text in texts)
    if not has_flag or value is False or (len(values) > 1 and option.length is None):
        return ["--set", f"{key}={shown_value(value)}"]
    return [option.flag, *([] if option.type is bool else texts)]
