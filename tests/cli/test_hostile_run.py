"""Edited run directories: exit code 5 with the name of the file, from every command."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.conftest import draw_folder, save_model, tiny
from tests.support.hostile_run import (
    JSON_FILES,
    TEXTS,
    Edit,
    bomb,
    bomb_bytes,
    copied,
    empty,
    first_line,
    folder,
    json_value,
    not_numbers,
    objects,
    pipe,
    shapes,
    sparse,
    text,
)
from vitft.cli.main import main
from vitft.models import VisionTransformer
from vitft.training import StepResult, StepStage

Outcome = Callable[[str, Path], tuple[int, str]]
SECONDS = 20
"""Time after which a command hangs; each takes less than two."""
STEPS = 25
"""Step at which the stopped run is stopped, in its third epoch."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with images, a finished run `run` and a stopped run `half`."""
    bomb_bytes()  # built here, so that it does not count towards the time of a test
    here, before = tmp_path_factory.mktemp("hostile"), Path.cwd()
    torch.manual_seed(0)
    small = VisionTransformer(tiny(0, patch_size=(8, 8), width=16, depth=1))
    save_model(here / "w.safetensors", small)
    draw_folder(here / "data", per_class=36)
    draw_folder(here / "fresh", per_class=2)
    on_step = StepStage.on_step

    def stop_at(self: StepStage, step: StepResult) -> None:
        on_step(self, step)
        if step.step + 1 == STEPS:
            os.kill(os.getpid(), signal.SIGTERM)

    os.chdir(here)
    try:
        given = ["finetune", "--data", f"{here}/data", "--weights", f"{here}/w.safetensors"]
        given += ["--cache", "none"]
        assert main([*given, "--out", "run"]) == 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StepStage, "on_step", stop_at)
            steps = ["--train", "all", "--epochs", "9", "--batch-size", "8", "--out", "half"]
            assert main([*given, *steps]) == 143
    finally:
        os.chdir(before)
    return here


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """End a test whose command waits for a pipe."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


COMMANDS = {
    "predict": "predict {0}/data/red/000.png --run {1}",
    "precision": "predict {0}/data/red/000.png --run {1} --precision 0.5",
    "evaluate": "evaluate --data {0}/fresh --run {1}",
    "explain": "explain {0}/data/red/000.png --run {1} --out explained",
    "export": "export --safetensors --run {1} --out exported",
    "report": "report --run {1}",
    "compare": "compare {1} {0}/run --out compared.html",
    "check": "check {0}/data --run {1} --cache none",
    "resume": "finetune --resume {1}",
}
READERS = {
    "eval.json": ("evaluate", "report", "compare"),
    "audit.json": ("report", "compare"),
    "environment.json": ("report", "compare", "resume"),
    "class_indices.json": ("precision", "report", "compare"),
    "metrics.jsonl": ("report", "compare"),
    "split.csv": ("precision", "evaluate", "export", "report", "compare", "check", "resume"),
    "config.toml": ("evaluate", "export", "report", "compare", "check", "resume"),
    "reference.npz": ("predict", "evaluate"),
    "validation.npz": ("precision", "report", "compare"),
    "model.safetensors": ("predict", "evaluate", "explain", "export", "report"),
}
"""Commands that need a file; the others ignore it, or warn."""
EDITS: dict[str, dict[str, Edit]] = {
    **{name: {kind: text(content) for kind, content in TEXTS.items()} for name in JSON_FILES},
    "metrics.jsonl": {kind: text(f"{content}\n") for kind, content in TEXTS.items()},
    "split.csv": {
        "no header": text("a,b\n"),
        "columns": text("path,label,split,sha256\n1\n"),
        "a path outside": text(f"path,label,split,sha256\n../x,red,val,{'0' * 64}\n"),
        "a path twice": text("path,label,split,sha256\n" + f"x,red,val,{'0' * 64}\n" * 2),
        "another split": text(f"path,label,split,sha256\nx,red,all,{'0' * 64}\n"),
        "a short digest": text(f"path,label,split,sha256\nx,red,val,{'0' * 63}\n"),
        "a large cell": text('path,label,split,sha256\n"' + "x" * 200_000 + '"\n'),
    },
    "config.toml": {
        "not TOML": text("= 5"),
        "deep": text(f"x = {'[' * 100_000}"),
        "a value for a section": text('data = 5\ntrain = "x"'),
        "not UTF-8": lambda path: path.write_bytes(b"\xff"),
    },
    "reference.npz": {
        "a bomb": bomb, "objects": objects, "shapes": shapes, "not numbers": not_numbers,
    },
    "validation.npz": {
        "a bomb": bomb, "objects": objects, "shapes": shapes, "not numbers": not_numbers,
    },
    "model.safetensors": {"zeros": text("\0" * 100), "a huge header": text("\xff" * 100)},
}  # fmt: skip
EVERYWHERE: dict[str, Edit] = {"pipe": pipe, "folder": folder, "empty": empty, "sparse": sparse}
HARMLESS = {
    ("metrics.jsonl", "empty"),
    ("metrics.jsonl", "an unpaired surrogate"),  # under an unknown key
    ("config.toml", "empty"),
}
CASES = [
    pytest.param(name, edit, id=f"{name} {kind}")
    for name, edits in EDITS.items()
    for kind, edit in (edits | EVERYWHERE).items()
    if (name, kind) not in HARMLESS
]


@pytest.fixture
def outcome(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Outcome:
    """Return a function that runs a command on a run, and returns its exit code and errors."""
    monkeypatch.chdir(tmp_path)

    def run(command: str, folder: Path) -> tuple[int, str]:
        capfd.readouterr()
        code = main(COMMANDS[command].format(home, folder).split())
        return code, capfd.readouterr().err

    return run


@pytest.mark.parametrize(("name", "edit"), CASES)
def test_every_command_names_the_damaged_file_that_it_needs(
    home: Path, tmp_path: Path, outcome: Outcome, name: str, edit: Edit
) -> None:
    for command in READERS[name]:
        run = copied(home / ("half" if command == "resume" else "run"), tmp_path / command)
        edit(run / name)

        code, error = outcome(command, run)

        assert "Traceback" not in error, f"{command}: {error}"
        assert code == 5, f"{command}: {error}"
        found = [line for line in error.splitlines() if line.startswith("vitft: error: ")]
        assert len(found) == 1, f"{command}: {error}"
        assert name.partition(".")[0] in found[0], f"{command}: {error}"
        assert len(found[0]) < 700


WRONG_VALUES = [
    ("eval.json", "top1", "high"), ("eval.json", "top1", 1.5), ("eval.json", "top1", ...),
    ("eval.json", "top1_interval", [0.5]), ("eval.json", "images", -1),
    ("eval.json", "images", 10**400), ("eval.json", "per_class", []),
    ("eval.json", "per_class.red", None), ("eval.json", "per_class.red.recall", "1"),
    ("eval.json", "confusion", [[1]]), ("eval.json", "confusion.0", "abc"),
    ("eval.json", "calibration", []), ("eval.json", "calibration.bins", {}),
    ("eval.json", "calibration.temperature", 0), ("eval.json", "best_epoch", 0),
    ("eval.json", "seconds", "long"), ("audit.json", "duplicates", {}),
    ("audit.json", "duplicates", [5]),
    ("audit.json", "duplicates", [{"kind": "exact", "members": "x"}]),
    ("audit.json", "bad", [{"path": "x"}]), ("audit.json", "odd", [["x", "y"]]),
    ("audit.json", "mislabels", [{"path": 1}]), ("audit.json", "imbalance", None),
    ("audit.json", "view", {"image_size": [224], "fit": "crop", "crop": 0.9, "shown": 0.5,
                            "least_shown": 0.5}),
    ("environment.json", "status", 5), ("environment.json", "packages", []),
    ("environment.json", "packages.torch", 2), ("class_indices.json", "0", 5),
    ("class_indices.json", "0", ["x"]), ("class_indices.json", "7", "x"),
    ("class_indices.json", "1", "red"), ("class_indices.json", "2", "grey"),
    ("metrics.jsonl", "cv_top1", "x"),
    ("metrics.jsonl", "l2", 0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "place", "value"), WRONG_VALUES)
def test_a_wrong_value_is_reported_with_its_file(
    home: Path, tmp_path: Path, outcome: Outcome, name: str, place: str, value: object
) -> None:
    run = copied(home / "run", tmp_path / "run")
    edit = json_value(place, value)
    (first_line(edit) if name.endswith("jsonl") else edit)(run / name)

    code, error = outcome("report", run)

    assert code == 5, error
    assert f"{name} (" in error
    assert "Traceback" not in error


LONG_LINES = ("deep", "a deep value", "digits", "an unpaired surrogate")
"""Contents that are no damage once the file is truncated to the size in the training state."""
EPOCH_EDITS: dict[str, Edit] = {
    **{kind: text(f"{line}\n") for kind, line in TEXTS.items() if kind not in LONG_LINES},
    "pipe": pipe, "folder": folder,
    **{
        f"{key} {value!r}": first_line(json_value(key, value))
        for key, value in [("epoch", "x"), ("epoch", 0), ("epoch", True), ("lr", None),
                           ("first_loss", -1), ("train_loss", []), ("train_top1", {}),
                           ("val_loss", "high"), ("val_top1", 1.5)]
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", EPOCH_EDITS)
def test_a_run_with_edited_epochs_is_not_resumed(
    home: Path, tmp_path: Path, outcome: Outcome, kind: str
) -> None:
    run = copied(home / "half", tmp_path / "run")
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    EPOCH_EDITS[kind](run / "metrics.jsonl")

    code, error = outcome("resume", run)

    assert code == 5, error
    assert "Traceback" not in error
    (line,) = [line for line in error.splitlines() if line.startswith("vitft: error: ")]
    assert f"{run / 'metrics.jsonl'}" in line


@pytest.mark.parametrize("kind", ["cut", "zeros", *EVERYWHERE])
def test_a_damaged_training_state_is_named_and_the_run_is_not_resumed(
    home: Path, tmp_path: Path, outcome: Outcome, kind: str
) -> None:
    edits = {"cut": text(TEXTS["cut"]), "zeros": text("\0" * 100), **EVERYWHERE}
    run = copied(home / "half", tmp_path / "run")
    (file,) = (run / "resume").glob("state-*.safetensors")
    edits[kind](file)

    code, error = outcome("resume", run)

    assert code == 5, error
    assert "Traceback" not in error
    assert f"{file} is damaged" in error
    assert f"all training states in {run / 'resume'} are damaged" in error


@pytest.mark.parametrize(
    ("kind", "command", "content", "reason"),
    [
        ("half", "resume", "", " (data.path is missing)"),  # not resumed on the current folder
        ("run", "check", "[data]\npath = 5", ""),
        ("run", "check", "[train]\nepochs = 0.5", ""),
    ],
)
def test_a_wrong_setting_of_a_run_is_reported_with_its_file(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, kind: str,
    command: str, content: str, reason: str,
) -> None:  # fmt: skip
    run = copied(home / kind, tmp_path / "run")
    monkeypatch.chdir(home / "data")
    (run / "config.toml").write_text(content)

    code, error = outcome(command, run)

    assert code == 5, error
    assert f"{run / 'config.toml'}{reason}" in error


def test_a_resumed_run_writes_the_files_that_it_does_not_read_again(
    home: Path, tmp_path: Path, outcome: Outcome
) -> None:
    run = copied(home / "half", tmp_path / "run")
    damaged = {"audit.json": pipe, "eval.json": pipe, "model.safetensors": text("\0" * 100),
               "report.html": sparse, "metrics.jsonl": sparse}  # fmt: skip
    for name, edit in damaged.items():
        edit(run / name)

    code, error = outcome("resume", run)

    assert (code, "Traceback" in error, "warning" in error) == (0, False, False), error
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 9
    assert main(["report", "--run", str(run)]) == 0
    assert main(["predict", f"{home}/data/red/000.png", "--run", str(run)]) == 0
