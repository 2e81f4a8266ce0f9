"""The command line: exit codes, errors, and finetune, predict and export in a row."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.children import ended, python
from vitft.cli.main import main


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("finetune --data photos --weights vit_tinny", 4),
        ("check photso", 3),
        ("check photos --run nowhere", 5),
        ("explain photso.jpg --weights demo", 3),
        ("export --timm --run nowhere", 5),
        ("label photos --run nowhere", 5),
        ("predict photos --run nowhere", 5),
        ("study --data photso --weights demo", 3),
    ],
)
def test_a_wrong_path_or_setting_is_refused_before_torch_is_imported(
    image_folder: Path, tmp_path: Path, command: str, code: int
) -> None:
    pytest.importorskip("starlette")  # for `label`
    pytest.importorskip("matplotlib")  # for `study`
    (tmp_path / "photos").symlink_to(image_folder)
    script = (
        "import sys; from vitft.cli.main import main\n"
        f"code = main({command.split()!r})\n"
        "sys.exit(100 if 'torch' in sys.modules else code)"
    )
    done = python(script, cwd=tmp_path)

    assert done.returncode == code, done.stderr
    assert "loading" not in done.stderr


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["fintune"], 2)])
def test_a_process_of_torchrun_exits_with_the_code_of_the_command(
    words: list[str], code: int
) -> None:
    done = ended([sys.executable, "-m", "vitft", *words], env={"WORLD_SIZE": "2"})

    assert done.returncode == code
    assert "vitft 0" in done.stdout or "fintune" in done.stderr


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["check", "nowhere", "--format", "json"], True),
        (["check", "nowhere", "--format=table", "--format=json"], True),
        (["check", "nowhere", "--format", "json", "--format", "table"], False),
        (["check", "a --format json b"], False),
        (["predict", "--run", "nowhere", "--", "--format", "json"], False),
    ],
)
def test_only_a_request_for_json_makes_an_error_json(
    words: list[str], printed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(words)

    out = capsys.readouterr().out
    assert (json.loads(out)["error"]["exit_code"] if printed else code) == code > 2
    assert bool(out) == printed


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
