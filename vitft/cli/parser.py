"""Argument parser that raises errors with a suggested fix."""

import argparse
import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NoReturn, Protocol

from vitft.system.errors import UsageError

FEW_CHOICES = 10
"""Most choices of an option that an error lists."""


FOREIGN_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "--config": ("--recipe",),
    "--cfg": ("--recipe",),
    "--json": ("--format json",),
    "--csv": ("--format csv",),
    "--model": ("--run", "--weights"),
    "--checkpoint": ("--run", "--weights"),
    "--ckpt": ("--run", "--weights"),
    "--output-dir": ("--out",),
    "--save-dir": ("--out",),
    "--resume-from-checkpoint": ("--resume",),
}
"""Options of other tools, with the options of vitft that are suggested for them, if the command has
one of these. Names of settings are in `config.names.ALIASES`."""


class Parser(argparse.ArgumentParser):
    """ArgumentParser that raises a UsageError instead of exiting."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options, allow_abbrev=False)
        self.commands: dict[str, Parser] = {}
        self.settable: Collection[str] = ()
        """Settings that `--set` accepts in place of an unknown option."""

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError for an argparse message, suggesting a similar option or choice."""
        fix = f"run {self.prog} --help for usage"
        if sides := re.search(r"argument (--[\w-]+): invalid int value: '(\d+)x(\d+)'", message):
            option, height, width = sides.groups()
            pixels = height if height == width else f"{height} {width}"
            raise UsageError(message, fix=f"use {option} {pixels}")
        value = re.search(r"argument (--[\w-]+): invalid float value: '([^']+)'", message)
        if value and (number := plain_number(value[2])):
            raise UsageError(message, fix=f"use {value[1]} {number}")
        wrong = re.findall(r"(?:unrecognized arguments: |invalid choice: ')([^\s']+)", message)
        choices = re.findall(r"[\w.-]+", message.partition(" (choose from")[2])
        if wrong and (near := self.nearest(wrong[0], choices)):
            fix = f"use {near}"
        elif 0 < len(choices) <= FEW_CHOICES:
            fix = f"use one of {', '.join(choices)}"
        raise UsageError(message.partition(" (choose from")[0], fix=fix)

    def nearest(self, wrong: str, choices: Iterable[str]) -> str | None:
        """Return the option, command or choice that was probably meant, or None."""
        from vitft.config.names import find_setting
        from vitft.config.options import FINETUNE_OPTIONS

        known, wrong = self.words() | {*choices}, wrong.partition("=")[0]
        for other in FOREIGN_OPTIONS.get(wrong.lower().replace("_", "-"), ()):
            if other.split()[0] in known:
                return other
        setting = find_setting(wrong.removeprefix("--")) if wrong.startswith("--") else None
        aliases = [option.flag for option in FINETUNE_OPTIONS if option.setting == setting]
        near = get_close_matches(wrong, sorted(known), n=1, cutoff=0.7)
        usable = [flag for flag in aliases if flag in known]
        by_key = [f"--set {setting}=VALUE"] if setting in self.settable else []
        return next(iter([*near, *usable, *by_key]), None)

    def words(self) -> set[str]:
        """Return the names of all options and commands, including those of subcommands."""
        words = {*re.findall(r"--[a-z][a-z-]*", self.format_help()), *self.commands}
        return words.union(*(command.words() for command in self.commands.values()))


def plain_number(text: str) -> str:
    """Return `0.95` for `95%` and `0,95`, and an empty string for other text."""
    match = re.fullmatch(r"(\d+)(?:[.,](\d+))?( ?%)?", text.strip())
    if match is None:
        return ""
    number = float(f"{match[1]}.{match[2] or 0}")
    return f"{number / 100 if match[3] else number:g}"


class OptionGroup(Protocol):
    """A parser or one of its argument groups."""

    def add_argument(self, *flags: str, **options: Any) -> argparse.Action:  # noqa: ANN401
        """Add one option."""


class Commands:
    """Subcommands of a parser."""

    def __init__(self, parser: Parser, title: str) -> None:
        self.parser = parser
        self.action = parser.add_subparsers(
            title=title, metavar=title.upper().removesuffix("S"), required=True
        )

    def add_parser(self, name: str, *, help: str, **options: Any) -> Parser:  # noqa: ANN401
        """Add a subcommand and return its parser."""
        options.setdefault("description", f"{help[0].upper()}{help[1:]}.")
        command = self.action.add_parser(name, help=help, **options)
        self.parser.commands[name] = command
        return command


def add_threshold_options(parser: Parser) -> None:
    """Add the options for the threshold below which predictions are marked `not sure`."""
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="P",
        help='probability below which predictions are marked "not sure"',
    )
    parser.add_argument(
        "--precision",
        type=float,
        metavar="P",
        help="choose the lowest threshold with a precision of at least P; the precision is the "
        'fraction of correct predictions among those not marked "not sure", estimated from the '
        "validation images and from cross-validated predictions for the training images",
    )
