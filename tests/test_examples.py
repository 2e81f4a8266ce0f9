"""The notebooks: they run, and their committed outputs are those of the code beside them."""

import html
import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import ended
from vitft.data import draw_demo

ROOT = Path(__file__).parents[1]
FLOWERS = {"daisy", "poppy", "rose", "sunflower", "tulip"}
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
EXECUTE = runpy.run_path(str(ROOT / "examples" / "execute.py"))["execute"]
MOST_BYTES = 300_000


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


MISSING = "there is no notebook nope.ipynb: give the path of an .ipynb file"


@pytest.mark.parametrize(("word", "said"), [("--help", "NOTEBOOK"), ("nope.ipynb", MISSING)])
def test_the_program_that_executes_notebooks_says_what_it_needs(word: str, said: str) -> None:
    done = ended([sys.executable, ROOT / "examples" / "execute.py", word])

    assert done.returncode == (0 if word == "--help" else 2)
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("content", ["plain text", "{}", '{"cells": [{}]}', "\xff"])
def test_a_file_that_is_not_a_notebook_is_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.ipynb"
    path.write_bytes(content.encode("latin-1"))

    done = ended([sys.executable, ROOT / "examples" / "execute.py", path])

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line == f"{path} is not a notebook: give an .ipynb file of format 4, with cells"
    assert path.read_bytes() == content.encode("latin-1")


def kinds(notebook: dict[str, Any]) -> list[list[tuple[str, list[str]]]]:
    """Return the types of the outputs of each code cell."""
    return [
        [(output["output_type"], sorted(output.get("data", ()))) for output in cell["outputs"]]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def words(notebook: dict[str, Any]) -> list[list[str]]:
    """Return the words that each code cell shows, in order, without numbers and classes."""
    found = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        text = []
        for output in cell["outputs"]:
            shown = [output.get("text", ()), *output.get("data", {}).values()]
            text += [line for lines in shown for line in lines]
        plain = re.sub(r"<(style|script|svg)\b.*?</\1>|<[^>]+>", " ", "".join(text), flags=re.S)
        every = re.findall(r"[^\W\d_]{2,}", html.unescape(plain))
        found.append([word for word in every if word not in FLOWERS])
    return found


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_showed_when_it_was_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if path.stem != "first_run":  # whose text depends on the accuracy
        drawn = draw_demo
        monkeypatch.setattr("vitft.data.demo.draw_demo", lambda root: drawn(root, per_class=12))
    written = read(path)
    notebook = read(path)

    EXECUTE(notebook)

    assert kinds(notebook) == kinds(written)
    assert words(notebook) == words(written), "stale: make notebooks"
    first = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    EXECUTE({"cells": [first]})  # trains again, in the same folder
    assert any("text/html" in types for cell in kinds(written) for _, types in cell)


def test_each_cell_of_a_notebook_is_announced_before_it_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sources = ["1", "import sys; print('second', file=sys.stderr)"]
    cells = [{"cell_type": "code", "source": [source]} for source in sources]

    EXECUTE({"cells": [{"cell_type": "markdown", "source": ["text"]}, *cells]})

    shown = capsys.readouterr()
    assert shown.err.splitlines() == ["cell 1 of 2", "cell 2 of 2", "second"]
    assert not shown.out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_without_traces_of_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert len(text.encode()) < MOST_BYTES
    assert not any(trace in text for trace in ("/home/", "/tmp/", "/root/", "Traceback"))
    for number, cell in enumerate(read(path)["cells"], start=1):
        assert cell["id"] == f"cell-{number}"
        assert set(cell) >= {"cell_type", "id", "metadata", "source"}


def test_an_error_in_a_cell_is_not_hidden() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_run", "look_inside"]
    cell = {"cell_type": "code", "source": ["1 / 0"], "outputs": []}

    with pytest.raises(ZeroDivisionError):
        EXECUTE({"cells": [cell]})
