"""Options of `vitft finetune`, arguments of `vitft.finetune` and the corresponding settings."""

import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, TypeVar

from vitft.config.names import ALIASES, SECTIONS, find_setting
from vitft.config.schema import SettingType, setting_types, shown_value
from vitft.system.errors import UsageError

Given = ParamSpec("Given")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Option:
    """A command-line option that corresponds to a setting."""

    setting: str
    help: str
    metavar: str = ""
    """Placeholder for the value in the help text, if the type alone is not informative."""
    default: str = ""
    """Default shown in the help, if it differs from the setting's default; `-` to show none."""
    name: str = ""
    """Argument of `vitft.finetune`, if it differs from the last part of the setting's name."""
    common: bool = False
    """Whether the help shows the option first."""

    @property
    def keyword(self) -> str:
        """Argument of `vitft.finetune`, such as `batch_size`."""
        return self.name or self.setting.partition(".")[2]

    @property
    def flag(self) -> str:
        """Command-line option, such as `--batch-size`."""
        return f"--{self.keyword.replace('_', '-')}"

    @property
    def setting_type(self) -> SettingType:
        """Type and allowed values of the setting."""
        section, _, name = self.setting.partition(".")
        return setting_types(SECTIONS[section])[name]

    @property
    def group(self) -> str:
        """Title of the option's group in the help."""
        section, _, name = self.setting.partition(".")
        if self.common:
            return "common options"
        if name == "device":
            return "run options"
        return "data options" if section == "data" else "advanced options"

    @property
    def placeholder(self) -> str:
        """Placeholder for the value in the help text."""
        kind = self.setting_type
        choices = "|".join(map(str, kind.choices))
        return self.metavar or choices or ("N" if kind.type is int else "X")

    @property
    def text(self) -> str:
        """Help text, with the default unless the option is a switch or `default` is `-`."""
        if self.setting_type.type is bool:
            return self.help
        section, _, name = self.setting.partition(".")
        default = self.default or shown_value(getattr(SECTIONS[section](), name))
        return f"{self.help} (default: {default})" if self.default != "-" else self.help


SEED_SETTINGS = ("data.seed", "train.seed")
"""Settings that the option `--seed` sets."""

FINETUNE_OPTIONS = (
    Option(
        "data.path",
        "folder with one folder per class, table of paths and labels, hf:NAME, wds:URL, "
        "torchvision:NAME, .npz file or demo",
        metavar="PATH",
        default="-",
        name="data",
        common=True,
    ),
    Option(
        "weights.name",
        "catalogue name (`vitft weights list`), weight file, hf:OWNER/NAME, timm:NAME, demo, or "
        "none to train from scratch",
        metavar="NAME",
        default="chosen by the number of images",
        name="weights",
        common=True,
    ),
    Option(
        "train.layers",
        "layers to train: head, blocks:N (the last N blocks), lora, all or pre_logits, or stages "
        "in turn: head,all",
        metavar="LAYERS",
        name="train",
        common=True,
    ),
    Option(
        "train.budget",
        "time to spend, e.g. 10m: trains more layers if trials show a gain (--max-time only stops)",
        metavar="TIME",
        default="no budget",
        common=True,
    ),
    Option(
        "optim.epochs",
        "passes over the training images (switches a head from the solver to steps)",
        default="20 for a head or pre_logits, 10 for more layers, 100 from scratch",
        common=True,
    ),
    Option(
        "optim.batch_size",
        "images per step (switches a head from the solver to steps)",
        default="8 to 32 by the number of images, 256 from scratch",
        common=True,
    ),
    Option(
        "optim.lr",
        "peak learning rate (switches a head from the solver to steps)",
        default="depends on the trained layers, see docs/settings.md",
        common=True,
    ),
    Option(
        "data.split",
        "how to choose validation images: by content (stable when you add files), at random, or as "
        "in the reference experiment",
    ),
    Option(
        "data.like",
        "earlier run whose held-out images are held out again, e.g. after you added images",
        metavar="RUN",
        default="-",
    ),
    Option(
        "data.val_from",
        "if the data has a test set only: draw validation images from training images (auto) or "
        "use the test set",
    ),
    Option(
        "data.fixes",
        "CSV file of images to drop or relabel, as written by `vitft check`",
        metavar="CSV",
        default="-",
    ),
    Option(
        "data.classes",
        "table with the columns class and new_class that renames, merges or drops classes",
        metavar="TABLE",
        default="-",
    ),
    Option("data.group_duplicates", "keep near-duplicates on the same side of the split"),
    Option(
        "data.group_by",
        "regular expression that captures the group (patient, video) in a path, whose images "
        "stay together",
        metavar="PATTERN",
        default="-",
    ),
    Option(
        "weights.image_size",
        "input size in pixels: one side, or height and width",
        metavar="PX",
        default="as in pretraining, or the size of the images (from scratch)",
    ),
    Option(
        "weights.fit",
        "how images fit the input: crop, squash (changes the aspect ratio) or pad (adds borders)",
        default="as in pretraining",
    ),
    Option("weights.pre_logits", "keep or drop a Linear + Tanh layer before the pretrained head"),
    Option(
        "weights.mean",
        "channel means for normalisation, from 0 to 1",
        default="taken from the weights",
    ),
    Option(
        "weights.std",
        "channel standard deviations for normalisation",
        default="taken from the weights",
    ),
    Option("weights.allow_pickle", "allow .pth files, which are pickles"),
    Option(
        "optim.solver",
        "lbfgs solves a head on cached features without steps, sgd and adamw train in steps",
        default="lbfgs for a head alone, else adamw",
    ),
    Option("train.views", "augmented copies of each training image to cache"),
    Option("train.keep_adapter", "also write the LoRA adapter for peft (with --train lora)"),
    Option("train.device", "device: auto, cpu, cuda, cuda:1 or mps", metavar="DEVICE"),
    Option(
        "train.cache",
        "folder of cached features, or none to disable the cache",
        metavar="DIR",
        default="~/.cache/vitft/features",
    ),
    Option(
        "train.tracker",
        "experiment tracker: tensorboard, mlflow or wandb (may be repeated)",
        metavar="NAME",
        default="none",
    ),
)


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
            if option.setting_type.type is str:
                value = ",".join(value)
            elif option.setting_type.length and len(value) == 1:
                value = value[0]  # a single side length
        settings.append((option.setting, value))
    if values.get("seed") is not None:
        settings += [(name, values["seed"]) for name in SEED_SETTINGS]
    return settings


def refuse_unknown_arguments(function: Callable[Given, Outcome]) -> Callable[Given, Outcome]:
    """Decorate `finetune`, so that an unknown or unnamed argument is a UsageError with a fix.

    Its signature, and so the check by a type checker, stays the same.
    """
    known = inspect.signature(function).parameters

    @wraps(function)
    def checked(*args: Given.args, **arguments: Given.kwargs) -> Outcome:
        if "freeze" in arguments and "train" not in arguments:  # its former name
            arguments["train"] = arguments.pop("freeze")
        if args:
            named = (  # a table is not printed
                f"{name}={'...' if hasattr(value, 'columns') else repr(value)}"
                for name, value in zip(known, args, strict=False)
            )
            raise UsageError("the arguments of finetune are named", fix=f"use {', '.join(named)}")
        if unknown := next((name for name in arguments if name not in known), None):
            raise UsageError(f"unknown argument {unknown}", fix=suggest_argument(unknown, known))
        return function(*args, **arguments)

    return checked


def suggest_argument(name: str, known: Collection[str]) -> str:
    """Return the suggested fix for an unknown argument of `finetune`."""
    near = get_close_matches(name, known, n=1, cutoff=0.7)
    setting = find_setting(name)
    if setting and (not near or name.lower() in ALIASES.get(setting, ())):
        keywords = [option.keyword for option in FINETUNE_OPTIONS if option.setting == setting]
        return f"use {keywords[0]}" if keywords else f'use settings={{"{setting}": ...}}'
    return f"use {near[0]}" if near else f"use one of {', '.join(known)}"


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
    option = next((one for one in FINETUNE_OPTIONS if one.setting == key), None)
    values = [*value] if isinstance(value, (list, tuple)) else [value]
    if key == "weights.image_size" and len({*values}) == 1:
        values = values[:1]  # a single side length
    texts = [shown_value(one) for one in values]
    is_list = option is not None and len(values) > 1 and option.setting_type.length is None
    if option is None or is_list or not texts or any(text.startswith("-") for text in texts):
        return ["--set", f"{key}={shown_value(value)}"]
    if option.setting_type.type is bool:
        return [option.flag] if value is True else ["--set", f"{key}={shown_value(value)}"]
    return [option.flag, *texts]
