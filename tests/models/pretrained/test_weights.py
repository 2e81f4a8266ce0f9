"""Weights opened for use: what is stated, deduced, assumed and refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from vitft.models.card import Provenance
from vitft.models.pretrained.catalog import CatalogEntry, find_entry
from vitft.models.pretrained.fetch import Fetched
from vitft.models.pretrained.sidecar import SidecarFacts
from vitft.models.pretrained.weights import (
    PretrainedWeights,
    assumptions,
    catalog_facts,
    descended,
    open_pretrained,
    provenance_of,
    stated_transform,
    with_usual_statistics,
)
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import WeightsError

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize(
    ("fields", "flavour", "expected"),
    [
        ({"layer_scale": 0.1}, "timm", IMAGENET),
        ({"distilled": True}, "timm", IMAGENET),
        ({"layer_scale": 0.1}, "npz", IMAGENET),
        ({}, "npz", HALF),
        ({"pre_logits": True}, "timm", HALF),
        ({"stem": (), "patch_size": (16, 16)}, "timm", HALF),
        ({}, "timm", (None, None)),
        ({"layer_scale": 0.1, "in_channels": 1}, "timm", (None, None)),
    ],
)
def test_statistics_are_deduced_only_where_all_published_models_agree(
    tiny_config: ViTConfig, fields: dict[str, Any], flavour: Any, expected: object
) -> None:
    config = replace(tiny_config, **fields)

    found = with_usual_statistics(SidecarFacts(), config, flavour, "mine")

    assert (found.mean, found.std) == expected
    assert bool(found.source) == (found.mean is not None)
    stated = SidecarFacts(mean=(0.1,), std=(0.2,))
    assert with_usual_statistics(stated, config, flavour, "mine") == stated


def test_a_published_name_brings_its_preprocessing_but_not_over_what_is_stated() -> None:
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    entry, config = find_entry(name), ViTConfig(width=192, heads=3)
    given = SidecarFacts(crop=0.5, interpolation="nearest", fit="pad")

    found = with_usual_statistics(SidecarFacts(), config, "timm", name)
    kept = with_usual_statistics(given, config, "timm", name)

    assert (found.mean, found.std, found.crop) == (entry.mean, entry.std, entry.crop)
    assert (found.interpolation, found.fit) == (entry.interpolation, entry.fit)
    assert found.source == f"as published for {entry.name}"
    assert (kept.crop, kept.interpolation, kept.fit) == (0.5, "nearest", "pad")
    assert kept.mean == entry.mean


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        ({}, {"name": "run"}),
        ({"name": "base"}, {"name": "run", "from": "base"}),
        ({"name": "run-1", "from": "base"}, {"name": "run", "from": "base"}),
        ({"licence": "mit"}, {"name": "run", "licence": "mit"}),
    ],
)
def test_weights_descend_from_the_first_pretrained_ones(
    parent: Provenance, expected: Provenance
) -> None:
    assert descended({"name": "run"}, parent) == expected


def test_what_is_not_stated_has_the_defaults_of_timm(
    tmp_path: Path, tiny_config: ViTConfig
) -> None:
    facts = SidecarFacts(mean=(0.1, 0.2, 0.3), std=(0.3, 0.2, 0.1), crop=0.7, fit="pad",
                         interpolation="bilinear", grey_range=(1.0, 2.0))  # fmt: skip

    plain = stated_transform(SidecarFacts(), tiny_config, tmp_path)
    stated = stated_transform(facts, tiny_config, tmp_path)

    assert (plain.mean, plain.std, plain.crop) == ((0.5,) * 3, (0.5,) * 3, 0.9)
    assert (plain.interpolation, plain.fit, plain.image_size) == ("bicubic", "crop", (16, 16))
    assert (stated.mean, stated.std, stated.crop) == (facts.mean, facts.std, 0.7)
    assert (stated.interpolation, stated.fit, stated.grey_range) == ("bilinear", "pad", (1.0, 2.0))
    with pytest.raises(WeightsError, match=r"have 1 value each .* expect 3 channels"):
        stated_transform(SidecarFacts(mean=(0.1,), std=(0.1,)), tiny_config, tmp_path)
    with pytest.raises(WeightsError, match="invalid preprocessing settings"):
        stated_transform(SidecarFacts(crop=2.0), tiny_config, tmp_path)


def test_what_is_assumed_or_wrong_is_noted(tiny_config: ViTConfig) -> None:
    right = SidecarFacts(heads=2, image_size=(16, 16))

    assert assumptions(tiny_config, right) == assumptions(tiny_config, SidecarFacts(heads=2)) == []
    (heads,) = assumptions(tiny_config, replace(right, heads=None))
    assert heads == "the number of heads is not stated; assuming 2 for a width of 32"
    (size,) = assumptions(tiny_config, replace(right, image_size=(16, 24)))
    assert size.startswith("the stated image size, 16x24, does not match")
    assert size.endswith("are for 16x16 pixels")


def test_facts_of_the_catalogue_are_those_of_its_entry() -> None:
    entry = CatalogEntry(
        name="x", licence="mit", architecture="vit_small_patch16_224", options={"pool": "mean"},
        image_size=(32, 32), crop=0.5, interpolation="bilinear", fit="squash", note="n",
        mean=(0.1,) * 3, std=(0.2,) * 3,
    )  # fmt: skip

    found, unnamed = catalog_facts(entry), catalog_facts(CatalogEntry(name="y", licence="mit"))

    assert (found.heads, found.norm_eps, found.activation, found.pool) == (6, 1e-6, "gelu", "avg")
    assert (found.image_size, found.crop, found.fit) == ((32, 32), 0.5, "squash")
    assert (found.mean, found.std, found.interpolation) == ((0.1,) * 3, (0.2,) * 3, "bilinear")
    assert (found.published, found.source, found.notes) == ("x", "from the catalogue", ("n",))
    assert found.unstored is not None
    assert (unnamed.heads, unnamed.norm_eps, unnamed.activation) == (None, None, None)
    assert (unnamed.pool, unnamed.unstored, unnamed.notes) == ("", None, ())


@pytest.mark.parametrize(("repo", "source"), [("a/b", "a/b/w.bin"), ("", "demo.safetensors")])
def test_the_origin_of_fetched_weights_is_their_repository_or_file(repo: str, source: str) -> None:
    entry = CatalogEntry(name="x", licence="mit", repo=repo, path="demo.safetensors")
    fetched = Fetched(path=Path("/cache/w.bin"), revision="r", sha256="12")

    assert provenance_of(entry, fetched) == {
        "name": "x", "source": source, "revision": "r", "sha256": "12", "licence": "mit",
    }  # fmt: skip


def opened(folder: Path, config: ViTConfig, facts: dict[str, Any]) -> PretrainedWeights:
    torch.manual_seed(0)
    save_file(VisionTransformer(config).state_dict(), folder / "mine.safetensors")
    (folder / "config.json").write_text(json.dumps(facts))
    return open_pretrained(folder / "mine.safetensors")


def test_stated_classes_are_used_if_the_head_has_as_many(
    tmp_path: Path, tiny_config: ViTConfig
) -> None:
    pair = opened(
        tmp_path, tiny_config, {"model_args": {"num_heads": 2}, "label_names": ["a", "b"]}
    )
    three = opened(
        tmp_path, tiny_config, {"model_args": {"num_heads": 2}, "label_names": ["a", "b", "a"]}
    )
    headless = opened(
        tmp_path, replace(tiny_config, num_classes=0),
        {"model_args": {"num_heads": 2}, "label_names": ["a", "b"]},
    )  # fmt: skip

    assert pair.classes == ()
    assert pair.notes == (
        "config.json lists 2 classes, but the head has 3 outputs, so the class names are not used",
    )
    assert three.classes == ("a (0)", "b", "a (2)")
    assert three.notes == headless.notes == headless.classes == ()
    assert three.label_set == ""
    assert (three.name, three.published, three.flavour) == ("mine", "mine", "timm")
    assert three.origin == str(tmp_path / "mine.safetensors")
    assert three.statistics_source != "from the catalogue"
    assert three.resampling is None


@pytest.mark.parametrize(
    ("pool", "is_usable"), [("token", True), ("", True), ("max", False), ("avgmax", False)]
)
def test_a_head_for_another_pooling_cannot_be_used(
    tmp_path: Path, tiny_config: ViTConfig, pool: str, is_usable: bool
) -> None:
    facts = {"model_args": {"num_heads": 2}, "global_pool": pool}

    found = opened(tmp_path, tiny_config, facts)

    assert found.unusable_head == ("" if is_usable else f"the head expects timm's {pool} pooling")
