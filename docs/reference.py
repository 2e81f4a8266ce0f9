"""Generate docs/settings.md and docs/options.md from the declarations of settings and options.

python docs/reference.py          # or: make docs
"""

import ast
import inspect
import json
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from vitft.cli.guide import GUIDES
from vitft.cli.main import build_parser
from vitft.cli.parser import Parser
from vitft.config import defaults
from vitft.config.run import SECTIONS
from vitft.config.schema import settings_of

FILLED_IN = {"fixes_digest"}
"""Set by the run, not by its user."""
SHORTER = {
    "^an? ": "",
    "^(string|true or false)$": "",
    r"of (\d+) or more": r"≥ \1",
    r"from 0 up to but not including 1": "≥ 0, < 1",
    "above 0 and (at most|below) 1": lambda found: f"> 0, {'<' if found[1] == 'below' else '≤'} 1",
    "above 0": "> 0",
    r"^number (from )?|(?<=integer )from ": "",
}
"""Words of a type, and what stands in the table in their place."""
HEAD = """# Settings

Set any of these with `--set optim.ema=0.999`, or in a TOML file for `--recipe`. If a
setting has an option, such as `--fit`, it is described under [options](options.md#vitft-finetune).
An empty value column means text, or true and false. Columns of a table have
[usual names](tables.md#columns) by default.
"""
OPTIONS_HEAD = """# Commands and options

`vitft COMMAND --help` prints the same. Every command also accepts `-v` (more detail), `-q` (results
and warnings only) and `--debug` (tracebacks).

## Common options

"""


def rows(table: str, section: type[Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, allowed values, default and meaning of each setting of a section."""
    (node,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(node, ast.ClassDef)
    meanings: dict[str, str] = {}
    for line, text in pairwise(node.body):
        if isinstance(line, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(text.value, ast.Constant)
            meanings[ast.unparse(line.target)] = " ".join(str(text.value.value).split())
    for field in fields(section):
        if field.name not in FILLED_IN:
            setting = settings_of(section, table)[field.name]
            option = f"`{setting.flag}`. " if setting.help else ""
            meaning = option + meanings.get(field.name, "")
            kind = str(setting)
            for words, shorter in SHORTER.items():
                kind = re.sub(words, shorter, kind)
            default = "" if field.default in ("", None) else f"`{json.dumps(field.default)}`"
            yield field.name, kind, default, meaning.strip()


def by_what_trains() -> Iterator[str]:
    """Yield the lines of the table of defaults that depend on train.layers."""
    by_stage: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
        **defaults.STAGE_DEFAULTS,
        "weights none": defaults.FROM_SCRATCH,
    }
    yield "| trained layers | settings |\n|---|---|"
    for what, tables in by_stage.items():
        cells = [
            f"`{table}.{name}={str(value).lower() if isinstance(value, bool) else value}`"
            for table, values in tables.items()
            for name, value in values.items()
            if name != "solver"
        ]
        lr = defaults.LEARNING_RATES.get(what)
        cells += [f"`optim.lr={lr}`"] if lr else []
        yield f"| {what} | {', '.join(cells)} |"


def settings_page() -> str:
    """Return the content of docs/settings.md."""
    lines = [HEAD]
    for table, spec in SECTIONS.items():
        lines += [f"## `{table}`: {spec.__doc__}\n"]
        lines += ["| setting | value | default | |\n|---|---|---|---|"]
        for name, kind, default, meaning in rows(table, spec):
            cells = (f"`{table}.{name}`", kind, default, meaning)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    lines.append("## Defaults by trained layers\n")
    lines.append(
        "These replace the defaults above, by the last stage of `train.layers`. All use\n"
        "`optim.solver=adamw`, except a head without augmentation or settings of the training\n"
        "loop, such as `optim.epochs`. The learning rates are for models up to 192 wide. For\n"
        "blocks, lora and all, wider models use the rate times 192 / width.\n"
    )
    lines += by_what_trains()
    return "\n".join(lines) + "\n"


def options_page() -> str:
    """Return the content of docs/options.md."""
    every = list(with_options(build_parser()))
    options = [option for command in every for option in options_of(command)]
    common = {option: None for option in options if options.count(option) > 2}
    return OPTIONS_HEAD + "".join([*map(row, common), *(section(one, common) for one in every)])


def with_options(parser: Parser) -> Iterator[Parser]:
    """Yield the commands of a parser that have no commands of their own."""
    for command in parser.commands.values():
        if not command.commands:
            yield command
        yield from with_options(command)


def options_of(command: Parser) -> list[tuple[str, str]]:
    """Return usage and meaning of the options of a command."""
    return [
        (
            command.shown_usage(action),
            command.help_of(action)
            + " (required)" * (action.required and bool(action.option_strings)),
        )
        for action in command.shown_actions()
    ]


def row(option: tuple[str, str]) -> str:
    """Return a line of a list of options."""
    usage, meaning = option
    return f"- `{usage}`: {meaning}\n"


def section(command: Parser, common: Container[tuple[str, str]]) -> str:
    """Return the section of the page on a command."""
    summary = str(command.description).partition(". ")[0].removesuffix(".")
    page = GUIDES[command.prog.split()[1]].page.removeprefix("docs/")
    own = [row(option) for option in options_of(command) if option not in common]
    also = [f"`{usage.split()[0]}`" for usage, _ in options_of(command) if (usage, _) in common]
    return (
        f"\n## {command.prog}\n\n{summary}. [Guide]({page}).\n"
        + "\n" * bool(own)
        + "".join(own)
        + f"\n[Also](#common-options) {', '.join(also)}.\n" * bool(also)
    )


if __name__ == "__main__":
    for name, text in (("settings.md", settings_page()), ("options.md", options_page())):
        Path(__file__).with_name(name).write_text(text)
