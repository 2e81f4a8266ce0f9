"""Options of `vitft finetune`, arguments of `vitft.finetune` and the corresponding settings."""

import inspect
import os
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from vitft.config.schema import settings_of, shown_value
from vitft.config.sections import DataSpec, ModelSpec, OptimSpec, TrainSpec, WeightsSpec
from vitft.system.errors import UsageError
from vitft.system.suggest import suggest

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


def current_setting(key: str, value: Any) -> tuple[str, Any]:  # noqa: ANN401
    """Return a setting under its current name, and with the current word for its value."""
    key = "train.layers" if key == "train.freeze" else key  # its former name
    if key == "train.layers" and isinstance(value, str):
        value = re.sub(r"\bnone\b", "all", value)
    return key, value


_SHORT_NAME = 3
"""Number of characters up to which a name is short, and similar to others by chance."""
_CLOSE = 0.8
"""Minimum similarity of short names, and of names of other sections."""


def find_setting(name: str, *, cutoff: float = 0.6) -> str | None:
    """Return the setting that an unknown name most likely means, or None if no name is similar.

    The last part of the name is matched first: `train.lr` means `optim.lr`, not `train.flip`. A
    name is similar if difflib's ratio is at least `cutoff`; short names, and those of other
    sections, must be very similar.
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
    close = max(cutoff, _CLOSE)
    near = (
        suggest(last, known, cutoff=1)
        or suggest(last, own, cutoff=close if len(last) <= _SHORT_NAME else cutoff)
        or suggest(last, names, cutoff=close if section else cutoff)
    )
    candidates = known[near[0]] if near else []
    return min(candidates, key=lambda name: not name.startswith(f"{section}."), default=None)


def suggest_setting(key: str) -> str:
    """Return the suggested fix for an unknown setting."""
    if (found := find_setting(key)) is not None:
        return f"use {found}"
    section = key.partition(".")[0]
    names = ", ".join(name for name in SETTINGS if name.startswith(f"{section}."))
    return f"use one of {names or 'the sections ' + ', '.join(SECTIONS)}"


# options of `vitft finetune`, arguments of `vitft.finetune` and the corresponding settings --------

_Given = ParamSpec("_Given")
_Outcome = TypeVar("_Outcome")


def option_settings(values: Mapping[str, object]) -> list[tuple[str, object]]:
    """Convert option values, given by keyword, to names and values of settings.

    Options with the value None are left out. The option `seed` sets two settings.

    Raises:
        UsageError: The name of the weights is empty, e.g. because a shell variable is not set.
    """
    if values.get("weights") == "":
        raise UsageError(
            "the name of the weights is empty",
            fix="use a name from `vitft weights list`, or leave out --weights",
        )
    settings: list[tuple[str, object]] = []
    for option in FINETUNE_OPTIONS:
        value = values.get(option.keyword)
        if value is None:
            continue
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, Sequence) and not isinstance(value, str):
            if option.type is str:
                value = ",".join(value)
            elif option.length and len(value) == 1:
                value = value[0]  # a single side length
        settings.append((option.key, value))
    if values.get("seed") is not None:
        settings += [(name, values["seed"]) for name in SEED_SETTINGS]
    return settings


def options_as_arguments(function: Callable[_Given, _Outcome]) -> Callable[_Given, _Outcome]:
    """Give `finetune` a docstring that describes all options, and errors with a fix.

    An unknown or unnamed argument is a UsageError. The signature stays the same.
    """
    known = inspect.signature(function).parameters

    @wraps(function)
    def checked(*args: _Given.args, **arguments: _Given.kwargs) -> _Outcome:
        if "freeze" in arguments and "train" not in arguments:  # its former name
            arguments["train"] = arguments.pop("freeze")
        if args:
            named = (  # a table is not printed
                f"{name}={'...' if hasattr(value, 'columns') else repr(value)}"
                for name, value in zip(known, args, strict=False)
            )
            raise UsageError("the arguments of finetune are named", fix=f"use {', '.join(named)}")
        if unknown := next((name for name in arguments if name not in known), None):
            near, setting = suggest(unknown, known), find_setting(unknown)
            fix = f"use {near[0]}" if near else f"use one of {', '.join(known)}"
            if setting and (not near or unknown.lower() in SETTINGS[setting].aliases.split()):
                option = SETTINGS[setting]
                fix = (
                    f"use {option.keyword}" if option.help else f'use settings={{"{setting}": ...}}'
                )
            raise UsageError(f"unknown argument {unknown}", fix=fix)
        return function(*args, **arguments)

    described = "".join(
        textwrap.fill(f"{option.keyword}: {option.text}.", 92, initial_indent=" " * 4,
                      subsequent_indent=" " * 8) + "\n"
        for option in FINETUNE_OPTIONS
    )  # fmt: skip
    checked.__doc__ = inspect.cleandoc(str(function.__doc__)).replace(
        "Args:\n", f"Args:\n{described}", 1
    )
    return checked


def check_argument_types(arguments: Mapping[str, object], settings: object) -> None:
    """Raise a UsageError if a path or `settings` has a type that `finetune` does not accept."""
    for name in ("data", "weights", "out", "recipe", "classes", "like", "fixes", "cache"):
        if not isinstance(value := arguments[name], str | os.PathLike | None):
            fix = 'pass one path or name, e.g. data="photos"'
            if hasattr(value, "to_csv"):
                fix = f'write a table with {name}.to_csv("{name}.csv", index=False), and pass '
                fix += f'{name}="{name}.csv"'
            raise UsageError(
                f"invalid {name}: expected a string or a path, got {type(value).__name__}", fix=fix
            )
    if not isinstance(settings, Mapping | None):
        raise UsageError(
            f"invalid settings: expected a mapping, got {type(settings).__name__}",
            fix='pass settings by name, e.g. settings={"optim.ema": 0.9}',
        )


def setting_words(key: str, value: object) -> list[str]:
    """Return the words of a command that set a setting: its own option, or `--set` without one."""
    option = SETTINGS[key]
    values = [*value] if isinstance(value, (list, tuple)) else [value]
    if key == "weights.image_size" and len({*values}) == 1:
        values = values[:1]  # a single side length
    texts = [shown_value(one) for one in values]
    is_list = len(values) > 1 and option.length is None
    if not option.help or is_list or not texts or any(text.startswith("-") for text in texts):
        return ["--set", f"{key}={shown_value(value)}"]
    if option.type is bool:
        return [option.flag] if value is True else ["--set", f"{key}={shown_value(value)}"]
    return [option.flag, *texts]
