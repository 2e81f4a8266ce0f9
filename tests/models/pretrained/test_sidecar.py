"""Facts in the config.json and preprocessor_config.json next to weights."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vitft.models import RopeConfig, SidecarFacts, architecture_config, read_sidecar
from vitft.system import WeightsError

HALF = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.3, 0.2, 0.1]}
HF = {"hidden_act": "gelu", "num_attention_heads": 6}


def facts_of(folder: Path, config: Any, processor: Any = None) -> SidecarFacts:
    (folder / "config.json").write_text(json.dumps(config))
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return read_sidecar(folder / "model.safetensors")


def test_without_a_config_nothing_is_stated(tmp_path: Path) -> None:
    assert read_sidecar(tmp_path / "model.safetensors") == SidecarFacts()


STATED: list[tuple[dict[str, Any], dict[str, Any], str, Any]] = [
    *(({"input_size": value}, {}, "image_size", size) for value, size in (
        (224, (224, 224)), ([32, 48], (32, 48)), ([3, 32, 48], (32, 48)), (16384, (16384, 16384))
    )),
    *(({"label_names": value}, {}, "classes", ("a", "b")) for value in (
        ["a", "b"], {"1": "b", "0": "a"}
    )),
    *(({"interpolation": word}, {}, "interpolation", found) for word, found in (
        ("random", None), ("", None), ("nearest", "nearest")
    )),
    *((HF, {"resample": number}, "interpolation", found) for number, found in (
        (None, None), (1, "lanczos"), (3, "bicubic"), (4, None), (5, None)  # as in Pillow
    )),
]  # fmt: skip
WRONG_SIZES: list[Any] = [0, -1, 16385, 2.0, "224", [224], [0, 3], [True, 3], [], {}]
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    *(({"input_size": size}, {}, r"config.json: input_size.*: Expected") for size in WRONG_SIZES),
    *((HF | {"layer_norm_eps": value}, {}, "layer_norm_eps: Expected") for value in (
        0, 1, -1e-6, "1e-6"
    )),
    ({"interpolation": "box"}, {}, r"interpolation: .*'box'"),
    (HF, {"resample": 6}, "resample: Expected `int` <= 5"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "processor", "name", "value"), STATED)
def test_a_value_may_be_written_in_several_ways(
    tmp_path: Path, config: dict[str, Any], processor: dict[str, Any], name: str, value: Any
) -> None:
    found = facts_of(tmp_path, config, processor)

    assert getattr(found, name, found.pixels.get(name)) == value


@pytest.mark.parametrize(("config", "processor", "reason"), REFUSED)
def test_values_out_of_range_are_refused(
    tmp_path: Path, config: dict[str, Any], processor: dict[str, Any], reason: str
) -> None:
    with pytest.raises(WeightsError, match=reason):
        facts_of(tmp_path, config, processor)


def test_timms_config_states_architecture_preprocessing_and_classes(tmp_path: Path) -> None:
    config = {
        "architecture": "vit_small_patch16_224",
        "num_features": 384,
        "pretrained_cfg": {
            "tag": "augreg", "input_size": [3, 32, 48], "mean": [0.1], "std": [0.2],
            "crop_pct": 0.8, "interpolation": "bilinear", "crop_mode": "squash",
            "label_names": ["a", "b"],
        },
        "global_pool": "avg",
    }  # fmt: skip

    found = facts_of(tmp_path, config)

    assert (found.heads, found.norm_eps, found.activation) == (6, 1e-6, "gelu")
    assert found.image_size == (32, 48)
    assert found.pixels == {
        "mean": (0.1,), "std": (0.2,), "crop": 0.8, "interpolation": "bilinear", "fit": "squash"
    }  # fmt: skip
    assert (found.classes, found.pool) == (("a", "b"), "avg")
    assert found.published == "vit_small_patch16_224.augreg"
    assert found.source == f"from {tmp_path / 'config.json'}"
    assert (found.is_named, found.rope, found.final_norm) == (True, None, True)


def test_the_arguments_of_timms_model_come_before_its_name(tmp_path: Path) -> None:
    arguments = {"num_heads": 12, "act_layer": "quick_gelu", "global_pool": "map",
                 "img_size": [16, 24]}  # fmt: skip
    config = {
        "architecture": "vit_small_patch16_224", "model_args": arguments, "global_pool": "avg",
        "pretrained_cfg": {"input_size": [3, 224, 224]}, "label_names": ["c"],
    }  # fmt: skip

    found = facts_of(tmp_path, config)

    assert (found.heads, found.activation, found.pool) == (12, "quick_gelu", "map")
    assert (found.image_size, found.classes) == ((16, 24), ("c",))
    assert (found.published, found.source) == ("", "")


def test_older_files_of_timm_state_preprocessing_at_their_top(tmp_path: Path) -> None:
    found = facts_of(tmp_path, {"mean": [0.1], "std": [0.2], "input_size": [3, 8, 8]})

    assert (found.pixels, found.image_size) == ({"mean": (0.1,), "std": (0.2,)}, (8, 8))
    assert (found.heads, found.pool, found.is_named) == (None, "", False)


@pytest.mark.parametrize("missing", ["mean", "std"])
def test_mean_and_std_count_only_together(tmp_path: Path, missing: str) -> None:
    both = {"mean": [0.1], "std": [0.2]}
    pair = {"image_mean": [0.1], "image_std": [0.2]}
    del both[missing], pair[f"image_{missing}"]

    timm, hf = facts_of(tmp_path, both), facts_of(tmp_path, HF, pair)

    for found in (timm, hf):
        assert not found.pixels.keys() & {"mean", "std"}
        assert found.source == ""


def test_rotary_settings_of_timm_replace_those_of_the_architecture(tmp_path: Path) -> None:
    name = "vit_pe_core_tiny_patch16_384"
    known = architecture_config(name).rope
    assert known is not None
    arguments: dict[str, Any] = {
        "rope_temperature": 50.0, "rope_grid_offset": 2.0, "rope_type": "dinov3",
        "rope_grid_indexing": "ij", "rope_rotate_half": True, "ref_feat_shape": [3, 4],
    }  # fmt: skip

    plain = facts_of(tmp_path, {"architecture": name})
    changed = facts_of(tmp_path, {"architecture": name, "model_args": arguments})
    without = facts_of(tmp_path, {"architecture": name, "model_args": {"use_rot_pos_emb": False}})

    assert plain.rope == known
    assert changed.rope == RopeConfig(
        unit=True, base=50.0, offset=2.0, grid=(3, 4), x_first=False, halves=True
    )
    assert without.rope is None
    none = {"architecture": name, "model_args": {"ref_feat_shape": None, "rope_type": "cat",
            "rope_grid_indexing": "xy", "rope_rotate_half": False}}  # fmt: skip
    stated = facts_of(tmp_path, none)
    assert stated.rope == replace(known, grid=None, unit=False, x_first=True, halves=False)
    with pytest.raises(WeightsError, match="base: Expected"):
        facts_of(tmp_path, {"architecture": name, "model_args": {"rope_temperature": 0.5}})


@pytest.mark.parametrize(
    ("arguments", "heads", "norm"),
    [
        ({}, 0, True),
        ({"attn_pool_num_heads": 3}, 3, True),
        ({"attn_pool_num_heads": 12, "num_heads": 12}, 0, True),
        ({"attn_pool_num_heads": 4, "num_heads": 12}, 4, True),
        ({"final_norm": False}, 0, False),
        ({"final_norm": False, "use_fc_norm": True}, 0, True),
        ({"use_post_transformer_norm": False}, 0, False),
    ],
)
def test_pooling_heads_and_the_last_norm_follow_from_the_arguments(
    tmp_path: Path, arguments: dict[str, Any], heads: int, norm: bool
) -> None:
    config = {"architecture": "vit_base_patch16_224", "model_args": arguments}

    found = facts_of(tmp_path, config)

    assert (found.pool_heads, found.final_norm) == (heads, norm)


def test_transformers_config_states_heads_epsilon_and_classes(tmp_path: Path) -> None:
    config = HF | {"image_size": 32, "layer_norm_eps": 1e-12, "id2label": {"0": "a", "1": "b"}}

    found = facts_of(tmp_path, config, HALF | {"resample": 2})

    assert (found.heads, found.image_size, found.norm_eps) == (6, (32, 32), 1e-12)
    assert (found.classes, found.activation) == (("a", "b"), "gelu")
    assert found.pixels == {
        "mean": (0.1, 0.2, 0.3), "std": (0.3, 0.2, 0.1), "interpolation": "bilinear",
        "fit": "squash", "crop": 1.0,
    }  # fmt: skip
    assert found.source == f"from {tmp_path / 'preprocessor_config.json'}"
    raw = facts_of(tmp_path, config, HALF | {"do_normalize": False})
    assert (raw.pixels["mean"], raw.pixels["std"]) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    assert facts_of(tmp_path, config, HALF | {"do_normalize": True}).pixels["std"] == (
        0.3,
        0.2,
        0.1,
    )


@pytest.mark.parametrize(
    ("fields", "fit", "crop"),
    [
        ({"size": {"shortest_edge": 256}, "crop_size": {"height": 224}}, "crop", 0.875),
        ({"size": {"shortest_edge": 256}, "crop_size": 224}, "crop", 0.875),
        ({"size": {"shortest_edge": 224}, "crop_size": 224}, "crop", 1.0),
        ({"size": {"shortest_edge": 224}, "crop_size": 256}, "squash", 1.0),
        ({"size": {"shortest_edge": 256}, "crop_size": 0}, "squash", 1.0),
        ({"size": {"shortest_edge": 0}, "crop_size": 0}, "squash", 1.0),
        ({"size": {"shortest_edge": 256}}, "squash", 1.0),
        ({"size": {"height": 224}, "crop_size": 224}, "squash", 1.0),
        ({"size": 224, "crop_size": 224}, "squash", 1.0),
    ],
)
def test_transformers_crops_only_after_resizing_the_shorter_side(
    tmp_path: Path, fields: dict[str, Any], fit: str, crop: float
) -> None:
    found = facts_of(tmp_path, HF, fields)

    assert (found.pixels["fit"], found.pixels["crop"]) == (fit, crop)


@pytest.mark.parametrize(
    ("kind", "activation", "eps"),
    [
        ("clip_vision_model", "quick_gelu", 1e-5),
        ("siglip_vision_model", "gelu_tanh", 1e-6),
        ("siglip2_vision_model", "gelu_tanh", 1e-6),
    ],
)
def test_vision_towers_omit_the_defaults_of_transformers(
    tmp_path: Path, kind: str, activation: str, eps: float
) -> None:
    found = facts_of(tmp_path, {"model_type": kind})
    inner = facts_of(tmp_path, {"vision_config": {"model_type": kind}, "num_attention_heads": 3})
    stated = facts_of(tmp_path, {"model_type": kind, "hidden_act": "gelu", "layer_norm_eps": 0.1})

    assert (found.activation, found.norm_eps) == (activation, eps)
    assert (inner.activation, inner.heads) == (activation, None)
    assert (stated.activation, stated.norm_eps) == ("gelu", 0.1)


def test_dinov3_has_rotary_positions_and_may_have_gates(tmp_path: Path) -> None:
    config = HF | {"model_type": "dinov3_vit"}

    plain = facts_of(tmp_path, config)
    other = facts_of(tmp_path, config | {"rope_theta": 50.0})
    vit = facts_of(tmp_path, HF)
    gated = facts_of(tmp_path, config | {"use_gated_mlp": True, "hidden_act": "silu"})

    assert (plain.rope, other.rope, vit.rope) == (RopeConfig(), RopeConfig(base=50.0), None)
    assert (plain.pool_heads, plain.final_norm) == (0, True)
    assert gated.activation is None
    with pytest.raises(WeightsError, match="hidden_act: Invalid enum value 'gelu'"):
        facts_of(tmp_path, config | {"use_gated_mlp": True})
    with pytest.raises(WeightsError, match="supports only GELU"):
        facts_of(tmp_path, HF | {"hidden_act": "relu"})


def test_the_processor_of_timm_states_the_grey_range(tmp_path: Path) -> None:
    cfg = {"mean": [0.1], "std": [0.2], "grey_range": [120, 3900], "crop_pct": 0.5}

    beside = facts_of(tmp_path, HF, {"pretrained_cfg": cfg})
    (tmp_path / "preprocessor_config.json").unlink()
    inside = facts_of(tmp_path, HF | {"pretrained_cfg": cfg})

    for found in (beside, inside):
        stated = {"mean": (0.1,), "std": (0.2,), "crop": 0.5, "grey_range": (120.0, 3900.0)}
        assert found.pixels == stated
