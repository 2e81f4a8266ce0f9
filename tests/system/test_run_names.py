"""Names suggested for a run that does not exist, and names of files refused for folders."""

from pathlib import Path

import pytest

from vitft.cli.main import main
from vitft.system.errors import UsageError
from vitft.system.run_names import suggest_runs
from vitft.system.rundir import plan_run

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
