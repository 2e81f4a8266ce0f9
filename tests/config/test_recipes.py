"""Recipes: listed, parsed and dry-run without their weights and data."""

import tomllib
from pathlib import Path

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
def test_a_recipe_states_a_measured_claim_and_a_valid_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    about = read_toml(resource("recipes") / f"{name}.toml")["recipe"]
    command = about["command"].split()

    assert set(about) == {"what", "for_whom", "command", "expected", "time"}
    assert "measured" not in str(about).lower()  # "not measured", "to be measured"
    assert f"--recipe {name}" in about["command"]
    assert len(RECIPES) <= 10
    assert command[:2] == ["vitft", "finetune"]
    assert main([*command[1:], "--dry-run"]) in (0, 3)  # 3: the data is missing
