"""The command line: exit codes, errors, and finetune, predict and export in a row."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.limits import HANG_S
from vitft.cli.main import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_quiet_leaves_results_and_verbose_adds_details(
    here: Path, image_folder: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["finetune", "--data", str(image_folder), "--weights", str(tiny_weights)]

    assert main([*options, "--out", "plain"]) == 0
    plain = capsys.readouterr()
    assert main([*options, "--out", "quiet", "-q"]) == 0
    quiet = capsys.readouterr()
    assert main([*options, "--out", "loud", "--verbose"]) == 0
    loud = capsys.readouterr()

    assert quiet.err == ""
    assert quiet.out == plain.out.replace("plain", "quiet") == loud.out.replace("loud", "quiet")
    first = [line.split()[0] for line in plain.err.splitlines()[:3]]
    assert first == ["Data", "Model", "Training"]
    assert not re.search("^loaded:", plain.err, flags=re.MULTILINE)
    assert re.search("^loaded:", loud.err, flags=re.MULTILINE)


@pytest.fixture
def trained(here: Path, image_folder: Path, tiny_weights: Path) -> Path:
    main(["finetune", "--data", str(image_folder), "--weights", str(tiny_weights), "--epochs", "2"])
    return here


@pytest.mark.parametrize("style", ["table", "json", "jsonl", "csv"])
def test_every_format_has_one_row_per_input_and_an_error_row_for_a_bad_one(
    trained: Path, image_folder: Path, capsys: pytest.CaptureFixture[str], style: str
) -> None:
    (trained / "=bad.jpg").write_text("<html>")
    capsys.readouterr()

    code = main(["predict", str(image_folder / "red" / "000.png"), "=bad.jpg", "--format", style])

    out, err = capsys.readouterr()
    assert code == 3
    line = r"Using runs/latest \(colours, trained \d+ minutes? ago, accuracy [\d.]+%\)"
    assert re.search(line, err)
    if style == "csv":
        header, good, bad = csv.reader(io.StringIO(out))
        assert header == ["path", "class", "probability", "notes", "error"]
        assert (good[1], good[4]) == ("red", "")
        assert bad[0] == "'=bad.jpg"  # not a formula
        assert "not an image" in bad[4]
    elif style == "table":
        assert "red/000.png" in out.replace("\n", "")
        assert "error: not an image" in out
    else:
        rows = json.loads(out) if style == "json" else [json.loads(s) for s in out.splitlines()]
        assert rows[0]["classes"][0]["class"] == "red"
        run = (trained / "runs" / "latest").resolve().name
        assert rows[0]["run"] == run
        assert rows[1] == {"path": "=bad.jpg", "run": run, "error": rows[1]["error"]}


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
    pytest.importorskip("fastapi")  # for `label`
    pytest.importorskip("matplotlib")  # for `study`
    (tmp_path / "photos").symlink_to(image_folder)
    script = (
        "import sys; from vitft.cli.main import main\n"
        f"code = main({command.split()!r})\n"
        "sys.exit(100 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )

    assert done.returncode == code, done.stderr
    assert "loading" not in done.stderr


def test_an_unexpected_error_is_called_a_bug_with_its_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a wire is loose")

    monkeypatch.setattr("vitft.predict.jobs.find_model", broken)

    assert main(["predict", "x.jpg"]) == 1
    err = capsys.readouterr().err
    assert "a wire is loose" in err
    assert "please report it" in err


def test_a_closed_pipe_prints_no_traceback(trained: Path, image_folder: Path) -> None:
    command = f"{sys.executable} -m vitft predict {image_folder} --format jsonl | head -1"

    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=HANG_S, check=False
    )

    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_a_terminal_without_utf8_gets_escapes(trained: Path, image_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vitft", "predict", str(image_folder / "red" / "000.png")],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        timeout=HANG_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert b"red" in done.stdout


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["fintune"], 2)])
def test_a_process_of_torchrun_exits_with_the_code_of_the_command(
    words: list[str], code: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vitft", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "WORLD_SIZE": "2"},
        timeout=HANG_S,
        check=False,
    )

    assert done.returncode == code
    assert "vitft 0" in done.stdout or "fintune" in done.stderr
