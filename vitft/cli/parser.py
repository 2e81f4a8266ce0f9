"""Argument parser that raises errors with a suggested fix."""

import argparse
import os
import re
import shutil
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

from vitft.cli.guide import GUIDES
from vitft.system.errors import UsageError
from vitft.system.rundir import BASE
from vitft.system.suggest import suggest
from vitft.system.text import listing, shell_join

_FEW_CHOICES = 10
"""Most choices of an option that an error lists."""

_FOREIGN_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "--config": ("--recipe",),
    "--cfg": ("--recipe",),
    "--json": ("--format json",),
    "--csv": ("--format csv",),
    "--conf": ("--threshold",),
    "--openvino": ("--onnx",),
    "--coreml": ("--torch-export",),
    "--tflite": ("--torch-export",),
    "--litert": ("--torch-export",),
    "--executorch": ("--torch-export",),
    "--engine": ("--onnx",),
    "--tensorrt": ("--onnx",),
    "--weights": ("--run",),
    "--model": ("--run", "--weights"),
    "--checkpoint": ("--run", "--weights"),
    "--ckpt": ("--run", "--weights"),
    "--output-dir": ("--out",),
    "--save-dir": ("--out",),
    "--project": ("--out",),
    "--name": ("--out",),
    "--resume-from-checkpoint": ("--resume",),
    "--web": ("--html",),
    "--webpage": ("--html",),
    "--browser": ("--html",),
    "train": ("finetune",),
    "fit": ("finetune",),
    "infer": ("predict",),
    "classify": ("predict",),
    "test": ("evaluate",),
    "val": ("evaluate",),
    "validate": ("evaluate",),
    "patches": ("explain --patches",),
    "attention": ("explain --method attention",),
}
"""Options and commands of other tools, with those of vitft that are suggested for them, if there is
one of these. Names of settings are in `config.names.ALIASES`."""
_IMAGE_ARGUMENTS = {"images", "data"}
"""Names of the positional arguments that are images or a folder of images."""


class Parser(argparse.ArgumentParser):
    """ArgumentParser that raises a UsageError instead of exiting."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(
            **options,
            allow_abbrev=False,
            add_help=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
        self.sections: dict[str, argparse._ArgumentGroup] = {}
        self.command_groups: dict[str, Collection[str]] = {}
        self.commands: dict[str, Parser] = {}
        self.summary = ""
        """One-line help of a subcommand."""
        self.settable: Collection[str] = ()
        """Settings that `--set` accepts in place of an unknown option."""
        self.typed: Sequence[str] = ()
        """All arguments of the command line, beginning with the command."""

    def section(self, title: str) -> argparse._ArgumentGroup:
        """Return the group of options with a title, which is added if it is new."""
        if title not in self.sections:
            self.sections[title] = self.add_argument_group(title)
        return self.sections[title]

    def format_usage(self) -> str:
        """Return the usage line, without the options that can be left out."""
        positional = self._get_positional_actions()
        needed = [one for one in self._actions if one.required and one not in positional]
        words = [self.prog, *map(self.shown_usage, [*needed, *positional])]
        words += ["[options]"] * (not self.commands and len(self.shown_actions()) > len(words) - 1)
        return f"usage: {self.usage or ' '.join(words)}\n"

    def format_help(self) -> str:
        """Return usage, description, examples, options by group, and the page to read."""
        guide = GUIDES.get(self.prog.partition(" ")[2].partition(" ")[0])
        width = max(40, shutil.get_terminal_size().columns - 2)
        blocks = [self.format_usage().rstrip(), textwrap.fill(self.description or "", width)]
        if guide and guide.examples:
            longest = max(map(len, guide.examples))
            lines = (f"  {words:<{longest}}  {does}" for words, does in guide.examples.items())
            blocks.append("\n".join(["examples:", *lines]))
        for title, names in self.command_groups.items():
            lines = (f"  {name:<9} {self.commands[name].summary}" for name in names)
            blocks.append("\n".join([f"{title}:", *lines]))
        formatter = self._get_formatter()
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            if not (self.command_groups and group is self._subparsers):
                formatter.add_arguments(group._group_actions)
            formatter.end_section()
        blocks += [formatter.format_help().strip(), (self.epilog or "").strip()]
        blocks += [f"More in {guide.page}."] if guide else []
        return "\n\n".join(filter(None, blocks)) + "\n"

    def shown_actions(self) -> list[argparse.Action]:
        """Return the arguments that the help shows, group by group."""
        every = (action for group in self._action_groups for action in group._group_actions)
        return [action for action in every if action.help != argparse.SUPPRESS]

    def help_of(self, action: argparse.Action) -> str:
        """Return the help of an argument, with its default."""
        return self._get_formatter()._expand_help(action) if action.help else ""

    @staticmethod
    def shown_usage(action: argparse.Action) -> str:
        """Return an argument as in a usage line, e.g. `[IMAGE ...]` or `--data PATH`."""
        choices = f"{{{','.join(map(str, action.choices))}}}" if action.choices else ""
        name = str(action.metavar or choices or action.dest.upper())
        if action.option_strings:
            return " ".join([action.option_strings[-1], *([] if action.nargs == 0 else [name])])
        forms = {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} ...", "A...": f"{name} ..."}
        return forms.get(str(action.nargs), name)

    def with_images(self, words: list[str]) -> list[str]:
        """Return a command line's words, with the images in the form that this command expects.

        `check --data photos` means `check photos`, and `finetune photos` `finetune --data photos`.
        """
        takes = {action.dest for action in self._get_positional_actions()} & _IMAGE_ARGUMENTS
        if takes and "--data" in words:
            return [word for word in words if word != "--data"]
        is_first = len(words) > 1 and not re.match(r"-|\w+=", words[1])
        if is_first and "--data" in self._option_string_actions and "--data" not in words:
            return [words[0], "--data", *words[1:]]
        return words

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError for an argparse message, suggesting a similar option or choice."""
        fix = f"run {self.prog} --help for usage"
        required = message.partition("arguments are required: ")[2]
        if required and self.commands:
            fix = f"add one of {', '.join(self.commands)}, or {fix}"
        elif required:
            fix = f"add {listing(map(self.with_value, required.split(', ')))}, or {fix}"
        if sides := re.search(r"argument (--[\w-]+): invalid int value: '(\d+)x(\d+)'", message):
            option, height, width = sides.groups()
            pixels = height if height == width else f"{height} {width}"
            raise UsageError(message, fix=f"use {option} {pixels}")
        number = r" *(\d+)(?:[.,](\d+))?( ?%)? *"  # e.g. 95% or 0,95
        if value := re.search(rf"argument (--[\w-]+): invalid float value: '{number}'", message):
            meant = float(f"{value[2]}.{value[3] or 0}") / (100 if value[4] else 1)
            raise UsageError(message, fix=f"use {value[1]} {meant:g}")
        if corrected := self.corrected(message):
            raise UsageError(message, fix=corrected)
        wrong = re.findall(r"(?:unrecognized arguments: |invalid choice: ')([^\s']+)", message)
        choices = re.findall(r"[\w.-]+", message.partition(" (choose from")[2])
        if wrong and (near := self.nearest(wrong[0], choices)):
            fix = f"use {near}"
        elif 0 < len(choices) <= _FEW_CHOICES:
            fix = f"use {'one of ' * (len(choices) > 1)}{', '.join(choices)}"
        raise UsageError(message.partition(" (choose from")[0], fix=fix)

    def corrected(self, message: str) -> str:
        """Return a fix with the whole command if an option is missing or superfluous, or ""."""
        unknown = message.partition("unrecognized arguments: ")[2]
        if unknown not in self.typed or re.match(r"-|\w+=", unknown):
            return ""
        known = self._option_string_actions
        text, option, value = "the output is named", "--out", unknown
        if "--run" in known and (os.path.lexists(unknown) or unknown.startswith(f"{BASE}{os.sep}")):
            text, option = "the model is given", "--run"
        elif "--out" in known and known["--out"].metavar == "DIR":
            value = str(Path(unknown).with_suffix(""))
        if option not in known or option in self.typed:
            return ""
        at = self.typed.index(unknown)
        words = [*self.typed[:at], option, value, *self.typed[at + 1 :]]
        return f"{text} with {option}: {shell_join(['vitft', *words])}"

    def with_value(self, argument: str) -> str:
        """Return an option with the name of its value, e.g. `--out DIR`, or the argument itself."""
        action = self._option_string_actions.get(argument)
        return f"{argument} {action.metavar}" if action and action.metavar else argument

    def nearest(self, wrong: str, choices: Iterable[str]) -> str | None:
        """Return the option, command or choice that was probably meant, or None."""
        from vitft.config.options import ALIASES, FINETUNE_OPTIONS, find_setting

        wrong = wrong.partition("=")[0]
        known = (self.words() | {*choices}) - {wrong}  # another action may have it
        for other in _FOREIGN_OPTIONS.get(wrong.lower().replace("_", "-"), ()):
            if other.split()[0] in known:
                return other
        setting = find_setting(wrong.removeprefix("--")) if wrong.startswith("--") else None
        takes = {action.dest for action in self._get_positional_actions()} & _IMAGE_ARGUMENTS
        if setting == "data.path" and takes:
            return f"no option for the images: {self.format_usage().partition(' ')[2].rstrip()}"
        aliases = [option.flag for option in FINETUNE_OPTIONS if option.setting == setting]
        near = suggest(wrong, sorted(known))
        usable = [flag for flag in aliases if flag in known]
        if setting and wrong[2:].lower().replace("-", "_") in ALIASES.get(setting, ()):
            near = usable or near  # `--images` is `--data`, not `--image-size`
        by_key = [f"--set {setting}=VALUE"] if setting in self.settable else []
        return next(iter([*near, *usable, *by_key]), None)

    def words(self) -> set[str]:
        """Return the names of all options and commands, including those of subcommands."""
        words = {*self.commands, "--help"}.union(*(a.option_strings for a in self.shown_actions()))
        return words.union(*(command.words() for command in self.commands.values()))


class OptionGroup(Protocol):
    """A parser or one of its argument groups."""

    def add_argument(self, *flags: str, **options: Any) -> argparse.Action:  # noqa: ANN401
        """Add one option."""


def add_options(group: OptionGroup, texts: Mapping[str, str], **properties: Any) -> None:  # noqa: ANN401
    """Add options, given as e.g. `--out DIR` with their help; one without a value is a switch."""
    for words, text in texts.items():
        flag, _, metavar = words.partition(" ")
        kind: dict[str, Any] = {"metavar": metavar} if metavar else {"action": "store_true"}
        group.add_argument(flag, help=text, **kind, **properties)


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
        command.summary = help
        self.parser.commands[name] = command
        return command


# options that several commands have in common, each declared once ---------------------------------

_SHARED_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--run": {
        "metavar": "DIR",
        "help": "run directory, checkpoint or export (default: runs/latest)",
    },
    "--device": {"help": "device: auto, cpu, cuda, cuda:1 or mps (default: auto)"},
    "--threshold": {
        "type": float,
        "metavar": "P",
        "help": 'mark predictions as "not sure" if their probability is below P (several labels: '
        "the probability that predicts a label)",
    },
    "--precision": {
        "type": float,
        "metavar": "P",
        "help": 'choose the threshold: mark predictions as "not sure" so that about P of the '
        "others are correct",
    },
    "--cache": {
        "metavar": "DIR",
        "help": "folder of cached features, or none to disable the cache (default: "
        "~/.cache/vitft/features)",
    },
    "--allow-pickle": {"action": "store_true", "help": "allow .pth files, which are pickles"},
    "--format": {
        "choices": ("table", "json"),
        "default": "table",
        "help": "output format (default: table)",
    },
    "--host": {
        "default": "127.0.0.1",
        "metavar": "ADDRESS",
        "help": "address to listen on (default: 127.0.0.1)",
    },
    "--port": {
        "type": int,
        "help": "port to listen on, or 0 for any free port (default: %(default)s)",
    },
}


def add_shared(group: OptionGroup, *flags: str, **changed: Any) -> None:  # noqa: ANN401
    """Add shared options, with some of their properties changed."""
    for flag in flags:
        group.add_argument(flag, **{**_SHARED_OPTIONS[flag], **changed})
