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
from PIL import Image

from tests.support.limits import HANG_S
from vitft.cli.main import COMMANDS, main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_the_command_alone_prints_the_four_most_useful_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0

    text = capsys.readouterr().out
    named = re.findall(r"^  vitft (\w+)", text, flags=re.MULTILINE)
    assert named == ["finetune", "predict", "export", "check"]
    assert set(named) < COMMANDS.keys()
    assert max(map(len, text.splitlines())) <= 80


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
    first = [line.partition(":")[0] for line in plain.err.splitlines()[:3]]
    assert first == ["data", "model", "training"]
    assert not re.search("^loaded:", plain.err, flags=re.MULTILINE)
    assert re.search("^loaded:", loud.err, flags=re.MULTILINE)


def test_every_epoch_is_a_row(
    here: Path, image_folder: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", str(image_folder), "--weights", str(tiny_weights), "--out", "run"]
    assert main(["finetune", *options, "--freeze", "blocks:1", "--epochs", "3"]) == 0

    lines = capsys.readouterr().err.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("epoch "))
    rows = [line.split() for line in lines[start + 1 :] if re.match(r" +\d/3 ", line)]
    assert [row[0] for row in rows] == ["1/3", "2/3", "3/3"]
    logged = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [row[1] for row in rows] == [f"{entry['train_loss']:.4f}" for entry in logged]
    assert max(map(len, lines[start : start + 4])) <= 80
    assert any(row[-1] == "best" for row in rows)
    assert lines[start - 1].startswith(
        "best on the validation images so far: the lowest loss among"
    )


def test_finetune_predict_export_is_three_commands(
    here: Path, image_folder: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", str(image_folder), "--weights", str(tiny_weights), "--epochs", "5"]
    assert main(["finetune", *data]) == 0
    assert "accuracy 100.0% (95% interval 61.0 to 100.0%) on 6" in capsys.readouterr().out

    assert main(["predict", str(image_folder / "red"), "--format", "jsonl", "--top-k", "2"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["classes"][0]["class"] for row in rows] == ["red"] * 10

    assert main(["export", "--safetensors"]) == 0
    assert "0 changed predictions on 6 validation images" in capsys.readouterr().out
    assert sorted(p.name for p in (here / "export").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize(
    ("weights", "remedy"),
    [("none", "train longer or start from pretrained weights"), ("tiny", "train longer, with")],
)
def test_a_model_at_chance_level_is_called_so_in_the_log(
    here: Path,
    image_folder: Path,
    tiny_weights: Path,
    capsys: pytest.CaptureFixture[str],
    weights: str,
    remedy: str,
) -> None:
    name = str(tiny_weights) if weights == "tiny" else weights
    data = ["--data", str(image_folder), "--weights", name, "--image-size", "16"]

    assert main(["finetune", *data, "--solver", "sgd", "--lr", "1e-60", "--epochs", "1"]) == 0

    printed = capsys.readouterr()
    assert f"warning: at chance level: the model always predicts blue; {remedy}" in printed.err
    assert "weakest class" not in printed.out


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
    accuracy = r"accuracy [\d.]+% \([\d.]+ to [\d.]+%\) on 6 validation images"
    line = rf"run [\w-]+-colours: 3 classes, {accuracy}, 0 minutes old"
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


WRONG = [
    (["finetune", "--data", "nowhere", "--weights", "W"], 3, "data folder not found: nowhere"),
    (["finetune", "--data", "D/red/000.png", "--weights", "W"], 3, "is an image, not a folder"),
    (["finetune", "--data", "D/red", "--weights", "W"], 3, "no class folders in"),
    (["finetune", "--data", "ONE", "--weights", "W"], 3, "need at least 2 classes, found 1"),
    (["finetune", "--data", "HOLLOW", "--weights", "W"], 3, "no images in 1 of 2 class folders"),
    (["finetune", "--weights", "W"], 2, "no data given"),
    (["finetune", "--data", "D", "--weights", "vit_bose_patch16_224"], 4, "vit_bose_patch16_224"),
    (["finetune", "--data", "D", "--weights", "./no.safetensors"], 4, "weights not found"),
    (["finetune", "--data", "D", "--weights", "D/red/000.png"], 4, "is an image, not a weight"),
    (["finetune", "--data", "D", "--weights", "W", "--bach-size", "4"], 2, "--bach-size"),
    (["finetune", "--data", "D", "--weights", "W", "--lr", "-1"], 2, "invalid --lr -1.0"),
    (["finetune", "--data", "D", "--weights", "W", "--lr", "fast"], 2, "invalid float value"),
    (["finetune", "--data", "D", "--weights", "W", "--epochs", "0"], 2, "invalid --epochs 0"),
    (
        ["finetune", "--data", "D", "--weights", "W", "--image-size", "17"],
        2,
        "multiple of the patch size (4 pixels)",
    ),
    (
        ["finetune", "--data", "D", "--weights", "W", "--freeze", "all"],
        2,
        "invalid --freeze all",
    ),
    (["finetune", "--data", "D", "--weights", "W", "--freeze", "blocks:9"], 2, "has only 2 blocks"),
    (["finetune", "--data", "D", "--weights", "W", "--freeze", "pre_logits"], 2, "--pre-logits"),
    (["finetune", "--data", "D", "--weights", "W", "--mean", "0.5"], 2, "--mean and weights.std"),
    (["finetune", "--data", "D", "--weights", "W", "--device", "tpu"], 2, "device 'tpu'"),
    (["finetune", "--data", "D", "--weights", "W", "--out", "D/red/000.png"], 5, "cannot write"),
    (["finetune", "--data", "D", "--weights", "W", "--out", "D"], 5, "is not empty"),
    (
        ["finetune", "--data", "D", "--weights", "W", "--out", "D/run"],
        2,
        "is inside the data directory",
    ),
    (["finetune", "--recipe", "nonsense"], 2, "unknown recipe"),
    (["finetune", "--set", "optim.lr"], 2, "expected KEY=VALUE"),
    (["finetune", "--lr", "1", "--set", "optim.lr=2"], 2, "set both by an option and by --set"),
    (["fintune"], 2, "fintune"),
    (["predict", "a.jpg"], 5, "no finished run"),
    (["predict", "a.jpg", "--run", "nowhere"], 5, "no model in nowhere"),
    (["predict", "a.jpg", "--run", "W"], 5, "backbone without classes"),
    (["predict"], 2, "no images given"),
    (["predict", "a.jpg", "--top-k", "0"], 2, "invalid --top-k 0"),
    (["predict", "a.jpg", "--format", "xml"], 2, "xml"),
    (["export", "--safetensors"], 5, "no finished run"),
    (["export"], 2, "--safetensors"),
    (["weights", "show", "vit_base_patch16_225"], 4, "vit_base_patch16_225"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "message"), WRONG, ids=[" ".join(row[0]) for row in WRONG]
)
def test_a_wrong_command_prints_a_short_error_with_a_fix(
    here: Path,
    image_folder: Path,
    tiny_weights: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    (here / "D").symlink_to(image_folder)
    (here / "W").symlink_to(tiny_weights.parent / "tiny.safetensors")
    for folder in ("ONE/cat", "HOLLOW/cat", "HOLLOW/dog"):
        (here / folder).mkdir(parents=True)
    for folder in ("ONE/cat", "HOLLOW/cat"):
        Image.new("RGB", (9, 9)).save(here / folder / "a.png")
    words = [str(tiny_weights) if word == "W" else word for word in arguments]

    assert main(words) == code

    captured = capsys.readouterr()
    error = captured.err[captured.err.index("vitft: error: ") :]
    assert message in error
    assert "\n  fix: " in error
    assert len(error.strip().splitlines()) <= 3
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("word", "near"),
    [
        pytest.param(["finetune", "--bach-size", "4"], "--batch-size", id="option"),
        pytest.param(["finetune", "--learning-rate", "1"], "--lr", id="another tool's name"),
        pytest.param(["finetune", "--gpu", "0"], "--device", id="gpu"),
        pytest.param(["finetune", "--batch_size", "4"], "--batch-size", id="underscore"),
        pytest.param(["finetune", "--num-epochs", "4"], "--epochs", id="number of epochs"),
        pytest.param(["finetune", "--config", "a.toml"], "--recipe", id="config"),
        pytest.param(["finetune", "--config=a.toml"], "--recipe", id="config with ="),
        pytest.param(["finetune", "--model", "vit"], "--weights", id="model to train"),
        pytest.param(["predict", "x", "--model", "runs/a"], "--run", id="model to use"),
        pytest.param(["serve", "--checkpoint", "runs/a"], "--run", id="checkpoint"),
        pytest.param(["compare", "a", "b", "--json"], "--format json", id="json"),
        pytest.param(["predict", "x", "--output", "a.csv"], "--out", id="output"),
        pytest.param(["finetune", "--output_dir", "a"], "--out", id="output folder"),
        pytest.param(["export", "--json"], None, id="no such option"),
        pytest.param(["export", "--web"], "--html", id="web page"),
        pytest.param(["finetune", "--images", "photos"], "--data", id="images to train on"),
        pytest.param(["check", "x", "--classes", "a"], "--set data.classes=VALUE", id="setting"),
        pytest.param(["fintune"], "finetune", id="command"),
        pytest.param(["predict", "x", "--format", "jsn"], "json", id="choice"),
        pytest.param(["finetune", "--image-size", "9x9"], "--image-size 9", id="square"),
        pytest.param(["finetune", "--image-size", "9x6"], "--image-size 9 6", id="height x width"),
        pytest.param(["predict", "x", "--precision", "95"], "--precision 0.95 for 95%", id="95"),
        pytest.param(["predict", "x", "--precision", "95%"], "--precision 0.95", id="95 %"),
        pytest.param(["serve", "--threshold", "0,8"], "--threshold 0.8", id="decimal comma"),
        pytest.param(["serve", "--threshold", "50"], "--threshold 0.5 for 50%", id="50"),
        pytest.param(
            ["predict", "x", "--precision", "1.5"],
            "a number greater than 0 and at most 1",
            id="neither a fraction nor a percentage",
        ),
        pytest.param(["predict", "x", "--threshold", "many"], None, id="no number"),
    ],
)
def test_a_near_miss_is_suggested(
    capsys: pytest.CaptureFixture[str], word: list[str], near: str | None
) -> None:
    main(word)

    fix = f"use {near}" if near else f"run vitft {word[0]} --help for usage"
    assert f"fix: {fix}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("finetune --data photos --weights vit_tinny", 4),
        ("check photso", 3),
        ("check photso.csv", 3),
        ("check empty", 3),
        ("check photos --run nowhere", 5),
        ("check photos --fixes nowhere.csv", 3),
        ("check photos --weights nowhere.safetensors", 4),
        ("evaluate --data photos --run nowhere", 5),
        ("explain photso.jpg --weights demo", 3),
        ("export --timm --run nowhere", 5),
        ("label empty", 3),
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
    (tmp_path / "empty").mkdir()
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


def test_the_weights_of_the_catalogue_are_listed_and_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["weights", "list"]) == 0
    assert "vit_base_patch16_224_in21k" in capsys.readouterr().out

    assert main(["weights", "show", "vit_base_patch16_224_in21k"]) == 0
    shown = capsys.readouterr().out
    assert "google/vit-base-patch16-224-in21k" in shown
    assert "mean" in shown


def test_a_weight_file_is_shown_with_its_statistics(
    tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["weights", "show", str(tiny_weights)]) == 0

    assert "mean 0.5, std 0.5" in capsys.readouterr().out


def test_cached_features_are_listed_and_deleted(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["cache", "list"]) == 0
    assert "pooled" in capsys.readouterr().out

    assert main(["cache", "clean"]) == 0
    assert "MB deleted" in capsys.readouterr().out
    main(["cache", "list"])
    assert "pooled" not in capsys.readouterr().out


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


def test_ctrl_c_ends_in_130_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitft.predict.jobs.find_model", interrupted)

    assert main(["predict", "x.jpg"]) == 130
    assert capsys.readouterr().err == "vitft: interrupted\n"


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


@pytest.mark.parametrize("command", ["recipes", "predict", "weights inspect", "check", "compare"])
def test_a_path_that_is_too_long_is_no_bug(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*command.split(), "x" * 5000])

    error = capsys.readouterr().err
    assert 2 <= code <= 8, error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "arguments",
    [["check", "-new"], ["finetune", "--data", "-new"], ["predict", "a.jpg", "-new"]],
    ids=" ".join,
)
def test_a_name_with_a_leading_hyphen_is_not_mistaken_for_a_typing_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-new").mkdir()

    assert main(arguments) == 2

    assert "write ./-new" in capsys.readouterr().err


@pytest.mark.parametrize(("raised", "code"), [(None, 0), (0, 0), (3, 3)])
def test_the_code_of_an_exit_during_parsing_is_returned(
    monkeypatch: pytest.MonkeyPatch, raised: int | None, code: int
) -> None:
    def exits(_: str) -> None:
        raise SystemExit(raised)

    monkeypatch.setattr("vitft.cli.main.build_parser", exits)

    assert main(["predict"]) == code
