"""Standard output and error that are full, closed or a pipe without a reader."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import tiny_home
from tests.support.children import ended, python
from tests.support.forked_commands import STREAM_FAULTS, Launcher, launcher
from tests.support.ranks import free_port

RUN = ["--run", "run"]
DATA = ["--data", "data", "--weights", "w.safetensors"]
COMMANDS = {
    "finetune": ["finetune", *DATA, "--out", "OUT"],
    "predict": ["predict", "data", *RUN, "--engine", "torch"],
    "predict json": ["predict", "data", *RUN, "--format", "json", "--engine", "numpy"],
    "evaluate": ["evaluate", "--data", "data", *RUN],
    "check": ["check", "data", "--out", "OUT"],
    "export": ["export", "--safetensors", *RUN, "--out", "OUT"],
    "explain": ["explain", "data/red", *RUN, "--out", "OUT"],
    "compare": ["compare", "run", "run-2", "--out", "OUT.html"],
    "study": ["study", *DATA, "--shots", "2", "--out", "OUT"],
    "weights": ["weights", "list"],
    "cache": ["cache", "list"],
    "help": ["--help"],
    "serve": ["serve", *RUN, "--port", "PORT"],
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_home(tmp_path_factory.mktemp("streams"))


@pytest.fixture(scope="module")
def forked(home: Path) -> Iterator[Launcher]:
    with launcher(home) as found:
        for name in ("run", "run-2"):
            words = [name if word == "OUT" else word for word in COMMANDS["finetune"]]
            assert found.run(words).code == 0
        yield found


def expected_code(name: str, fault: str) -> int:
    if name == "serve":
        return 143  # it serves until the signal
    if STREAM_FAULTS[fault][0] == "good":
        return 0
    return 141 if fault == "broken pipe" else 6


WIDELY = ("finetune", "predict", "serve")
"""Commands that are run with every fault, as their ways of writing differ."""
CASES = [
    (name, fault)
    for name in COMMANDS
    for fault in STREAM_FAULTS
    if name in WIDELY or fault == ("both full" if name == "study" else "broken pipe")
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "fault"), CASES)
def test_a_command_outlasts_a_faulty_stream(
    home: Path, forked: Launcher, name: str, fault: str
) -> None:
    out = f"{name}-{fault}".replace(" ", "-")
    port = free_port() if name == "serve" else 0
    words = [w.replace("OUT", out).replace("PORT", str(port)) for w in COMMANDS[name]]

    ended = forked.run(words, fault, port=port)

    assert ended.code == expected_code(name, fault), ended.err
    assert "Traceback" not in ended.err
    assert "bug" not in ended.err
    lost = ended.err.count("vitft: error: cannot write the results to stdout: ")
    assert lost == (ended.code == 6 and STREAM_FAULTS[fault][1] == "good")
    if ended.code == 0:
        assert ended.out
    if any(out in word for word in words):  # what goes to files is complete
        assert list(home.glob(f"{out}*"))
    if name == "finetune":
        assert (home / out / "report.html").read_text().rstrip().endswith("</html>")


def shell(command: str) -> "subprocess.CompletedProcess[str]":
    return ended(["bash", "-c", command])


@pytest.mark.parametrize(
    ("redirection", "code"),
    [
        pytest.param(">/dev/full", 6, id="stdout full"),
        pytest.param(">&-", 6, id="stdout closed"),
        pytest.param("2>/dev/full", 0, id="stderr full"),
        pytest.param(">&- 2>&- <&-", 6, id="all closed"),
    ],
)
def test_the_interpreter_ends_with_the_code_of_the_command(redirection: str, code: int) -> None:
    done = shell(f"{sys.executable} -m vitft recipes {redirection}")

    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_no_file_gets_the_number_of_a_closed_stream() -> None:
    code = (
        "import os, vitft.__main__ as m; m.open_closed_descriptors(); "
        "os._exit(os.open(os.devnull, os.O_RDONLY))"
    )
    assert shell(f"{sys.executable} -c '{code}' 0<&- 1>&- 2>&-").returncode == 3


def test_images_from_a_closed_stdin_are_a_usage_error_only_if_they_are_asked_for(
    home: Path, forked: Launcher
) -> None:
    predict = f"{sys.executable} -m vitft predict --run {home / 'run'} {{}} <&-"

    image, stdin = (shell(predict.format(x)) for x in (home / "data" / "red" / "000.png", "-"))

    assert (image.returncode, stdin.returncode) == (0, 3)
    assert "standard input is empty" in stdin.stderr


@pytest.mark.parametrize("with_weights", [False, True])
def test_a_check_loads_pytorch_and_says_so_only_with_weights(
    image_folder: Path, tmp_path: Path, tiny_weights: Path, with_weights: bool
) -> None:
    words = ["check", str(image_folder), *(["--weights", str(tiny_weights)] * with_weights)]
    code = f"import sys; from vitft.cli.main import main; assert main({words!r}) == 0\n"
    done = python(f"{code}sys.exit('torch' in sys.modules)", cwd=tmp_path)

    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == with_weights
    assert (done.stderr.splitlines()[0] == "loading PyTorch") is with_weights
    assert ("loading" in done.stderr) is with_weights
    assert ("Labels     not checked: add --weights NAME" in done.stdout) is not with_weights
