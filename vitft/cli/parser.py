"""Argument parser that raises errors with a suggested fix."""

import argparse
import os
import re
import shutil
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from vitft.cli.guide import COMMAND_GROUPS, GUIDES
from vitft.system.errors import UsageError
from vitft.system.rundir import BASE
from vitft.system.suggest import suggest
from vitft.system.text import listing, shell_join

_FEW_CHOICES = 10  # most choices of an option that an error lists

_FOREIGN = """
--recipe: --config --cfg
--format json: --json
--format csv: --csv
--threshold: --conf
--onnx: --openvino --engine --tensorrt
--torch-export: --coreml --tflite --litert --executorch
--run: --weights --model --checkpoint --ckpt
--weights: --model --checkpoint --ckpt
--out: --output-dir --save-dir --project --name
--resume: --resume-from-checkpoint
--html: --web --webpage --browser
finetune: train fit
predict: infer classify
evaluate: test val validate
explain --patches: patches
explain --method attention: attention
"""
"""Options and commands, and what other tools call them. Names of settings are in
`config.sections`."""


class _Once(argparse.Action):
    """Stores a value. A second, different one is an error instead of replacing the first.

    So is an empty one, e.g. of a shell variable that is not set.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,  # noqa: ANN401
        option_string: str | None = None,
    ) -> None:
        """Store the value of an option or argument."""
        first = vars(self).setdefault("first", values)  # the namespace may have an equal default
        both = [
            " ".join(map(str, one)) if isinstance(one, list) else str(one)
            for one in (first, values)
        ]
        if option_string and not both[1]:
            fix = f"use {option_string} {self.metavar}, or leave it out"
            raise UsageError(f"{option_string} is empty", fix=fix)
        if option_string and both[0] != both[1]:
            raise UsageError(
                f"{option_string} is given twice: {listing(both)}", fix="use only one of them"
            )
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """ArgumentParser that raises a UsageError instead of exiting."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(
            **options,
            allow_abbrev=False,
            add_help=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.register("action", "store", _Once)
        self.register("action", None, _Once)
        self.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
        self.commands: dict[str, Parser] = {}
        self.settable: Collection[str] = ()
        self.typed: Sequence[str] = ()
        """All arguments of the command line, beginning with the command."""

    def add_commands(self, title: str) -> None:
        """Make subcommands required, which `add_command` adds."""
        metavar = title.upper().removesuffix("S")
        self.choice = self.add_subparsers(title=title, metavar=metavar, required=True)

    def add_command(self, name: str, help_text: str) -> "Parser":
        """Add a subcommand and return its parser."""
        about = f"{help_text[0].upper()}{help_text[1:]}."
        command = self.choice.add_parser(name, help=help_text, description=about)
        self.commands[name] = command
        return command

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
        is_top = " " not in self.prog
        for title, names in COMMAND_GROUPS.items() if is_top else ():
            lines = (f"  {name:<9} {one.summary}" for name, one in names.items())
            blocks.append("\n".join([f"{title}:", *lines]))
        formatter = self._get_formatter()
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            if not (is_top and group is self._subparsers):
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
        if self.takes_images() and "--data" in words:
            return [word for word in words if word != "--data"]
        is_first = len(words) > 1 and not re.match(r"-|\w+=", words[1])
        if is_first and "--data" in self._option_string_actions and "--data" not in words:
            return [words[0], "--data", *words[1:]]
        return words

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError for an argparse message, suggesting a similar option or choice."""
        message, _, listed = message.partition(" (choose from")
        choices = re.findall(r"[\w.-]+", listed)
        fix = f"run {self.prog} --help for usage"
        if required := message.partition("arguments are required: ")[2]:
            known = {name: one.metavar for name, one in self._option_string_actions.items()}
            needed = [f"{n} {known.get(n) or ''}".rstrip() for n in required.split(", ")]
            any_of = f"one of {', '.join(self.commands)}" if self.commands else listing(needed)
            fix = f"add {any_of}, or {fix}"
        elif number := re.search(r"argument (\S+): invalid (int|float) value: '(.*)'", message):
            message = f"invalid {number[1]} {number[3]}"
            fix = f"use a {'whole ' * (number[2] == 'int')}number"
            if meant := _number_meant(number[2], number[3]):
                fix = f"use {number[1]} {meant}"
        elif "not allowed with" in message:
            fix = "use only one of them"
        elif corrected := self.corrected(message):
            fix = corrected
        elif wrong := re.search(
            r"(?:unrecognized arguments: |invalid choice: ')([^\s']+)", message
        ):
            message = re.sub(r"argument (\S+): invalid choice: '(.*)'", r"invalid \1 \2", message)
            message = re.sub(
                r"^invalid (COMMAND|ACTION)", lambda it: f"unknown {it[1].lower()}", message
            )
            if near := self.nearest(wrong[1], choices):
                fix = f"use {near}"
            elif 0 < len(choices) <= _FEW_CHOICES:
                fix = f"use {'one of ' * (len(choices) > 1)}{', '.join(choices)}"
        raise UsageError(message, fix=fix)

    def corrected(self, message: str) -> str:
        """Return a fix with the whole command if an option is missing or superfluous, or ""."""
        unknown = message.partition("unrecognized arguments: ")[2]
        if not unknown or unknown not in self.typed or re.match(r"-|\w+=", unknown):
            return ""
        known = self._option_string_actions
        text, option, value = "the output is named", "--out", unknown
        if "--run" in known and (os.path.lexists(unknown) or unknown.startswith(f"{BASE}{os.sep}")):
            text, option = "the model is given", "--run"
        elif "--out" in known and known["--out"].metavar == "DIR":
            value = unknown.removesuffix(Path(unknown).suffix)
        exists = option == "--out" and os.path.lexists(unknown)
        if option not in known or option in self.typed or exists:
            return ""
        at = self.typed.index(unknown)
        words = [*self.typed[:at], option, value, *self.typed[at + 1 :]]
        return f"{text} with {option}: {shell_join(['vitft', *words])}"

    def nearest(self, wrong: str, choices: Iterable[str]) -> str | None:
        """Return the option, command or choice that was probably meant, or None."""
        from vitft.config.run import SETTINGS, find_setting

        wrong = wrong.partition("=")[0]
        known = (self.words() | {*choices}) - {wrong}  # another action may have it
        for line in _FOREIGN.strip().splitlines():
            ours, _, others = line.partition(": ")
            if wrong.lower().replace("_", "-") in others.split() and ours.split()[0] in known:
                return ours
        near = suggest(wrong, sorted(known))
        key = find_setting(wrong.removeprefix("--")) if wrong.startswith("--") else None
        if key is None:
            return next(iter(near), None)
        if key == "data.path" and self.takes_images():
            return f"no option for the images: {self.format_usage().partition(' ')[2].rstrip()}"
        usable = [flag for flag in [SETTINGS[key].flag] if flag in known]
        is_alias = wrong[2:].lower().replace("-", "_") in SETTINGS[key].aliases.split()
        found = [*usable, *near] if is_alias else [*near, *usable]  # `--images` is `--data`
        return next(iter([*found, *[f"--set {key}=VALUE"] * (key in self.settable)]), None)

    def takes_images(self) -> bool:
        """Return whether images, or a folder of images, are a positional argument."""
        return any(one.dest in ("images", "data") for one in self._get_positional_actions())

    def words(self) -> set[str]:
        """Return the names of all options and commands, including those of subcommands."""
        words = {*self.commands, "--help"}.union(*(a.option_strings for a in self.shown_actions()))
        return words.union(*(command.words() for command in self.commands.values()))


def _number_meant(kind: str, text: str) -> str:
    """Return the number that was probably meant, e.g. 0.95 for `95%` and `9 6` for `9x6`, or ""."""
    if kind == "int":
        sides = re.fullmatch(r"(\d+)x(\d+)", text)
        return " ".join(dict.fromkeys(sides.groups())) if sides else ""
    share = re.fullmatch(r" *(\d+)(?:[.,](\d+))?( ?%)? *", text)
    return f"{float(f'{share[1]}.{share[2] or 0}') / (100 if share[3] else 1):g}" if share else ""


# declaration of arguments by the text of their help -----------------------------------------------

_SHARED = """
--run DIR  run directory, checkpoint or export (default: runs/latest)
--device DEVICE  device: auto, cpu, cuda, cuda:1 or mps (default: auto)
--threshold P  mark predictions as "not sure" if their probability is below P (several labels: the
    probability that predicts a label)
--precision P  choose the threshold: mark predictions as "not sure" so that about P of the others
    are correct
--confidence C  choose the threshold of --precision so that its precision is at least P with
    probability C
--cache DIR  folder of cached features, or none to disable the cache (default:
    ~/.cache/vitft/features)
--allow-pickle  allow .pth files, which are pickles
--format table|json := table  output format
--host ADDRESS := 127.0.0.1  address to listen on
--allow-private-addresses  also download from this machine and its local network
--set KEY=VALUE  how to read a table of labels, e.g. data.label=species (may be repeated)
"""
"""Options that several commands have in common."""
_TYPES = {"N": int, "K": int, "PX": int, "PORT": int, "P": float, "C": float, "X": float,
          "FRACTION": float, "GB": float}  # fmt: skip
"""Types of values by placeholder; others are text."""

_Run = Callable[[argparse.Namespace], int]
_COMMANDS: dict[str, tuple["Command", _Run]] = {}


@dataclass(frozen=True, slots=True)
class Command:
    """Decorator that declares the arguments of a command, or of an action of a command."""

    name: str  # such as `predict` or, for an action, `weights list`
    options: str = ""
    """Arguments, one line each, under the titles of their sections:

        runs RUN ...           a positional argument: one or more, `[RUN]` at most one, `[RUN ...]`
                               any number, `RUN` exactly one
        common options:        the title of a section, perhaps with a description after two spaces
        --tta                  a switch
        --top-k K := 1         an option with its default, which is appended to the help
        --format csv|json      an option with choices
        --list FILE            with a help that has `(may be repeated)`, a list of values
        --device               an option of `_SHARED`

    The help follows after two spaces, `-` for none, and its further lines are indented.
    """
    _: KW_ONLY
    help: str = ""  # help of an action; that of a command is in `cli.guide`
    description: str = ""
    epilog: str = ""
    usage: str = ""
    exclusive: Sequence[str] = ()  # options of which only one can be used
    changed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Properties for argparse by the name of the argument."""
    settable: Collection[str] = ()  # settings that `--set` accepts in place of an unknown option
    defaults: Mapping[str, object] = field(default_factory=dict)

    def __call__(self, run: _Run) -> _Run:
        """Declare that the command calls the function `run`."""
        _COMMANDS[self.name] = self, run
        return run

    def add_to(self, parser: Parser, run: _Run) -> None:
        """Add the arguments to the parser of the command."""
        parser.description = self.description or parser.description
        parser.epilog, parser.usage, parser.settable = self.epilog, self.usage, self.settable
        parser.set_defaults(command=run)
        shared = {line.split(" ", 1)[0]: line for line in _entries(_SHARED)}
        group: argparse._ActionsContainer = parser
        for line in _entries(self.options):
            if title := re.fullmatch(r"((?:\w+ )*\w+):(?:  (.+))?", line):
                sections = {one.title: one for one in parser._action_groups}
                group = sections.get(title[1]) or parser.add_argument_group(title[1])
                group.description = title[2]
                continue
            declared, help_text = shared.get(line, line).split("  ", 1)
            flag = declared.partition(" ")[0]
            changed = self.changed.get(flag.lstrip("-").replace("-", "_"), {})
            group.add_argument(flag, **{**_kind_of(declared, help_text), **changed})
        parser.set_defaults(**self.defaults)
        together = parser.add_mutually_exclusive_group()
        together._group_actions += [parser._option_string_actions[name] for name in self.exclusive]


def add_command(parser: Parser, name: str) -> None:
    """Add the arguments of a command whose module has been imported, or its actions."""
    if name in _COMMANDS:
        declared, run = _COMMANDS[name]
        declared.add_to(parser, run)
        return
    parser.add_commands("actions")
    for key, (declared, run) in _COMMANDS.items():
        if key.startswith(f"{name} "):
            declared.add_to(parser.add_command(key.split()[1], declared.help), run)


def given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the values of those options that were used."""
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def _kind_of(declared: str, help_text: str) -> dict[str, Any]:
    """Return the properties for argparse of an argument, which is e.g. `--top-k K := 1`."""
    argument, _, default = declared.partition(" := ")
    value = argument.partition(" ")[2]
    metavar = value.strip("[]").removesuffix(" ...")
    kind: dict[str, Any] = {"action": "store_true"}
    if "|" in value and value.islower():
        kind = {"choices": tuple(value.split("|"))}
    elif "(may be repeated)" in help_text:
        kind = {"metavar": metavar, "action": "append", "default": []}
    elif value:
        number = value.removeprefix("[")[len(metavar) :]
        nargs = {"": None, " ...": "+", "]": "?", " ...]": "*"}[number]
        kind = {"metavar": metavar, "type": _TYPES.get(metavar), "nargs": nargs}
    if default:
        kind["default"] = _TYPES.get(metavar, str)(default)
        help_text += f" (default: {default})" * ("(default" not in help_text)
    kind["help"] = argparse.SUPPRESS if help_text == "-" else help_text.replace("%", "%%")
    return kind


def _entries(text: str) -> list[str]:
    """Return the lines of a declaration, each joined with its indented continuation lines."""
    return re.sub(r"\n +", " ", text.strip()).splitlines()
