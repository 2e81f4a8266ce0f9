"""Write docs/settings.md from the settings themselves: their names, types, defaults and docstrings.

python docs/settings.py          # or: make docs
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitft.config import defaults
from vitft.config import model as shape
from vitft.config import run as config
from vitft.config import training as specs

HERE = Path(__file__).parent
TABLES = {
    "data": config.DataSpec,
    "weights": config.WeightsSpec,
    "model": shape.ModelSpec,
    "optim": specs.OptimSpec,
    "train": specs.TrainSpec,
}
FILLED_IN = {"fixes_digest"}
"""By the run, not by its user."""
HEAD = """# Settings

Written by `make docs` from the modules of `vitft/config/`; a test
holds it true. Each may stand in a recipe or TOML file under its table, or behind `--set`:
`--set optim.ema=0.999`. `vitft finetune ... --dry-run` prints all of them as a run would take them.
"""


def rows(spec: type) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and meaning of each setting of a table."""
    (node,) = ast.parse(inspect.getsource(spec)).body
    assert isinstance(node, ast.ClassDef)
    found: list[list[str]] = []
    for line in node.body:
        if isinstance(line, ast.AnnAssign):
            default = "" if line.value is None else ast.unparse(line.value)
            found.append([ast.unparse(line.target), ast.unparse(line.annotation), default, ""])
        elif isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and found:
            found[-1][3] = " ".join(str(line.value.value).split())
    for name, kind, default, meaning in found:
        if name not in FILLED_IN:
            yield name, spoken(kind), default, meaning


def spoken(kind: str) -> str:
    """A type as a user would write its values."""
    if kind.startswith("Literal["):
        return kind.removeprefix("Literal[").removesuffix("]").replace(", ", " or ")
    words = {"str": "text", "bool": "true or false", "int": "whole number", "float": "number"}
    kind = kind.removesuffix(" | None")
    return words.get(kind, "list of numbers" if kind.startswith("tuple") else kind)


def by_what_trains() -> Iterator[str]:
    """The defaults that depend on train.freeze, as a table."""
    usual: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
        **defaults.STEPS,
        "weights none": defaults.FROM_SCRATCH,
    }
    yield "| what trains | settings |\n|---|---|"
    for what, tables in usual.items():
        told = [
            f"`{table}.{name}={str(value).lower() if isinstance(value, bool) else value}`"
            for table, values in tables.items()
            for name, value in values.items()
        ]
        lr = defaults.LEARNING_RATES.get(what)
        told += [f"`optim.lr={lr}`"] if lr else []
        yield f"| {what} | {', '.join(told)} |"


def page() -> str:
    """All of docs/settings.md."""
    lines = [HEAD]
    for table, spec in TABLES.items():
        lines += [f"## `{table}`: {spec.__doc__}\n"]
        lines += ["| setting | value | default | |\n|---|---|---|---|"]
        for name, kind, default, meaning in rows(spec):
            cells = (f"`{table}.{name}`", kind, f"`{default}`", meaning)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    lines.append("## By what trains\n")
    lines.append(
        "Once steps are taken, these stand above the defaults of the tables and below what is\n"
        "named. Learning rates are for models up to 192 wide; wider ones take that times\n"
        "192 / width, where more than a head trains.\n"
        "A head alone (`train.freeze=head` without augmentation) is solved and has no steps.\n"
    )
    lines += by_what_trains()
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "settings.md").write_text(page())
