"""Generate docs/settings.md and docs/options.md from the declarations of settings and options.

python docs/reference.py          # or: make docs
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from vitft.cli.guide import GUIDES
from vitft.cli.main import build_parser
from vitft.cli.parser import Parser
from vitft.config import defaults
from vitft.config.names import SECTIONS
from vitft.config.schema import setting_types

FILLED_IN = {"fixes_digest"}
"""Set by the run, not by its user."""
HEAD = """# Settings

Set any of these with `--set`, e.g. `--set optim.ema=0.999`, or in a TOML file for `--recipe`, under
its section. `vitft finetune ... --dry-run` prints the settings of a run.

`make docs` generates this page from `vitft/config/`.
"""
OPTIONS_HEAD = """# Options

All options of all commands. Every command also accepts `-v`, `-q` and `--debug`
([commands](commands.md)).

`make docs` generates this page from the help of the commands.
"""


def rows(section: type[Any]) -> Iterator[tuple[str, str, str, str]]:
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
            kind = str(setting_types(section)[field.name]).removeprefix("an ").removeprefix("a ")
            summary = setting_types(section)[field.name].named.help
            sentences = [f"{summary[:1].upper()}{summary[1:]}."] if summary else []
            meaning = " ".join([*sentences, meanings.get(field.name, "")]).rstrip()
            yield field.name, kind, repr(field.default), meaning


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
        for name, kind, default, meaning in rows(spec):
            cells = (f"`{table}.{name}`", kind, f"`{default}`", meaning)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    lines.append("## Defaults by trained layers\n")
    lines.append(
        "Defaults of SGD and AdamW that replace the ones above, by the last stage of\n"
        "`train.layers`. The learning rates are for models up to 192 wide. For blocks, lora and\n"
        "all, wider models use the rate times 192 / width.\n\n"
        "A head alone is fitted by L-BFGS. If a setting of the training loop is given, such as\n"
        "`optim.lr` or `optim.epochs`, or augmentation, AdamW trains it instead.\n"
    )
    lines += by_what_trains()
    return "\n".join(lines) + "\n"


def options_page() -> str:
    """Return the content of docs/options.md."""
    return OPTIONS_HEAD + "".join(described(build_parser()))


def described(parser: Parser) -> Iterator[str]:
    """Yield the sections of the page on the commands of a parser."""
    for command in parser.commands.values():
        if not command.commands:
            guide = GUIDES[command.prog.split()[1]]
            usage, page = command.format_usage(), guide.page.removeprefix("docs/")
            yield f"\n## {command.prog}\n\n`{usage.removeprefix('usage: ').rstrip()}`\n\n"
            yield f"{command.description} More in [{page}]({page}).\n"
            actions = command.shown_actions()
            yield "\n| option | meaning |\n|---|---|\n" * bool(actions)
            for action in actions:
                cells = (f"`{command.shown_usage(action)}`", command.help_of(action))
                yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
        yield from described(command)


if __name__ == "__main__":
    for name, text in (("settings.md", settings_page()), ("options.md", options_page())):
        Path(__file__).with_name(name).write_text(text)
