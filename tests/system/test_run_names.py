"""Names suggested for a run that does not exist, and names of files refused for folders."""

import os
from pathlib import Path

import pytest

from vitft.cli.main import main
from vitft.system.errors import UsageError
from vitft.system.files import write_json
from vitft.system.run_names import (
    has_settings,
    is_unfinished,
    resume_command,
    runs_in,
    similar_names_of_runs,
    suggest_runs,
    unfinished_run,
)
from vitft.system.rundir import environment, plan_run

FLOWERS, LEAVES = "20261123-101500-Bl\u00fcten", "20261123-103000-leaves"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (FLOWERS, LEAVES):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.toml").write_text("")
    (tmp_path / "runs" / "latest").symlink_to(LEAVES)
    (tmp_path / "runs" / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "suggested"),
    [
        pytest.param("latst", "did you mean --run runs/latest?", id="typing error"),
        pytest.param("runs/lastest", "did you mean --run runs/latest?", id="with the folder"),
        pytest.param(LEAVES, f"did you mean --run runs/{LEAVES}?", id="without the folder"),
        pytest.param("leaves", f"did you mean --run runs/{LEAVES}?", id="name of the data"),
        pytest.param("birds", "choose from 2 runs, e.g. --run runs/latest", id="nothing near"),
    ],
)
def test_similar_runs_are_suggested(here: Path, given: str, suggested: str) -> None:
    fix = suggest_runs(given, otherwise="train first")

    assert fix.startswith(suggested)
    assert "lists the runs" in fix
    assert "notes" not in fix


def test_names_are_quoted_for_the_terminal(here: Path) -> None:
    assert f"--run 'runs/{FLOWERS}'" in suggest_runs("Bl\u00fcten", otherwise="")


def test_without_runs_there_is_nothing_to_suggest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert suggest_runs(tmp_path / "none", otherwise="train first") == "train first"


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["predict", "a.jpg", "--run"], "--run "),
        (["evaluate", "--data", "runs", "--run"], "--run "),
        (["export", "--timm", "--run"], "--run "),
        (["report", "--run"], ""),
        (["check", "runs", "--run"], "--run "),
        (["finetune", "--resume"], "--resume "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_command_suggests_a_run(
    here: Path, capsys: pytest.CaptureFixture[str], command: list[str], option: str
) -> None:
    assert main([*command, "latst"]) == 5

    assert f"fix: did you mean {option}runs/latest?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["wrong.csv", "page.HTML", "a b/model.onnx"])
def test_a_folder_must_not_have_the_name_of_a_file(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(UsageError, match="names a") as caught:
        plan_run(name, "")

    assert "choose the name of a folder, e.g. --out " in caught.value.fix
    assert main(["check", "runs", "--out", name]) == 2
    assert not (here / name).exists()


@pytest.mark.parametrize("name", ["v1.0", "runs.old", "20261123-1.5"])
def test_other_names_with_a_point_are_names_of_folders(here: Path, name: str) -> None:
    assert plan_run(name, "") == Path(name)


def test_the_path_itself_is_not_suggested(here: Path) -> None:
    assert f"runs/{LEAVES}?" not in suggest_runs(f"runs/{LEAVES}", otherwise="")


def test_without_a_finished_run_the_stopped_one_is_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "runs" / LEAVES / "split.csv").write_text("")
    (here / "runs" / "latest").unlink()

    assert main(["predict", "a.jpg"]) == 5

    assert f"`vitft finetune --resume runs/{LEAVES}`" in capsys.readouterr().err


def test_only_the_listed_runs_are_counted(here: Path) -> None:
    listed = suggest_runs("runs/birds", otherwise="")
    export = here / "exported"
    export.mkdir()
    (export / "model.safetensors").touch()

    assert suggest_runs("birds", otherwise="").split(",")[0] == listed.split(",")[0]


def started(folder: Path, *, status: str = "", time: int = 0) -> Path:
    """Write the files of a run that has begun, and its status unless it is empty."""
    folder.mkdir(parents=True)
    for name in ("config.toml", "split.csv"):
        (folder / name).touch()
    os.utime(folder / "config.toml", (time, time))
    if status:
        write_json(folder / "environment.json", environment(status, "cpu", "fp32"))
    return folder


@pytest.mark.parametrize(
    ("status", "unfinished"),
    [("", True), ("running", True), ("interrupted", True), ("failed", True), ("finished", False)],
)
def test_a_run_without_the_status_finished_is_unfinished(
    tmp_path: Path, status: str, unfinished: bool
) -> None:
    run = started(tmp_path / "run", status=status)

    assert is_unfinished(run) is unfinished
    (run / "environment.json").write_text("{")
    assert is_unfinished(run) is False  # damaged
    for name in ("config.toml", "split.csv"):
        other = started(tmp_path / name)
        assert has_settings(other)
        (other / name).unlink()
        assert not has_settings(other)
        assert is_unfinished(other) is False


def test_the_unfinished_run_that_started_last_is_found(tmp_path: Path) -> None:
    assert unfinished_run(tmp_path / "none") is None
    started(tmp_path / "c", time=100)
    second = started(tmp_path / "a", time=300, status="interrupted")
    started(tmp_path / "b", time=200)
    started(tmp_path / "d", time=400, status="finished")
    (tmp_path / "latest").symlink_to("c")

    assert unfinished_run(tmp_path) == second
    (second / "split.csv").unlink()
    assert unfinished_run(tmp_path) == tmp_path / "b"


def test_the_command_that_continues_a_run_is_quoted() -> None:
    assert resume_command(Path("runs/a b")) == "vitft finetune --resume 'runs/a b'"


def test_a_folder_with_settings_or_a_model_is_a_run_newest_names_first(tmp_path: Path) -> None:
    for name, file in (("1", "config.toml"), ("2", "model.safetensors"), ("3", "notes.txt")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()

    assert [path.name for path in runs_in(tmp_path)] == ["2", "1"]
    assert runs_in(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("name", "known", "similar"),
    [
        pytest.param("rose", ["a-rose", "rose-b", "c-ROSE"], ["a-rose", "rose-b"], id="contained"),
        pytest.param("ros", ["a-rose-bush", "x"], ["a-rose-bush"], id="three letters"),
        pytest.param("ro", ["a-rose-bush", "x"], [], id="two letters say nothing"),
        pytest.param("flowrs", ["flow", "flower", "flowers"], ["flowers", "flower"], id="near"),
        pytest.param("abcde", ["abcxx"], ["abcxx"], id="three of five"),
        pytest.param("abcde", ["abxxx"], [], id="two of five"),
    ],
)
def test_names_that_contain_the_given_one_come_before_near_ones(
    name: str, known: list[str], similar: list[str]
) -> None:
    assert similar_names_of_runs(name, known) == similar


def test_an_export_is_suggested_only_as_a_model(here: Path) -> None:
    export = here / "runs" / "leaves-export"
    export.mkdir()
    for name in ("model.safetensors", "README.md"):
        (export / name).touch()

    assert "leaves-export" in suggest_runs("leaves-exprt", otherwise="")
    assert "leaves-export" not in suggest_runs("leaves-exprt", name="resume", otherwise="")


def test_the_newest_run_is_the_example_where_none_is_the_latest(here: Path) -> None:
    (here / "runs" / "latest").unlink()

    assert suggest_runs("birds", otherwise="").startswith(
        f"choose from 2 runs, e.g. --run runs/{LEAVES}; `ls runs` lists the runs"
    )
    assert suggest_runs("birds", name="", otherwise="").startswith("choose from 2 runs, e.g. runs/")
    (here / "runs" / FLOWERS / "config.toml").unlink()
    assert suggest_runs("birds", otherwise="").startswith("choose from 1 run, e.g. ")
    (here / "runs" / LEAVES).rename(here / "runs" / "latest")  # the only one, without a link
    assert suggest_runs("birds", otherwise="").startswith("choose from 1 run, e.g. --run runs/la")


def test_runs_beside_the_given_path_are_suggested_too(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(here / "elsewhere" / "birds-1")

    assert suggest_runs("elsewhere/birds", otherwise="").startswith(
        "did you mean --run elsewhere/birds-1?"
    )
    (here / "runs").rename(here / "old")
    found = suggest_runs("elsewhere/cats", otherwise="")
    assert found.startswith("choose from 1 run, e.g. --run elsewhere/birds-1; ")
