"""Cards from strangers: the digest is valid, so only the checks of the card refuse them."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.hostile_files import (
    CARD,
    SMALL,
    setting,
    small_weights,
    write_checkpoint,
)
from vitft.models.card import (
    Card,
    as_float32,
    check_card,
    first_five,
    parse_card,
    read_card,
    tensor_mismatch,
)
from vitft.models.checkpoint import load_checkpoint
from vitft.models.checkpoint_file import open_checkpoint
from vitft.models.shapes import vit_shapes
from vitft.predict.numpy_engine import NumpyEngine
from vitft.predict.torch_engine import Predictor
from vitft.system.errors import RunError
from vitft.system.safetensors_file import TensorFacts
from vitft.system.structure import StructureError

HUGE = 10**9
WRONG_VALUES: list[tuple[str, object, str]] = [
    ("architecture", None, "architecture is missing"),
    ("architecture", [], "architecture is missing"),
    ("architecture", {"timm": 5, "image_size": [16, 16]}, "timm is 5 instead of text"),
    ("architecture", {"timm": "../x", "image_size": [16, 16]}, "invalid timm model"),
    ("architecture", {"timm": "resnet18", "image_size": 16}, "instead of a list"),
    ("architecture.image_size", 16, r"image_size is 16 instead of a list"),
    ("architecture.image_size", [16], r"image_size is a list instead of a list of 2"),
    ("architecture.image_size", [16.0, 16.0], "instead of an integer"),
    ("architecture.image_size", [20_000, 20_000], "from 1 to 4096"),
    ("architecture.image_size", [-16, -16], "from 1 to 4096"),
    ("architecture.image_size", [24, 24], r"transform\.image_size"),
    ("architecture.patch_size", [0, 0], "from 1 to 4096"),
    ("architecture.patch_size", [1, 1], "pos_embed"),
    ("architecture.width", "8", "instead of an integer"),
    ("architecture.width", HUGE, "from 1 to 65536"),
    ("architecture.width", 16, "wrong shape"),
    ("architecture.depth", HUGE, "from 1 to 1024"),
    ("architecture.depth", 2, "missing: blocks"),
    ("architecture.depth", True, "instead of an integer"),
    ("architecture.heads", 0, "from 1"),
    ("architecture.heads", 3, "incompatible model settings"),
    ("architecture.mlp_ratio", "inf", "instead of a number"),
    ("architecture.mlp_ratio", 1e300, "at most 1024"),
    ("architecture.mlp_ratio", -1, "above 0"),
    ("architecture.qkv_bias", 1, "instead of true or false"),
    ("architecture.num_classes", 4, "lists 3 classes, but the head has 4"),
    ("architecture.num_classes", -3, "of 0 or more"),
    ("architecture.pool", "max", "instead of one of cls, mean"),
    ("architecture.pool", ["cls"], "instead of one of cls, mean"),
    ("architecture.norm", None, "instead of one of pre, post"),
    ("architecture.norm_eps", 0, "above 0"),
    ("architecture.layer_scale", -1.0, "from 0 to 1"),
    ("architecture.registers", 10**6, "from 0 to 1024"),
    ("architecture.stem", [2, "2"], "instead of an integer"),
    ("architecture.stem", [1] * 40, "incompatible"),
    ("architecture.convs", [2**40], "instead of a number"),
    ("architecture.surprise", 1, r"architecture\.surprise is unknown"),
    ("transform", "bicubic", "transform is 'bicubic' instead of an object"),
    ("transform.image_size", [32, 32], r"transform\.image_size is \(32, 32\)"),
    ("transform.crop", 1e-9, "requires resizing images to more than"),
    ("transform.crop", "0.9", "instead of a number"),
    ("transform.interpolation", "box", "instead of one of"),
    ("transform.mean", [0.5], "invalid normalisation"),
    ("transform.mean", [0.5, None, 0.5], "instead of a number"),
    ("transform.std", [0.5, 0.0, 0.5], "0.0 instead of a number from 1e-06"),
    ("transform.std", [1e-40, 0.5, 0.5], "from 1e-06"),
    ("transform.fit", 7, "instead of one of crop, squash, pad"),
    ("transform", ..., "transform is missing"),
    ("classes", ["cat", "dog"], "lists 2 classes, but the head has 3"),
    ("classes", ["cat", "dog", "cat"], "a class name is empty or occurs twice"),
    ("classes", ["cat", "dog", ""], "a class name is empty or occurs twice"),
    ("classes", ["cat", "dog", 3], "instead of text"),
    ("classes", ["cat", "dog", "\ud800"], "valid Unicode text"),
    ("classes", "abc", "classes is 'abc' instead of a list"),
    ("classes", {"0": "a"}, "instead of a list"),
    ("weights", [], "weights is a list instead of an object"),
    ("weights.name", 5, "instead of text"),
    ("weights.licence", ["mit"], "instead of text"),
    ("split", 5, "split is 5 instead of text"),
    ("pos_embed", {}, "pos_embed is an object instead of text"),
    ("surprise", 1, "surprise is unknown"),
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


def test_the_card_of_these_tests_is_accepted(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m.safetensors", json.dumps(CARD), small_weights())

    assert NumpyEngine.open(path) is not None
    assert Predictor.from_run(str(path)).classes == ("cat", "dog", "owl")


def test_a_backbone_may_be_in_half_precision_but_a_classifier_may_not(tmp_path: Path) -> None:
    backbone = {**CARD, "classes": [], "architecture": {**CARD["architecture"], "num_classes": 0}}
    halves = {name: array.astype(np.float16) for name, array in small_weights().items()}
    body = {name: array for name, array in halves.items() if not name.startswith("head.")}

    path = write_checkpoint(tmp_path / "backbone.safetensors", json.dumps(backbone), body)
    whole = write_checkpoint(tmp_path / "whole.safetensors", json.dumps(CARD), halves)

    assert load_checkpoint(path)[0]["cls_token"].dtype == torch.float16
    with pytest.raises(RunError, match="wrong type: cls_token F16"):
        load_checkpoint(whole)


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

    assert re.search(message, first), first
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


def test_a_pipe_in_place_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.safetensors")

    with pytest.raises(RunError, match="not found"):
        open_checkpoint(tmp_path / "m.safetensors")


def test_a_card_survives_its_file() -> None:
    card = parse_card(json.dumps(CARD))

    assert isinstance(card, Card)
    assert card.architecture == SMALL
    assert json.loads(card.to_json()) == CARD
    assert sum(len(facts.shape) for facts in vit_shapes(SMALL).values())


def test_refusing_every_wrong_card_takes_little_memory_and_time(tmp_path: Path) -> None:
    weights = small_weights()
    for i, (place, value, _) in enumerate(WRONG_VALUES):
        write_checkpoint(tmp_path / f"{i}.safetensors", setting(place, value), weights)
    for name, text in WRONG_TEXTS.items():
        write_checkpoint(tmp_path / f"{name}.safetensors", text, weights)
    code = """
import resource, sys, time
from pathlib import Path
from vitft.predict.numpy_engine import NumpyEngine
from vitft.system.errors import RunError
from vitft.system.safetensors_file import TensorFacts
from vitft.system.structure import StructureError
before, slowest, refused = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0.0, 0
for path in sorted(Path(sys.argv[1]).iterdir()):
    started = time.perf_counter()
    try:
        NumpyEngine.open(path)
    except RunError:
        refused += 1
    slowest = max(slowest, time.perf_counter() - started)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(refused, after - before, slowest, "torch" in sys.modules)
"""

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )

    refused, kibibytes, slowest, imported_torch = done.stdout.split()
    assert int(refused) == len(WRONG_VALUES) + len(WRONG_TEXTS)
    assert int(kibibytes) < 300 * 1024
    assert float(slowest) < 1
    assert imported_torch == "False"


def test_a_card_omits_thresholds_and_facts_that_it_lacks() -> None:
    card = parse_card(json.dumps(CARD))
    several = replace(card, thresholds=(0.1, 0.5, 0.9), run={"name": "roses", "images": 43})

    assert not {"thresholds", "run"} & json.loads(card.to_json()).keys()
    assert json.loads(several.to_json())["thresholds"] == [0.1, 0.5, 0.9]
    assert parse_card(several.to_json()) == several
    assert [*json.loads(card.to_json())] == sorted(json.loads(card.to_json()))


@pytest.mark.parametrize("thresholds", [(0.5, 0.5), (0.5,) * 4])
def test_a_card_has_one_threshold_for_each_label(thresholds: tuple[float, ...]) -> None:
    card = parse_card(json.dumps(CARD))

    check_card(replace(card, thresholds=(0.5,) * 3))
    with pytest.raises(StructureError, match=f"{len(thresholds)} thresholds for 3 labels"):
        check_card(replace(card, thresholds=thresholds))


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_thresholds_are_between_0_and_1(threshold: float) -> None:
    with pytest.raises(StructureError, match="thresholds"):
        parse_card(json.dumps(CARD | {"thresholds": [0.5, threshold, 0.5]}))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_model_has_at_most_three_channels(channels: int) -> None:
    card = parse_card(json.dumps(CARD))
    transform = replace(card.transform, mean=(0.5,) * channels, std=(0.5,) * channels)
    other = replace(
        card, architecture=replace(card.architecture, in_channels=channels), transform=transform
    )

    if channels <= 3:
        check_card(other)
    else:
        with pytest.raises(StructureError, match="equal and at most 3"):
            check_card(other)
    if channels != 3:
        with pytest.raises(StructureError, match="equal and at most 3"):
            check_card(replace(card, transform=transform))


def test_a_card_of_more_than_16_mib_is_not_parsed() -> None:
    text = json.dumps(CARD).ljust(2**24)

    assert parse_card(text).classes == ("cat", "dog", "owl")
    with pytest.raises(StructureError, match=r"too long \(16,777,217 characters\)"):
        parse_card(f"{text} ")


def test_only_the_tensors_of_a_backbone_may_be_halved() -> None:
    assert as_float32(TensorFacts("F16", (2,))) == TensorFacts("F32", (2,))
    assert as_float32(TensorFacts("BF16", (2,))) == TensorFacts("F32", (2,))
    assert as_float32(TensorFacts("F64", (2,))) == TensorFacts("F64", (2,))
    wanted = vit_shapes(SMALL)
    halves = {name: TensorFacts("BF16", facts.shape) for name, facts in wanted.items()}
    backbone = json.dumps({**CARD, "classes": []})

    assert read_card(backbone, halves).classes == ()
    assert read_card(json.dumps(CARD), wanted).classes == tuple(CARD["classes"])
    with pytest.raises(StructureError, match="wrong type: cls_token BF16 instead of F32"):
        read_card(json.dumps(CARD), halves)


def test_the_tensors_of_a_timm_model_are_left_to_timm() -> None:
    card = {**CARD, "architecture": {"timm": "resnet18", "image_size": [16, 16], "num_classes": 3}}

    assert read_card(json.dumps(card), {}).architecture.num_classes == 3


def test_every_kind_of_difference_between_tensors_is_listed() -> None:
    wanted = {name: TensorFacts("F32", (2,)) for name in "abcd"}
    found = {
        "a": TensorFacts("F32", (2,)),
        "b": TensorFacts("F32", (3,)),
        "c": TensorFacts("I64", (2,)),
        "e": TensorFacts("F32", (2,)),
    }

    assert tensor_mismatch(found, wanted) == (
        "missing: d; unexpected: e; wrong shape: b (3,) instead of (2,); "
        "wrong type: c I64 instead of F32"
    )
    assert tensor_mismatch(wanted, wanted) == ""


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("", ""),
        ("a", "a"),
        ("abcde", "a, b, c, d, e"),
        ("abcdef", "a, b, c, d, e and 1 more"),
        ("abcdefg", "a, b, c, d, e and 2 more"),
    ],
)
def test_the_first_five_of_many_names_are_listed(names: str, text: str) -> None:
    assert first_five([*names]) == text
    assert first_five(["x" * 101]) == "x" * 100
