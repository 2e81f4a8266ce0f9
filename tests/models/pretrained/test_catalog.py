"""The catalogue: every entry agrees with its publisher, and names resolve to entries."""

import functools
import re
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
import transformers
from timm.models import get_pretrained_cfg

from vitft import load_pretrained
from vitft.data import EvalTransform
from vitft.models import (
    Card,
    CatalogEntry,
    Provenance,
    VisionTransformer,
    ViTConfig,
    architecture_config,
    catalog_entries,
    find_entry,
    save_checkpoint,
)

PUBLISHED = [entry for entry in catalog_entries() if entry.repo]
TIMMS = [entry for entry in PUBLISHED if entry.repo.startswith("timm/")]


def config_for(entry: CatalogEntry) -> ViTConfig:
    return replace(
        architecture_config(entry.architecture),
        num_classes=entry.num_classes,
        pre_logits=entry.pre_logits,
        **entry.options,
    )


@functools.cache
def count_theirs(name: str, repo: str) -> int:
    """Count the parameters of the library's model on the meta device."""
    with torch.device("meta"):
        if repo.startswith("timm/"):
            return sum(p.numel() for p in timm.create_model(name).parameters())
        config = architecture_config(find_entry(name).architecture)
        fields = {
            "hidden_size": config.width,
            "num_hidden_layers": config.depth,
            "num_attention_heads": config.heads,
            "intermediate_size": 4 * config.width,
            "patch_size": config.patch_size[0],
        }
        model = transformers.ViTModel(transformers.ViTConfig(**fields))
        return sum(p.numel() for p in model.parameters())


@pytest.mark.long
@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: entry.name)
def test_a_row_has_as_many_parameters_as_its_publishers_model(entry: CatalogEntry) -> None:
    with torch.device("meta"):
        ours = VisionTransformer(config_for(entry))

    split = ours.config.depth * ours.config.width if entry.name.startswith("eva_giant") else 0
    count = sum(p.numel() for p in ours.parameters()) - split  # key biases
    assert count == count_theirs(entry.name, entry.repo)


def test_no_plain_vit_or_hybrid_that_timm_publishes_in_these_families_is_missing() -> None:
    families = {entry.name.partition(".")[2] for entry in TIMMS}
    plain = re.compile(
        r"(vit|deit|deit3)_(tiny|small|base|large|huge|so400m)(_distilled)?"
        r"_(patch\d+(_reg\d)?|r\d*_s\d+(_p8)?)_(\d+(_miil)?|dinov2|tipsv2)\."
        r"|flexivit_(small|base|large)\.|eva_(giant|large)_patch14_(clip_)?\d+\."
        r"|vit_giant_patch14(_reg4)?_dinov2\.|vit_\w+_siglip_\d+\.v2_webli$"
        r"|vit_(small|small_plus|base|large|huge_plus|7b)_patch16_dinov3\."
        r"|vit_pe_core_(tiny|small|base|large)_patch\d+_\d+\."
    )

    published = {
        name
        for name in timm.list_pretrained(["vit_*", "deit*", "flexivit_*", "eva_*"])
        if name.partition(".")[2] in families and plain.match(name)
    }

    assert {entry.name for entry in TIMMS} == published


@pytest.mark.parametrize("entry", TIMMS, ids=lambda entry: entry.name)
def test_a_row_agrees_with_timms_configuration(entry: CatalogEntry) -> None:
    theirs = get_pretrained_cfg(entry.name)

    assert theirs is not None
    assert entry.repo == theirs.hf_hub_id
    assert entry.image_size == theirs.input_size[1:]
    assert (entry.mean, entry.std) == (theirs.mean, theirs.std)
    assert (entry.crop, entry.interpolation) == (theirs.crop_pct, theirs.interpolation)
    assert (entry.num_classes, entry.licence) == (theirs.num_classes, theirs.license)
    assert entry.fit == {"squash": "squash", "border": "pad"}.get(theirs.crop_mode, "crop")


@pytest.mark.parametrize("entry", TIMMS, ids=lambda entry: entry.name)
def test_a_short_name_means_what_timm_means_by_it(entry: CatalogEntry) -> None:
    short, _, tag = entry.name.partition(".")
    default = get_pretrained_cfg(short)

    is_default = default is not None and default.tag == tag
    assert (short in entry.aliases) == is_default
    assert find_entry(entry.repo) is entry


@pytest.mark.parametrize("licence", ["cc-by-nc-4.0", "dinov3-license"])
def test_a_licence_travels_through_two_fine_tunings(
    licence: str, tmp_path: Path, tiny_vit: VisionTransformer
) -> None:
    origin: Provenance = {"name": "timm:base", "licence": licence}
    for name in ("run", "run-2"):
        card = Card(
            architecture=tiny_vit.config,
            transform=EvalTransform(image_size=tiny_vit.config.image_size),
            weights=origin,
        )
        save_checkpoint(tmp_path / f"{name}.safetensors", tiny_vit.state_dict(), card)
        _, report = load_pretrained(tmp_path / f"{name}.safetensors")
        origin = report.provenance

    assert (origin["licence"], origin["from"]) == (licence, "timm:base")


@pytest.mark.parametrize(
    ("images", "gmacs", "speed", "seconds"),
    [
        (6_000, 3.0, 100.0, 300),
        (6_000, 1.0, 100.0, 100),
        (1, 0.6, 1.0, 1),
        (1, 0.6, 3000.0, 1 / 3e3),
    ],
)
def test_a_model_runs_at_60_percent_of_the_speed_of_a_product(
    images: int, gmacs: float, speed: float, seconds: float
) -> None:
    weights = CatalogEntry(name="any", licence="", gmacs=gmacs)

    assert weights.seconds(images, speed) == pytest.approx(seconds)
