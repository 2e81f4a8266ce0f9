"""Recipes: listed, parsed and dry-run without their weights and data."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from vitft.cli.main import main
from vitft.config import config_from_table, read_recipe, read_toml
from vitft.system import resource

RECIPES = sorted(path.stem for path in resource("recipes").glob("*.toml"))


def dry_run(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    code = main(["finetune", "--dry-run", *options])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_dry_run_and_keeps_its_settings(
    name: str,
    image_folder: Path,
    tiny_weights: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    data = ["--data", str(image_folder), "--weights", str(tiny_weights), "--image-size", "16"]
    if read_recipe(name).get("weights", {}).get("name") == "none":  # it describes its own model
        data = ["--data", str(image_folder), "--image-size", "28"]  # in patches of 4 or 7
    blocks = {"last-blocks": ["--train", "blocks:1"]}
    before = sorted(tmp_path.rglob("*"))

    code, out, err = dry_run(capsys, "--recipe", name, *data, *blocks.get(name, []))

    assert code == 0, err
    printed = tomllib.loads(out)
    for section, settings in read_recipe(name).items():
        for key, value in settings.items():
            if (section, key) not in {("weights", "image_size"), ("train", "layers")} | NAMED:
                assert printed[section][key] == value, key
    config_from_table(printed)  # what it prints is a recipe itself
    assert "trainable parameters" in err
    assert "nothing was trained" in err
    assert sorted(tmp_path.rglob("*")) == before


NAMED = {("data", "path"), ("weights", "name")}


@pytest.mark.parametrize("name", RECIPES)
def test_the_command_of_a_recipe_is_valid(name: str) -> None:
    from vitft.cli.finetune import named_settings
    from vitft.cli.main import build_parser
    from vitft.config import requested_config

    command = read_toml(resource("recipes") / f"{name}.toml")["recipe"]["command"].split()

    assert command[:2] == ["vitft", "finetune"]
    args = build_parser().parse_args(command[1:])
    requested_config(args.recipe, named_settings(args))


def test_a_dry_run_logs_what_each_stage_would_do(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", str(image_folder), "--weights", f"random:{tiny_weights}"]
    place = ["--out", str(tmp_path / "run")]
    steps = ["--train", "head,all", "--batch-size", "10", "--set", "train.sampling=balanced"]

    code, out, err = dry_run(capsys, *data, *place, *steps)
    assert f"parameters, random weights instead of {tiny_weights}" in err

    assert code == 0, err
    assert "30 images in 3 classes, not opened yet: about 24 for training and 6 for" in err
    assert "--train head: 99 trainable parameters, fitted by L-BFGS" in err
    assert (
        "adamw with learning rate 0.0005: 10 epochs, 3 steps per epoch, 10 images per step" in err
    )
    assert tomllib.loads(out)["optim"]["lr"] == 5e-4  # defaults are filled in
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        pytest.param(["--data", "nowhere"], 3, "nowhere", id="no such folder"),
        pytest.param(["--weights", "nothing.npz"], 4, "weights not found", id="no such weights"),
        pytest.param(
            ["--train", "blocks:9"], 2, "the model has only 2 blocks", id="too many blocks"
        ),
        pytest.param(
            ["--resume", "x"], 2, "--dry-run and --resume cannot be combined", id="a run to resume"
        ),
        pytest.param(["--device", "cuda:99"], 2, "cannot use device", id="no such device"),
        pytest.param(["--solver", "adam"], 2, "lbfgs, sgd or adamw", id="no such solver"),
    ],
)
def test_a_dry_run_fails_as_the_run_would(
    image_folder: Path,
    tiny_weights: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    code: int,
    message: str,
) -> None:
    given: dict[str, Any] = {"--data": str(image_folder), "--weights": str(tiny_weights)}
    given |= dict([options])

    found, out, err = dry_run(capsys, *(word for pair in given.items() for word in pair))

    assert (found, out) == (code, "")
    assert message in err


def test_images_drawn_for_a_dry_run_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    code, out, _ = dry_run(capsys, "--recipe", "demo")

    assert code == 0
    assert tomllib.loads(out)["data"]["path"] == "demo"
    assert list(tmp_path.iterdir()) == []
