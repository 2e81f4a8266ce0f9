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
from vitft.models.pretrained.load import load_backbone, load_pretrained
from vitft.models.pretrained.read import read_weights
from vitft.models.pretrained.report import inspect
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
from vitft.system.errors import UsageError, WeightsError

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
    assert "2 heads (usual for width 32) and gelu are assumed. To set them, put {" in heads
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


def test_pickles_are_refused_by_default_everywhere(tmp_path: Path, tiny_config: ViTConfig) -> None:
    path = tmp_path / "x.pth"
    torch.save(VisionTransformer(tiny_config).state_dict(), path)
    (tmp_path / "config.json").write_text(json.dumps({"model_args": {"num_heads": 2}}))

    for read in (open_pretrained, inspect, load_pretrained, read_weights):
        with pytest.raises(WeightsError, match="is a Python pickle"):
            read(path)
        assert read(path, allow_pickle=True)
    with pytest.raises(WeightsError, match="is a Python pickle"):
        load_backbone(str(path), num_classes=2)
    model, report = load_backbone(str(path), num_classes=2, allow_pickle=True)
    assert (model.config.num_classes, report.loaded) == (2, len(model.state_dict()) - 2)


def test_a_known_digest_of_the_file_is_compared(tmp_path: Path, tiny_config: ViTConfig) -> None:
    path = tmp_path / "mine.safetensors"
    weights = opened(tmp_path, tiny_config, {"model_args": {"num_heads": 2}})
    digest = weights.provenance["sha256"]

    assert open_pretrained(path, sha256=digest.upper()).provenance == weights.provenance
    for read in (open_pretrained, load_pretrained):
        with pytest.raises(WeightsError, match=r"is .*, not 00"):
            read(path, sha256="00")


def test_options_of_loading_change_the_model_and_are_reported(
    tmp_path: Path, tiny_config: ViTConfig
) -> None:
    path = tmp_path / "mine.safetensors"
    opened(tmp_path, tiny_config, {"model_args": {"num_heads": 2}})

    model, report = load_pretrained(
        path, num_classes=5, image_size=(24, 32), patch_size=8, in_channels=1, pool="mean",
        drop_path=0.25, pos_embed="jax", mean=(0.1,), std=(0.2,),
    )  # fmt: skip

    assert model.config == replace(
        tiny_config, num_classes=5, image_size=(24, 32), patch_size=(8, 8), in_channels=1,
        pool="mean", drop_path=0.25,
    )  # fmt: skip
    assert not model.training
    assert report.transform.image_size == (24, 32)
    assert (report.transform.mean, report.transform.std) == ((0.1,), (0.2,))
    assert report.statistics_source == "given by --mean and --std"
    assert report.positions == "4x4 -> 3x4, jax"
    assert report.head == "new, 5 classes, initialised to zero"
    assert (report.pre_logits, report.classes) == ("none", ())
    assert report.parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("channels", "how"),
    [(1, "averaged for one channel"), (2, "repeated for 2 channels"), (4, "repeated for 4")],
)
def test_statistics_for_other_channels_say_how_they_were_made(
    tmp_path: Path, tiny_config: ViTConfig, channels: int, how: str
) -> None:
    facts = {"model_args": {"num_heads": 2}, "mean": [0.1, 0.2, 0.6], "std": [0.3, 0.2, 0.1]}
    opened(tmp_path, tiny_config, facts)

    _, report = load_pretrained(tmp_path / "mine.safetensors", in_channels=channels)
    _, plain = load_pretrained(tmp_path / "mine.safetensors")

    mean, std = (0.1, 0.2, 0.6, 0.1)[:channels], (0.3, 0.2, 0.1, 0.3)[:channels]
    assert report.transform.mean == pytest.approx((0.3,) if channels == 1 else mean)
    assert report.transform.std == pytest.approx((0.2,) if channels == 1 else std)
    assert how in report.statistics_source
    assert plain.statistics_source == f"from {tmp_path / 'config.json'}"


def test_a_kept_head_with_another_pooling_or_of_zeros_is_noted(
    tmp_path: Path, tiny_config: ViTConfig
) -> None:
    opened(tmp_path, tiny_config, {"model_args": {"num_heads": 2}})  # a new head is zero

    _, zero = load_pretrained(tmp_path / "mine.safetensors")
    _, other = load_pretrained(tmp_path / "mine.safetensors", pool="mean")
    _, new = load_pretrained(tmp_path / "mine.safetensors", num_classes=2, pool="mean")
    _, none = load_pretrained(tmp_path / "mine.safetensors", num_classes=0, pool="mean")

    assert zero.head == "kept, 3 classes"
    assert [note.partition(";")[0] for note in zero.notes] == ["the head in the file is all zeros"]
    pooled = "the head was trained with different pooling"
    assert pooled in str(other.notes)
    assert pooled not in str(new.notes) + str(none.notes) + str(zero.notes)
    assert none.head == "none: the model returns features"


def test_random_weights_are_those_of_the_seed_and_timm_models_refuse_some_settings() -> None:
    name = "random:timm:test_resnet"
    states = [
        load_backbone(name, num_classes=2, image_size=32, seed=seed)[0].state_dict()
        for seed in (0, 0, 1)
    ]
    first = next(n for n, t in states[0].items() if t.is_floating_point() and t.ndim == 4)

    assert torch.equal(states[0][first], states[1][first])
    assert not torch.equal(states[0][first], states[2][first])
    own = [load_backbone("random:demo", num_classes=2, seed=seed)[0] for seed in (0, 0, 1)]
    a, b, c = (model.get_parameter("pos_embed") for model in own)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert not own[0].training
    refused: list[dict[str, Any]] = [{"pre_logits": "keep"}, {"pos_embed": "jax"}]
    for options in refused:
        with pytest.raises(UsageError, match="timm models do not support"):
            load_backbone("timm:test_resnet", num_classes=2, **options)


def test_a_tensor_that_the_architecture_lacks_is_refused(
    tmp_path: Path, tiny_config: ViTConfig
) -> None:
    state = VisionTransformer(tiny_config).state_dict()
    save_file({**state, "head_dist.bias": torch.zeros(3)}, tmp_path / "x.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_args": {"num_heads": 2}}))

    with pytest.raises(WeightsError, match=r"unexpected: head_dist\.bias"):
        open_pretrained(tmp_path / "x.safetensors")
