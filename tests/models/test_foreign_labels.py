"""Thresholds of multi-label models that another tool or an export describes in config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from vitft.models.run_facts import foreign_thresholds

LABELS = {"0": "cat", "1": "dog", "2": "red"}
SEVERAL = {"problem_type": "multi_label_classification", "id2label": LABELS}
HALVES = (0.5, 0.5, 0.5)


def thresholds_for(folder: Path, text: str) -> tuple[float, ...]:
    (folder / "config.json").write_text(text)
    return foreign_thresholds(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(SEVERAL, HALVES, id="transformers"),
        pytest.param(SEVERAL | {"vitft_thresholds": [0.2, 0.5, 0.9]}, (0.2, 0.5, 0.9), id="vitft"),
        pytest.param(SEVERAL | {"vitft_thresholds": [0.2, 0.5]}, HALVES, id="too few"),
        pytest.param(SEVERAL | {"vitft_thresholds": [0.2, 0.5, 0.0]}, HALVES, id="0"),
        pytest.param(SEVERAL | {"vitft_thresholds": [0.2, 0.5, 1.0]}, HALVES, id="1"),
        pytest.param(
            SEVERAL | {"vitft_thresholds": [1e-9, 0.5, 0.999]}, (1e-9, 0.5, 0.999), id="borders"
        ),
        pytest.param(SEVERAL | {"vitft_thresholds": [0.2, 0.5, "0.9"]}, HALVES, id="text"),
        pytest.param(SEVERAL | {"vitft_thresholds": "0.1"}, HALVES, id="no list"),
        pytest.param({"id2label": LABELS}, (), id="one class per image"),
        pytest.param(
            SEVERAL | {"problem_type": "single_label_classification"}, (), id="another problem"
        ),
        pytest.param({"problem_type": SEVERAL["problem_type"]}, (), id="no labels"),
        pytest.param(SEVERAL | {"id2label": ["cat", "dog"]}, (), id="labels in a list"),
        pytest.param([1], (), id="no table"),
    ],
)
def test_each_label_has_the_threshold_of_its_export_or_one_half(
    tmp_path: Path, config: Any, expected: tuple[float, ...]
) -> None:
    assert thresholds_for(tmp_path, json.dumps(config)) == expected


def test_without_a_readable_config_each_image_has_one_class(tmp_path: Path) -> None:
    assert foreign_thresholds(tmp_path / "model.safetensors") == ()
    assert thresholds_for(tmp_path, "{") == ()


def test_a_config_of_more_than_16_mib_is_not_read(tmp_path: Path) -> None:
    text = json.dumps(SEVERAL).ljust(2**24)

    assert thresholds_for(tmp_path, text) == HALVES
    assert thresholds_for(tmp_path, f"{text} ") == ()
