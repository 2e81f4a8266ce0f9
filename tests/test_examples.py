"""The notebooks: they run, and their committed outputs are those of the code beside them."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from vitft.data import demo

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
EXECUTE = runpy.run_path(str(ROOT / "examples" / "execute.py"))["execute"]
MOST_BYTES = 300_000


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def kinds(notebook: dict[str, Any]) -> list[list[tuple[str, list[str]]]]:
    """Return the types of the outputs of each code cell."""
    return [
        [(output["output_type"], sorted(output.get("data", ()))) for output in cell["outputs"]]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_showed_when_it_was_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    drawn = demo.draw_demo
    monkeypatch.setattr(demo, "draw_demo", lambda root: drawn(root, per_class=12))
    written = read(path)
    notebook = read(path)

    EXECUTE(notebook)

    assert kinds(notebook) == kinds(written)
    first = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    EXECUTE({"cells": [first]})  # trains again, in the same folder
    assert any("text/html" in types for cell in kinds(written) for _, types in cell)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_without_traces_of_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert len(text.encode()) < MOST_BYTES
    assert not any(trace in text for trace in ("/home/", "/tmp/", "/root/", "Traceback"))
    for number, cell in enumerate(read(path)["cells"], start=1):
        assert cell["id"] == f"cell-{number}"
        assert set(cell) >= {"cell_type", "id", "metadata", "source"}


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_run", "look_inside"]


def test_an_error_in_a_cell_is_not_hidden() -> None:
    cell = {"cell_type": "code", "source": ["1 / 0"], "outputs": []}

    with pytest.raises(ZeroDivisionError):
        EXECUTE({"cells": [cell]})
