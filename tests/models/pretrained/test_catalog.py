"""The catalogue: every entry agrees with its publisher, and names resolve to entries."""

import functools
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
import transformers
from timm.models import get_pretrained_cfg

from vitft.data.transforms import CROP_MODES
from vitft.models.pretrained import catalog
from vitft.models.pretrained.catalog import CatalogEntry
from vitft.models.pretrained.locate import bundled_file, check_weights_name, locate
from vitft.models.pretrained.recommended import Recommendation, recommendations
from vitft.models.registry import architecture_config
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import WeightsError

PUBLISHED = [entry for entry in catalog.catalog_entries() if entry.repo]
TIMMS = [entry for entry in PUBLISHED if entry.repo.startswith("timm/")]

PARAMETERS = {
    "vit_base_patch16_224_in21k": 86_389_248,
    "vit_base_patch32_224_in21k": 88_045_824,
    "vit_large_patch16_224_in21k": 304_351_232,
    "vit_large_patch32_224_in21k": 306_560_000,
    "vit_huge_patch14_224_in21k": 632_404_480,
    "vit_tiny_patch16_224.augreg_in21k": 9_740_115,
    "vit_small_patch32_224.augreg_in21k": 30_903_507,
    "vit_small_patch16_224.augreg_in21k": 30_075_219,
    "vit_base_patch32_224.augreg_in21k": 104_252_499,
    "vit_base_patch16_224.augreg_in21k": 102_595_923,
    "vit_base_patch8_224.augreg_in21k": 102_605_139,
    "vit_large_patch16_224.augreg_in21k": 325_690_707,
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k": 5_717_416,
    "vit_tiny_patch16_384.augreg_in21k_ft_in1k": 5_790_376,
    "vit_small_patch32_224.augreg_in21k_ft_in1k": 22_878_952,
    "vit_small_patch32_384.augreg_in21k_ft_in1k": 22_915_432,
    "vit_small_patch16_224.augreg_in21k_ft_in1k": 22_050_664,
    "vit_small_patch16_384.augreg_in21k_ft_in1k": 22_196_584,
    "vit_base_patch32_224.augreg_in21k_ft_in1k": 88_224_232,
    "vit_base_patch32_384.augreg_in21k_ft_in1k": 88_297_192,
    "vit_base_patch16_224.augreg_in21k_ft_in1k": 86_567_656,
    "vit_base_patch16_384.augreg_in21k_ft_in1k": 86_859_496,
    "vit_base_patch8_224.augreg_in21k_ft_in1k": 86_576_872,
    "vit_large_patch16_224.augreg_in21k_ft_in1k": 304_326_632,
    "vit_large_patch16_384.augreg_in21k_ft_in1k": 304_715_752,
    "vit_base_patch16_224.augreg2_in21k_ft_in1k": 86_567_656,
    "vit_base_patch8_224.augreg2_in21k_ft_in1k": 86_576_872,
    "vit_base_patch32_224.orig_in21k": 87_455_232,
    "vit_base_patch16_224.orig_in21k": 85_798_656,
    "vit_large_patch32_224.orig_in21k": 305_510_400,
    "vit_large_patch16_224.orig_in21k": 303_301_632,
    "vit_huge_patch14_224.orig_in21k": 630_764_800,
    "vit_base_patch16_224.orig_in21k_ft_in1k": 86_567_656,
    "vit_base_patch16_384.orig_in21k_ft_in1k": 86_859_496,
    "vit_large_patch32_384.orig_in21k_ft_in1k": 306_632_680,
    "vit_base_patch16_224.augreg_in1k": 86_567_656,
    "vit_base_patch16_384.augreg_in1k": 86_859_496,
    "vit_base_patch32_224.augreg_in1k": 88_224_232,
    "vit_base_patch32_384.augreg_in1k": 88_297_192,
    "vit_small_patch16_224.augreg_in1k": 22_050_664,
    "vit_small_patch16_384.augreg_in1k": 22_196_584,
    "vit_base_patch16_224.sam_in1k": 86_567_656,
    "vit_base_patch32_224.sam_in1k": 88_224_232,
    "vit_base_patch8_224.dino": 85_807_872,
    "vit_base_patch16_224.dino": 85_798_656,
    "vit_small_patch8_224.dino": 21_670_272,
    "vit_small_patch16_224.dino": 21_665_664,
    "deit_base_distilled_patch16_224.fb_in1k": 87_338_192,
    "deit_base_distilled_patch16_384.fb_in1k": 87_630_032,
    "deit_base_patch16_224.fb_in1k": 86_567_656,
    "deit_base_patch16_384.fb_in1k": 86_859_496,
    "deit_small_distilled_patch16_224.fb_in1k": 22_436_432,
    "deit_small_patch16_224.fb_in1k": 22_050_664,
    "deit_tiny_distilled_patch16_224.fb_in1k": 5_910_800,
    "deit_tiny_patch16_224.fb_in1k": 5_717_416,
    "deit3_base_patch16_224.fb_in1k": 86_585_320,
    "deit3_base_patch16_224.fb_in22k_ft_in1k": 86_585_320,
    "deit3_base_patch16_384.fb_in1k": 86_877_160,
    "deit3_base_patch16_384.fb_in22k_ft_in1k": 86_877_160,
    "deit3_huge_patch14_224.fb_in1k": 632_126_440,
    "deit3_huge_patch14_224.fb_in22k_ft_in1k": 632_126_440,
    "deit3_large_patch16_224.fb_in1k": 304_374_760,
    "deit3_large_patch16_224.fb_in22k_ft_in1k": 304_374_760,
    "deit3_large_patch16_384.fb_in1k": 304_763_880,
    "deit3_large_patch16_384.fb_in22k_ft_in1k": 304_763_880,
    "deit3_small_patch16_224.fb_in1k": 22_059_496,
    "deit3_small_patch16_224.fb_in22k_ft_in1k": 22_059_496,
    "deit3_small_patch16_384.fb_in1k": 22_205_416,
    "deit3_small_patch16_384.fb_in22k_ft_in1k": 22_205_416,
    "vit_base_patch14_dinov2.lvd142m": 86_579_712,
    "vit_base_patch14_reg4_dinov2.lvd142m": 86_582_016,
    "vit_large_patch14_dinov2.lvd142m": 304_367_616,
    "vit_large_patch14_reg4_dinov2.lvd142m": 304_370_688,
    "vit_small_patch14_dinov2.lvd142m": 22_056_192,
    "vit_small_patch14_reg4_dinov2.lvd142m": 22_057_344,
    "vit_base_patch16_224_miil.in21k": 94_399_957,
    "vit_base_patch16_224_miil.in21k_ft_in1k": 86_540_008,
    "vit_base_r50_s16_224.orig_in21k": 97_890_112,
    "vit_base_r50_s16_384.orig_in21k_ft_in1k": 98_950_952,
    "vit_large_r50_s32_224.augreg_in21k": 350_358_931,
    "vit_large_r50_s32_224.augreg_in21k_ft_in1k": 328_994_856,
    "vit_large_r50_s32_384.augreg_in21k_ft_in1k": 329_092_136,
    "vit_small_r26_s32_224.augreg_in21k": 44_456_467,
    "vit_small_r26_s32_224.augreg_in21k_ft_in1k": 36_431_912,
    "vit_small_r26_s32_384.augreg_in21k_ft_in1k": 36_468_392,
    "vit_tiny_r_s16_p8_224.augreg_in21k": 10_360_403,
    "vit_tiny_r_s16_p8_224.augreg_in21k_ft_in1k": 6_337_704,
    "vit_tiny_r_s16_p8_384.augreg_in21k_ft_in1k": 6_355_944,
    "vit_base_patch16_224.mae": 85_798_656,
    "vit_large_patch16_224.mae": 303_301_632,
    "vit_huge_patch14_224.mae": 630_764_800,
    "flexivit_base.300ep_in1k": 86_589_160,
    "flexivit_base.300ep_in21k": 102_617_427,
    "flexivit_base.600ep_in1k": 86_589_160,
    "flexivit_base.1000ep_in21k": 102_617_427,
    "flexivit_base.1200ep_in1k": 86_589_160,
    "flexivit_base.patch16_in21k": 102_617_427,
    "flexivit_base.patch30_in21k": 102_617_427,
    "flexivit_large.300ep_in1k": 304_355_304,
    "flexivit_large.600ep_in1k": 304_355_304,
    "flexivit_large.1200ep_in1k": 304_355_304,
    "flexivit_small.300ep_in1k": 22_061_416,
    "flexivit_small.600ep_in1k": 22_061_416,
    "flexivit_small.1200ep_in1k": 22_061_416,
    "eva_giant_patch14_224.clip_ft_in1k": 1_012_555_112,
    "eva_giant_patch14_336.clip_ft_in1k": 1_013_005_672,
    "eva_giant_patch14_336.m30m_ft_in22k_in1k": 1_013_005_672,
    "eva_giant_patch14_560.m30m_ft_in22k_in1k": 1_014_447_464,
    "eva_giant_patch14_clip_224.laion400m": 1_012_588_928,
    "eva_giant_patch14_clip_224.merged2b": 1_012_588_928,
    "eva_large_patch14_196.in22k_ft_in1k": 304_142_312,
    "eva_large_patch14_196.in22k_ft_in22k_in1k": 304_142_312,
    "eva_large_patch14_336.in22k_ft_in1k": 304_531_432,
    "eva_large_patch14_336.in22k_ft_in22k_in1k": 304_531_432,
    "vit_base_patch14_reg1_tipsv2.webli": 86_314_752,
    "vit_large_patch14_reg1_tipsv2.webli": 304_014_336,
    "vit_so400m_patch14_reg1_tipsv2.webli": 413_391_600,
    "vit_giant_patch14_dinov2.lvd142m": 1_136_479_232,
    "vit_giant_patch14_reg4_dinov2.lvd142m": 1_136_483_840,
    "vit_7b_patch16_dinov3.lvd1689m": 6_716_030_976,
    "vit_base_patch16_dinov3.lvd1689m": 85_641_216,
    "vit_huge_plus_patch16_dinov3.lvd1689m": 840_509_440,
    "vit_large_patch16_dinov3.lvd1689m": 303_079_424,
    "vit_small_patch16_dinov3.lvd1689m": 21_586_944,
    "vit_small_plus_patch16_dinov3.lvd1689m": 28_683_264,
    "vit_base_patch16_siglip_224.v2_webli": 92_884_224,
    "vit_base_patch16_siglip_256.v2_webli": 92_930_304,
    "vit_base_patch16_siglip_384.v2_webli": 93_176_064,
    "vit_base_patch16_siglip_512.v2_webli": 93_520_128,
    "vit_base_patch32_siglip_256.v2_webli": 94_552_320,
    "vit_giantopt_patch16_siglip_256.v2_webli": 1_163_168_256,
    "vit_giantopt_patch16_siglip_384.v2_webli": 1_163_659_776,
    "vit_large_patch16_siglip_256.v2_webli": 315_956_224,
    "vit_large_patch16_siglip_384.v2_webli": 316_283_904,
    "vit_large_patch16_siglip_512.v2_webli": 316_742_656,
    "vit_so400m_patch14_siglip_224.v2_webli": 427_680_704,
    "vit_so400m_patch14_siglip_378.v2_webli": 428_225_600,
    "vit_so400m_patch16_siglip_256.v2_webli": 427_888_064,
    "vit_so400m_patch16_siglip_384.v2_webli": 428_256_704,
    "vit_so400m_patch16_siglip_512.v2_webli": 428_772_800,
    "vit_pe_core_base_patch16_224.fb": 93_673_984,
    "vit_pe_core_large_patch14_336.fb": 317_152_256,
    "vit_pe_core_small_patch16_384.fb": 23_783_168,
    "vit_pe_core_tiny_patch16_384.fb": 6_141_056,
}
"""Parameters of each file, counted with timm 1.0.31 or transformers 5.23."""


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
        config = architecture_config(catalog.find_entry(name).architecture)
        fields = {
            "hidden_size": config.width,
            "num_hidden_layers": config.depth,
            "num_attention_heads": config.heads,
            "intermediate_size": 4 * config.width,
            "patch_size": config.patch_size[0],
        }
        model = transformers.ViTModel(transformers.ViTConfig(**fields))
        return sum(p.numel() for p in model.parameters())


def test_every_row_has_a_parameter_count_and_every_count_a_row() -> None:
    assert {entry.name for entry in PUBLISHED} == PARAMETERS.keys()


@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: entry.name)
def test_a_row_has_as_many_parameters_as_its_publishers_model(entry: CatalogEntry) -> None:
    with torch.device("meta"):
        ours = VisionTransformer(config_for(entry))

    split = ours.config.depth * ours.config.width if entry.name.startswith("eva_giant") else 0
    assert sum(p.numel() for p in ours.parameters()) - split == PARAMETERS[entry.name]  # key biases
    assert count_theirs(entry.name, entry.repo) == PARAMETERS[entry.name]


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
    assert entry.fit == CROP_MODES.get(theirs.crop_mode, "crop")


@pytest.mark.parametrize("entry", TIMMS, ids=lambda entry: entry.name)
def test_a_short_name_means_what_timm_means_by_it(entry: CatalogEntry) -> None:
    short, _, tag = entry.name.partition(".")
    default = get_pretrained_cfg(short)

    is_default = default is not None and default.tag == tag
    assert (short in entry.aliases) == is_default
    assert catalog.find_entry(entry.repo) is entry


@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: entry.name)
def test_a_row_names_an_architecture_that_can_be_built(entry: CatalogEntry) -> None:
    assert config_for(entry).image_size == entry.image_size
    assert entry.licence
    assert entry.data
    assert entry.file == "model.safetensors"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("vit_base_patch16_rpn_224.sw_in1k", "an unsupported kind of block"),
        ("timm/vit_small_patch16_rope_mixed_224.naver_in1k", "rotary position embeddings"),
        ("swin_tiny_patch4_window7_224", "swin_transformer in timm"),
    ],
)
def test_a_tower_that_is_not_a_plain_vit_is_refused_with_the_reason(name: str, reason: str) -> None:
    known = name.removeprefix("timm/")
    with pytest.raises(WeightsError, match=f"does not support {known}: .*{reason}") as caught:
        check_weights_name(name)

    assert f"use timm:{known} " in caught.value.fix


def test_a_name_of_timm_that_is_not_in_the_catalogue_gets_timms_facts() -> None:
    entry = catalog.find_entry("vit_base_patch16_224.bamboo")

    assert (entry.name, entry.architecture) == (entry.repo[5:], "vit_base_patch16_224")
    assert (entry.crop, entry.num_classes, entry.licence) == (1.0, 115_217, "not stated")
    assert not entry.is_timm


@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: entry.name)
def test_a_noncommercial_licence_is_stated_in_the_note(
    entry: CatalogEntry,
) -> None:
    assert ("-nc" in entry.licence) == ("commercial use" in entry.note)


@pytest.mark.parametrize(
    ("name", "repo", "revision"),
    [
        ("hf:google/vit-base-patch16-224", "google/vit-base-patch16-224", "main"),
        ("hf:a/b@v1.0", "a/b", "v1.0"),
        ("hf:a/b@refs/pr/3", "a/b", "refs/pr/3"),
    ],
)
def test_any_repository_of_the_hub_has_a_name(name: str, repo: str, revision: str) -> None:
    found = locate(name)

    assert isinstance(found, CatalogEntry)
    assert (found.repo, found.revision, found.is_hub_repository) == (repo, revision, True)


@pytest.mark.parametrize("name", ["hf:", "hf:a", "hf:a/b/c", "hf:../b", "hf:a/b@", "hf:a/b@../x"])
def test_an_invalid_repository_name_is_refused_without_a_network(name: str) -> None:
    with pytest.raises(WeightsError, match=r"invalid hub name"):
        check_weights_name(name)


def test_the_headline_name_is_the_original_checkpoint_and_says_so() -> None:
    entry = catalog.find_entry("vit_base_patch16_224_in21k")

    assert entry.repo == "google/vit-base-patch16-224-in21k"
    assert entry.pre_logits
    assert "ORIGINAL" in entry.note
    assert "vit_base_patch16_224.augreg_in21k" in entry.note
    assert any("ORIGINAL" in line for line in entry.lines())


def test_the_error_for_an_unknown_name_lists_the_five_nearest() -> None:
    with pytest.raises(WeightsError) as caught:
        check_weights_name("vit_base_patch16_224_in22k")

    assert "vit_base_patch16_224_in21k" in caught.value.fix
    assert caught.value.fix.count("vit_") == 5


def test_the_name_of_a_repository_on_the_hub_is_answered_with_its_prefix() -> None:
    with pytest.raises(WeightsError) as caught:
        check_weights_name("google/vit-base-patch16-224")

    assert "for a repository on the hub, use hf:google/vit-base-patch16-224;" in caught.value.fix


def test_names_are_checked_without_torch_and_without_the_hub_client() -> None:
    code = (
        "import sys; from vitft.models.pretrained.locate import check_weights_name as check;"
        "check('vit_base_patch16_224_in21k'); print({'torch', 'huggingface_hub'} & {*sys.modules})"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"


def test_missing_bundled_weights_matter_only_when_requested() -> None:
    absent = CatalogEntry(name="gone", licence="apache-2.0", path="gone.safetensors")

    with pytest.raises(WeightsError, match=r"missing from this installation.*gone\.safetensors"):
        bundled_file(absent)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("missing.safetensors", "weights not found", id="missing file"),
        pytest.param("./vit_base", "weights not found", id="missing path"),
        pytest.param("model.onnx", "weights not found", id="missing file of another kind"),
        pytest.param("notes.txt", "the suffix .txt", id="wrong suffix"),
        pytest.param("bare", "no suffix", id="no suffix"),
        pytest.param("empty", "contains no weight file", id="folder"),
        pytest.param("model.pth", "is a Python pickle", id="pickle"),
        pytest.param("  ", "is empty", id="no name"),
    ],
)
def test_a_wrong_path_is_refused_early(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    for present in ("notes.txt", "bare", "model.pth"):
        Path(present).write_bytes(b"")

    with pytest.raises(WeightsError, match=message):
        check_weights_name(name, allow_pickle=False)


def test_a_folder_with_weights_in_it_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()

    check_weights_name(tmp_path)
    check_weights_name(str(tmp_path))


def test_an_entry_is_described_fact_by_fact() -> None:
    entry = CatalogEntry(
        name="vit", licence="cc-by-nc-4.0", architecture="vit_base_patch16_224",
        options={"pool": "mean"}, data="in1k", repo="a/b", file="c", gated_source="d/e",
        num_classes=5, pre_logits=True, aliases=("x", "y"), note="n", was="w.npz",
    )  # fmt: skip

    assert entry.lines() == [
        "name:       vit",
        "aliases:    x, y",
        "source:     a/b/c (main)",
        "gated:      d/e has the same weights and requires an account; the source above does not",
        "model:      vit_base_patch16_224 pool=mean",
        "trained on: in1k",
        "licence:    cc-by-nc-4.0 (non-commercial)",
        "head:       5 classes",
        "pre_logits: yes",
        "pixels:     224x224, bicubic, crop 0.9, mean (0.5, 0.5, 0.5), std (0.5, 0.5, 0.5)",
        "sha256:     as published on the hub",
        "formerly:   w.npz",
        "note:       n",
    ]
    plain = CatalogEntry(name="vit", licence="mit", repo="a/b", file="c", sha256="12").lines()
    shown = [line for line in plain if line.startswith(("head", "pre_logits", "sha256", "gated"))]
    assert shown == ["head:       none in the file", "pre_logits: no", "sha256:     12"]
    bundled = CatalogEntry(name="demo", licence="mit", path="demo.safetensors").lines()
    assert [line.split(":")[0] for line in bundled] == ["name", "source", "licence"]


def test_names_tell_what_kind_of_entry_it_is() -> None:
    hub, timm_model, plain = (
        CatalogEntry(name=name, licence="mit") for name in ("hf:a/b", "timm:x", "vit")
    )

    assert [(e.is_hub_repository, e.is_timm) for e in (hub, timm_model, plain)] == [
        (True, False), (False, True), (False, False),
    ]  # fmt: skip
    assert replace(plain, architecture="vit_huge_patch14_224").size == "huge"
    assert plain.size == ""


@pytest.mark.parametrize(
    ("licence", "wanted", "matches"),
    [
        ("mit", "open", True), ("cc-by-nc-4.0", "open", False), ("dinov3-license", "open", False),
        ("mit", "commercial", True), ("cc-by-nc-4.0", "commercial", False),
        ("dinov3-license", "commercial", True), ("unknown", "commercial", False),
        ("MIT", "mit", True), ("mit", "apache-2.0", False),
    ],
)  # fmt: skip
def test_licences_are_matched_by_name_or_terms(licence: str, wanted: str, matches: bool) -> None:
    assert catalog.has_licence(CatalogEntry(name="x", licence=licence), wanted) == matches


def test_entries_are_selected_by_all_filters() -> None:
    every = catalog.select_entries()
    large = catalog.select_entries(size="large", licence="OPEN", data="IMAGENET-21K")

    assert every == [*catalog.catalog_entries()]
    assert large
    assert large == [
        entry
        for entry in every
        if entry.size == "large"
        and catalog.has_licence(entry, "open")
        and "imagenet-21k" in entry.data
    ]
    assert len(large) < len(catalog.select_entries(size="large"))


def test_the_catalogue_is_read_from_its_file_in_its_order() -> None:
    path = Path(__file__).parents[3] / "weights" / "catalog.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))

    assert catalog.read_catalog.__wrapped__() == table
    entries = catalog.catalog_entries.__wrapped__()
    assert [entry.name for entry in entries] == [row["name"] for row in table["weights"]]
    for entry, row in zip(entries, table["weights"], strict=True):
        fields = {**table["family"][row["family"]], **row}
        assert (entry.licence, entry.repo) == (fields["licence"], fields.get("repo", ""))
    assert recommendations.__wrapped__() == tuple(
        Recommendation(**row) for row in table["recommended"]
    )


def test_every_name_and_alias_is_that_of_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    first = CatalogEntry(name="a", licence="mit", aliases=("b", "timm/a"))
    second = CatalogEntry(name="c", licence="mit")
    monkeypatch.setattr(catalog, "catalog_entries", lambda: (first, second))

    assert catalog.entries_by_name.__wrapped__() == {
        "a": first, "b": first, "timm/a": first, "c": second,
    }  # fmt: skip
    monkeypatch.setattr(catalog, "catalog_entries", lambda: (first, replace(second, name="b")))
    with pytest.raises(AssertionError, match=r"catalog\.toml lists b more than once"):
        catalog.entries_by_name.__wrapped__()


def test_an_entry_inherits_the_fields_of_its_family_and_may_override_them() -> None:
    family = {
        "licence": "mit", "data": "x", "num_classes": 5, "options": {"pool": "mean", "norm": "pre"}
    }  # fmt: skip
    row = {
        "name": "a", "family": "f", "num_classes": 7, "options": {"norm": "post"},
        "repo": "timm/a.x", "aliases": ["b"], "image_size": [8, 16],
    }  # fmt: skip

    entry = catalog.parse_entry(row, family)

    assert (entry.licence, entry.data, entry.num_classes) == ("mit", "x", 7)
    assert entry.options == {"pool": "mean", "norm": "post"}
    assert (entry.aliases, entry.image_size) == (("b", "timm/a.x"), (8, 16))
    other = catalog.parse_entry({**row, "repo": "google/timm/a"}, family)
    assert other.aliases == ("b",)
    assert row["aliases"] == ["b"]  # what came in is left untouched
    assert "family" in row
