"""What the commands need of the operating system: nothing that Windows lacks.

The tests run on any system. `support.like_windows` lists what they hide, and what they cannot
show.
"""

import ast
import io
import os
import subprocess
import sys
import tomllib
from pathlib import Path, PureWindowsPath

import pytest

from tests.support.like_windows import RESERVED
from vitft.cli.output import SafeStream
from vitft.config import config_from_table, to_toml
from vitft.data import draw_demo
from vitft.explain import safe_stem
from vitft.system import plan_run, run_path, shell_join

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
COMMANDS = """
import os, sys
from tests.support import like_windows

like_windows.hide()
from vitft.cli.main import main

def run(*arguments):
    if code := main([*arguments, "--debug"]):
        sys.exit(f"{arguments} ended with {code}")

def main_path():
    start = ["finetune", "--data", "flowers", "--weights", "demo", "--cache", "cache"]
    run(*start)
    run(*start, "--train", "blocks:1", "--epochs", "1")
    run("predict", "flowers/rose", "--format", "csv", "--out", "answers.csv")
    run("predict", "flowers/rose", "--format", "csv", "--out", "answers.csv", "--resume")
    run("evaluate", "--data", "flowers", "--out", "evaluated", "--run", "runs/latest")
    run("check", "flowers", "--weights", "demo", "--cache", "cache", "--out", "checked")
    run("explain", "flowers/rose/0001.jpg", "--out", "explained")
    run("export", "--safetensors", "--onnx", "--html", "--preprocessing", "--out", "exported")
    run("report", "--run", "runs/latest")
    run("compare", *sorted(f"runs/{name}" for name in os.listdir("runs") if name != "latest"))

if __name__ == "__main__":
    main_path()
"""


def test_the_commands_run_where_windows_is_stricter(tmp_path: Path) -> None:
    draw_demo(tmp_path / "flowers", per_class=8)
    (tmp_path / "commands.py").write_text(COMMANDS, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "commands.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONIOENCODING": "cp1252",
            "USERNAME": "user",  # Windows sets it, and torch asks for it
        },
        capture_output=True,
        encoding="cp1252",
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "\\u" not in done.stdout + done.stderr
    latest = tmp_path / "runs" / "latest"
    assert latest.is_file()
    assert not latest.is_symlink()
    for table in tmp_path.rglob("*.csv"):
        paths = [line.split(b",")[0] for line in table.read_bytes().splitlines()]
        assert not any(b"\\" in path for path in paths), table


@pytest.mark.parametrize("content", ["../elsewhere", "", "a/b", "\udcff"])
def test_a_file_latest_leads_only_to_a_run_beside_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "latest").write_bytes(content.encode("utf-8", "surrogateescape"))

    assert run_path(str(tmp_path / "latest")) == tmp_path / "latest"


@pytest.mark.parametrize("data", ["a:b?.csv", "C:\\photos", "train*|<>", "con", "aux.csv", 'x"y'])
def test_names_of_runs_and_pictures_are_allowed_on_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str
) -> None:
    monkeypatch.chdir(tmp_path)

    assert not RESERVED.search(plan_run(None, data).name)
    assert not RESERVED.search(f"001-{safe_stem(data)}.png")


def test_a_windows_path_in_the_settings_is_read_as_it_was_written() -> None:
    path = str(PureWindowsPath("C:\\Users\\new", "photos", "table.csv"))
    config = config_from_table({"data": {"path": path, "root": "\\\\server\\share"}})

    read = config_from_table(tomllib.loads(to_toml(config)))

    assert (read.data.path, read.data.root) == (path, "\\\\server\\share")


@pytest.mark.parametrize(
    ("system", "command"),
    [
        pytest.param("posix", "vitft check 'my photos' 'runs\\a' x_1.csv ''", id="POSIX"),
        pytest.param("nt", 'vitft check "my photos" runs\\a x_1.csv ""', id="Windows"),
    ],
)
def test_suggested_commands_are_quoted_as_the_shell_expects(
    monkeypatch: pytest.MonkeyPatch, system: str, command: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "name", system)
        joined = shell_join(["vitft", "check", "my photos", "runs\\a", "x_1.csv", ""])

    assert joined == command


def test_characters_that_a_terminal_lacks_are_replaced_by_similar_ones() -> None:
    inner = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")

    stream = SafeStream(inner)
    stream.write("███░ −2.5 × 3 … 花")
    stream.flush()

    assert inner.buffer.getvalue().decode("cp1252") == "###. -2.5 × 3 … \\u82b1"


def test_text_files_have_an_encoding_and_written_ones_a_newline() -> None:
    found = []
    for path in sorted((ROOT / "vitft").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else ""
            name = function.id if isinstance(function, ast.Name) else name
            given = {keyword.arg for keyword in node.keywords}
            modes = [a.value for a in node.args if isinstance(a, ast.Constant)]
            mode = next(
                (m for m in modes if isinstance(m, str) and {*m} <= {*"rwaxbt+"} and m), "r"
            )
            if name == "open" and "b" in mode:
                continue
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            if name == "read_text" and not given & {"encoding"} and not node.args:
                found.append(f"{where}: read_text without encoding")
            if name == "open" and {*mode} & {*"wax"} and not {"encoding", "newline"} <= given:
                found.append(f"{where}: open for writing without encoding and newline")

    assert found == []
