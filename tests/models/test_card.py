"""Cards from strangers: the digest is valid, so only the checks of the card refuse them."""

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.hostile_files import CARD, SMALL, setting, small_weights, write_checkpoint
from vitft.models import Card, load_checkpoint, parse_card, vit_shapes
from vitft.predict import NumpyEngine
from vitft.system import RunError

HUGE = 10**9
WRONG_VALUES: list[tuple[str, object, str]] = [
    ("architecture", None, "architecture is missing"),
    ("architecture", [], "architecture is missing"),
    ("architecture", {"timm": 5, "image_size": [16, 16]}, "architecture.timm: "),
    ("architecture", {"timm": "../x", "image_size": [16, 16]}, "invalid timm model"),
    ("architecture", {"timm": "resnet18", "image_size": 16}, "architecture.image_size: "),
    ("architecture.image_size", 16, "architecture.image_size: "),
    ("architecture.image_size", [16], "architecture.image_size: "),
    ("architecture.image_size", [16.0, 16.0], "architecture.image_size: "),
    ("architecture.image_size", [20_000, 20_000], "architecture.image_size: "),
    ("architecture.image_size", [-16, -16], "architecture.image_size: "),
    ("architecture.image_size", [24, 24], r"transform\.image_size"),
    ("architecture.patch_size", [0, 0], "architecture.patch_size: "),
    ("architecture.patch_size", [1, 1], "pos_embed"),
    ("architecture.width", "8", "architecture.width: "),
    ("architecture.width", HUGE, "architecture.width: "),
    ("architecture.width", 16, "wrong shape"),
    ("architecture.depth", HUGE, "architecture.depth: "),
    ("architecture.depth", 2, "missing: blocks"),
    ("architecture.depth", True, "architecture.depth: "),
    ("architecture.heads", 0, "architecture.heads: "),
    ("architecture.heads", 3, "incompatible model settings"),
    ("architecture.mlp_ratio", "inf", "architecture.mlp_ratio: "),
    ("architecture.mlp_ratio", 1e300, "architecture.mlp_ratio: "),
    ("architecture.mlp_ratio", -1, "architecture.mlp_ratio: "),
    ("architecture.qkv_bias", 1, "architecture.qkv_bias: "),
    ("architecture.in_channels", 1, "transform.channels is 3 and architecture.in_channels is 1"),
    ("architecture.num_classes", 4, "lists 3 classes, but the head has 4"),
    ("architecture.num_classes", -3, "architecture.num_classes: "),
    ("architecture.pool", "max", "architecture.pool: "),
    ("architecture.pool", ["cls"], "architecture.pool: "),
    ("architecture.norm", None, "architecture.norm: "),
    ("architecture.norm_eps", 0, "architecture.norm_eps: "),
    ("architecture.layer_scale", -1.0, "architecture.layer_scale: "),
    ("architecture.registers", 10**6, "architecture.registers: "),
    ("architecture.stem", [2, "2"], "architecture.stem: "),
    ("architecture.stem", [1] * 40, "incompatible"),
    ("architecture.convs", [2**40], "architecture.convs: "),
    ("architecture.surprise", 1, r"architecture\.surprise is unknown"),
    ("transform", "bicubic", "transform: "),
    ("transform.image_size", [32, 32], r"transform\.image_size is \(32, 32\)"),
    ("transform.crop", 1e-9, "requires resizing images to more than"),
    ("transform.crop", "0.9", "transform.crop: "),
    ("transform.interpolation", "box", "transform.interpolation: "),
    ("transform.mean", [0.5], "invalid normalisation"),
    ("transform.mean", [0.5, None, 0.5], "transform.mean: "),
    ("transform.std", [0.5, 0.0, 0.5], "transform.std: "),
    ("transform.std", [1e-40, 0.5, 0.5], "transform.std: "),
    ("transform.fit", 7, "transform.fit: "),
    ("transform.grey_range", [2.0, 1.0], "invalid grey range"),
    ("transform", ..., "missing required field `transform`"),
    ("classes", ["cat", "dog"], "lists 2 classes, but the head has 3"),
    ("classes", ["cat", "dog", "cat"], "a class name is empty or occurs twice"),
    ("classes", ["cat", "dog", ""], "a class name is empty or occurs twice"),
    ("classes", ["cat", "dog", 3], "classes: "),
    ("classes", ["cat", "dog", "\ud800"], "half of a surrogate pair"),
    ("classes", "abc", "classes: "),
    ("classes", {"0": "a"}, "classes: "),
    ("thresholds", [0.5, 0.5], "2 thresholds for 3 labels"),
    ("thresholds", [0.5, 1.0, 0.5], "thresholds: "),
    ("thresholds", [0.0, 0.5, 0.5], "thresholds: "),
    ("weights", [], "weights: "),
    ("weights.name", 5, "weights.name: "),
    ("weights.licence", ["mit"], "weights.licence: "),
    ("split", 5, "split: "),
    ("pos_embed", {}, "pos_embed: "),
    ("surprise", 1, "surprise is unknown"),
    ("y" * 100, 1, "(?<!y)y{60} is unknown"),
]
WRONG_TEXTS = {
    "empty": "",
    "not JSON": "{",
    "a list": "[]",
    "null": "null",
    "NaN": setting("transform.crop", 0.9).replace("0.9", "NaN"),
    "infinity": setting("transform.crop", 0.9).replace("0.9", "1e999"),
    "a duplicate key": setting("split", "a").replace('"split"', '"classes": [], "split"'),
    "deep": setting("split", "x").replace('"x"', "[" * 50_000 + "]" * 50_000),
    "a huge number": setting("split", "x").replace('"x"', "9" * 10_000),
}


def refusals(path: Path) -> list[str]:
    """Return the messages with which both engines refuse a checkpoint."""
    messages = []
    for load in (NumpyEngine.open, load_checkpoint):
        started = time.process_time()
        with pytest.raises(RunError) as caught:
            load(path)
        assert time.process_time() - started < 2
        messages.append(caught.value.problem)
    return messages


@pytest.mark.parametrize(("place", "value", "message"), WRONG_VALUES)
def test_both_engines_refuse_a_wrong_value_in_the_card(
    tmp_path: Path, place: str, value: object, message: str
) -> None:
    card = setting(place, value)
    path = write_checkpoint(tmp_path / "m.safetensors", card, small_weights())

    first, second = refusals(path)

    unindexed = re.sub(r"\[\d\]: ", ": ", first)
    assert re.search(message, unindexed), first
    assert first == second
    assert "\n" not in first
    assert len(first) < 1000


@pytest.mark.parametrize("text", WRONG_TEXTS.values(), ids=WRONG_TEXTS.keys())
def test_both_engines_refuse_a_card_that_is_not_strict_json(tmp_path: Path, text: str) -> None:
    path = write_checkpoint(tmp_path / "m.safetensors", text, small_weights())

    first, second = refusals(path)

    assert first == second
    assert "its card is invalid" in first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"head.weight": np.zeros((4, 8), np.float32)}, "wrong shape", id="rows"),
        pytest.param({"head.weight": np.zeros((3, 8), np.float16)}, "wrong type", id="half"),
        pytest.param({"head.weight": np.zeros((3, 8), np.int64)}, "wrong type", id="integers"),
        pytest.param({"head.bias": np.zeros((), np.float32)}, "wrong shape", id="a scalar"),
        pytest.param({"head.bias": None}, "missing: head.bias", id="missing"),
        pytest.param({"blocks.1.norm1.weight": np.zeros(8, np.float32)}, "unexpected", id="more"),
        pytest.param({"norm.weight": np.zeros((0,), np.float32)}, "wrong shape", id="empty"),
    ],
)
def test_both_engines_refuse_tensors_that_the_card_does_not_describe(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    weights = {n: a for n, a in (small_weights() | change).items() if a is not None}
    path = write_checkpoint(tmp_path / "m.safetensors", json.dumps(CARD), weights)

    first, second = refusals(path)

    assert message in first
    assert first == second


def test_a_changed_card_is_reported_as_damage_not_as_a_wrong_value(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m.safetensors", json.dumps(CARD), small_weights())
    path.write_bytes(path.read_bytes().replace(b'\\"width\\": 8', b'\\"width\\": 9'))

    assert all("sha256" in message for message in refusals(path))


def test_a_card_survives_its_file() -> None:
    card = parse_card(json.dumps(CARD))
    several = parse_card(setting("thresholds", [0.2, 0.5, 0.9]))

    assert isinstance(card, Card)
    assert card.architecture == SMALL
    assert json.loads(card.to_json()) == CARD
    assert json.loads(several.to_json()) == {**CARD, "thresholds": [0.2, 0.5, 0.9]}
    assert sum(len(facts.shape) for facts in vit_shapes(SMALL).values())


def test_both_engines_refuse_a_type_that_vitft_does_not_write(tmp_path: Path) -> None:
    weights = small_weights() | {"x": np.zeros(2, np.uint16)}

    first, second = refusals(
        write_checkpoint(tmp_path / "m.safetensors", setting("split", ""), weights)
    )

    assert first == second
    assert "unsupported tensor type U16" in first
