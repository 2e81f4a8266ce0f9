"""Execute notebooks, without Jupyter, and keep the outputs of their cells.

    python examples/execute.py examples/first_run.ipynb examples/look_inside.ipynb

A notebook runs in a new, temporary folder. The text and HTML of each cell's last expression are
written to the notebook. Magics, shell commands and rich outputs of other types are not supported.
"""

import argparse
import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

Cell = dict[str, Any]


def main(*notebooks: str) -> None:
    """Execute notebooks and write their outputs to them."""
    opened = {name: read_notebook(name) for name in notebooks}  # all, before the first one runs
    for name, notebook in opened.items():
        path = Path(name).resolve()
        print(f"{name}:", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            execute(notebook)
        text = json.dumps(notebook, ensure_ascii=False, indent=1)
        path.write_text(f"{text}\n", encoding="utf-8", newline="\n")
        print(f"{name}: {path.stat().st_size:,} bytes")


def read_notebook(name: str) -> dict[str, Any]:
    """Return the content of a notebook; exit with one sentence if the file is not one."""
    try:
        content = json.loads(Path(name).read_text(encoding="utf-8"))
    except ValueError:  # not UTF-8, or not JSON
        content = None
    except OSError as error:
        raise SystemExit(f"cannot read {name}: {error.strerror}") from error
    cells = content.get("cells") if isinstance(content, dict) else None
    if not isinstance(cells, list) or not all(map(is_cell, cells)):
        raise SystemExit(f"{name} is not a notebook: give an .ipynb file of format 4, with cells")
    return dict(content)


def is_cell(cell: object) -> bool:
    """Return whether a value has the fields of a notebook's cell that are used here."""
    if not isinstance(cell, dict) or "cell_type" not in cell:
        return False
    return isinstance(cell.get("source"), str | list)


def execute(notebook: dict[str, Any]) -> None:
    """Execute the code cells of a notebook in order, and replace their outputs.

    Each cell is announced on stderr.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, start=1):
        print(f"cell {number} of {len(cells)}", file=sys.stderr, flush=True)
        cell["outputs"] = execute_cell("".join(cell["source"]), names, number)
        cell["execution_count"] = number


def execute_cell(source: str, names: dict[str, Any], number: int) -> list[Cell]:
    """Execute the source of a cell and return its outputs."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"<cell {number}>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), names)
    outputs: list[Cell] = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines(text)})
    if value is not None:
        data = {"text/plain": lines(repr(value))}
        if (markup := getattr(value, "_repr_html_", lambda: None)()) is not None:
            data["text/html"] = lines(markup)
        outputs.append(
            {
                "output_type": "execute_result",
                "execution_count": number,
                "data": data,
                "metadata": {},
            }
        )
    return outputs


def lines(text: str) -> list[str]:
    """Return a text as the lines of the notebook format, each with its line break."""
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")  # outputs then repeat
    parser = argparse.ArgumentParser(description="Execute notebooks and keep their outputs.")
    parser.add_argument("notebooks", nargs="+", metavar="NOTEBOOK")
    given = parser.parse_args().notebooks
    for missing in (name for name in given if not Path(name).is_file()):
        parser.error(f"there is no notebook {missing}: give the path of an .ipynb file")
    main(*given)
