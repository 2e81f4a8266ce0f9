"""Generate docs/settings.md from the settings: names, allowed values, defaults and docstrings.

python docs/settings.py          # or: make docs
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

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
            yield field.name, kind, repr(field.default), meanings[field.name]


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


def page() -> str:
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
        "none, wider models use the rate times 192 / width.\n\n"
        "A head alone is fitted by L-BFGS. If a setting of the training loop is given, such as\n"
        "`optim.lr` or `optim.epochs`, or augmentation, AdamW trains it instead.\n"
    )
    lines += by_what_trains()
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("settings.md").write_text(page())
