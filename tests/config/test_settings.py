"""Settings: documented values, defaults, and names that were meant."""

import re
import runpy
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from vitft.config import SETTINGS, config_from_table, default_batch_size, default_lr, to_toml

SETTINGS_PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def documented(layers: str) -> dict[str, Any]:
    """Return the default settings of trained layers, as documented in docs/settings.md."""
    (row,) = re.findall(rf"^\| {layers} \| (.*) \|$", SETTINGS_PAGE.read_text(), re.M)
    pairs = [cell.partition("=") for cell in re.findall("`([^`]*)`", row)]
    return {key: tomllib.loads(f"x = {value}")["x"] if re.match(r"[\d.]+$", value) else value
            for key, _, value in pairs}  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "width", "lr"),
    [
        pytest.param("all", 192, 5e-4, id="ViT-Ti, measured"),
        pytest.param("all", 768, 1.25e-4, id="ViT-B: four times as wide, a quarter"),
        pytest.param("all", 64, 5e-4, id="never more than measured"),
        pytest.param("head,all", 192, 5e-4, id="the last stage decides"),
        pytest.param("blocks:2", 384, 5e-5, id="some blocks"),
        pytest.param("lora", 384, 5e-4, id="adapters"),
        pytest.param("head", 768, 1e-2, id="a head does not depend on the width"),
        pytest.param("pre_logits", 768, 1e-3, id="nor does pre_logits"),
    ],
)
def test_wider_models_take_smaller_steps(layers: str, width: int, lr: float) -> None:
    assert default_lr(layers, width) == pytest.approx(lr)


@pytest.mark.parametrize(
    ("layers", "images", "size"),
    [
        pytest.param("all", 20, 8, id="never below 8"),
        pytest.param("head,all", 639, 8, id="39 steps of 16"),
        pytest.param("lora", 640, 16, id="40 steps of 16"),
        pytest.param("blocks:4", 1279, 16, id="39 steps of 32"),
        pytest.param("all", 1280, 32, id="40 steps of 32"),
        pytest.param("all", 10**6, 32, id="never above 32"),
        pytest.param("head", 100, 32, id="a head does not depend on the images"),
        pytest.param("pre_logits", 100, 32, id="nor does pre_logits"),
    ],
)
def test_few_images_are_trained_in_small_batches(layers: str, images: int, size: int) -> None:
    assert default_batch_size(layers, images, batch_norm=False) == size
    assert default_batch_size(layers, images, batch_norm=True) == 32


@pytest.mark.parametrize(
    ("layers", "given"),
    [
        ("head", {"train": {"layers": "head"}, "optim": {"solver": "adamw"}}),
        ("pre_logits", {"train": {"layers": "pre_logits"}, "weights": {"pre_logits": "keep"}}),
        ("blocks", {"train": {"layers": "head,blocks:3"}}),
        ("all", {"train": {"layers": "all"}}),
        ("lora", {"train": {"layers": "head,lora"}}),
        ("weights none", {"weights": {"name": "none"}}),
    ],
)
def test_a_run_has_the_documented_defaults_of_the_layers_that_it_trains(
    layers: str, given: Mapping[str, Any]
) -> None:
    table = tomllib.loads(to_toml(config_from_table(given)))
    settings = {f"{name}.{key}": table[name][key] for name in table for key in table[name]}
    expected = documented(layers)

    if layers != "weights none":
        assert default_lr(layers, 192) == expected.pop("optim.lr")
    assert {key: settings[key] for key in expected} == expected


def test_the_settings_page_is_current() -> None:
    page = runpy.run_path(str(SETTINGS_PAGE.with_name("reference.py")))["settings_page"]

    assert page() == SETTINGS_PAGE.read_text()  # otherwise: make docs


def test_aliases_are_not_names_of_settings() -> None:
    last = {setting.partition(".")[2] for setting in SETTINGS}

    assert not last & {alias for setting in SETTINGS.values() for alias in setting.aliases.split()}
