"""The command line: exit codes, errors, and finetune, predict and export in a row."""

import sys

import pytest

from tests.support.children import ended


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["fintune"], 2)])
def test_a_process_of_torchrun_exits_with_the_code_of_the_command(
    words: list[str], code: int
) -> None:
    done = ended([sys.executable, "-m", "vitft", *words], env={"WORLD_SIZE": "2"})

    assert done.returncode == code
    assert "vitft 0" in done.stdout or "fintune" in done.stderr


@pytest.mark.parametrize(
    ("setting", "redirection", "objects"),
    [("", "", 1), ("RANK=1", "", 0), ("", ">/dev/full", 0), ("", ">&-", 0)],
)
def test_an_error_as_json_has_the_code_of_the_error(
    setting: str, redirection: str, objects: int
) -> None:
    command = f"{setting} {sys.executable} -m vitft check nowhere --format json {redirection}"

    done = ended(["bash", "-c", command])

    assert (done.returncode, done.stdout.count('"error"')) == (3, objects)
    assert "data folder not found" in done.stderr
