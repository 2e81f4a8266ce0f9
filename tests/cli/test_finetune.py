"""Options of `vitft finetune`: names in errors, times, and runs to resume."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vitft.cli.finetune import (
    as_option,
    finetune_command,
    named_settings,
    new_settings,
    plan_resume,
    seconds_of,
    typed_names,
)
from vitft.cli.main import build_parser, main
from vitft.system.errors import RunError, UsageError
from vitft.system.files import write_json
from vitft.system.rundir import environment


def parsed(*words: str) -> Any:
    return build_parser("finetune").parse_args(["finetune", *words])


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200)])
def test_a_time_limit_has_a_unit(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("10", "use 10m for minutes, or e.g. 90s or 2h"),
        ("0s", "use e.g. 90s, 10m or 2h"),
        ("soon", "use e.g. 90s, 10m or 2h"),
    ],
)
def test_other_time_limits_are_refused(text: str, fix: str) -> None:
    with pytest.raises(UsageError, match=f"invalid --max-time '{text}'") as refused:
        seconds_of(text)
    assert refused.value.fix == fix


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("optim.lr is -1", "--lr is -1"),
        ("optim.lr=0.1 has no effect", "--lr 0.1 has no effect"),
        ("optim.lr=true has no effect", "--lr has no effect"),
        ("optim.lr=[32, 32] is odd", "--lr 32 is odd"),
        ("optim.lr=[32, 48] is odd", "--lr 32 48 is odd"),
        ("add --set optim.lr=1", "add --set optim.lr=1"),
        ("optim.lr_decay and other.optim.lr", "optim.lr_decay and other.optim.lr"),
        ("(optim.lr=3), optim.lr=4; done", "(--lr 3), --lr 4; done"),
    ],
)
def test_a_setting_is_called_by_its_option(text: str, named: str) -> None:
    assert as_option(text, "optim.lr", "--lr") == named


def test_what_was_typed_names_the_settings() -> None:
    args = parsed("--data", "d", "--lr", "0.1", "--seed", "3", "--set", "optim.clip=1")

    names = typed_names(args)

    assert names["optim.lr"] == "--lr"
    assert names["data.path"] == "--data"
    assert names["train.seed"] == names["data.seed"] == "--seed"
    assert names["optim.clip"] == "--set optim.clip"
    assert "optim.epochs" not in names


def test_settings_of_options_and_of_set_are_combined_but_never_given_twice() -> None:
    found = dict(named_settings(parsed("--data", "d", "--epochs", "3", "--set", "optim.clip=1.5")))

    assert (found["data.path"], found["optim.epochs"], found["optim.clip"]) == ("d", 3, 1.5)
    with pytest.raises(UsageError, match=r"optim\.epochs is set both by an option and by --set"):
        named_settings(parsed("--epochs", "3", "--set", "optim.epochs=4"))


def test_an_error_in_a_setting_names_the_option_that_was_typed() -> None:
    with pytest.raises(UsageError) as by_option:
        new_settings(parsed("--data", "d", "--lr", "-1"))
    with pytest.raises(UsageError) as by_setting:
        new_settings(parsed("--data", "d", "--set", "optim.lr=-1"))

    assert "--lr" in by_option.value.problem
    assert "optim.lr" not in by_option.value.problem
    assert "optim.lr" in by_setting.value.problem


def test_options_have_no_value_unless_they_are_given() -> None:
    args = vars(parsed())

    assert args.pop("command") is finetune_command
    assert args.pop("set") == []
    assert args.pop("dry_run") is False
    assert set(args.values()) == {None}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs that have begun, and a finished one, in runs/."""
    monkeypatch.chdir(tmp_path)
    for i, (name, status) in enumerate([("a", "running"), ("b", "interrupted"), ("c", "finished")]):
        folder = Path("runs") / name
        folder.mkdir(parents=True)
        (folder / "split.csv").touch()
        (folder / "config.toml").touch()
        os.utime(folder / "config.toml", (i, i))
        write_json(folder / "environment.json", environment(status, "cpu", "fp32"))
    (Path("runs") / "latest").symlink_to("c")
    return Path("runs")


@pytest.mark.parametrize(
    ("given", "path"), [("runs/a", "runs/a"), ("runs/latest", "runs/b"), ("runs/c", "runs/c")]
)
def test_latest_means_the_most_recent_run_that_has_not_finished(
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: str,
    path: str,
) -> None:
    asked: list[Any] = []

    def check(*arguments: Any) -> tuple[None, Path]:
        asked.append(arguments)
        return None, arguments[0]

    monkeypatch.setattr("vitft.training.checks.check_resume", check)

    assert plan_resume(parsed("--resume", given, "--epochs", "3")) == (None, Path(path))

    assert asked == [(Path(path), [("optim.epochs", 3)], {"optim.epochs": "--epochs"})]
    said = "resuming the most recent run that has not finished: runs/b" in capsys.readouterr().err
    assert said == (given == "runs/latest")


@pytest.mark.parametrize("words", [["--out", "x"], ["--recipe", "cifar10"]])
def test_a_resumed_run_keeps_its_directory_and_settings(runs: Path, words: list[str]) -> None:
    with pytest.raises(UsageError, match=f"--resume cannot be combined with {words[0]}"):
        plan_resume(parsed("--resume", "runs/a", *words))


def test_a_dry_run_writes_nothing_and_is_not_resumed(
    runs: Path, image_folder: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(runs.rglob("*"))

    assert main(["finetune", "--dry-run", "--resume", "runs/a"]) == 2
    assert "--dry-run and --resume cannot be combined" in capsys.readouterr().err
    words = ["--data", str(image_folder), "--weights", str(tiny_weights), "--out", "new"]
    assert main(["finetune", "--dry-run", *words]) == 0

    assert "solver" in capsys.readouterr().out
    assert sorted(runs.rglob("*")) == before
    assert not Path("new").exists()


def test_a_finished_run_has_nothing_to_resume(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vitft.training.checks.check_resume", lambda path, *_: (None, path))

    assert main(["finetune", "--resume", "runs/c"]) == 0
    assert "runs/c is already finished: there is nothing to resume" in capsys.readouterr().err
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # set by torchrun
    assert main(["finetune", "--data", "d", "--out", "runs/c"]) == 0
    assert "runs/c is already finished" in capsys.readouterr().err
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert main(["finetune", "--data", "d", "--out", "runs/c"]) != 0


def test_a_run_that_does_not_exist_is_not_resumed(runs: Path) -> None:
    with pytest.raises(RunError, match="none"):
        plan_resume(parsed("--resume", "runs/none"))


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Record the arguments of a run, without training. `result` can be changed."""
    monkeypatch.chdir(tmp_path)
    result = {"run": Path("runs/x"), "figures": None, "status": "finished", "everything_s": None}
    asked: dict[str, Any] = {"result": {**result, "exit_code": 0}}

    def check(config: Any, out: str | None) -> tuple[Any, Path]:
        return config, Path(out or "runs/x")

    def run(config: Any, **options: Any) -> Any:
        asked.update(options, config=config)
        return SimpleNamespace(**asked["result"])

    def summary(run: Path, figures: Any, config: Any, **options: Any) -> None:
        asked.update(summary=options)

    monkeypatch.setattr("vitft.training.checks.check_request", check)
    monkeypatch.setattr("vitft.training.run.run_finetuning", run)
    monkeypatch.setattr("vitft.cli.summary.print_summary", summary)
    monkeypatch.setattr("vitft.cli.finetune.print_report", lambda run: asked.update(report=run))
    return asked


def test_a_run_has_no_time_limit_by_default(trained: dict[str, Any]) -> None:
    assert main(["finetune", "--data", "d", "--lr", "0.1", "--solver", "sgd"]) == 0

    assert (trained["max_seconds"], trained["resume"]) == (0.0, False)
    assert trained["config"].optim.lr == 0.1
    assert trained["summary"] == {"status": "finished", "is_latest": True}
    assert "report" not in trained


def test_a_run_elsewhere_is_not_the_latest_and_its_exit_code_is_returned(
    trained: dict[str, Any],
) -> None:
    trained["result"] |= {"run": Path("own"), "exit_code": 143, "figures": {"top1": 1.0}}
    trained["result"] |= {"status": "terminated"}

    assert main(["finetune", "--data", "d", "--max-time", "2m", "--out", "own"]) == 143

    assert (trained["max_seconds"], trained["out"]) == (120.0, Path("own"))
    assert trained["summary"] == {"status": "terminated", "is_latest": False}
    assert trained["report"] == Path("own")


def test_training_of_all_layers_is_proposed_with_its_time(
    trained: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    trained["result"] |= {"everything_s": 700.0}

    words = ["--data", "d", "--freeze", "head", "--set", "data.val_rate=0.3", "--set", "optim.l2=1"]
    assert main(["finetune", *words]) == 0

    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert "from this head, would take about 12 min on this machine: vitft finetune" in line
    assert line.endswith(" --freeze head,none")
    assert "data.val_rate=0.3" in line
    assert "optim.l2" not in line
    assert line.count("--freeze") == 1
